"""READ and LOOKUP of one drive, over real sockets: what is there comes whole, and whatever is asked ends."""

import asyncio
import errno
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from esker.chunkserver.engine.interface import Done
from esker.chunkserver.engine.record import record_key
from esker.wire.checksum import checksums
from esker.wire.errors import RequestFailed
from esker.wire.ids import chunk_id
from esker.wire.limits import ALIGN_BYTES, KIB, MIB
from esker.wire.memory import SharedArena
from esker.wire.messages import Cancel, Empty, Lookup, LookupReply, Method, Read
from esker.wire.status import Status

from ..waiting import until
from .drives import ServedDrive, served
from .raw_client import SPACE, RawClient, content, object_of, read_answer, read_body

VALUES = {number: content(number, length) for number, length in enumerate((1, 4096, 5000, 65536, 65537, 64 * KIB - 1))}


@pytest.fixture
async def drive(tmp_path: Path) -> AsyncIterator[ServedDrive]:
    async with served(tmp_path) as (only,):
        yield only


@pytest.fixture
async def client(drive: ServedDrive) -> AsyncIterator[RawClient]:
    async with await drive.client() as connected:
        made = await connected.create(VALUES, slot_bytes=128 * KIB)
        assert set(made.values()) == {Status.OK}
        yield connected


@pytest.mark.parametrize("tcp", [False, True])
async def test_chunks_of_any_length_come_back_over_either_socket(
    drive: ServedDrive, client: RawClient, tcp: bool
) -> None:
    async with await drive.client(tcp=tcp) as reader:
        found = await reader.read([(number, 128 * KIB, 0) for number in VALUES])
    assert found.data == dict(enumerate(VALUES.values()))
    assert found.sums == {at: checksums(memoryview(value)) for at, value in enumerate(VALUES.values())}
    assert all(row[2] == row[4] == len(VALUES[at]) for at, row in found.rows.items())


