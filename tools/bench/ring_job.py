"""One process of the baseline `ring`: reads and writes files through esker's own I/O engine, with nothing above it.

The files stand in the drives' directories, in the state esker's are in (fallocated and, to be read, written once) and
are opened for direct I/O where the file system has it. They are unlinked once open, so nothing stays behind.
Writes are made durable as esker's are: `fdatasync` of the files after every `sync_every` completed writes, in a
thread, one at a time, and once more before the clock stops.
"""

import asyncio
import errno
import mmap
import os
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np

from esker.chunkserver.engine.io import IoEngine, open_engine
from esker.tools.bench.result import Measured, flow_of
from esker.tools.bench.workload import Mode, Workload, mixed_order, read_order, write_order
from esker.tools.child import run_child
from esker.wire.errors import EskerError, UserError
from esker.wire.limits import aligned

MODULE = "esker.tools.bench.ring_job"
PREPARE_BYTES_IN_FLIGHT = 16 << 20
DRAIN_TIMEOUT_S = 60.0


class Prepare(msgspec.Struct, tag=True):
    """Make the files."""

    directories: list[str]
    workload: Workload
    engine: str = "auto"


class Prepared(msgspec.Struct):
    engine: str
    direct: bool


class Run(msgspec.Struct, tag=True):
    """Measure one turn."""

    turn: int
    sync_every: int


