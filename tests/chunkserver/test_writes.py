"""CREATE and REMOVE at one drive, over real sockets: what is stored is what was meant, or nothing is."""

import asyncio
import errno
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from esker.craq.versions import CHAIN_VERSION_SHIFT
from esker.wire.checksum import checksums
from esker.wire.errors import RequestFailed
from esker.wire.limits import ALIGN_BYTES, KIB, MIB
from esker.wire.memory import SharedArena
from esker.wire.messages import CREATE_EXTENT, Create, Method
from esker.wire.status import Status

from ..waiting import until
from .drives import ServedDrive, served
from .raw_client import SPACE, RawClient, content, create_body, create_rows_of, create_statuses, object_of

FIRST_VERSION = 1 << CHAIN_VERSION_SHIFT
"""Drawn first in version 1 of a chain."""


@pytest.fixture
async def drive(tmp_path: Path) -> AsyncIterator[ServedDrive]:
    async with served(tmp_path, capacity_bytes=32 * MIB) as (only,):
        yield only


@pytest.fixture
async def client(drive: ServedDrive) -> AsyncIterator[RawClient]:
    async with await drive.client() as connected:
        yield connected


@pytest.mark.parametrize("tcp", [False, True])
async def test_what_was_created_stays_and_takes_one_slot(drive: ServedDrive, client: RawClient, tcp: bool) -> None:
    values = {number: content(number, 5000) for number in range(20)}
    async with await drive.client(tcp=tcp) as writer:
        assert set((await writer.create(values)).values()) == {Status.OK}
        used_bytes = drive.store.used_bytes
        assert set((await writer.create(values)).values()) == {Status.EXISTS}
        others = {number: content(number + 100, 5000) for number in range(20)}
        assert set((await writer.create(others)).values()) == {Status.EXISTS_OTHER}
    for number, value in values.items():
        assert await client.read_one(number) == value
    await until(lambda: drive.idle, "all operations ended")
    assert drive.store.used_bytes == used_bytes
    # In the order in which the drive finished, which it chooses.
    assert sorted(entry.key for entry in drive.reports) == sorted(b"key %d" % number for number in range(20))


async def test_versions_are_the_heads_and_grow(client: RawClient) -> None:
    versions = []
    for number in range(3):
        _, answer = client.start(Method.CREATE, create_body({number: b"x"}), [memoryview(b"x")])
        await answer.wait()
        versions.append(create_rows_of(answer)[0][2])
    assert versions == [FIRST_VERSION, FIRST_VERSION + 1, FIRST_VERSION + 2]


@pytest.mark.parametrize("tcp", [False, True])
async def test_bytes_that_do_not_match_their_checksum_are_not_stored(
    drive: ServedDrive, client: RawClient, tcp: bool
) -> None:
    values = {1: content(1), 2: content(2)}
    sums = checksums(memoryview(values[1])) + bytes(8)
    async with await drive.client(tcp=tcp) as writer:
        assert await writer.create(values, sums=sums) == {1: Status.OK, 2: Status.CHECKSUM}
    assert await client.lookup([1, 2]) == b"\x01\x00"
    assert drive.counters.get("create_checksum") == 1


async def test_values_are_taken_from_registered_memory(client: RawClient) -> None:
    arena = SharedArena(MIB)
    memory_id = await client.register(arena.fd, MIB)
    values = {number: content(number, 5000) for number in range(10)}
    offsets = [(number * 3 + 1) * 8 * KIB for number in values]
    for offset, value in zip(offsets, values.values(), strict=True):
        arena.view[offset : offset + len(value)] = value
    made = await client.create(values, memory_id=memory_id, offsets=offsets)
    assert set(made.values()) == {Status.OK}
    for number, value in values.items():
        assert await client.read_one(number) == value
    arena.close()


@pytest.mark.parametrize("offset", [MIB, MIB - 4096, 2**32 * 4096 - 4096])
async def test_values_outside_the_memory_are_refused(drive: ServedDrive, client: RawClient, offset: int) -> None:
    arena = SharedArena(MIB)
    memory_id = await client.register(arena.fd, MIB)
    with pytest.raises(RequestFailed, match="outside the memory") as caught:
        await client.create({1: content(1, 5000)}, memory_id=memory_id, offsets=[offset])
    assert caught.value.status is Status.BAD_MEMORY
    with pytest.raises(RequestFailed, match="not registered"):
        await client.create({1: content(1)}, memory_id=memory_id + 1, offsets=[0])
    assert drive.idle
    arena.close()