async def test_chunks_go_into_registered_memory_and_nothing_else_does(client: RawClient) -> None:
    arena = SharedArena(MIB)
    arena.view[:] = b"\xee" * MIB
    memory_id = await client.register(arena.fd, MIB)
    places = {number: (2 * number + 1) * 68 * KIB // ALIGN_BYTES * ALIGN_BYTES for number in VALUES}
    found = await client.read([(number, 72 * KIB, places[number]) for number in VALUES], memory_id=memory_id)
    assert set(found.status.values()) == {Status.OK}
    assert found.data == {}, "no payload crosses the socket"
    expected = bytearray(b"\xee" * MIB)
    for number, value in VALUES.items():
        padded = -(-len(value) // ALIGN_BYTES) * ALIGN_BYTES
        expected[places[number] : places[number] + padded] = value.ljust(padded, b"\0")
    assert arena.view == expected, "padding reads as zeros, and the rest of the memory is as it was"
    arena.close()


async def test_what_is_not_there_or_has_no_room_says_so(client: RawClient) -> None:
    found = await client.read([(0, 0, 0), (99, MIB, 0), (2, 4999, 0), (2, 5000, 0)])
    assert found.status == {0: Status.TOO_LARGE, 1: Status.NOT_FOUND, 2: Status.TOO_LARGE, 3: Status.OK}
    assert found.rows[2][2] == 5000, "the length is told also where there was no room"
    assert found.rows[1][2:] == (0, 0, 0, 0, bytes(16))
    assert await client.read_one(0, chain=2) is Status.NOT_FOUND
    assert await client.read_one(0, index=1) is Status.NOT_FOUND


@pytest.mark.parametrize(
    ("room", "offset", "status"),
    [
        (4096, 0, Status.TOO_LARGE),
        (8191, 0, Status.TOO_LARGE),
        (8192, 1, Status.BAD_MEMORY),
        (8192, 4095, Status.BAD_MEMORY),
        (8192, 64 * KIB - 4096, Status.BAD_MEMORY),
        (8192, 64 * KIB, Status.BAD_MEMORY),
        (8192, 2**63, Status.BAD_MEMORY),
        (8192, 2**64 - 8192, Status.BAD_MEMORY),
        (2**32 - 1, 0, Status.OK),
        (8192, 64 * KIB - 8192, Status.OK),
    ],
)
async def test_places_in_memory_are_checked(client: RawClient, room: int, offset: int, status: Status) -> None:
    arena = SharedArena(64 * KIB)
    memory_id = await client.register(arena.fd, 64 * KIB)
    found = await client.read([(2, room, offset)], memory_id=memory_id)
    assert found.status == {0: status}
    arena.close()


async def test_memory_that_is_not_registered_on_this_connection(drive: ServedDrive, client: RawClient) -> None:
    arena = SharedArena(64 * KIB)
    memory_id = await client.register(arena.fd, 64 * KIB)
    async with await drive.client() as other:
        with pytest.raises(RequestFailed, match="not registered on this connection") as caught:
            await other.read([(0, 4096, 0)], memory_id=memory_id)
        assert caught.value.status is Status.BAD_MEMORY
    assert (await client.read([(0, 4096, 0)], memory_id=memory_id)).status == {0: Status.OK}
    arena.close()


@pytest.mark.parametrize("extents", [b"", b"x", bytes(35), bytes(36 * 8193)])
async def test_columns_that_are_not_whole_are_refused(client: RawClient, extents: bytes) -> None:
    _, answer = client.start(Method.READ, Read(SPACE, extents, 0, 1000))
    with pytest.raises(RequestFailed, match="a column of") as caught:
        await answer.wait()
    assert caught.value.status is Status.BAD_REQUEST


@pytest.mark.parametrize("method", [Method.READ, Method.LOOKUP, Method.CREATE, Method.REMOVE, Method.CONFIRM])
async def test_bodies_of_another_kind_are_refused(client: RawClient, method: Method) -> None:
    _, answer = client.start(method, Empty())
    with pytest.raises(RequestFailed, match="malformed") as caught:
        await answer.wait()
    assert caught.value.status is Status.BAD_REQUEST


async def test_a_corrupt_record_is_no_answer_and_is_counted(drive: ServedDrive, client: RawClient) -> None:
    key = record_key(1, chunk_id(SPACE, object_of(1)))
    with drive.store._index.env.begin(write=True, db=drive.store._index.chunks) as txn:
        value = bytearray(txn.get(key))
        value[30] ^= 1
        txn.put(key, bytes(value))
    assert await client.read_one(1) is Status.CHECKSUM
    assert drive.store.counters()["corrupt_records"] == 1
    assert (await client.create({1: VALUES[1]}))[1] is Status.OK, "a create puts a whole one in its place"
    assert await client.read_one(1) == VALUES[1]


async def test_lookups_of_many_keys_are_exact(client: RawClient) -> None:
    numbers = [number % 10 for number in range(10_000)]
    expected = bytes(number in VALUES for number in numbers)
    assert await client.lookup(numbers) == expected
    assert await client.lookup(numbers, chain=2) == bytes(10_000)
    with pytest.raises(RequestFailed, match="a column of"):
        await client.connection.call(Method.LOOKUP, Lookup(SPACE, b"x"), LookupReply, timeout_s=10)


async def test_a_read_larger_than_all_the_pool_ends_at_its_deadline(tmp_path: Path) -> None:
    async with served(tmp_path, pool_bytes=64 * KIB) as (drive,), await drive.client() as client:
        arena = SharedArena(128 * KIB)
        arena.view[:] = b"\x07" * (128 * KIB)
        region = drive.pool.allocate(4096)
        assert region is not None
        assert (await client.create({1: content(1)}, slot_bytes=4096))[1] is Status.OK
        region.drop()
        slot = drive.pool.allocate(64 * KIB)
        assert slot is not None, "all of the pool is taken"
        found = await client.read([(1, 4096, 0)], budget_ms=50)
        assert found.status == {0: Status.TIMEOUT}
        _, waiting = client.start(Method.READ, read_body([(1, 4096, 0)], budget_ms=30_000))
        assert await client.lookup([1]) == b"\x01", "it arrived before, and nobody waits behind it"
        assert not waiting.over
        slot.drop()
        await waiting.wait()
        assert read_answer(waiting).data == {0: content(1)}
        arena.close()


async def test_a_read_that_waits_for_memory_can_be_cancelled(tmp_path: Path) -> None:
    async with served(tmp_path, pool_bytes=64 * KIB) as (drive,), await drive.client() as client:
        assert (await client.create({1: content(1)}))[1] is Status.OK
        all_of_it = drive.pool.allocate(64 * KIB)
        assert all_of_it is not None
        request_id, waiting = client.start(Method.READ, read_body([(1, 4096, 0), (99, 4096, 0)], budget_ms=30_000))
        await client.connection.call(Method.CANCEL, Cancel(request_id), Empty, timeout_s=10)
        assert waiting.over, "the cancellation is confirmed only once the request has ended"
        assert read_answer(waiting).status == {0: Status.CANCELLED, 1: Status.NOT_FOUND}
        all_of_it.drop()
        confirmed = await client.connection.call(Method.CANCEL, Cancel(request_id), Empty, timeout_s=10)
        assert confirmed == Empty(), "what has ended is confirmed as well"


async def test_a_client_that_goes_away_gives_everything_back(drive: ServedDrive, client: RawClient) -> None:
    async with await drive.client() as other:
        arena = SharedArena(64 * KIB)
        await other.register(arena.fd, 64 * KIB)
        assert drive.memories.count == 1
        for _ in range(20):
            other.start(Method.READ, read_body([(number, 128 * KIB, 0) for number in VALUES] * 10))
    await until(lambda: drive.idle and drive.memories.count == 0, "the worker let go")
    arena.close()


async def test_a_client_that_takes_nothing_holds_up_nobody(drive: ServedDrive, client: RawClient) -> None:
    """Its data waits in a bounded part of the pool, and the others' reads pass by."""
    assert (await client.create({50: content(50, MIB)}, slot_bytes=MIB))[50] is Status.OK
    async with await drive.client() as lazy:
        lazy.connection.stream._loop.remove_reader(lazy.connection.stream._fd)
        lazy.start(Method.READ, read_body([(50, MIB, 0)] * 64, budget_ms=60_000))
        await until(lambda: drive.pool.free_bytes < drive.pool.arena.size_bytes, "the lazy client's read began")
        for _ in range(20):
            assert await client.read_one(2) == VALUES[2]
        assert drive.pool.free_bytes >= 4 * MIB, "what waits for one connection is bounded"
    await until(lambda: drive.idle, "the worker let go")


async def test_every_batch_is_answered_once_however_many_come_together(client: RawClient) -> None:
    numbers = [*VALUES, 77]
    answers = [
        client.start(Method.READ, read_body([(numbers[(at + step) % 7], 128 * KIB, 0) for at in range(200)]))[1]
        for step in range(20)
    ]
    for step, answer in enumerate(answers):
        await answer.wait()
        found = read_answer(answer)
        assert len(found.status) == 200
        for at, status in found.status.items():
            number = numbers[(at + step) % 7]
            assert (found.data[at] == VALUES[number]) if number in VALUES else (status is Status.NOT_FOUND)


async def test_a_short_read_of_the_drive_is_an_error_and_no_data(drive: ServedDrive, client: RawClient) -> None:
    segment = next(path for path in (Path(drive.store._drive._lock.directory) / "data").rglob("*") if path.is_file())
    for path in segment.parent.iterdir():
        os.truncate(path, 0)
    found = await client.read([(number, 128 * KIB, 0) for number in VALUES])
    assert set(found.status.values()) == {Status.IO_ERROR}
    assert drive.counters.get("read_errors") == len(VALUES)


async def test_neighbours_are_read_together_and_a_broken_one_fails_alone(
    drive: ServedDrive, client: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Chunks written one after the other lie in one run; when its read fails, each is read by itself."""
    numbers = range(100, 116)
    for number in numbers:
        assert (await client.create({number: content(number, 64 * KIB)}, slot_bytes=64 * KIB))[number] is Status.OK
    reads: list[int] = []
    engine_read = drive.engine.read

    def read(fd: int, offset: int, buffer: memoryview, done: Done, token: Any) -> None:
        reads.append(len(buffer))
        if len(reads) == 1:
            asyncio.get_running_loop().call_soon(done, token, -errno.EIO)
        else:
            engine_read(fd, offset, buffer, done, token)

    monkeypatch.setattr(drive.engine, "read", read)
    got = await client.read([(number, 64 * KIB, 0) for number in numbers])
    assert all(got.status[at] is Status.OK for at in range(len(numbers)))
    assert [got.data[at] for at in range(len(numbers))] == [content(number, 64 * KIB) for number in numbers]
    assert reads == [1024 * KIB] + [64 * KIB] * len(numbers)
    reads[:] = [0]
    await client.read([(number, 64 * KIB, 0) for number in numbers])
    assert reads == [0, 1024 * KIB]
