"""What every engine promises, asked of each of them."""

import asyncio
import errno
import gc
import mmap
import os
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest

from esker.chunkserver.engine.interface import DEPTH, SUBMIT_BYTES, IoEngine

WAIT_S = 20
Pages = Callable[[int], memoryview]


@pytest.fixture
def fd(tmp_path: Path) -> Iterator[int]:
    descriptor = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    yield descriptor
    os.close(descriptor)


async def run(engine: IoEngine, kind: str, fd: int, offset: int, buffer: memoryview) -> int:
    results: list[int] = []
    getattr(engine, kind)(fd, offset, buffer, lambda _, result: results.append(result), None)
    assert await engine.drain(WAIT_S)
    assert len(results) == 1, "done runs exactly once"
    return results[0]


@pytest.mark.parametrize("offset", [0, 4096, 12345, 3 << 20])
@pytest.mark.parametrize("length", [0, 1, 511, 4096, 65536, 70001, 1 << 20, (4 << 20) + 4096])
async def test_what_is_written_is_read(engine: IoEngine, fd: int, pages: Pages, length: int, offset: int) -> None:
    data = Random(length).randbytes(length)
    source, target = pages(length), pages(length)
    source[:] = data
    assert await run(engine, "write", fd, offset, source) == length
    assert await run(engine, "read", fd, offset, target) == length
    assert target == data


async def test_direct_io(engine: IoEngine, tmp_path: Path, pages: Pages) -> None:
    try:
        fd = os.open(tmp_path / "direct", os.O_RDWR | os.O_CREAT | os.O_DIRECT)
    except OSError as error:
        pytest.skip(f"no direct I/O in the temporary directory: {error}")
    source, target = pages(256 << 10), pages(256 << 10)
    source[:] = Random(3).randbytes(256 << 10)
    try:
        assert await run(engine, "write", fd, 4096, source) == len(source)
        assert await run(engine, "read", fd, 4096, target) == len(target)
    finally:
        os.close(fd)
    assert target == source


async def test_many_more_operations_than_the_depth(engine: IoEngine, fd: int, pages: Pages) -> None:
    count = 3 * DEPTH + 17
    memory = pages(count * 512)
    os.pwrite(fd, b"".join(number.to_bytes(4, "big") * 128 for number in range(count)), 0)
    results: dict[int, int] = {}
    for number in range(count):
        part = memory[number * 512 : (number + 1) * 512]
        engine.read(fd, number * 512, part, results.__setitem__, number)
    assert await engine.drain(WAIT_S)
    assert results == dict.fromkeys(range(count), 512)
    for number in range(count):
        assert memory[number * 512 : number * 512 + 4] == number.to_bytes(4, "big")


async def test_reads_and_writes_mixed_at_random(engine: IoEngine, fd: int, pages: Pages) -> None:
    random = Random(7)
    blocks = [random.randbytes(random.choice((4096, 65536, 300_000))) for _ in range(40)]
    places: list[int] = []
    end = 0
    for block in blocks:
        places.append(end)
        end += len(block)
    read_back: dict[int, memoryview] = {}
    bad: list[object] = []

    def written(number: int, result: int) -> None:
        if result != len(blocks[number]):
            bad.append((number, result))
        read_back[number] = pages(len(blocks[number]))
        engine.read(fd, places[number], read_back[number], was_read, number)

    def was_read(number: int, result: int) -> None:
        if result != len(blocks[number]):
            bad.append((number, result))

    for number, block in enumerate(blocks):
        source = pages(len(block))
        source[:] = block
        engine.write(fd, places[number], source, written, number)
    assert await engine.drain(WAIT_S)
    assert not bad
    assert [bytes(read_back[number]) for number in range(len(blocks))] == blocks


async def test_a_read_at_the_end_is_short(engine: IoEngine, fd: int, pages: Pages) -> None:
    os.pwrite(fd, b"x" * 5000, 0)
    assert await run(engine, "read", fd, 4096, pages(4096)) == 5000 - 4096
    assert await run(engine, "read", fd, 8192, pages(4096)) == 0


async def test_a_bad_descriptor_is_an_error(engine: IoEngine, pages: Pages) -> None:
    bad_fd = os.open("/dev/null", os.O_RDONLY)
    os.close(bad_fd)
    assert await run(engine, "read", bad_fd, 0, pages(4096)) == -errno.EBADF
    assert await run(engine, "write", bad_fd, 0, pages(4096)) == -errno.EBADF


async def test_errors_stand_among_successes(engine: IoEngine, fd: int, pages: Pages) -> None:
    bad_fd = os.open("/dev/null", os.O_RDONLY)
    os.close(bad_fd)
    os.pwrite(fd, b"y" * 4096, 0)
    results: dict[int, int] = {}
    for number in range(10):
        engine.read(bad_fd if number % 3 == 0 else fd, 0, pages(4096), results.__setitem__, number)
    assert await engine.drain(WAIT_S)
    assert results == {number: -errno.EBADF if number % 3 == 0 else 4096 for number in range(10)}


