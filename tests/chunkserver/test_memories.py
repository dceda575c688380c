"""Registered client memory: what is refused at the door, and that nothing of it outlives its connection."""

import fcntl
import os
import tempfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from esker.wire.errors import RequestFailed
from esker.wire.limits import KIB, MIB
from esker.wire.memory import SharedArena
from esker.wire.messages import Empty, MemoryRegistered, Method, RegisterMemory, ReleaseMemory
from esker.wire.status import Status

from ..waiting import until
from .drives import ServedDrive, served
from .raw_client import RawClient, read_body


@pytest.fixture
async def drive(tmp_path: Path) -> AsyncIterator[ServedDrive]:
    async with served(tmp_path) as (only,):
        yield only


@pytest.fixture
async def client(drive: ServedDrive) -> AsyncIterator[RawClient]:
    async with await drive.client() as connected:
        yield connected


def memfd(length_bytes: int, seals: int = 0, flags: int = os.MFD_ALLOW_SEALING) -> int:
    fd = os.memfd_create("test", os.MFD_CLOEXEC | flags)
    os.ftruncate(fd, length_bytes)
    if seals:
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    return fd


def shared_memory_file(length_bytes: int) -> int:
    """Like what `shm_open` gives: it cannot be sealed."""
    with tempfile.TemporaryFile(dir="/dev/shm") as file:
        file.truncate(length_bytes)
        return os.dup(file.fileno())


def directory(_: int) -> int:
    return os.open("/", os.O_RDONLY)


def pipe(_: int) -> int:
    reading, writing = os.pipe()
    os.close(writing)
    return reading


def read_only(length_bytes: int) -> int:
    with tempfile.NamedTemporaryFile(dir="/dev/shm") as file:
        file.truncate(length_bytes)
        return os.open(file.name, os.O_RDONLY)


BOTH = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW


@pytest.mark.parametrize(
    ("make", "claimed", "message"),
    [
        (lambda size: memfd(size), MIB, "must carry F_SEAL_SHRINK and F_SEAL_GROW"),
        (lambda size: memfd(size, fcntl.F_SEAL_SHRINK), MIB, "must carry F_SEAL_SHRINK and F_SEAL_GROW"),
        (lambda size: memfd(size, fcntl.F_SEAL_GROW), MIB, "must carry F_SEAL_SHRINK and F_SEAL_GROW"),
        (lambda size: memfd(size - 1, BOTH), MIB, "1048575 bytes long, 1048576 were claimed"),
        (lambda size: memfd(0, BOTH), 4096, "0 bytes long"),
        (lambda size: memfd(size, BOTH), 4097, "positive multiples of 4096"),
        (lambda size: memfd(size, BOTH), 0, "positive multiples of 4096"),
        (lambda size: memfd(size, BOTH), -4096, "positive multiples of 4096"),
        (lambda size: memfd(size, BOTH), 2**62, "were claimed"),
        (lambda size: memfd(size, BOTH | fcntl.F_SEAL_WRITE), MIB, "cannot be mapped"),
        (shared_memory_file, 2 * MIB, "were claimed"),
        (read_only, MIB, "cannot be mapped"),
        (directory, MIB, "not a memory file"),
        (pipe, MIB, "not a memory file"),
    ],
)
async def test_memory_that_could_hurt_is_refused(
    drive: ServedDrive, client: RawClient, make: Callable[[int], int], claimed: int, message: str
) -> None:
    fd = make(MIB)
    with pytest.raises(RequestFailed, match=message) as caught:
        await client.register(fd, claimed)
    os.close(fd)
    assert caught.value.status is Status.BAD_MEMORY
    assert drive.memories.count == 0
    assert drive.counters.get("memory_refused") == 1


@pytest.mark.parametrize(
    "make",
    [
        lambda size: memfd(size, BOTH),
        lambda size: memfd(size, BOTH | fcntl.F_SEAL_SEAL),
        lambda size: memfd(size, flags=0),
        shared_memory_file,
    ],
)
async def test_memory_that_is_safe_is_taken_and_given_back(
    drive: ServedDrive, client: RawClient, make: Callable[[int], int]
) -> None:
    fd = make(MIB)
    memory_id = await client.register(fd, MIB)
    os.close(fd)
    assert drive.memories.count == 1
    await client.connection.call(Method.RELEASE_MEMORY, ReleaseMemory(memory_id), Empty, timeout_s=10)
    assert drive.memories.count == 0
    with pytest.raises(RequestFailed, match="not registered"):
        await client.connection.call(Method.RELEASE_MEMORY, ReleaseMemory(memory_id), Empty, timeout_s=10)


async def test_a_registration_needs_its_descriptor(client: RawClient) -> None:
    body = RegisterMemory(MIB)
    with pytest.raises(RequestFailed, match="no descriptor came") as caught:
        await client.connection.call(Method.REGISTER_MEMORY, body, MemoryRegistered, timeout_s=10)
    assert caught.value.status is Status.BAD_MEMORY


async def test_a_descriptor_of_a_refused_registration_is_not_the_next_ones(client: RawClient) -> None:
    small, large = SharedArena(64 * KIB), SharedArena(MIB)
    with pytest.raises(RequestFailed, match="malformed"):
        await client.connection.call(Method.REGISTER_MEMORY, Empty(), MemoryRegistered, timeout_s=10, fds=(small.fd,))
    await client.register(large.fd, MIB)
    small.close()
    large.close()


async def test_the_number_of_memories_is_bounded(drive: ServedDrive, client: RawClient) -> None:
    arena = SharedArena(4 * KIB)
    for _ in range(16):
        await client.register(arena.fd, 4 * KIB)
    with pytest.raises(RequestFailed, match="16 memories are registered on this connection already"):
        await client.register(arena.fd, 4 * KIB)
    arena.close()
    assert drive.memories.count == 16
    await client.connection.aclose()
    await until(lambda: drive.memories.count == 0, "the memory of the connection was let go")


async def test_released_memory_stays_mapped_for_the_reads_under_way(tmp_path: Path) -> None:
    """What was asked for before the release is still read into it; unmapped it would land in another's memory."""
    async with served(tmp_path) as (drive,), await drive.client() as client:
        assert (await client.create({1: b"x" * 4096}))[1] is Status.OK
        arena = SharedArena(MIB)
        memory_id = await client.register(arena.fd, MIB)
        _, answer = client.start(
            Method.READ, read_body([(1, 4096, at * 4096) for at in range(256)], memory_id=memory_id)
        )
        await client.connection.call(Method.RELEASE_MEMORY, ReleaseMemory(memory_id), Empty, timeout_s=10)
        await answer.wait()
        assert arena.view == b"x" * MIB
        arena.close()


async def test_file_memory_that_was_cut_short_ends_its_client_only(drive: ServedDrive, client: RawClient) -> None:
    assert (await client.create({1: b"x" * 4096}))[1] is Status.OK
    async with await drive.client() as bad:
        fd = shared_memory_file(MIB)
        memory_id = await bad.register(fd, MIB)
        os.ftruncate(fd, 4096)
        _, answer = bad.start(Method.READ, read_body([(1, 4096, at * 4096) for at in range(256)], memory_id=memory_id))
        await until(lambda: bad.connection.closed, "the client with the broken memory was disconnected")
        assert answer.over
        os.close(fd)
    await until(lambda: drive.memories.count == 0 and drive.idle, "its memory was let go")
    assert drive.counters.get("memory_broken") == 1
    assert await client.read_one(1) == b"x" * 4096
