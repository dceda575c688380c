"""One process of esker's load: a KV client that keeps blocks in flight, as an inference worker would.

Its requests come from the parent (`tools/child.py`). Making and comparing contents is not part of a latency; comparing
while reading (`verify`) lowers the bandwidth.
"""

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice

import msgspec

from esker.kvclient import Geometry, KVCacheClient, Slot, Status
from esker.tools.bench.blocks import Blocks
from esker.tools.bench.result import Measured, flow_of
from esker.tools.bench.workload import Mode, Workload, mixed_order, read_order, write_order
from esker.tools.child import run_child
from esker.tools.inspect_cluster import transport_of
from esker.tools.running import all_or_none
from esker.wire.errors import EskerError
from esker.wire.types import NamespaceMode

MODULE = "esker.tools.bench.client_job"
SLOT_WAIT_S = 30.0
PREPARE_BATCH_BYTES = 16 << 20


class Open(msgspec.Struct, tag=True):
    """Connect, and store the data set if it is to be read."""

    cluster: str
    namespace: str
    transport: str
    workload: Workload
    verify: bool
    chunk_bytes: int = 0
    """Of a load on mutable chunks."""
    mode: NamespaceMode = NamespaceMode.REPLICATED


class Opened(msgspec.Struct):
    transport: str
    """What the workers are reached by: `local`, `tcp` or `mixed`."""


class Run(msgspec.Struct, tag=True):
    """Measure one turn."""

    turn: int


class Clear(msgspec.Struct, tag=True):
    """Compare what the turn wrote if asked to, then remove it; with `turn` -1 the data set."""

    turn: int


class Cleared(msgspec.Struct):
    wrong_blocks: int = 0
    removed: int = 0


class ClientJob:
    """Answers the parent's requests."""

    def __init__(self) -> None:
        self._client: KVCacheClient | None = None

    async def answer(self, line: bytes) -> msgspec.Struct:
        request = msgspec.json.decode(line, type=Open | Run | Clear)
        if isinstance(request, Open):
            return await self._open(request)
        if isinstance(request, Run):
            return await self._run(request.turn)
        return await self._clear(request.turn)

    async def aclose(self) -> None:
        if self._client is not None:
            await self._client.aclose()

    async def _open(self, request: Open) -> Opened:
        workload = self._workload = request.workload
        self._verify = request.verify
        self._blocks = Blocks(workload)
        slots = workload.calls * workload.batch
        self._client = client = await KVCacheClient.connect(
            cluster=request.cluster,
            namespace=request.namespace,
            geometry=Geometry(block_bytes_max=workload.block_bytes),
            mode=request.mode,
            transport=request.transport,
            pool_bytes=slots * workload.block_bytes,
        )
        self._load = load = Load(client, workload, self._blocks, request.verify)
        if workload.mode.reads:
            await load.store(-1, range(workload.blocks))
        return Opened(transport_of(client))

    async def _run(self, turn: int) -> Measured:
        assert self._client is not None
        return await self._load.run(turn)

    async def _clear(self, turn: int) -> Cleared:
        numbers = range(self._workload.blocks) if turn < 0 else self._load.written.pop(turn, [])
        wrong = await self._load.compare(turn, numbers) if self._verify and turn >= 0 else 0
        return Cleared(wrong, await self._load.remove(turn, numbers))