async def test_memory_whose_file_was_truncated(engine: IoEngine, fd: int) -> None:
    """It must end as an error or a short count; touching it from here would kill the process."""
    os.pwrite(fd, b"z" * 65536, 0)
    memfd = os.memfd_create("client")
    try:
        os.ftruncate(memfd, 65536)
        memory = mmap.mmap(memfd, 65536)
        os.ftruncate(memfd, 0)
        result = await run(engine, "read", fd, 0, memoryview(memory))
    finally:
        os.close(memfd)
    assert result == -errno.EFAULT or 0 <= result < 65536


async def test_half_of_the_memory_was_truncated(engine: IoEngine, fd: int) -> None:
    os.pwrite(fd, b"z" * 65536, 0)
    memfd = os.memfd_create("client")
    try:
        os.ftruncate(memfd, 65536)
        memory = mmap.mmap(memfd, 65536)
        os.ftruncate(memfd, 32768)
        result = await run(engine, "read", fd, 0, memoryview(memory))
    finally:
        os.close(memfd)
    assert result == -errno.EFAULT or 0 <= result <= 32768


class Buffer(bytearray):
    """Can be referenced weakly."""


async def test_a_buffer_lives_until_done_and_no_longer(engine: IoEngine, fd: int) -> None:
    os.pwrite(fd, b"a" * 4096, 0)
    buffer = Buffer(4096)
    alive = weakref.ref(buffer)
    was_alive: list[bool] = []
    engine.read(fd, 0, memoryview(buffer), lambda *_: was_alive.append(alive() is not None), None)
    del buffer
    gc.collect()
    assert await engine.drain(WAIT_S)
    gc.collect()
    assert was_alive == [True]
    assert alive() is None


async def test_done_may_queue_more_without_end(engine: IoEngine, fd: int, pages: Pages) -> None:
    os.pwrite(fd, b"a" * 4096, 0)
    buffer = pages(4096)
    rounds = 3000

    def again(number: int, result: int) -> None:
        assert result == 4096
        if number < rounds:
            engine.read(fd, 0, buffer, again, number + 1)
            engine.submit()
        else:
            finished.set_result(number)

    finished: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    engine.read(fd, 0, buffer, again, 1)
    engine.submit()
    async with asyncio.timeout(WAIT_S):
        assert await finished == rounds


async def test_a_done_that_raises_harms_no_other(
    engine: IoEngine, fd: int, pages: Pages, caplog: pytest.LogCaptureFixture
) -> None:
    os.pwrite(fd, b"a" * 4096, 0)
    finished: list[int] = []

    def done(number: int, result: int) -> None:
        if number == 1:
            raise RuntimeError("on purpose")
        finished.append(number)

    for number in range(4):
        engine.read(fd, 0, pages(4096), done, number)
    assert await engine.drain(WAIT_S)
    assert sorted(finished) == [0, 2, 3]
    assert "completion handler failed" in caplog.text


async def test_after_batch_follows_each_batch(engine: IoEngine, fd: int, pages: Pages) -> None:
    os.pwrite(fd, b"a" * 4096, 0)
    story: list[str] = []
    engine.after_batch(lambda: story.append("batch"))
    for _ in range(20):
        engine.read(fd, 0, pages(4096), lambda *_: story.append("done"), None)
    assert await engine.drain(WAIT_S)
    assert story.count("done") == 20
    assert story[-1] == "batch"
    assert story[0] == "done"
    assert "batch batch" not in " ".join(story), "a batch has at least one completion"


async def test_nothing_starts_before_submit(engine: IoEngine, fd: int, pages: Pages) -> None:
    results: list[int] = []
    buffer = pages(4096)
    buffer[:] = b"n" * 4096
    engine.write(fd, 0, buffer, lambda _, result: results.append(result), None)
    assert engine.in_flight == 1
    assert os.fstat(fd).st_size == 0
    assert not results
    assert await engine.drain(WAIT_S)
    assert results == [4096]
    assert engine.in_flight == 0


async def test_a_mark_is_passed_when_all_before_it_is_done(engine: IoEngine, fd: int, pages: Pages) -> None:
    os.pwrite(fd, b"a" * 4096, 0)
    assert engine.passed(engine.mark())
    engine.read(fd, 0, pages(4096), lambda *_: None, None)
    mark = engine.mark()
    assert not engine.passed(mark)
    passed_inside: list[bool] = []
    assert await engine.drain(WAIT_S)
    assert engine.passed(mark)
    # What is queued after a mark does not hold it back.
    engine.read(fd, 0, pages(4096), lambda *_: passed_inside.append(engine.passed(mark)), None)
    assert engine.passed(mark)
    assert await engine.drain(WAIT_S)
    assert passed_inside == [True]


async def test_closing_ends_every_operation_once(engine: IoEngine, fd: int, pages: Pages) -> None:
    os.pwrite(fd, b"a" * SUBMIT_BYTES, 0)
    results: dict[int, list[int]] = {}
    count = DEPTH + 100

    def done(number: int, result: int) -> None:
        results.setdefault(number, []).append(result)

    for number in range(count):
        engine.read(fd, 0, pages(16384), done, number)
        if number == 50:
            engine.submit()
    engine.close()
    assert engine.in_flight == 0
    assert set(results) == set(range(count))
    assert all(len(each) == 1 for each in results.values())
    assert {each[0] for each in results.values()} <= {16384, -errno.ECANCELED}
    engine.close()


async def test_drain_of_an_idle_engine(engine: IoEngine) -> None:
    assert await engine.drain(0)
