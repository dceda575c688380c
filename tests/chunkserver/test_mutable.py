"""Mutable chunks on two and three drives: real stores, sockets and services."""

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random

import pytest

from esker.chunkserver.engine.record import record_key
from esker.chunkserver.mutable_operations import image_of
from esker.craq.mutable_messages import Image
from esker.wire.ids import chunk_id
from esker.wire.limits import KIB, MIB
from esker.wire.memory import SharedArena
from esker.wire.messages import Method
from esker.wire.mutable_messages import READ_RANGE_EXTENT, PatchKind, ReadRange
from esker.wire.status import Status

from ..waiting import until
from .drives import HEAD, ServedDrive, served
from .mutable_client import MutableClient, room
from .raw_client import object_of

Pair = tuple[ServedDrive, ServedDrive]


@pytest.fixture(params=["socket", "tcp"])
async def pair(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Pair]:
    async with served(tmp_path, 2, sockets=request.param == "socket") as (first, second):
        yield first, second
        for drive in (first, second):
            await until(lambda drive=drive: drive.idle, "all operations ended")  # type: ignore[misc]


@pytest.fixture
async def clients(pair: Pair) -> AsyncIterator[tuple[MutableClient, MutableClient]]:
    async with await pair[0].client() as first, await pair[1].client() as second:
        yield MutableClient(first), MutableClient(second)


Clients = tuple[MutableClient, MutableClient]


def key_of(number: int, chain: int = HEAD) -> bytes:
    return record_key(chain, chunk_id(0, object_of(number)))


def images(drive: ServedDrive) -> dict[bytes, tuple[Image | None, Image | None]]:
    """What a drive has of chain 1, committed and pending."""
    items, _ = drive.store.images.scan(HEAD, b"", 10_000)
    assert not any(chunk.damaged for _, chunk in items)
    return {key: (image_of(chunk.committed), image_of(chunk.pending)) for key, chunk in items}


def channels(drive: ServedDrive) -> dict[bytes, object]:
    return dict(drive.store.images.scan_channels(HEAD, b"", 10_000)[0])


async def test_writes_are_on_every_replica_and_read_from_any(pair: Pair, clients: Clients) -> None:
    head, tail = clients
    random = Random(1)
    model: dict[int, bytes] = {}
    for step in range(60):
        number = random.randrange(4)
        before = model.get(number, b"")
        kind = random.random()
        if kind < 0.6:
            offset = random.choice((0, 1, 4095, 65536, 70_000, len(before)))
            data = random.randbytes(random.choice((1, 100, 4096, 66_000)))
            after = before.ljust(offset, b"\0")
            model[number] = after[:offset] + data + after[offset + len(data) :]
            written = await head.write(number, data, offset, channel=step % 3)
        elif kind < 0.85:
            length = random.choice((0, 1, 65536, 80_000, len(before)))
            model[number] = before[:length].ljust(length, b"\0")
            written = await head.truncate(number, length)
        else:
            written = await head.remove(number)
            assert written.status is (Status.OK if number in model else Status.NOT_FOUND)
            model.pop(number, None)
            continue
        assert (written.status, written.length) == (Status.OK, len(model[number]))
        for client in clients:
            assert await client.read(number) == model[number]
            assert await client.stat(number) == (Status.OK, written.version, written.length, 0)
        assert await tail.version(number) == (Status.OK, written.version)
        offset, length = random.randrange(90_000), random.randrange(1, 70_000)
        assert await tail.read(number, offset, length) == model[number][offset : offset + length]
    await until(lambda: images(pair[0]) == images(pair[1]), "the head commits too")
    assert all(pending is None for _, pending in images(pair[0]).values())
    assert channels(pair[0]) == channels(pair[1])
    gone = next(number for number in range(5) if number not in model)
    assert [await client.read(gone) for client in clients] == [Status.NOT_FOUND] * 2
    assert await tail.version(gone) == (Status.OK, 0)