@pytest.mark.parametrize(
    ("changes", "status", "message"),
    [
        ({"slot_bytes": 0}, Status.BAD_REQUEST, "slots of 0 bytes"),
        ({"slot_bytes": 4097}, Status.BAD_REQUEST, "slots of 4097 bytes"),
        ({"slot_bytes": 64 * MIB + 4096}, Status.BAD_REQUEST, "slots of 67112960 bytes"),
        ({"slot_bytes": 4096}, Status.TOO_LARGE, "a chunk of 5000 bytes for slots of 4096"),
        ({"sums": b""}, Status.BAD_REQUEST, "checksums or keys do not fit"),
        ({"sums": bytes(16)}, Status.BAD_REQUEST, "checksums or keys do not fit"),
    ],
)
async def test_figures_that_do_not_fit_are_refused(
    drive: ServedDrive, client: RawClient, changes: dict, status: Status, message: str
) -> None:
    for ask in (client.create, client.confirm):
        with pytest.raises(RequestFailed, match=message) as caught:
            await ask({1: content(1, 5000)}, **changes)
        assert caught.value.status is status
    await until(lambda: drive.idle, "nothing is held")
    assert await client.lookup([1]) == b"\x00"


def extent(length: int, key_bytes: int = 0) -> bytes:
    return CREATE_EXTENT.pack(object_of(1), 0, 1, 1, length, 0, 0, length, 1, bytes(16), key_bytes)


@pytest.mark.parametrize(
    ("extents", "sums", "keys", "payload", "message"),
    [
        (extent(0), b"", b"", b"", "a chunk of 0 bytes"),
        (extent(64 * MIB + 1), bytes(8 * 1025), b"", b"", "a chunk of 67108865 bytes"),
        (extent(64 * MIB) * 2, bytes(16 * 1024), b"", b"", "134217728 bytes in one request"),
        (extent(1, 257), bytes(8), bytes(257), b"x", "a key of 257 bytes"),
        (extent(1, 5), bytes(8), b"1234", b"x", "checksums or keys do not fit"),
        (extent(2), bytes(8), b"", b"x", "a payload of 1 bytes for 2"),
        (extent(2), bytes(8), b"", b"", "a payload of 0 bytes for 2"),
        (extent(2), bytes(8), b"", b"xxx", "a payload of 3 bytes for 2"),
        (extent(2)[:-1], bytes(8), b"", b"xx", "a column of"),
        (b"", b"", b"", b"", "a column of 0 bytes"),
    ],
)
async def test_columns_that_do_not_fit_are_refused(
    drive: ServedDrive, client: RawClient, extents: bytes, sums: bytes, keys: bytes, payload: bytes, message: str
) -> None:
    body = Create(SPACE, 64 * MIB, extents, sums, keys, 0, 1000)
    _, answer = client.start(Method.CREATE, body, [memoryview(payload)] if payload else [])
    with pytest.raises(RequestFailed, match=message):
        await answer.wait()
    assert drive.idle
    assert (await client.create({2: b"y"}))[2] is Status.OK, "the connection goes on, whatever payload came along"


async def test_who_sends_to_whom_and_of_which_chain_version(drive: ServedDrive, client: RawClient) -> None:
    async with await drive.client(role="worker", peer_id="d9") as predecessor:
        assert (await predecessor.create({1: b"x"}))[1] is Status.CHAIN_VERSION, "a head has no predecessor"
        assert await predecessor.remove(1) is Status.CHAIN_VERSION
    assert (await client.create({1: b"x"}, version=5))[1] is Status.CHAIN_VERSION, "clients know no version"
    assert drive.refreshes == 0
    assert (await client.create({1: b"x"}, chain_version=2))[1] is Status.CHAIN_VERSION
    assert (await client.create({1: b"x"}, chain=9))[1] is Status.CHAIN_VERSION
    assert await client.remove(1, chain=9) is Status.CHAIN_VERSION
    assert drive.refreshes == 3, "somebody knows more of the cluster than this worker"
    assert await client.lookup([1]) == b"\x00"


