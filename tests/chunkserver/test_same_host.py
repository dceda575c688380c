"""Same host, a real worker: whatever a client does with the memory that it shared, only that client suffers."""

import asyncio
import ctypes
import mmap
import os
import signal
import sys
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from esker.client.buffers import BufferPool, PoolExhausted
from esker.kvclient import Geometry, KVCacheClient
from esker.wire.errors import UserError
from esker.wire.limits import KIB, MIB
from esker.wire.memory import SharedArena
from esker.wire.messages import Method
from esker.wire.status import Status

from ..waiting import until
from .processes import WorkerProcess, metadata, one_drive, worker
from .raw_client import RawClient, content, create_body, create_statuses, read_body
from .test_memories import shared_memory_file

GEOMETRY = Geometry(block_bytes_max=64 * KIB)
PUNCH = 0x01 | 0x02
"""FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE."""


@pytest.fixture(params=["io_uring", "threads"])
async def drive(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[WorkerProcess]:
    async with one_drive(tmp_path, engine=request.param) as process:
        yield process


@pytest.fixture
async def client(drive: WorkerProcess) -> AsyncIterator[RawClient]:
    """A well-behaved client, which must never notice what others do."""
    async with await drive.client() as connected:
        assert (await connected.create({1: content(1), 2: content(2)})) == {1: Status.OK, 2: Status.OK}
        yield connected
        assert await connected.read_one(1) == content(1)
        assert await connected.read_one(2) == content(2)


def punch(fd: int, offset: int, length: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    result = libc.fallocate(fd, PUNCH, ctypes.c_long(offset), ctypes.c_long(length))
    assert result == 0, os.strerror(ctypes.get_errno())


async def test_memory_that_is_cut_short_ends_the_read_and_the_client_but_not_the_worker(
    drive: WorkerProcess, client: RawClient
) -> None:
    async with await drive.client() as bad:
        fd = shared_memory_file(MIB)
        memory_id = await bad.register(fd, MIB)
        os.ftruncate(fd, 8192)
        _, answer = bad.start(Method.READ, read_body([(1, 4096, at * 4096) for at in range(256)], memory_id=memory_id))
        await until(lambda: bad.connection.closed, "the client was disconnected")
        assert answer.over
        os.close(fd)
    counters = await client.stats()
    assert counters["memory_broken"] == 1
    await until(lambda: not drive.maps("/dev/shm/"), "the memory was unmapped")


async def test_memory_that_is_cut_short_ends_the_put(drive: WorkerProcess, client: RawClient) -> None:
    async with await drive.client() as bad:
        fd = shared_memory_file(MIB)
        memory_id = await bad.register(fd, MIB)
        os.ftruncate(fd, 8192)
        body = create_body({5: content(5)}, memory_id=memory_id, offsets=[MIB - 4096])
        _, answer = bad.start(Method.CREATE, body)
        await until(lambda: bad.connection.closed and answer.over, "the client was disconnected")
        os.close(fd)
    assert await client.lookup([5]) == b"\x00"


async def test_hole_punched_memory_reads_as_zeros_and_is_filled_again(drive: WorkerProcess, client: RawClient) -> None:
    """A hole gives no signal, only other bytes: their checksum does not match. A read just fills it."""
    async with await drive.client() as other:
        arena = SharedArena(MIB)
        memory_id = await other.register(arena.fd, MIB)
        arena.view[:4096] = content(5)
        punch(arena.fd, 0, 4096)
        assert await other.create({5: content(5)}, memory_id=memory_id, offsets=[0]) == {5: Status.CHECKSUM}
        punch(arena.fd, 0, MIB)
        found = await other.read([(1, 4096, 512 * KIB)], memory_id=memory_id)
        assert found.status == {0: Status.OK}
        assert arena.view[512 * KIB : 512 * KIB + 4096] == content(1)
        arena.close()


async def test_a_client_that_changes_its_memory_stores_a_snapshot_or_nothing(
    drive: WorkerProcess, client: RawClient
) -> None:
    """A thread keeps changing the value while it is put: what is stored verifies against what was announced."""
    length = 256 * KIB
    arena = SharedArena(MIB)
    value = content(3, length)
    arena.view[:length] = value
    stop = threading.Event()

    def scribble() -> None:
        # Right most of the time, so that both outcomes are seen.
        while not stop.is_set():
            for at in range(0, length, 32 * KIB):
                arena.view[at] ^= 0xFF
                arena.view[at] ^= 0xFF

    thread = threading.Thread(target=scribble)
    async with await drive.client() as other:
        memory_id = await other.register(arena.fd, MIB)
        thread.start()
        statuses = []
        for number in range(100, 160):
            _, answer = other.start(
                Method.CREATE,
                create_body({number: value}, memory_id=memory_id, offsets=[0], slot_bytes=length),
            )
            await answer.wait()
            statuses.append(create_statuses(answer)[0])
        stop.set()
        thread.join()
    assert set(statuses) <= {Status.OK, Status.CHECKSUM}
    for number, status in zip(range(100, 160), statuses, strict=True):
        found = await client.read_one(number)
        assert found == (value if status is Status.OK else Status.NOT_FOUND)
    arena.close()


async def test_the_memory_of_a_client_that_is_killed_is_released_at_once(tmp_path: Path) -> None:
    async with one_drive(tmp_path) as drive, await drive.client() as client:
        assert (await client.create({1: content(1)}))[1] is Status.OK
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            str(Path(__file__).with_name("reading_child.py")),
            drive.ready["socket"],
            stdout=asyncio.subprocess.PIPE,
        )
        assert process.stdout is not None
        async with asyncio.timeout(30):
            assert await process.stdout.readline() == b"reading\n"
        assert drive.maps("memfd:child-of-test") == 1
        assert (await client.stats())["memories"] == 1
        process.kill()
        await process.wait()
        await until(lambda: not drive.maps("memfd:child-of-test"), "the worker unmapped the dead client's memory")
        await until(lambda: not drive.open_files("memfd:child-of-test"), "the worker closed the descriptor")
        counters = await client.stats()
        assert counters["memories"] == 0
        assert counters["pool_free_bytes"] == 16 * MIB
        assert await client.read_one(1) == content(1)


@pytest.mark.parametrize("engine", ["io_uring", "threads"])
async def test_memory_does_not_grow_with_the_number_of_reads(tmp_path: Path, engine: str) -> None:
    reads = 100_000 if engine == "io_uring" else 20_000
    async with one_drive(tmp_path, engine=engine) as drive, await drive.client() as client:
        numbers = range(256)
        made = await client.create({number: content(number) for number in numbers}, slot_bytes=4096)
        assert set(made.values()) == {Status.OK}
        arena = SharedArena(MIB)
        memory_id = await client.register(arena.fd, MIB)
        body = read_body([(number, 4096, number * 4096) for number in numbers], memory_id=memory_id)

        async def read(count: int) -> None:
            for _ in range(count // (4 * len(numbers))):
                for answer in [client.start(Method.READ, body)[1] for _ in range(4)]:
                    await answer.wait()

        await read(20_000)
        before_bytes = drive.memory_bytes()
        await read(reads)
        grown_bytes = drive.memory_bytes() - before_bytes
        # A leak of one small object per read would be 10 times this.
        assert grown_bytes < 10 * reads, f"{grown_bytes} bytes more after {reads} reads"
        arena.close()


async def test_a_stopped_worker_keeps_the_slot_until_it_lets_go(tmp_path: Path) -> None:
    """The deadline passed, so the call ended; but the worker may still write, and it does when it wakes up."""
    async with (
        metadata(tmp_path / "meta") as cluster,
        worker(cluster, tmp_path / "drive") as drive,
        await KVCacheClient.connect(
            cluster, "test", GEOMETRY, transport="local", pool=(pool := BufferPool(64 * KIB, 4))
        ) as client,
    ):
        value = content(1, 64 * KIB)
        ((put,),) = [await client.put([b"key"], [value])]
        assert put.status is Status.OK
        (slot,) = pool.acquire(1)
        offset = slot.offset
        drive.signal(signal.SIGSTOP)
        (result,) = await client.get([b"key"], [slot], timeout_s=0.3)
        assert result.status is Status.TIMEOUT
        assert slot.quarantined
        with pytest.raises(UserError, match="in quarantine"):
            await client.get([b"key"], [slot], timeout_s=0.3)
        slot.release()
        others = pool.acquire(3)
        assert offset not in [other.offset for other in others]
        with pytest.raises(PoolExhausted, match="0 of 4 are free"):
            pool.acquire(1)
        for other in others:
            other.view[:] = b"\xaa" * len(other.view)
        drive.signal(signal.SIGCONT)
        (again,) = await pool.acquire_wait(1, timeout_s=30)
        assert again.offset == offset, "it is leased again once the worker has let go of it"
        assert pool.statistics().quarantined == 0
        again.view[:] = b"\xbb" * len(again.view)
        (found,) = await client.get([b"key"], [others[0]])
        assert (found.status, bytes(others[0].view)) == (Status.OK, value)
        assert again.view == b"\xbb" * len(again.view), "nothing is written into it late"
        assert all(other.view == b"\xaa" * len(other.view) for other in others[1:])
        for slot in (again, *others):
            slot.release()
    pool.close()


async def test_a_stopped_worker_that_is_killed_lets_go_of_the_slot(tmp_path: Path) -> None:
    async with metadata(tmp_path / "meta") as cluster:
        pool = BufferPool(64 * KIB, 2)
        async with worker(cluster, tmp_path / "drive") as drive:
            async with await KVCacheClient.connect(cluster, "test", GEOMETRY, pool=pool) as client:
                (put,) = await client.put([b"key"], [b"value"])
                assert put.status is Status.OK
                (slot,) = pool.acquire(1)
                drive.signal(signal.SIGSTOP)
                (result,) = await client.get([b"key"], [slot], timeout_s=0.3)
                assert result.status is Status.TIMEOUT
                slot.release()
                assert pool.statistics().quarantined == 1
                drive.signal(signal.SIGKILL)
                await until(lambda: pool.statistics().free == 2, "the slot came back with the worker's end")
            assert (await drive.ended())[0] == -signal.SIGKILL
        pool.close()


async def test_a_put_from_a_slot_that_a_stopped_worker_has_not_read_yet(tmp_path: Path) -> None:
    """Its outcome is unknown; the slot is not the caller's again before the worker has taken its snapshot."""
    async with (
        metadata(tmp_path / "meta") as cluster,
        worker(cluster, tmp_path / "drive") as drive,
        await KVCacheClient.connect(cluster, "test", GEOMETRY, pool=(pool := BufferPool(64 * KIB, 2))) as client,
    ):
        (slot,) = pool.acquire(1)
        value = content(1, 64 * KIB)
        slot.view[:] = value
        drive.signal(signal.SIGSTOP)
        (result,) = await client.put([b"key"], [slot], timeout_s=0.3)
        assert result.status is Status.TIMEOUT
        assert slot.quarantined
        slot.release()
        assert pool.statistics().free == 1
        drive.signal(signal.SIGCONT)
        await until(lambda: pool.statistics().free == 2, "the worker let go")
        buffer = bytearray(64 * KIB)
        (found,) = await client.get([b"key"], [buffer])
        assert found.status is Status.NOT_FOUND or (found.status is Status.OK and buffer == value)
    pool.close()


async def test_the_socket_is_its_owners_only(drive: WorkerProcess) -> None:
    path = drive.ready["socket"]
    assert os.stat(path).st_mode & 0o777 == 0o600
    assert os.stat(os.path.dirname(path)).st_mode & 0o777 == 0o700


async def test_a_mapping_of_the_client_is_only_data_to_the_worker(drive: WorkerProcess, client: RawClient) -> None:
    """A client that unmaps and remaps its own pool while reads are under way changes nothing for the worker."""
    async with await drive.client() as other:
        fd = os.memfd_create("remapped", os.MFD_CLOEXEC)
        os.ftruncate(fd, MIB)
        memory_id = await other.register(fd, MIB)
        answers = []
        for _ in range(20):
            own = mmap.mmap(fd, MIB)
            answers.append(
                other.start(Method.READ, read_body([(1, 4096, at * 4096) for at in range(256)], memory_id=memory_id))[1]
            )
            own.close()
        for answer in answers:
            await answer.wait()
        with mmap.mmap(fd, MIB) as own:
            assert own[:] == content(1) * 256
        os.close(fd)