async def test_a_write_that_is_sent_again_is_done_once(pair: Pair, clients: Clients) -> None:
    head, _ = clients
    first = await head.write(1, b"one", sequence=5)
    assert first.status is Status.OK
    assert await head.write(1, b"two", 3, sequence=6) == (Status.OK, first.version + 1, 6)
    assert await head.write(1, b"two", 3, sequence=6) == (Status.OK, first.version + 1, 6)
    assert await head.write(1, b"one", sequence=5) == (Status.CONDITION, 0, 0)
    assert await head.read(1) == b"onetwo"
    # Another channel, and another client, have sequences of their own.
    assert (await head.write(1, b"x", sequence=5, channel=1)).status is Status.OK
    assert (await MutableClient(head.raw, b"another client!!").write(1, b"y", 1, sequence=5)).status is Status.OK
    assert await head.read(1) == b"xyetwo"


async def test_truncations_are_ordered_by_their_versions(clients: Clients) -> None:
    head, tail = clients
    assert (await head.write(1, b"a" * 100)).status is Status.OK
    assert (await head.truncate(1, 10, 7)).status is Status.OK
    assert (await head.write(1, b"late", 50)).status is Status.CONDITION
    assert (await head.truncate(1, 90, 6)).status is Status.CONDITION
    assert (await head.write(1, b"b", 12, truncate_version=7)).status is Status.OK
    assert await tail.read(1) == b"a" * 10 + b"\0\0b"
    assert (await tail.stat(1))[3] == 7


async def test_batches_and_registered_memory(tmp_path: Path) -> None:
    async with (
        served(tmp_path, 2) as (first, second),
        await first.client() as to_head,
        await second.client() as to_tail,
    ):
        head, tail = MutableClient(to_head), MutableClient(to_tail)
        arena = SharedArena(4 * MIB)
        data = {number: os.urandom(100_000 + number) for number in range(8)}
        patches = []
        at = 13
        for number, value in data.items():
            arena.view[at : at + len(value)] = value
            patches.append(head.patch(number=number, data=value, channel=number, memory_at=at))
            at += len(value)
        memory_id = await head.raw.register(arena.fd, arena.size_bytes)
        assert {written.status for written in await head.send(patches, memory_id=memory_id)} == {Status.OK}
        beyond = head.patch(number=9, data=b"x", memory_at=arena.size_bytes)
        with pytest.raises(Exception, match="outside the memory"):
            await head.send([beyond], memory_id=memory_id)
        arena.view[:] = bytes(arena.size_bytes)
        memory_id = await tail.raw.register(arena.fd, arena.size_bytes)
        ranges = [(number, 70_000, 20_000) for number in data] + [(77, 0, 10)]
        places = [256 * KIB * number for number in range(len(ranges))]
        found = await tail.read_rows(ranges, memory_id=memory_id, places=places)
        for number, value in data.items():
            row, _ = found[number]
            assert row[1:2] + row[3:] == (Status.OK, len(value), 65536, len(value) - 65536)
            assert bytes(arena.view[places[number] : places[number] + row[5]]) == value[65536:]
        assert found[8][0][1] == Status.NOT_FOUND
        odd = await tail.read_rows([(1, 0, 10), (1, 0, 10)], memory_id=memory_id, places=[100, arena.size_bytes - 4096])
        assert [row[1] for row, _ in odd.values()] == [Status.BAD_MEMORY] * 2
        assert room(70_000, 20_000) == 64 * KIB
        arena.close()


async def test_what_cannot_be_is_refused(clients: Clients) -> None:
    head, tail = clients
    assert (await tail.write(1, b"x")).status is Status.CHAIN_VERSION  # clients write to heads
    assert (await head.write(1, b"x", chain_version=2)).status is Status.CHAIN_VERSION
    assert (await head.write(1, b"x", chain=9)).status is Status.CHAIN_VERSION
    assert await head.read(1, chain_version=2) is Status.CHAIN_VERSION
    assert (await head.send([head.patch(data=b"abc")], sums=bytes(8)))[0].status is Status.CHECKSUM
    for patch, message in (
        (head.patch(data=b""), "no bytes"),
        (head.patch(data=b"x", sequence=0), "sequences"),
        (head.patch(data=b"x", offset=MIB), "TOO_LARGE"),
        (head.patch(data=b"x", slot_bytes=5000), "multiples"),
        (head.patch(kind=PatchKind.REMOVE, length=1), "means nothing"),
    ):
        with pytest.raises(Exception, match=message):
            await head.send([patch], sums=b"" if not patch.data else None)
    assert (await head.write(1, b"x", slot_bytes=8 * MIB)).status is Status.TOO_LARGE  # could never be sent whole
    with pytest.raises(Exception, match="client id"):
        await MutableClient(head.raw, bytes(16)).write(1, b"x")
    assert await head.read(1) is Status.NOT_FOUND


