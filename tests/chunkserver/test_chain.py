"""Two drives that are chains of each other: every copy is equal, and nothing unconfirmed is acknowledged."""

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from esker.chunkserver.engine.record import record_key
from esker.wire.ids import chunk_id
from esker.wire.limits import ALIGN_BYTES, KIB, MIB
from esker.wire.messages import Method
from esker.wire.status import Status

from ..waiting import until
from .drives import HEAD, TAIL, ServedDrive, routing_of, served
from .raw_client import SPACE, RawClient, content, create_body, object_of

Pair = tuple[ServedDrive, ServedDrive]
Clients = tuple[RawClient, RawClient]


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[Pair]:
    async with served(tmp_path, 2, capacity_bytes=32 * MIB) as (first, second):
        yield first, second


@pytest.fixture
async def clients(pair: Pair) -> AsyncIterator[Clients]:
    async with await pair[0].client() as first, await pair[1].client() as second:
        yield first, second


async def on_both(clients: Clients, number: int, chain: int = HEAD) -> tuple[bytes | Status, bytes | Status]:
    first, second = [await client.read_one(number, chain=chain) for client in clients]
    return first, second


def records_agree(drives: Sequence[ServedDrive]) -> bool:
    """Whether both drives have the same records of chain 1, but for where and when each was stored."""
    first, second = [
        {key: record._replace(created_ms=0, slot=0) for key, record in drive.store.scan(HEAD).items} for drive in drives
    ]
    return first == second


def spoil(drive: ServedDrive, number: int) -> None:
    """Changes a byte of the chunk on the drive, behind its back."""
    with drive.store.reader() as reader:
        record = reader.get(record_key(HEAD, chunk_id(SPACE, object_of(number))))
    assert record is not None
    _, pages, slot, _, _ = record
    fd, offset = drive.store._slots.classes[pages].place(slot)
    path = os.readlink(f"/proc/self/fd/{fd}")
    with open(path, "r+b", buffering=0) as file:
        file.seek(offset + 5)
        byte = file.read(1)[0]
        file.seek(offset + 5)
        file.write(bytes([byte ^ 0xFF]))
        os.fsync(file.fileno())


@pytest.mark.parametrize("sockets", [True, False])
async def test_an_acknowledged_chunk_is_on_every_replica(tmp_path: Path, sockets: bool) -> None:
    """Over the Unix socket the successor copies from the head's memory; over TCP the payload travels."""
    async with (
        served(tmp_path, 2, sockets=sockets) as drives,
        await drives[0].client() as first,
        await drives[1].client() as second,
    ):
        values = {number: content(number, 1 + number * 3001) for number in range(30)}
        for chain, head in ((HEAD, first), (TAIL, second)):
            made = await head.create(values, chain=chain, slot_bytes=128 * KIB)
            assert set(made.values()) == {Status.OK}
            for number, value in values.items():
                assert await on_both((first, second), number, chain) == (value, value)
        links = [link for drive in drives for link in drive.view.used_links()]
        assert [link.connection is not None and link.connection.local for link in links] == [sockets, sockets]
        assert len(drives[0].reports) == len(drives[1].reports) == 30, "each head reports its own chain's blocks"
        assert records_agree(drives)


async def test_clients_talk_to_heads(clients: Clients) -> None:
    assert (await clients[1].create({1: b"x"}, chain=HEAD))[1] is Status.CHAIN_VERSION
    assert await clients[1].remove(1, chain=HEAD) is Status.CHAIN_VERSION
    assert await on_both(clients, 1) == (Status.NOT_FOUND, Status.NOT_FOUND)


async def test_a_removal_goes_through_the_chain(clients: Clients) -> None:
    assert (await clients[0].create({1: content(1)}))[1] is Status.OK
    assert await clients[0].remove(1) is Status.OK
    assert await on_both(clients, 1) == (Status.NOT_FOUND, Status.NOT_FOUND)
    assert await clients[0].remove(1) is Status.NOT_FOUND