class Load:
    """Calls of `batch` blocks, as many at a time as the depth asks for."""

    def __init__(self, client: KVCacheClient, workload: Workload, blocks: Blocks, verify: bool) -> None:
        self.written: dict[int, list[int]] = {}
        """Blocks stored, by turn."""
        self._client = client
        self._workload = workload
        self._blocks = blocks
        self._verify = verify
        # Every slot holds the pattern from here on: making a block is stamping it.
        for slot in (held := client.pool.acquire(client.pool.slots)):
            blocks.refill(slot)
        for slot in held:
            slot.release()

    async def run(self, turn: int) -> Measured:
        """One turn."""
        workload = self._workload
        state = _Turn(turn, workload)
        drives = _drive_bytes(self._client)
        # As in an engine, memory and the blocks' keys are there before the transfer.
        keys = [self._blocks.key(-1, number) for number in range(workload.blocks)] if workload.mode.reads else []
        places = [await self._client.pool.acquire_wait(workload.batch, SLOT_WAIT_S) for _ in range(workload.calls)]
        try:
            started_s = time.perf_counter()
            state.end_s = started_s + workload.runtime_s
            await all_or_none(self._calls(state, keys, slots) for slots in places)
            seconds = time.perf_counter() - started_s
        finally:
            for slots in places:
                for slot in slots:
                    slot.release()
        if workload.mode.writes:
            self.written[turn] = state.written
        return Measured(
            seconds=seconds,
            read=flow_of(state.read_latencies, workload.block_bytes) if workload.mode.reads else None,
            write=flow_of(state.write_latencies, workload.block_bytes) if workload.mode.writes else None,
            per_drive_bytes={
                drive: count - drives.get(drive, 0) for drive, count in _drive_bytes(self._client).items()
            },
            failures=dict(state.failures),
            wrong_blocks=state.wrong_blocks,
        )

    async def _calls(self, state: "_Turn", keys: Sequence[bytes], slots: Sequence[Slot]) -> None:
        while time.perf_counter() < state.end_s:
            writing = state.next_writes()
            numbers = state.take(writing)
            if not numbers:
                state.end_s = 0.0
                return
            if writing:
                await self._write(state, numbers, slots[: len(numbers)])
            else:
                await self._read(state, numbers, [keys[number] for number in numbers], slots[: len(numbers)])

    async def _read(self, state: "_Turn", numbers: Sequence[int], keys: Sequence[bytes], slots: Sequence[Slot]) -> None:
        before_s = time.perf_counter()
        results = await self._client.get(keys, slots)
        seconds = time.perf_counter() - before_s
        fine = [result.status for result in results].count(Status.OK)
        if fine < len(results):
            for slot, result in zip(slots, results, strict=True):
                if result.status is not Status.OK:
                    state.failures[result.status.name] += 1
                    self._blocks.refill(slot)
        if self._verify:
            for number, slot, result in zip(numbers, slots, results, strict=True):
                if result.status is Status.OK and not self._blocks.right(slot, -1, number):
                    state.wrong_blocks += 1
                    self._blocks.refill(slot)
        state.read_latencies.append((seconds, fine))

    async def _write(self, state: "_Turn", numbers: Sequence[int], slots: Sequence[Slot]) -> None:
        for number, slot in zip(numbers, slots, strict=True):
            self._blocks.stamp(slot, state.turn, number)
        keys = [self._blocks.key(state.turn, number) for number in numbers]
        before_s = time.perf_counter()
        results = await self._client.put(keys, slots)
        seconds = time.perf_counter() - before_s
        fine = 0
        for number, result in zip(numbers, results, strict=True):
            if result.status is Status.OK:
                fine += 1
                state.written.append(number)
            else:
                state.failures[result.status.name] += 1
        state.write_latencies.append((seconds, fine))

    async def store(self, turn: int, numbers: Sequence[int]) -> None:
        """Stores blocks, unmeasured. Raises `EskerError` when one is not stored."""
        for part in self._parts(numbers):
            slots = await self._client.pool.acquire_wait(len(part), SLOT_WAIT_S)
            try:
                for number, slot in zip(part, slots, strict=True):
                    self._blocks.stamp(slot, turn, number)
                results = await self._client.put([self._blocks.key(turn, number) for number in part], slots)
            finally:
                for slot in slots:
                    slot.release()
            bad = Counter(result.status.name for result in results if result.status is not Status.OK)
            if bad:
                raise EskerError(f"cannot store the data set: {dict(bad)}; is there room for it on the drives?")

    async def compare(self, turn: int, numbers: Sequence[int]) -> int:
        """Reads blocks back; returns how many are missing or wrong."""
        wrong = 0
        for part in self._parts(numbers):
            slots = await self._client.pool.acquire_wait(len(part), SLOT_WAIT_S)
            try:
                results = await self._client.get([self._blocks.key(turn, number) for number in part], slots)
                for number, slot, result in zip(part, slots, results, strict=True):
                    if result.status is not Status.OK or not self._blocks.right(slot, turn, number):
                        wrong += 1
                        self._blocks.refill(slot)
            finally:
                for slot in slots:
                    slot.release()
        return wrong

    async def remove(self, turn: int, numbers: Sequence[int]) -> int:
        """Removes blocks; returns how many."""
        for part in self._parts(numbers):
            await self._client.remove([self._blocks.key(turn, number) for number in part])
        return len(numbers)

    def _parts(self, numbers: Sequence[int]) -> Iterator[Sequence[int]]:
        workload = self._workload
        step = max(1, min(workload.calls * workload.batch, PREPARE_BATCH_BYTES // workload.block_bytes))
        for first in range(0, len(numbers), step):
            yield numbers[first : first + step]


class _Turn:
    """What one turn's calls share."""

    def __init__(self, turn: int, workload: Workload) -> None:
        self.turn = turn
        self.end_s = 0.0
        self.read_latencies: list[tuple[float, int]] = []
        self.write_latencies: list[tuple[float, int]] = []
        self.written: list[int] = []
        self.failures: Counter[str] = Counter()
        self.wrong_blocks = 0
        self._mode = workload.mode
        self._batch = workload.batch
        self._reads = read_order(workload, turn)
        self._writes = write_order(workload, turn)
        self._mix = mixed_order(workload, turn)

    def next_writes(self) -> bool:
        """Whether the next call writes."""
        return self._mode.writes and (self._mode is not Mode.RANDRW or not next(self._mix))

    def take(self, writing: bool) -> list[int]:
        """The next call's blocks; none when everything is written."""
        order = self._writes if writing else self._reads
        return list(islice(order, self._batch))


def _drive_bytes(client: KVCacheClient) -> dict[str, int]:
    statistics = client.statistics()
    total = Counter(statistics.per_drive_read_bytes)
    total.update(statistics.per_drive_written_bytes)
    return dict(total)


if __name__ == "__main__":
    run_child(ClientJob())