class RawFiles:
    """The files of one job, one per directory; block i is the i // n-th block of file i % n."""

    def __init__(self, directories: list[str], workload: Workload) -> None:
        self.stride_bytes = aligned(workload.block_bytes)
        self.direct = True
        self._fds: list[int] = []
        per_file = -(-workload.blocks // len(directories))
        for number, directory in enumerate(directories):
            path = Path(directory) / f"esker-bench-{os.getpid()}-{number}.raw"
            try:
                fd = self._open(path)
                self._fds.append(fd)
                path.unlink()
                os.posix_fallocate(fd, 0, per_file * self.stride_bytes)
            except OSError as error:
                self.close()
                raise UserError(f"cannot make the baseline's file in {directory}: {error.strerror}") from error

    def _open(self, path: Path) -> int:
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        try:
            return os.open(path, flags | os.O_DIRECT, 0o600)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            self.direct = False
            path.unlink(missing_ok=True)
            return os.open(path, flags, 0o600)

    def place(self, block: int) -> tuple[int, int]:
        """File descriptor and offset of a block."""
        count = len(self._fds)
        return self._fds[block % count], block // count * self.stride_bytes

    def sync(self) -> None:
        """`fdatasync` of every file."""
        for fd in self._fds:
            os.fdatasync(fd)

    def close(self) -> None:
        for fd in self._fds:
            os.close(fd)
        self._fds.clear()


class Buffers:
    """One page-aligned buffer per block in flight, filled with random bytes."""

    def __init__(self, count: int, block_bytes: int, seed: int) -> None:
        self.block_bytes = aligned(block_bytes)
        self._memory = mmap.mmap(-1, count * self.block_bytes)
        words = np.frombuffer(self._memory, dtype=np.uint64)
        words[:] = np.random.default_rng(seed).integers(0, 2**64, len(words), dtype=np.uint64)
        del words
        whole = memoryview(self._memory)
        self.views = [whole[n * self.block_bytes : (n + 1) * self.block_bytes] for n in range(count)]


class RingLoad:
    """Keeps `iodepth` operations in flight until the time or the work is over."""

    def __init__(self, engine: IoEngine, files: RawFiles, buffers: Buffers, workload: Workload) -> None:
        self._engine = engine
        self._files = files
        self._buffers = buffers.views
        self._workload = workload
        self._expected = buffers.block_bytes
        self._started_s = [0.0] * len(buffers.views)
        self._writing = [False] * len(buffers.views)
        self._latencies: tuple[list[float], list[float]] = ([], [])
        self._failures: dict[str, int] = {}
        self._in_flight = 0
        self._end_s = 0.0
        self._idle = asyncio.Event()
        self._unsynced = 0
        self._sync: asyncio.Future[None] | None = None
        self._sync_every = 0
        self._syncs = 0
        self._reads: Iterator[int] = iter(())
        self._writes: Iterator[int] = iter(())
        self._mix: Iterator[bool] = iter(())

    async def run(self, turn: int, sync_every: int, runtime_s: float) -> Measured:
        """One turn."""
        workload = self._workload
        self._reads, self._writes = read_order(workload, turn), write_order(workload, turn)
        self._mix = mixed_order(workload, turn)
        self._latencies = ([], [])
        self._failures = {}
        self._syncs = self._unsynced = 0
        self._sync_every = sync_every
        self._idle.clear()
        started_s = time.perf_counter()
        self._end_s = started_s + runtime_s
        for slot in range(len(self._buffers)):
            self._next(slot)
        self._engine.submit()
        if self._in_flight:
            async with asyncio.timeout(runtime_s + DRAIN_TIMEOUT_S):
                await self._idle.wait()
        if workload.mode.writes:
            if self._sync is not None:
                await self._sync
            await asyncio.to_thread(self._files.sync)
            self._syncs += 1
        seconds = time.perf_counter() - started_s
        reads, writes = (flow_of(((s, 1) for s in table), workload.block_bytes) for table in self._latencies)
        return Measured(
            seconds=seconds,
            read=reads if workload.mode.reads else None,
            write=writes if workload.mode.writes else None,
            failures=self._failures,
            fsyncs=self._syncs,
        )

    def _next(self, slot: int) -> None:
        mode = self._workload.mode
        writing = mode.writes and (mode is not Mode.RANDRW or not next(self._mix))
        block = next(self._writes if writing else self._reads, None)
        if block is None:
            self._end_s = 0.0
            return
        fd, offset = self._files.place(block)
        self._writing[slot] = writing
        self._in_flight += 1
        self._started_s[slot] = time.perf_counter()
        (self._engine.write if writing else self._engine.read)(fd, offset, self._buffers[slot], self._done, slot)

    def _done(self, slot: int, result: int) -> None:
        now_s = time.perf_counter()
        self._in_flight -= 1
        writing = self._writing[slot]
        if result == self._expected:
            self._latencies[writing].append(now_s - self._started_s[slot])
            if writing:
                self._written()
        else:
            name = errno.errorcode.get(-result, "SHORT")
            self._failures[name] = self._failures.get(name, 0) + 1
        if now_s < self._end_s:
            self._next(slot)
        if not self._in_flight:
            self._idle.set()

    def _written(self) -> None:
        self._unsynced += 1
        if self._unsynced >= self._sync_every and (self._sync is None or self._sync.done()):
            self._unsynced = 0
            self._syncs += 1
            self._sync = asyncio.get_running_loop().run_in_executor(None, self._files.sync)


async def fill(engine: IoEngine, files: RawFiles, buffers: Buffers, blocks: int) -> None:
    """Writes every block once, durably. Raises `EskerError` when a write fails."""
    results: list[int] = []
    depth = max(1, PREPARE_BYTES_IN_FLIGHT // buffers.block_bytes)
    for first in range(0, blocks, depth):
        for block in range(first, min(first + depth, blocks)):
            fd, offset = files.place(block)
            view = buffers.views[block % len(buffers.views)]
            engine.write(fd, offset, view, lambda _, result: results.append(result), None)
        engine.submit()
        if not await engine.drain(DRAIN_TIMEOUT_S):
            raise EskerError(f"the baseline's file took no data for {DRAIN_TIMEOUT_S:g} s")
    for result in results:
        if result != buffers.block_bytes:
            raise EskerError(f"cannot write the baseline's file: {errno.errorcode.get(-result, 'short write')}")
    await asyncio.to_thread(files.sync)


class RingJob:
    """Answers the parent's requests."""

    def __init__(self) -> None:
        self._load: RingLoad | None = None
        self._engine: IoEngine | None = None
        self._runtime_s = 0.0

    async def answer(self, line: bytes) -> msgspec.Struct:
        request = msgspec.json.decode(line, type=Prepare | Run)
        if isinstance(request, Prepare):
            return await self._prepare(request)
        assert self._load is not None
        return await self._load.run(request.turn, request.sync_every, self._runtime_s)

    async def aclose(self) -> None:
        if self._engine is not None:
            self._engine.close()

    async def _prepare(self, request: Prepare) -> Prepared:
        workload = request.workload
        self._engine = engine = open_engine(request.engine)
        files = RawFiles(request.directories, workload)
        buffers = Buffers(workload.iodepth, workload.block_bytes, workload.seed)
        if workload.mode.reads:
            await fill(engine, files, buffers, workload.blocks)
        self._load = RingLoad(engine, files, buffers, workload)
        self._runtime_s = workload.runtime_s
        return Prepared(engine.name, files.direct)


if __name__ == "__main__":
    run_child(RingJob())