async def test_a_full_pool_is_busy_and_the_connection_goes_on(drive: ServedDrive, client: RawClient) -> None:
    everything = drive.pool.allocate(drive.pool.arena.size_bytes)
    assert everything is not None
    with pytest.raises(RequestFailed, match="pool is full") as caught:
        await client.create({1: content(1)})
    assert caught.value.status is Status.BUSY
    everything.drop()
    assert (await client.create({1: content(1)}))[1] is Status.OK


async def test_with_too_many_operations_under_way_no_more_are_begun(
    drive: ServedDrive, client: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("esker.chunkserver.writes.OPERATIONS_MAX", 0)
    for refused in (client.create({1: b"x"}), client.confirm({1: b"x"}), client.remove(1)):
        with pytest.raises(RequestFailed, match="under way") as caught:
            await refused
        assert caught.value.status is Status.BUSY
    assert drive.idle


@pytest.mark.parametrize("budget_ms", [50, 0, -5])
async def test_a_payload_that_does_not_come_holds_no_memory(drive: ServedDrive, budget_ms: int) -> None:
    """A client that was stopped in the midst of sending must not keep the pool from others."""
    async with await drive.client() as client:
        stream = client.connection.stream
        sent: list[bytes] = []
        stream._sendmsg = lambda buffers, fds: sent.append(bytes(buffers[0])) or sum(map(len, buffers))
        client.start(Method.CREATE, create_body({1: content(1)}, budget_ms=budget_ms), [memoryview(content(1))])
        stream._sock.send(sent[0])
        await until(lambda: client.connection.closed, "the connection was ended")
    await until(lambda: drive.idle, "the memory came back")


async def test_a_client_that_breaks_off_in_the_payload_holds_no_memory(drive: ServedDrive) -> None:
    async with await drive.client() as client:
        stream = client.connection.stream
        sent: list[bytes] = []
        stream._sendmsg = lambda buffers, fds: sent.append(bytes(buffers[0])) or sum(map(len, buffers))
        client.start(Method.CREATE, create_body({1: content(1)}), [memoryview(content(1))])
        stream._sock.send(sent[0] + b"only this")
        await until(lambda: not drive.idle, "the request arrived")
    await until(lambda: drive.idle, "the memory came back")


async def test_racing_creates_of_one_chunk_agree(client: RawClient) -> None:
    answers = []
    for number in range(20):
        value = content(number % 2)
        answers.append(client.start(Method.CREATE, create_body({1: value}), [memoryview(value)])[1])
    statuses = []
    for answer in answers:
        await answer.wait()
        statuses += create_statuses(answer).values()
    assert statuses == [Status.OK, Status.EXISTS_OTHER] + [Status.EXISTS, Status.EXISTS_OTHER] * 9
    assert await client.read_one(1) == content(0)


async def test_the_queue_of_one_chunk_is_bounded(drive: ServedDrive, client: RawClient) -> None:
    answers = [client.start(Method.CREATE, create_body({1: b"x"}), [memoryview(b"x")])[1] for _ in range(200)]
    statuses = []
    for answer in answers:
        await answer.wait()
        statuses += create_statuses(answer).values()
    assert statuses[0] is Status.OK
    assert set(statuses[1:]) == {Status.EXISTS, Status.BUSY}
    await until(lambda: drive.idle, "all operations ended")


async def test_removal_is_conditional_and_gives_the_room_back(drive: ServedDrive, client: RawClient) -> None:
    put_id = bytes(range(16))
    empty_bytes = drive.store.used_bytes
    assert (await client.create({1: content(1)}, put_id=put_id))[1] is Status.OK
    assert await client.remove(1, put_id=bytes(15) + b"x") is Status.CONDITION
    assert await client.remove(1, version=FIRST_VERSION + 9) is Status.CONDITION
    assert await client.read_one(1) == content(1)
    assert await client.remove(1, version=FIRST_VERSION, put_id=put_id) is Status.OK
    assert await client.remove(1) is Status.NOT_FOUND
    assert await client.read_one(1) is Status.NOT_FOUND
    assert [entry.created_ms > 0 for entry in drive.reports] == [True, False], "the catalog is told of both"
    assert (await client.create({1: content(2)}))[1] is Status.OK
    assert await client.remove(1) is Status.OK
    # Room comes back with the next allocation after the commit: that is when it is needed.
    assert (await client.create({2: content(3)}))[2] is Status.OK
    assert drive.store.used_bytes == empty_bytes + 4096


async def test_a_full_drive_refuses_and_serves_on(drive: ServedDrive, client: RawClient) -> None:
    stored: dict[int, bytes] = {}
    number = 0
    while True:
        batch = {number + at: content(number + at, MIB) for at in range(4)}
        made = await client.create(batch, slot_bytes=MIB)
        stored |= {each: batch[each] for each, status in made.items() if status is Status.OK}
        number += 4
        if set(made.values()) != {Status.OK}:
            break
    assert set(made.values()) <= {Status.OK, Status.NO_SPACE}
    assert 20 <= len(stored) < 32
    assert drive.store.used_bytes <= drive.store.capacity_bytes
    assert drive.store.counters()["no_space"] >= 1
    assert drive.counters.get("create_no_space") == len(made) - sum(s is Status.OK for s in made.values())
    for each, value in stored.items():
        assert await client.read_one(each) == value
    assert (await client.create({min(stored): stored[min(stored)]}, slot_bytes=MIB))[min(stored)] is Status.EXISTS
    assert await client.remove(min(stored)) is Status.OK
    assert (await client.create({999: content(999, MIB)}, slot_bytes=MIB))[999] is Status.OK


async def test_a_drive_that_fails_a_write_stops_serving(drive: ServedDrive, client: RawClient) -> None:
    assert (await client.create({1: content(1)}))[1] is Status.OK

    def broken(fd: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    drive.store._committer._files.data_sync = broken
    drive.expected_bugs = ["data cannot be synced, the drive takes no more writes"]
    statuses = await asyncio.gather(*(client.create({number: content(number)}) for number in range(2, 12)))
    assert {status for made in statuses for status in made.values()} == {Status.UNAVAILABLE}
    assert drive.view.offline_chains == {1}
    assert await client.read_one(1) is Status.UNAVAILABLE, "another replica is asked instead"
    assert (await client.create({20: b"x"}))[20] is Status.UNAVAILABLE
    assert await client.remove(1) is Status.UNAVAILABLE


async def test_a_drive_that_cannot_make_room_for_a_reason_of_its_own_stops_serving(
    drive: ServedDrive, client: RawClient
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    drive.store._slots.allocate = broken
    assert (await client.create({1: content(1), 2: content(2)})) == {1: Status.UNAVAILABLE, 2: Status.UNAVAILABLE}
    assert drive.view.offline_chains == {1}
    assert (await client.create({1: content(1)}))[1] is Status.UNAVAILABLE


async def test_an_operation_whose_budget_is_over_is_still_answered_for_certain(client: RawClient) -> None:
    """One drive alone always knows its outcome; a deadline only ends the wait for others."""
    for budget_ms in (0, -1, 1):
        value = content(budget_ms + 5)
        assert (await client.create({budget_ms + 5: value}, budget_ms=budget_ms))[budget_ms + 5] is Status.OK
        assert await client.read_one(budget_ms + 5) == value


async def test_padding_of_a_slot_never_carries_an_earlier_tenants_bytes(drive: ServedDrive, client: RawClient) -> None:
    assert (await client.create({1: b"S" * ALIGN_BYTES}))[1] is Status.OK
    assert await client.remove(1) is Status.OK
    for number in range(2, 12):
        assert (await client.create({number: b"p"}))[number] is Status.OK
    arena = SharedArena(64 * KIB)
    arena.view[:] = b"\xee" * (64 * KIB)
    memory_id = await client.register(arena.fd, 64 * KIB)
    found = await client.read([(2 + at, 4096, at * 4096) for at in range(10)], memory_id=memory_id)
    assert set(found.status.values()) == {Status.OK}
    assert arena.view[: 10 * 4096] == (b"p" + bytes(4095)) * 10
    arena.close()
