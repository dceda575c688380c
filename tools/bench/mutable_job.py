"""One process of esker's load on mutable chunks: blocks of chunks written in place and read, as files would be.

Takes the same requests as `client_job.py`. All chunks are written before the first turn, so that every measured write
meets one that is there. Making and comparing contents is not part of a latency.
"""

import time
from collections import Counter
from collections.abc import Sequence

import msgspec

from esker.client.buffers import BufferPool
from esker.client.mutable import ChunkClient, ChunkRemove
from esker.kvclient import Slot
from esker.tools.bench.client_job import PREPARE_BATCH_BYTES, SLOT_WAIT_S, Clear, Cleared, Open, Opened, Run
from esker.tools.bench.gap import Gap
from esker.tools.bench.patches import Patches, without_end
from esker.tools.bench.result import Measured, flow_of
from esker.tools.bench.workload import Mode, Workload, mixed_order, read_order, write_order
from esker.tools.child import run_child
from esker.tools.inspect_cluster import transport_of
from esker.tools.running import all_or_none
from esker.wire.errors import EskerError
from esker.wire.status import Status

MODULE = "esker.tools.bench.mutable_job"
REMOVED_AT_ONCE = 1024


class MutableJob:
    """Answers the parent's requests."""

    def __init__(self) -> None:
        self._client: ChunkClient | None = None
        self._pool: BufferPool | None = None

    async def answer(self, line: bytes) -> msgspec.Struct:
        request = msgspec.json.decode(line, type=Open | Run | Clear)
        if isinstance(request, Open):
            return await self._open(request)
        if isinstance(request, Run):
            return await self._load.run(request.turn)
        return Cleared(*await self._load.clear(request.turn))

    async def aclose(self) -> None:
        if self._client is not None:
            await self._client.aclose()
        if self._pool is not None:
            self._pool.close()

    async def _open(self, request: Open) -> Opened:
        workload = request.workload
        self._pool = BufferPool(workload.block_bytes, workload.calls * workload.batch)
        self._client = await ChunkClient.connect(request.cluster, transport=request.transport, pool=self._pool)
        self._load = MutableLoad(self._client, self._pool, workload, request.chunk_bytes, request.verify)
        await self._load.store()
        return Opened(transport_of(self._client))