async def test_without_its_tail_a_chain_acknowledges_nothing_and_goes_on_when_it_is_back(
    pair: Pair, clients: Clients
) -> None:
    assert (await clients[0].create({1: content(1), 2: content(2)})) == {1: Status.OK, 2: Status.OK}
    await pair[1].silence()
    assert (await clients[0].create({1: content(1)}))[1] is Status.UNAVAILABLE, "it cannot be confirmed"
    assert (await clients[0].create({3: content(3)}))[3] is Status.UNAVAILABLE
    assert await clients[0].remove(2) is Status.UNAVAILABLE
    assert await clients[0].read_one(1) == content(1), "reads go on"
    await pair[1].listen()

    async def confirmed() -> bool:
        return (await clients[0].create({3: content(3)}))[3] is Status.EXISTS

    await until(confirmed, "the head reached its successor again")
    async with await pair[1].client() as second:
        assert await on_both((clients[0], second), 3) == (content(3), content(3))
        assert await clients[0].remove(2) is Status.OK, "its copy at the tail was left and is removed now"
        assert await second.read_one(2) is Status.NOT_FOUND


async def test_a_tail_that_does_not_answer_ends_in_time_as_unknown(pair: Pair, clients: Clients) -> None:
    server = pair[1].server
    assert server is not None
    handlers = dict(server.handlers)
    held: list[object] = []
    server.handlers[Method.CREATE] = held.append
    _, first = clients[0].start(Method.CREATE, create_body({1: content(1)}, budget_ms=300), [memoryview(content(1))])
    assert (await clients[0].create({2: content(2)}, budget_ms=100))[2] is Status.TIMEOUT
    assert (await clients[0].create({1: content(1)}, budget_ms=50))[1] is Status.TIMEOUT, "queued behind the first"
    await first.wait()
    await until(lambda: pair[0].idle, "the head let go")
    server.handlers.update(handlers)
    assert (await clients[0].create({1: content(1), 2: content(2)})) == {1: Status.EXISTS, 2: Status.EXISTS}
    assert await on_both(clients, 2) == (content(2), content(2))


async def test_the_successors_copy_wins(pair: Pair, clients: Clients) -> None:
    async with await pair[1].client(role="worker", peer_id="d0") as old_head:
        assert (await old_head.create({1: content(7), 2: content(8)}, version=3)) == {1: Status.OK, 2: Status.OK}
    assert (await clients[0].create({1: content(1)}))[1] is Status.EXISTS_OTHER, "nothing was here, other bytes there"
    assert await on_both(clients, 1) == (content(7), content(7))
    assert (await clients[0].create({2: content(8)}))[2] is Status.EXISTS, "the same bytes, but an older version"
    assert await on_both(clients, 2) == (content(8), content(8))
    assert records_agree(pair)


async def test_a_stored_copy_that_differs_from_the_successors_is_replaced(pair: Pair, clients: Clients) -> None:
    assert (await clients[0].create({1: content(1, 9000)}))[1] is Status.OK
    async with await pair[1].client(role="worker", peer_id="d0") as old_head:
        assert await old_head.remove(1) is Status.OK
        assert (await old_head.create({1: content(7, 5000)}, version=3))[1] is Status.OK
    assert (await clients[0].create({1: content(1, 9000)}))[1] is Status.EXISTS_OTHER
    assert await on_both(clients, 1) == (content(7, 5000), content(7, 5000))
    assert pair[0].counters.get("copies_replaced") == 1
    assert records_agree(pair)
    assert (await clients[0].create({1: content(7, 5000)}))[1] is Status.EXISTS


async def test_a_copy_that_the_tail_lost_is_sent_again(pair: Pair, clients: Clients) -> None:
    assert (await clients[0].create({1: content(1), 2: content(2)})) == {1: Status.OK, 2: Status.OK}
    async with await pair[1].client(role="worker", peer_id="d0") as old_head:
        assert await old_head.remove(1) is Status.OK
        assert await old_head.remove(2) is Status.OK
    assert (await clients[0].create({1: content(1)}))[1] is Status.EXISTS
    assert (await clients[0].create({2: content(9)}))[2] is Status.EXISTS_OTHER, "from the head's own copy"
    assert await on_both(clients, 1) == (content(1), content(1))
    assert await on_both(clients, 2) == (content(2), content(2))


