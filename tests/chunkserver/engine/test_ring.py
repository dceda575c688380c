"""What only the ring does: waking, submitting by itself, closing over I/O that does not end; and its iovecs."""

import asyncio
import errno
import mmap
import os
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import liburing
import pytest

from esker.chunkserver.engine import ring
from esker.chunkserver.engine.interface import SUBMIT_BYTES
from esker.chunkserver.engine.ring import RingEngine
from esker.chunkserver.engine.vectors import Vector, VectorPool

Pages = Callable[[int], memoryview]


@pytest.fixture
async def engine() -> AsyncIterator[RingEngine]:
    try:
        made = RingEngine(asyncio.get_running_loop(), depth=8)
    except OSError as error:
        pytest.skip(f"io_uring is refused here: {error}")
    yield made
    made.close()


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """Reading it waits until something is written."""
    ends = os.pipe()
    yield ends
    for end in ends:
        os.close(end)


async def test_completions_wake_the_loop(engine: RingEngine, pipe: tuple[int, int], pages: Pages) -> None:
    woken: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    engine.read(pipe[0], 0, pages(4096), lambda _, result: woken.set_result(result), None)
    engine.submit()
    assert not await engine.drain(0.01)
    os.write(pipe[1], b"abc")
    async with asyncio.timeout(10):
        assert await woken == 3
    assert engine.in_flight == 0


async def test_submits_by_itself(engine: RingEngine, tmp_path: Path, pages: Pages) -> None:
    fd = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    buffer = pages(SUBMIT_BYTES // 4)
    results: list[int] = []
    for number in range(4):
        assert os.fstat(fd).st_size == 0
        engine.write(fd, number * len(buffer), buffer, lambda _, result: results.append(result), None)
    assert await engine.drain(10)
    os.close(fd)
    assert results == [len(buffer)] * 4


async def test_a_slow_operation_holds_its_mark_and_nothing_else(
    engine: RingEngine, pipe: tuple[int, int], tmp_path: Path, pages: Pages
) -> None:
    fd = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    os.pwrite(fd, b"x" * 4096, 0)
    before = engine.mark()
    engine.read(pipe[0], 0, pages(4096), lambda *_: None, None)
    after = engine.mark()
    last: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def done(left: int, result: int) -> None:
        if left == 0:
            last.set_result(result)
        else:
            engine.read(fd, 0, pages(4096), done, left - 1)

    # One after the other through the places that the slow one leaves.
    engine.read(fd, 0, pages(4096), done, 50)
    engine.submit()
    async with asyncio.timeout(10):
        assert await last == 4096
    os.close(fd)
    assert engine.passed(before)
    assert not engine.passed(after)
    os.write(pipe[1], b"abc")
    assert await engine.drain(10)
    assert engine.passed(after)


async def test_closing_waits_for_what_runs(engine: RingEngine, pipe: tuple[int, int], pages: Pages) -> None:
    results: dict[str, int] = {}
    engine.read(pipe[0], 0, pages(4096), results.__setitem__, "running")
    engine.submit()
    engine.read(pipe[0], 0, pages(4096), results.__setitem__, "queued")
    for number in range(20):
        engine.read(pipe[0], 0, pages(4096), results.__setitem__, f"waiting {number}")
    os.write(pipe[1], b"abc")
    engine.close()
    assert results.pop("running") == 3
    assert len(results) == 21
    assert set(results.values()) == {-errno.ECANCELED}


async def test_closing_gives_up_and_keeps_the_memory(
    engine: RingEngine,
    pipe: tuple[int, int],
    pages: Pages,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The kernel may yet write there: it must be told to nobody as free, and never be freed."""
    monkeypatch.setattr(ring, "CLOSE_TIMEOUT_S", 0.01)
    monkeypatch.setattr(ring, "_abandoned", [])
    results: list[int] = []
    buffer = pages(4096)
    engine.read(pipe[0], 0, buffer, lambda _, result: results.append(result), None)
    engine.submit()
    engine.close()
    assert not results
    assert "closed with I/O still running" in caplog.text
    [(kept_ring, kept_operations)] = ring._abandoned
    assert any(buffer is operation[2] for operation in kept_operations.values())
    # Ended here so that nothing outlives the test: the read completes, then the ring goes.
    os.write(pipe[1], b"abc")
    liburing.io_uring_wait_cqe(kept_ring, liburing.Cqe())
    liburing.io_uring_queue_exit(kept_ring)


async def test_memory_can_be_unmapped_after_use(engine: RingEngine, tmp_path: Path) -> None:
    fd = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    os.pwrite(fd, b"x" * 4096, 0)
    memory = mmap.mmap(-1, 65536)
    view = memoryview(memory)
    for number in range(16):
        engine.read(fd, 0, view[number * 4096 : (number + 1) * 4096], lambda *_: None, None)
    assert await engine.drain(10)
    os.close(fd)
    view.release()
    # Raises BufferError if anything still holds it.
    memory.close()


async def test_a_read_only_source(engine: RingEngine, tmp_path: Path) -> None:
    path = tmp_path / "file"
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    engine.write(fd, 0, memoryview(b"constant"), lambda *_: None, None)
    assert await engine.drain(10)
    os.close(fd)
    assert path.read_bytes() == b"constant"


def test_a_vector_points_where_it_is_told() -> None:
    first, second = os.memfd_create("first"), os.memfd_create("second")
    try:
        os.write(first, b"0123456789")
        target = bytearray(10)
        vector = Vector()
        vector.point(memoryview(target)[2:7])
        probe = liburing.Ring()
        try:
            liburing.io_uring_queue_init(2, probe, 0)
        except OSError as error:
            pytest.skip(f"io_uring is refused here: {error}")
        sqe = liburing.io_uring_get_sqe(probe)
        liburing.io_uring_prep_readv(sqe, first, vector.iovec, 1)
        liburing.io_uring_submit(probe)
        cqe = liburing.Cqe()
        liburing.io_uring_wait_cqe(probe, cqe)
        assert cqe[0].res == 5
        liburing.io_uring_queue_exit(probe)
        assert target == b"\0\x0012345\0\0\0"
    finally:
        os.close(first)
        os.close(second)


def test_a_pool_has_as_many_as_asked_for() -> None:
    pool = VectorPool(3)
    taken = {id(pool.take()) for _ in range(3)}
    assert len(taken) == 3
    with pytest.raises(IndexError):
        pool.take()