class MutableLoad:
    """Calls of `batch` blocks, as many at a time as the depth asks for."""

    def __init__(
        self, client: ChunkClient, pool: BufferPool, workload: Workload, chunk_bytes: int, verify: bool
    ) -> None:
        self._client = client
        self._pool = pool
        self._workload = workload
        self._chunk_bytes = chunk_bytes
        self._patches = Patches(workload, chunk_bytes)
        self._verify = verify

    async def run(self, turn: int) -> Measured:
        """One turn."""
        workload = self._workload
        state = _Turn(workload, turn)
        drives = self._drive_bytes()
        places = [await self._pool.acquire_wait(workload.batch, SLOT_WAIT_S) for _ in range(workload.calls)]
        try:
            started_s = time.perf_counter()
            state.begin(started_s)
            await all_or_none(self._calls(state, slots) for slots in places)
            seconds = time.perf_counter() - started_s
        finally:
            for slots in places:
                for slot in slots:
                    slot.release()
        return Measured(
            seconds=seconds,
            read=flow_of(state.read_latencies, workload.block_bytes) if workload.mode.reads else None,
            write=flow_of(state.write_latencies, workload.block_bytes) if workload.mode.writes else None,
            per_drive_bytes={drive: count - drives.get(drive, 0) for drive, count in self._drive_bytes().items()},
            failures=dict(state.failures),
            wrong_blocks=state.wrong_blocks,
            longest_write_gap_s=state.longest_gap_s(started_s + seconds),
        )

    async def _calls(self, state: "_Turn", slots: Sequence[Slot]) -> None:
        while time.perf_counter() < state.end_s:
            writing = state.next_writes()
            numbers = self._patches.take(state.writes if writing else state.reads, self._workload.batch)
            if not numbers:
                raise EskerError("more calls in flight than blocks; raise --size or lower --iodepth")
            try:
                await (self._write if writing else self._read)(state, numbers, slots[: len(numbers)])
            finally:
                self._patches.done(numbers)

    async def _write(self, state: "_Turn", numbers: Sequence[int], slots: Sequence[Slot]) -> None:
        changes = [self._patches.write(number, slot) for number, slot in zip(numbers, slots, strict=True)]
        before_s = time.perf_counter()
        results = await self._client.write(changes)
        now_s = time.perf_counter()
        fine = 0
        for number, result in zip(numbers, results, strict=True):
            ok = result.status is Status.OK
            self._patches.wrote(number, ok=ok)
            fine += ok
            if not ok:
                state.failures[result.status.name] += 1
        if fine:
            state.wrote(now_s)
        state.write_latencies.append((now_s - before_s, fine))

    async def _read(self, state: "_Turn", numbers: Sequence[int], slots: Sequence[Slot]) -> None:
        reads = [self._patches.read(number, slot) for number, slot in zip(numbers, slots, strict=True)]
        before_s = time.perf_counter()
        results = await self._client.read(reads)
        seconds = time.perf_counter() - before_s
        fine = 0
        for number, slot, result in zip(numbers, slots, results, strict=True):
            if result.status is not Status.OK:
                state.failures[result.status.name] += 1
                continue
            fine += 1
            if self._verify and not self._patches.right(number, slot):
                state.wrong_blocks += 1
        state.read_latencies.append((seconds, fine))

    async def store(self) -> None:
        """Writes every chunk once, whole and unmeasured. Raises `EskerError` when one is not stored."""
        chunks = self._patches.chunks
        step = max(1, PREPARE_BATCH_BYTES // self._chunk_bytes)
        for start in range(0, len(chunks), step):
            writes = [self._patches.first_write(index) for _, index in chunks[start : start + step]]
            results = await self._client.write([change for _, change in writes])
            bad = Counter(result.status.name for result in results if result.status is not Status.OK)
            if bad:
                raise EskerError(f"cannot store the data set: {dict(bad)}; is there room for it on the drives?")
            for numbers, _ in writes:
                for number in numbers:
                    self._patches.wrote(number, ok=True)

    async def clear(self, turn: int) -> tuple[int, int]:
        """(wrong blocks, removed chunks): compares everything if asked to; with `turn` -1 removes all chunks."""
        if turn >= 0:
            return (await self._compare() if self._verify else 0), 0
        chunks = self._patches.chunks
        for first in range(0, len(chunks), REMOVED_AT_ONCE):
            await self._client.write([ChunkRemove(*chunk) for chunk in chunks[first : first + REMOVED_AT_ONCE]])
        return 0, len(chunks)

    async def _compare(self) -> int:
        wrong = 0
        for part in self._parts():
            slots = await self._pool.acquire_wait(len(part), SLOT_WAIT_S)
            try:
                reads = [self._patches.read(number, slot) for number, slot in zip(part, slots, strict=True)]
                for number, slot, result in zip(part, slots, await self._client.read(reads), strict=True):
                    wrong += result.status is not Status.OK or not self._patches.right(number, slot)
            finally:
                for slot in slots:
                    slot.release()
        return wrong

    def _parts(self) -> list[range]:
        workload = self._workload
        step = max(1, min(self._pool.slots, PREPARE_BATCH_BYTES // workload.block_bytes))
        return [range(first, min(first + step, workload.blocks)) for first in range(0, workload.blocks, step)]

    def _drive_bytes(self) -> dict[str, int]:
        statistics = self._client.statistics()
        total = Counter(statistics.per_drive_read_bytes)
        total.update(statistics.per_drive_written_bytes)
        return dict(total)


class _Turn:
    """What one turn's calls share."""

    def __init__(self, workload: Workload, turn: int) -> None:
        self.end_s = 0.0
        self.reads = read_order(workload, turn)
        self.writes = without_end(workload, turn, write_order(workload, turn))
        self.read_latencies: list[tuple[float, int]] = []
        self.write_latencies: list[tuple[float, int]] = []
        self.failures: Counter[str] = Counter()
        self.wrong_blocks = 0
        self._workload = workload
        self._mix = mixed_order(workload, turn)
        self._gap = Gap(0.0)

    def begin(self, now_s: float) -> None:
        """The clock runs."""
        self.end_s = now_s + self._workload.runtime_s
        self._gap = Gap(now_s)

    def next_writes(self) -> bool:
        """Whether the next call writes."""
        mode = self._workload.mode
        return mode.writes and (mode is not Mode.RANDRW or not next(self._mix))

    def wrote(self, now_s: float) -> None:
        """Some write ended well."""
        self._gap.success(now_s)

    def longest_gap_s(self, now_s: float) -> float:
        """The longest time without such an end, up to now."""
        return self._gap.longest_s(now_s) if self._workload.mode.writes else 0.0


if __name__ == "__main__":
    run_child(MutableJob())