async def test_a_stored_copy_that_rotted_is_not_passed_on(pair: Pair, clients: Clients) -> None:
    assert (await clients[0].create({1: content(1)}))[1] is Status.OK
    async with await pair[1].client(role="worker", peer_id="d0") as old_head:
        assert await old_head.remove(1) is Status.OK
    spoil(pair[0], 1)
    assert (await clients[0].create({1: content(2)}))[1] is Status.OK, "nothing that verifies was left of the old"
    assert pair[0].counters.get("stored_copy_corrupt") == 1
    assert await on_both(clients, 1) == (content(2), content(2))


async def test_a_successor_verifies_what_it_receives(pair: Pair, clients: Clients) -> None:
    async with await pair[1].client(role="worker", peer_id="d0") as head:
        made = await head.create({1: content(1)}, version=3, sums=bytes(8))
        assert made == {1: Status.CHECKSUM}
    assert await clients[1].read_one(1) is Status.NOT_FOUND


async def test_a_full_tail_refuses_and_the_head_keeps_nothing(tmp_path: Path) -> None:
    async with (
        served(tmp_path, 2, capacity_bytes=64 * MIB) as (first, second),
        await first.client() as head,
        await second.client() as tail,
    ):
        second.store._slots.capacity_bytes = 2 * MIB
        number = 0
        while (await head.create({number: content(number, MIB)}, slot_bytes=MIB))[number] is Status.OK:
            number += 1
        assert number == 2
        await until(lambda: first.idle, "the head discarded its copy")
        assert [await client.read_one(number) for client in (head, tail)] == [Status.NOT_FOUND] * 2
        assert (await head.create({50: b"x"}, slot_bytes=ALIGN_BYTES))[50] is Status.NO_SPACE
        assert await on_both((head, tail), 0) == (content(0, MIB), content(0, MIB))
        assert first.view.offline_chains == second.view.offline_chains == set(), "no room changes no membership"
        assert await head.remove(0) is Status.OK
        assert (await head.create({51: content(51, MIB)}, slot_bytes=MIB))[51] is Status.OK


async def test_many_creates_and_removals_at_once_leave_equal_replicas(pair: Pair, clients: Clients) -> None:
    async def work(lane: int) -> None:
        for step in range(15):
            number = (lane * 7 + step * 5) % 11
            if (lane + step) % 3:
                values = {number: content(number * 100 + lane, 6000)}
                assert (await clients[0].create(values))[number] in (Status.OK, Status.EXISTS, Status.EXISTS_OTHER)
            else:
                assert await clients[0].remove(number) in (Status.OK, Status.NOT_FOUND)

    await asyncio.gather(*(work(lane) for lane in range(12)))
    await until(lambda: pair[0].idle and pair[1].idle, "all operations ended")
    assert records_agree(pair)
    for number in range(11):
        one, other = await on_both(clients, number)
        assert one == other


async def test_a_dead_successor_is_not_asked_again_and_again(pair: Pair, clients: Clients) -> None:
    await pair[1].silence()
    dialled: list[str] = []
    link = pair[0].view.link("d1")
    find = link._find
    link._find = lambda drive_id: dialled.append(drive_id) or find(drive_id)
    for number in range(50):
        assert (await clients[0].create({number: b"x"}))[number] is Status.UNAVAILABLE
    assert 1 <= len(dialled) < 25, "attempts are spaced"


async def test_a_successor_with_a_new_life_is_tried_at_once(pair: Pair, clients: Clients) -> None:
    await pair[1].silence()
    for number in range(5):
        assert (await clients[0].create({number: b"x"}))[number] is Status.UNAVAILABLE
    link = pair[0].view.link("d1")
    link._retry_at += 3600.0
    pair[1].port = 0
    await pair[1].listen()
    for drive in pair:
        drive.view.take(routing_of(pair, 2))
    assert (await clients[0].create({9: content(9)}, chain_version=2))[9] is Status.OK
