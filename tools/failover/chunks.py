"""The load on mutable chunks during failovers: on every chain one chunk, written and read without pause.

Each chunk has one writer, whose values grow, so that every answer can be judged at once: a read must see the last
value that was acknowledged before it was asked for, or a later one. Values whose write got no answer may show up at
any time after. Owns the loops and what they counted; must not know who is killed when.
"""

import asyncio
import secrets
import struct
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from esker.client.mutable import ChunkClient, ChunkRead, ChunkRemove, ChunkWrite
from esker.tools.bench.gap import Gap
from esker.wire.limits import KIB, OBJECT_BYTES
from esker.wire.status import Status

PATCH_BYTES = 4 * KIB
CHUNK_BYTES = 64 * KIB
PAUSE_S = 0.005
"""Between two operations of a loop: what a gap can be told to, and time for everything else."""
_STAMP = struct.Struct("<Q")


@dataclass(slots=True)
class ChunkCounts:
    """What happened since it was asked for last."""

    writes: int = 0
    write_gap_s: float = 0.0
    """The longest time in which no write of some chain ended well."""
    writes_failed: int = 0
    writes_unknown: int = 0
    reads: int = 0
    read_gap_s: float = 0.0
    reads_failed: int = 0
    wrong_reads: int = 0
    """Reads that saw less than had been acknowledged before, or what nobody wrote."""


class _Chunk:
    """One chain's chunk."""

    def __init__(self, chunk: tuple[bytes, int], now_s: float) -> None:
        self.name = chunk
        self.issued = 0
        self.acked = 0
        self.unknown: set[int] = set()
        self.write_gap = Gap(now_s)
        self.read_gap = Gap(now_s)

    def may_be(self, value: int, acked: int) -> bool:
        """Whether a read that began after `acked` was acknowledged may see this."""
        return acked <= value <= self.issued or value in self.unknown


class ChunkLoad:
    """Loops over one chunk per chain. They run between `start` and `stop`."""

    def __init__(self, client: ChunkClient, chains: int, timeout_s: float) -> None:
        self._client = client
        self._timeout_s = timeout_s
        self._loop = asyncio.get_running_loop()
        now_s = self._loop.time()
        object_id = secrets.token_bytes(OBJECT_BYTES)
        # Consecutive chunks of an object lie on consecutive chains.
        self._chunks = [_Chunk((object_id, index), now_s) for index in range(chains)]
        self._counts: Counter[str] = Counter()
        self._tasks: list[asyncio.Task[None]] = []
        self._stopping = False

    def start(self) -> None:
        """Begins."""
        for chunk in self._chunks:
            self._tasks.append(self._loop.create_task(self._write(chunk)))
            self._tasks.append(self._loop.create_task(self._read(chunk)))

    async def stop(self) -> None:
        """Ends, once what is under way has ended; raises what ended a loop before."""
        self._stopping = True
        await asyncio.gather(*self._tasks)

    def check(self) -> None:
        """Raises what ended a loop."""
        for task in self._tasks:
            if task.done():
                task.result()

    def forget(self) -> None:
        """Counting begins anew."""
        self._counts.clear()
        for chunk in self._chunks:
            chunk.write_gap.forget()
            chunk.read_gap.forget()

    def counts(self) -> ChunkCounts:
        """Since `forget`."""
        now_s = self._loop.time()
        return ChunkCounts(
            **self._counts,
            write_gap_s=max(chunk.write_gap.longest_s(now_s) for chunk in self._chunks),
            read_gap_s=max(chunk.read_gap.longest_s(now_s) for chunk in self._chunks),
        )

    async def flows(self, timeout_s: float) -> bool:
        """Waits until every chain acknowledged a write that was begun from now on; False if `timeout_s` passed."""
        wanted = [(chunk, chunk.issued + 1) for chunk in self._chunks]
        try:
            async with asyncio.timeout(timeout_s):
                while not all(chunk.acked >= value for chunk, value in wanted):
                    self.check()
                    await asyncio.sleep(PAUSE_S)
        except TimeoutError:
            return False
        return True

    async def lost(self) -> int:
        """How many chunks do not hold what was acknowledged last, or a later value; ask only when all serve."""
        missing = 0
        for chunk in self._chunks:
            acked = chunk.acked
            value, status = await self._value(chunk)
            missing += status is not Status.OK or not chunk.may_be(value, acked)
        return missing

    async def remove(self) -> None:
        """Removes all chunks."""
        await self._client.write([ChunkRemove(*chunk.name) for chunk in self._chunks])

    async def _write(self, chunk: _Chunk) -> None:
        while not self._stopping:
            chunk.issued += 1
            value = chunk.issued
            data = _STAMP.pack(value) * (PATCH_BYTES // _STAMP.size)
            change = ChunkWrite(*chunk.name, 0, data, CHUNK_BYTES)
            (result,) = await self._client.write([change], timeout_s=self._timeout_s)
            if result.status is Status.OK:
                chunk.acked = value
                chunk.write_gap.success(self._loop.time())
                self._counts["writes"] += 1
            else:
                chunk.unknown.add(value)
                self._counts["writes_unknown" if result.status is Status.TIMEOUT else "writes_failed"] += 1
            await asyncio.sleep(PAUSE_S)

    async def _read(self, chunk: _Chunk) -> None:
        while not self._stopping:
            acked = chunk.acked
            value, status = await self._value(chunk)
            if status is Status.NOT_FOUND and not acked:
                status = Status.OK
            if status is Status.OK:
                chunk.read_gap.success(self._loop.time())
                self._counts["reads"] += 1
                self._counts["wrong_reads"] += not chunk.may_be(value, acked)
            elif status is Status.NOT_FOUND:
                self._counts["wrong_reads"] += 1
            else:
                self._counts["reads_failed"] += 1
            await asyncio.sleep(PAUSE_S)

    async def _value(self, chunk: _Chunk) -> tuple[int, Status]:
        """What the chunk holds: -1 for anything but a whole patch."""
        read = ChunkRead(*chunk.name, 0, PATCH_BYTES)
        (result,) = await self._client.read([read], timeout_s=self._timeout_s)
        if result.status is not Status.OK:
            return 0, result.status
        return whole_value(result.data), Status.OK


def whole_value(data: Sequence[int] | memoryview) -> int:
    """The value that a patch holds, -1 where it is not the same all over."""
    content = bytes(data)
    if len(content) != PATCH_BYTES or content != content[: _STAMP.size] * (PATCH_BYTES // _STAMP.size):
        return -1
    value: int = _STAMP.unpack_from(content)[0]
    return value