async def test_without_a_lease_nothing_is_answered(pair: Pair, clients: Clients) -> None:
    head, tail = clients
    assert (await head.write(1, b"x")).status is Status.OK
    for drive in pair:
        drive.lease_live = False
    assert (await head.write(1, b"y")).status is Status.UNAVAILABLE
    assert [await client.read(1) for client in clients] == [Status.UNAVAILABLE] * 2
    assert await tail.version(1) == (Status.UNAVAILABLE, 0)
    for drive in pair:
        drive.lease_live = True
    assert await head.read(1) == b"x"


async def test_a_dirty_replica_asks_the_tail(pair: Pair, clients: Clients) -> None:
    """The head's commits are held back: it has a pending image while the tail has committed it."""
    first, second = pair
    head, _ = clients
    assert (await head.write(1, b"old")).status is Status.OK
    held = []
    settle = first.store.images.settle
    first.store.images.settle = lambda *call: held.append(call)  # type: ignore[method-assign]
    written = await head.write(1, b"new!")
    assert written.status is Status.OK  # durable everywhere, committed at the tail
    assert await head.read(1) == b"new!"
    assert await head.stat(1) == (Status.OK, written.version, 4, 0)
    assert first.counters.snapshot()["mutable_version_queries"] == 2
    assert second.counters.snapshot()["mutable_version_answers"] == 2
    await second.silence()
    assert await head.read(1) is Status.UNAVAILABLE  # nobody knows what is committed
    await second.listen()
    first.store.images.settle = settle  # type: ignore[method-assign]
    for call in held:
        settle(*call)
    await until(lambda: images(first) == images(second), "the head commits")
    assert await head.read(1) == b"new!"


async def test_a_successor_without_room_undoes_the_write(tmp_path: Path) -> None:
    async with served(tmp_path, 2, capacity_bytes=16 * MIB) as drives, await drives[0].client() as raw:
        first, second = drives
        head = MutableClient(raw)
        assert (await head.write(1, b"kept", sequence=1)).status is Status.OK
        taken = []
        while second.store.capacity_bytes - second.store.used_bytes >= MIB:
            taken.append(second.store.allocate(MIB, MIB, reserve=True))
        big = os.urandom(MIB)
        used = first.store.used_bytes
        assert (await head.write(1, big, sequence=2)).status is Status.NO_SPACE
        await until(lambda: first.store.used_bytes == used, "the head gives the room back")
        assert await head.read(1) == b"kept"
        assert images(first) == images(second)
        assert channels(first) == channels(second)
        for slot in taken:
            second.store.release(slot)
        assert (await head.write(1, big, sequence=2)).status is Status.OK  # the same write, now for the first time
        assert await head.read(1) == big


async def test_the_head_refuses_before_it_draws_a_version(tmp_path: Path) -> None:
    async with served(tmp_path, 1, capacity_bytes=16 * MIB) as (drive,), await drive.client() as raw:
        head = MutableClient(raw)
        first = await head.write(1, b"x")
        number = 2
        while (written := await head.write(number, bytes(MIB))).status is Status.OK:
            number += 1
        assert written == (Status.NO_SPACE, 0, 0)
        freed = await head.remove(2)
        assert freed.version == first.version + number - 1, "no version was spent on what found no room"
        await until(lambda: drive.store.used_bytes < 16 * MIB - 2 * MIB, "its slot is free")
        assert (await head.write(3, b"y")).status is Status.OK


async def test_many_ranges_through_a_small_pool(tmp_path: Path) -> None:
    async with served(tmp_path, 1, pool_bytes=8 * MIB) as (drive,), await drive.client(tcp=True) as raw:
        client = MutableClient(raw)
        content = os.urandom(MIB)
        assert (await client.write(1, content)).status is Status.OK
        found = await client.read_rows([(1, 0, MIB)] * 20)
        assert all(row[1] == Status.OK and data == content for row, data in found.values())
        await until(lambda: drive.idle, "everything is given back")


