"""Clients that change and read a few mutable chunks at random, and record what they saw, for the checker of histories.

Every write's bytes are its own, so that a read tells whose it saw. One client has one operation under way; several
meet on each chunk.
"""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

from esker.client.mutable import (
    Change,
    ChangeResult,
    ChunkClient,
    ChunkRead,
    ChunkReadResult,
    ChunkRemove,
    ChunkTruncate,
    ChunkWrite,
)
from esker.wire.status import Status

from ..linearizability import Action, History, Operation, Outcome, Read, Remove, Truncate, Write
from ..waiting import until

CHUNK_BYTES = 4096
CONTENT_BYTES = 48
"""Small, so that writes overlap often."""
PAUSE_S = 0.005

_OUTCOMES = {
    Status.OK: Outcome.OK,
    Status.CONDITION: Outcome.STALE,
    Status.NOT_FOUND: Outcome.ABSENT,
    Status.TIMEOUT: Outcome.UNKNOWN,
}


class Actors:
    """Clients at work on chunks 0 to `chunks` - 1 of the seed's own object, which lie on as many chains."""

    def __init__(self, clients: list[ChunkClient], chunks: int, seed: int) -> None:
        self._clients = clients
        self._chunks = chunks
        self._seed = seed
        self.object_id = seed.to_bytes(16, "big")
        self._loop = asyncio.get_running_loop()
        self._history = History(self._loop.time)
        self._truncate_version = 0
        self._tasks: list[asyncio.Task[None]] = []
        self._stopping = False
        self.ended: Counter[str] = Counter()
        """How many operations ended how."""

    @property
    def operations(self) -> list[Operation]:
        """What was seen up to now."""
        return self._history.operations

    def start(self) -> None:
        """Begins."""
        self._tasks = [
            self._loop.create_task(self._act(client, f"client {number}", random.Random(f"{self._seed} {number}")))
            for number, client in enumerate(self._clients)
        ]

    async def stop(self) -> None:
        """Ends once what is under way has ended, and reads every chunk as a whole, so that what was lost is seen."""
        self._stopping = True
        await asyncio.gather(*self._tasks)
        for chunk in range(self._chunks):
            await self._read(self._clients[0], chunk, 0, CONTENT_BYTES * 2, "the end")

    async def writes_flow(self) -> None:
        """Waits until every chunk was changed by an operation that was called from now on."""
        since = self._loop.time()

        def flowing() -> bool:
            changed = {
                each.key
                for each in self.operations
                if each.outcome is Outcome.OK and not isinstance(each.action, Read) and each.called >= since
            }
            return len(changed) == self._chunks

        await until(flowing, "every chunk is changed again")

    async def _act(self, client: ChunkClient, name: str, random_: random.Random) -> None:
        number = 0
        while not self._stopping:
            number += 1
            chunk, kind = random_.randrange(self._chunks), random_.random()
            offset = random_.randrange(CONTENT_BYTES - 8)
            length = random_.randrange(1, 9)
            if kind < 0.5:
                await self._read(client, chunk, offset, length, name)
            elif kind < 0.86:
                data = f"{name[-1]}{number:x}".encode().ljust(length, b".")[:8]
                change = ChunkWrite(self.object_id, chunk, offset, data, CHUNK_BYTES, self._truncate_version)
                await self._change(client, chunk, change, Write(offset, data, self._truncate_version), name)
            elif kind < 0.94:
                self._truncate_version += random_.randrange(2)
                version = self._truncate_version
                truncation = ChunkTruncate(self.object_id, chunk, offset, version, CHUNK_BYTES)
                await self._change(client, chunk, truncation, Truncate(offset, version), name)
            else:
                await self._change(client, chunk, ChunkRemove(self.object_id, chunk, CHUNK_BYTES), Remove(), name)
            await asyncio.sleep(PAUSE_S)

    async def _change(self, client: ChunkClient, chunk: int, change: Change, action: Action, name: str) -> None:
        called = self._history.call()
        result: ChangeResult = (await client.write([change]))[0]
        self.ended[f"{type(action).__name__} {result.status.name}"] += 1
        outcome = _OUTCOMES.get(result.status)
        if outcome is not None:
            self._history.ended(chunk, action, called, outcome, name)

    async def _read(self, client: ChunkClient, chunk: int, offset: int, length: int, name: str) -> None:
        called = self._history.call()
        result: ChunkReadResult = (await client.read([ChunkRead(self.object_id, chunk, offset, length)]))[0]
        self.ended[f"Read {result.status.name}"] += 1
        if result.status is Status.OK:
            self._history.ended(chunk, Read(offset, length, bytes(result.data)), called, by=name)
        elif result.status is Status.NOT_FOUND:
            self._history.ended(chunk, Read(offset, length, None), called, by=name)


@asynccontextmanager
async def acting(
    address: str, *, clients: int, chunks: int, seed: int, transports: Sequence[str] = ("tcp", "local")
) -> AsyncIterator[Actors]:
    """Within it clients are at work, over each of the transports in turn; after it the history is whole."""
    async with AsyncExitStack() as stack:
        connected = [
            await stack.enter_async_context(
                await ChunkClient.connect(address, transport=transports[number % len(transports)])
            )
            for number in range(clients)
        ]
        actors = Actors(connected, chunks, seed)
        actors.start()
        try:
            yield actors
        finally:
            await actors.stop()
