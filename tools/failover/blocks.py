"""The load on KV blocks during failovers: a set that is read again and again, and new blocks put all the while.

Every byte that is read is compared. Owns the loops and what they counted; must not know who is killed when.
"""

import asyncio
import random
from collections import Counter
from dataclasses import dataclass

from esker.kvclient import KVCacheClient, Status
from esker.tools.bench.gap import Gap
from esker.wire.errors import EskerError
from esker.wire.limits import KIB

BLOCK_BYTES = 16 * KIB
BLOCKS = 256
READERS = 2
BATCH = 8
PAUSE_S = 0.01


@dataclass(slots=True)
class BlockCounts:
    """What happened since it was asked for last."""

    reads: int = 0
    """Blocks read."""
    read_failures: int = 0
    """Blocks that were there, but a get did not bring."""
    wrong_blocks: int = 0
    slowest_read_s: float = 0.0
    puts: int = 0
    put_gap_s: float = 0.0
    """The longest time in which no put ended well."""
    puts_failed: int = 0


class BlockLoad:
    """Loops over one namespace. They run between `start` and `stop`."""

    def __init__(self, client: KVCacheClient, timeout_s: float) -> None:
        self._client = client
        self._timeout_s = timeout_s
        self._loop = asyncio.get_running_loop()
        self._random = random.Random(0)
        self._values = {b"kept %d" % number: self._random.randbytes(BLOCK_BYTES) for number in range(BLOCKS)}
        self._fresh: dict[bytes, bytes] = {}
        """Acknowledged puts since `forget`."""
        self._made = 0
        self._counts: Counter[str] = Counter()
        self._slowest_s = 0.0
        self._put_gap = Gap(self._loop.time())
        self._tasks: list[asyncio.Task[None]] = []
        self._stopping = False

    async def store(self) -> None:
        """Puts what will be read. Raises `EskerError` where that fails."""
        results = await self._client.put(list(self._values), list(self._values.values()))
        bad = Counter(result.status.name for result in results if result.status not in (Status.OK, Status.EXISTS))
        if bad:
            raise EskerError(f"cannot store the data set: {dict(bad)}; is there room for it on the drives?")

    def start(self) -> None:
        """Begins."""
        self._put_gap = Gap(self._loop.time())
        self._tasks = [self._loop.create_task(self._read()) for _ in range(READERS)]
        self._tasks.append(self._loop.create_task(self._put()))

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
        self._slowest_s = 0.0
        self._put_gap.forget()

    def counts(self) -> BlockCounts:
        """Since `forget`."""
        return BlockCounts(
            **self._counts, slowest_read_s=self._slowest_s, put_gap_s=self._put_gap.longest_s(self._loop.time())
        )

    async def lost(self) -> int:
        """How many acknowledged blocks are not there or are others; then the new ones are removed."""
        fresh, self._fresh = self._fresh, {}
        everything = self._values | fresh
        missing = 0
        keys = list(everything)
        for first in range(0, len(keys), BLOCKS):
            part = keys[first : first + BLOCKS]
            buffers = [bytearray(BLOCK_BYTES) for _ in part]
            for key, buffer, result in zip(part, buffers, await self._client.get(part, buffers), strict=True):
                missing += result.status is not Status.OK or buffer != everything[key]
        await self._remove(list(fresh))
        return missing

    async def remove(self) -> None:
        """Removes all blocks."""
        await self._remove([*self._values, *self._fresh])

    async def _remove(self, keys: list[bytes]) -> None:
        for first in range(0, len(keys), BLOCKS):
            await self._client.remove(keys[first : first + BLOCKS])

    async def _read(self) -> None:
        keys = list(self._values)
        buffers = [bytearray(BLOCK_BYTES) for _ in range(BATCH)]
        while not self._stopping:
            asked = self._random.sample(keys, BATCH)
            before_s = self._loop.time()
            results = await self._client.get(asked, buffers, timeout_s=self._timeout_s)
            self._slowest_s = max(self._slowest_s, self._loop.time() - before_s)
            for key, buffer, result in zip(asked, buffers, results, strict=True):
                if result.status is not Status.OK:
                    self._counts["read_failures"] += 1
                    continue
                self._counts["reads"] += 1
                self._counts["wrong_blocks"] += buffer != self._values[key]
            await asyncio.sleep(PAUSE_S)

    async def _put(self) -> None:
        while not self._stopping:
            self._made += 1
            key, value = b"fresh %d" % self._made, self._random.randbytes(BLOCK_BYTES)
            (result,) = await self._client.put([key], [value], timeout_s=self._timeout_s)
            if result.status in (Status.OK, Status.EXISTS):
                self._fresh[key] = value
                self._counts["puts"] += 1
                self._put_gap.success(self._loop.time())
            else:
                self._counts["puts_failed"] += 1
            await asyncio.sleep(PAUSE_S)