async def test_a_client_that_takes_nothing_leaves_the_pool_to_others(tmp_path: Path) -> None:
    async with served(tmp_path, 1, pool_bytes=16 * MIB) as (drive,), await drive.client(tcp=True) as raw:
        client = MutableClient(raw)
        content = os.urandom(2 * MIB)
        assert (await client.write(1, content, slot_bytes=2 * MIB)).status is Status.OK
        extent = READ_RANGE_EXTENT.pack(object_of(1), 0, HEAD, 1, 0, 2 * MIB, 0)
        async with await drive.client(tcp=True) as lazy:
            stream = lazy.connection.stream
            stream._loop.remove_reader(stream._fd)
            for _ in range(16):
                lazy.start(Method.READ_RANGE, ReadRange(extent * 4, 0, 60_000))
            await until(lambda: drive.pool.free_bytes <= 10 * MIB, "its reads began")
            for _ in range(5):
                assert await client.read(1, length=2 * MIB) == content
            assert drive.pool.free_bytes >= 6 * MIB, "what waits for one connection is bounded"
        await until(lambda: drive.idle, "the worker let go")


async def test_many_requests_of_one_client_wait_for_each_other(tmp_path: Path) -> None:
    async with served(tmp_path, 1, pool_bytes=8 * MIB) as (drive,), await drive.client(tcp=True) as raw:
        client = MutableClient(raw)
        content = os.urandom(MIB)
        assert (await client.write(1, content)).status is Status.OK
        async with asyncio.TaskGroup() as group:
            reads = [group.create_task(client.read_rows([(1, 0, MIB)] * 4)) for _ in range(12)]
        rows = [row for read in reads for row in read.result().values()]
        assert all(row[1] == Status.OK and data == content for row, data in rows)
        await until(lambda: drive.idle, "everything is given back")


async def test_immutable_requests_know_nothing_of_mutable_chunks(clients: Clients) -> None:
    head, _ = clients
    assert (await head.write(1, b"x")).status is Status.OK
    assert await head.raw.read_one(1) is Status.NOT_FOUND


async def test_after_a_restart_a_write_is_still_done_once(tmp_path: Path) -> None:
    async with served(tmp_path, 1) as (drive,), await drive.client() as raw:
        first = await MutableClient(raw).write(1, b"once", sequence=5)
        assert first.status is Status.OK
    async with served(tmp_path, 1) as (drive,), await drive.client() as raw:
        client = MutableClient(raw)
        assert await client.write(1, b"once", sequence=5) == first
        assert (await client.write(1, b"late", sequence=4)).status is Status.CONDITION
        assert await client.read(1) == b"once"


async def test_what_was_pending_at_the_end_is_committed_by_the_one_that_serves_first(tmp_path: Path) -> None:
    """Both went down while the tail had not answered; the head is back alone, and must not have lost what it has."""
    async with served(tmp_path, 2) as (first, second), await first.client() as raw:
        head = MutableClient(raw)
        assert (await head.write(1, b"old", sequence=1)).status is Status.OK
        await second.silence()
        assert (await head.send([head.patch(number=1, data=b"new", sequence=2)], budget_ms=300))[0].status not in (
            Status.OK,
            Status.NO_SPACE,
        )
        assert first.store.images.chunk(key_of(1)).pending is not None
    async with served(tmp_path, 1) as (drive,), await drive.client() as raw:
        await until(lambda: drive.store.images.chunk(key_of(1)).pending is None, "it is committed")
        assert await MutableClient(raw).read(1) == b"new"
        assert (await MutableClient(raw).write(1, b"new", sequence=2)).status is Status.OK
        assert drive.counters.snapshot()["mutable_write_ok"] == 1


async def test_what_was_left_pending_is_committed_without_anybody_asking(pair: Pair, clients: Clients) -> None:
    """The successor had no memory for it; the same chain goes on as soon as it has."""
    first, second = pair
    head, _ = clients
    assert (await head.write(1, b"old")).status is Status.OK
    taken = second.pool.allocate(second.pool.arena.size_bytes)
    assert taken is not None
    assert (await head.write(1, b"new")).status is Status.UNAVAILABLE
    assert first.store.images.chunk(key_of(1)).pending is not None
    taken.drop()
    await until(lambda: images(first) == images(second), "it is committed on both")
    assert [await client.read(1) for client in clients] == [b"new", b"new"]
    assert first.mutable.counters()["mutable_to_recover"] == 0
