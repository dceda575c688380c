"""Damaged chunks are mended over real sockets: whose copy is taken, and what happens where there is none."""

import asyncio
import errno
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from esker.chunkserver import repair
from esker.chunkserver.engine.interface import Done
from esker.chunkserver.engine.record import Record, record_key
from esker.chunkserver.operations import SyncEnded
from esker.chunkserver.scan import ScanService
from esker.chunkserver.upkeep import Upkeep
from esker.chunkserver.verify import BlockSource, Verdict, Verifier
from esker.craq.replica import ChainReplica
from esker.wire.errors import RequestFailed
from esker.wire.ids import chunk_id
from esker.wire.limits import KIB, MIB
from esker.wire.messages import Empty, Method
from esker.wire.scrub_messages import DAMAGED_EXTENT, Damaged
from esker.wire.status import Status

from ..waiting import until
from .drives import HEAD, ServedDrive, routing_of, served
from .raw_client import SPACE, RawClient, content, object_of
from .test_chain import spoil
from .test_resync import O, Pair, S, Y
from .test_scan import Told

FIRST, SECOND = 0, 1


def key_of(number: int) -> bytes:
    return record_key(HEAD, chunk_id(SPACE, object_of(number)))


def spoil_record(drive: ServedDrive, number: int) -> None:
    """Changes a byte of the chunk's record."""
    index = drive.store._index
    with index.env.begin(write=True, db=index.chunks) as txn:
        value = bytearray(txn.get(key_of(number)))
        value[40] ^= 1
        txn.put(key_of(number), bytes(value))


def verifier_of(drive: ServedDrive) -> Verifier:
    return Verifier(BlockSource(drive.store), drive.engine.submit)


def upkeep_of(drive: ServedDrive) -> Upkeep:
    """Has the drive mended, but not scrubbed."""
    upkeep = Upkeep(
        drive.store, drive.engine, drive.runner, drive.view.replicas, drive.counters, drive.mutable.runner, 0
    )
    drive.reads.suspect = upkeep.repairs.suspect
    scans = ScanService(
        drive.store, drive.runner, Told(), lambda: drive.view.routing_version, lambda: None, drive.view.ready
    )
    assert drive.server is not None
    handlers = {Method.SCAN: scans.scan, **upkeep.handlers}
    drive.server.handlers.update({int(method): handler for method, handler in handlers.items()})
    return upkeep


class Cared:
    """Drives of one chain, headed by the first, with their upkeep, and a client of each."""

    def __init__(self, drives: list[ServedDrive], clients: list[RawClient]) -> None:
        self.drives = drives
        self.clients = clients
        self.upkeeps = [upkeep_of(drive) for drive in drives]

    async def create(self, number: int, length: int = 4096) -> bytes:
        value = content(number, length)
        assert await self.clients[FIRST].create({number: value}, slot_bytes=2 * MIB) == {number: Status.OK}
        return value

    async def report(self, at: int, *numbers: int) -> None:
        """A client has read damaged bytes."""
        extents = b"".join(DAMAGED_EXTENT.pack(object_of(number), 0, HEAD, 0) for number in numbers)
        await self.clients[at].connection.call(Method.DAMAGED, Damaged(SPACE, extents), Empty, timeout_s=10)

    async def outcome(self, at: int, name: str, count: int = 1) -> None:
        """Waits until so many repairs have ended so; nothing is under way then."""
        await until(
            lambda: self.drives[at].counters.get(f"repair_{name}") == count and not self.upkeeps[at].repairs.waiting,
            f"{count} repairs end as {name}",
        )

    def record(self, at: int, number: int) -> Record | None:
        with self.drives[at].store.reader() as reader:
            return reader.record(key_of(number))

    async def whole(self, at: int, number: int) -> bool:
        verifier = verifier_of(self.drives[at])
        return (await verifier.look(key_of(number))).verdict is Verdict.WHOLE


async def cared(directory: Path, count: int) -> AsyncIterator[Cared]:
    async with served(directory, count) as drives:
        made = Cared(list(drives), [await drive.client() for drive in drives])
        yield made
        for upkeep in made.upkeeps:
            await upkeep.aclose()
        for client in made.clients:
            await client.connection.aclose()


@pytest.fixture
async def two(tmp_path: Path) -> AsyncIterator[Cared]:
    async for made in cared(tmp_path, 2):
        yield made


@pytest.fixture
async def one(tmp_path: Path) -> AsyncIterator[Cared]:
    async for made in cared(tmp_path, 1):
        yield made


@pytest.mark.parametrize("at", [FIRST, SECOND])
@pytest.mark.parametrize("length", [100, 64 * KIB + 1, 2 * MIB])
async def test_a_damaged_copy_becomes_the_others(two: Cared, at: int, length: int) -> None:
    value = await two.create(1, length)
    before, told = two.record(at, 1), len(two.drives[at].reports)
    spoil(two.drives[at], 1)
    assert not await two.whole(at, 1)
    await two.report(at, 1)
    await two.outcome(at, "repaired")
    assert await two.clients[at].read_one(1, room=length) == value
    after = two.record(at, 1)
    assert before is not None
    assert after is not None
    assert after._replace(slot=0) == before._replace(slot=0), "it is the same chunk, in another slot"
    assert len(two.drives[at].reports) == told, "nothing has happened to the block"
    assert two.upkeeps[at].counters()["damaged_chunks"] == 0


async def test_a_repair_needs_nothing_of_a_pool_that_clients_fill(two: Cared) -> None:
    value = await two.create(1, 2 * MIB)
    spoil(two.drives[SECOND], 1)
    pool = two.drives[SECOND].pool
    full = pool.allocate(pool.arena.size_bytes)
    assert full is not None
    await two.report(SECOND, 1)
    await two.outcome(SECOND, "repaired")
    full.drop()
    assert await two.clients[SECOND].read_one(1, room=2 * MIB) == value


@pytest.mark.parametrize("at", [FIRST, SECOND])
async def test_a_damaged_record_becomes_the_others(two: Cared, at: int) -> None:
    value = await two.create(1, 5000)
    before = two.record(at, 1)
    spoil_record(two.drives[at], 1)
    assert await two.clients[at].read_one(1) is Status.CHECKSUM, "a read finds it, and has it mended"
    await two.outcome(at, "repaired")
    assert await two.clients[at].read_one(1) == value
    after = two.record(at, 1)
    assert before is not None
    assert after is not None
    other = two.record(1 - at, 1)
    assert other is not None
    assert after.created_ms == other.created_ms, "nobody here knows its own any more"
    same = {"slot": 0, "pages": 0, "created_ms": 0}
    assert after._replace(**same) == before._replace(**same)


async def test_where_all_copies_are_damaged_they_stay_until_the_block_is_put_again(two: Cared) -> None:
    value = await two.create(1)
    for drive in two.drives:
        spoil(drive, 1)
    for at in (FIRST, SECOND):
        await two.report(at, 1)
        await two.outcome(at, "lost")
        assert two.record(at, 1) is not None
    assert two.upkeeps[FIRST].counters()["damaged_chunks"] == 1
    assert await two.clients[FIRST].create({1: value}) == {1: Status.OK}
    for at in (FIRST, SECOND):
        assert await two.clients[at].read_one(1) == value
        assert two.upkeeps[at].counters()["damaged_chunks"] == 0


@pytest.mark.parametrize("at", [FIRST, SECOND])
async def test_a_put_mends_a_copy_that_is_known_to_be_damaged(two: Cared, at: int) -> None:
    value = await two.create(1)
    before = two.record(1 - at, 1)
    spoil(two.drives[at], 1)
    two.drives[at].runner.damaged.add(key_of(1))
    assert await two.clients[FIRST].create({1: value}) == {1: Status.EXISTS}
    assert await two.whole(at, 1)
    after = two.record(at, 1)
    assert before is not None
    assert after is not None
    assert after.version == before.version == (two.record(1 - at, 1) or before).version, (
        "the whole copy's version counts"
    )
    assert two.upkeeps[at].counters()["damaged_chunks"] == 0


async def test_the_only_copy_is_removed_and_can_be_put_again(one: Cared) -> None:
    value = await one.create(1)
    spoil(one.drives[FIRST], 1)
    await one.report(FIRST, 1)
    await one.outcome(FIRST, "removed")
    assert await one.clients[FIRST].read_one(1) is Status.NOT_FOUND
    assert one.drives[FIRST].reports[-1].created_ms == 0, "the catalog is told"
    assert await one.clients[FIRST].create({1: value}) == {1: Status.OK}
    assert await one.clients[FIRST].read_one(1) == value
    spoil_record(one.drives[FIRST], 1)
    await one.report(FIRST, 1)
    await one.outcome(FIRST, "removed", 2)
    assert await one.clients[FIRST].read_one(1) is Status.NOT_FOUND


async def test_a_report_is_no_proof_and_a_second_one_is_not_looked_into(two: Cared) -> None:
    await two.create(1)
    slot = two.record(SECOND, 1)
    for _ in range(2):
        await two.report(SECOND, 1, 99)
        await two.outcome(SECOND, "whole")
    assert two.record(SECOND, 1) == slot
    assert two.drives[SECOND].counters.get("suspects") == 3, "there is nothing that could be left in peace of 99"


async def test_who_is_away_is_asked_again(two: Cared, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repair, "RETRY_DELAYS_S", (0.05,) * 400)
    value = await two.create(1)
    spoil(two.drives[SECOND], 1)
    await two.clients[FIRST].connection.aclose()
    await two.drives[FIRST].silence()
    await two.report(SECOND, 1)
    await until(lambda: two.drives[SECOND].counters.get("repair_waiting") >= 2, "it is tried again")
    assert two.upkeeps[SECOND].counters()["damaged_chunks"] == 1
    await two.drives[FIRST].listen()
    upkeep = upkeep_of(two.drives[FIRST])
    await until(lambda: two.drives[SECOND].counters.get("repair_repaired") == 1, "the repair")
    assert await two.clients[SECOND].read_one(1) == value
    await upkeep.aclose()


async def test_a_copy_of_another_version_of_the_chain_is_not_taken(two: Cared, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repair, "RETRY_DELAYS_S", (0.05,) * 400)
    value = await two.create(1)
    spoil(two.drives[SECOND], 1)
    two.drives[SECOND].view.take(routing_of(two.drives, 2))
    await two.report(SECOND, 1)
    await until(lambda: two.drives[SECOND].counters.get("repair_waiting") >= 2, "the first drive knows version 1 only")
    two.drives[FIRST].view.take(routing_of(two.drives, 2))
    await two.outcome(SECOND, "repaired")
    assert await two.clients[SECOND].read_one(1) == value


class BadSectors:
    """Reads of one slot of a drive fail, so many times."""

    def __init__(self, drive: ServedDrive, number: int, times: int, monkeypatch: pytest.MonkeyPatch) -> None:
        with drive.store.reader() as reader:
            record = reader.get(key_of(number))
        assert record is not None
        self._place = drive.store._classes[record[1]].place(record[2])
        self._read = drive.engine.read
        self.left = times
        monkeypatch.setattr(drive.engine, "read", self.read)

    def read(self, fd: int, offset: int, buffer: memoryview, done: Done, token: Any) -> None:
        if (fd, offset) == self._place and self.left:
            self.left -= 1
            asyncio.get_running_loop().call_soon(done, token, -errno.EIO)
        else:
            self._read(fd, offset, buffer, done, token)


async def test_a_chunk_that_cannot_be_read_is_written_elsewhere(two: Cared, monkeypatch: pytest.MonkeyPatch) -> None:
    value = await two.create(1)
    await two.create(2)
    BadSectors(two.drives[SECOND], 1, 1000, monkeypatch)
    assert await two.clients[SECOND].read_one(1) is Status.IO_ERROR
    await two.outcome(SECOND, "repaired")
    assert await two.clients[SECOND].read_one(1) == value
    assert two.drives[SECOND].counters.get("read_errors") == 1
    assert await two.clients[SECOND].read_one(2) == content(2), "the drive goes on serving"


async def test_what_fails_once_is_no_damage(two: Cared, monkeypatch: pytest.MonkeyPatch) -> None:
    await two.create(1, 2 * MIB)
    BadSectors(two.drives[SECOND], 1, 1, monkeypatch)
    seen = await verifier_of(two.drives[SECOND]).look(key_of(1))
    assert seen == (Verdict.WHOLE, 3 * MIB, True)


async def test_a_chunk_that_is_replaced_while_it_is_looked_at(two: Cared) -> None:
    await two.create(1, 2 * MIB)
    verifier = verifier_of(two.drives[FIRST])
    lengths = iter([100])

    async def change(size_bytes: int) -> None:
        length = next(lengths, None)
        if length is not None:
            assert await two.clients[FIRST].remove(1) is Status.OK
            await two.create(1, length)

    assert await verifier.look(key_of(1), change) == (Verdict.WHOLE, MIB + 4096, False)
    assert await two.clients[FIRST].remove(1) is Status.OK
    assert (await verifier.look(key_of(1))).verdict is Verdict.ABSENT


async def test_reports_that_make_no_sense_are_refused(two: Cared) -> None:
    for extents in (b"", b"x", DAMAGED_EXTENT.pack(bytes(16), 0, 1, 0) * 257):
        with pytest.raises(RequestFailed, match="BAD_REQUEST"):
            await two.clients[FIRST].connection.call(Method.DAMAGED, Damaged(SPACE, extents), Empty, timeout_s=10)
    unknown_chain = DAMAGED_EXTENT.pack(bytes(16), 0, 77, 0)
    await two.clients[FIRST].connection.call(Method.DAMAGED, Damaged(SPACE, unknown_chain), Empty, timeout_s=10)
    assert two.upkeeps[FIRST].repairs.waiting == 0


async def test_too_many_suspects_are_dropped(two: Cared, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repair, "QUEUE_MAX", 3)
    await two.report(SECOND, *range(10))
    assert two.drives[SECOND].counters.get("suspects_dropped") == 7
    await two.outcome(SECOND, "gone", 3)


async def test_a_resyncs_source_is_mended_from_the_replica_that_it_brings_up_to_date(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At once where the record says what is looked for; else once the other serves and its copy counts."""
    monkeypatch.setattr(repair, "RETRY_DELAYS_S", (0.05,) * 400)
    async with served(tmp_path, 2) as drives, await drives[0].client() as client:
        pair = Pair(list(drives), client)
        for drive in drives:
            drive.view.on_chains = ()
        upkeep = upkeep_of(drives[0])
        pair.resyncs.suspect = upkeep.repairs.suspect
        await pair.create(1, 2, 3)
        pair.change(O)
        spoil(pair.first, 1)
        spoil_record(pair.first, 2)
        pair.change(Y)
        upkeep.repairs.suspect(key_of(1))
        await until(lambda: pair.first.counters.get("repair_repaired") == 1, "the repair")
        assert await client.read_one(1) == content(1)
        pair.resyncs.look()
        await until(lambda: pair.resyncs.synced == ((HEAD, pair.version),), "the resync")
        assert pair.count("checksum") == 1
        await until(lambda: pair.first.counters.get("repair_waiting") >= 1, "the record's repair waits")
        assert await client.read_one(2) is Status.CHECKSUM
        pair.change(S)
        await until(lambda: pair.first.counters.get("repair_repaired") == 2, "the repair of the record")
        assert await client.read_one(2) == content(2)
        await upkeep.aclose()
        await pair.resyncs.aclose()


class Held:
    """A runner whose repairs end when the test says so."""

    def __init__(self) -> None:
        self.ended: list[SyncEnded] = []

    def repair(self, replica: ChainReplica, record_key: bytes, timeout_s: float, ended: SyncEnded) -> None:
        self.ended.append(ended)


async def test_a_suspect_that_comes_as_the_last_repairs_end_is_looked_at(one: Cared) -> None:
    async def no_images(key: bytes) -> repair.Mended:
        raise AssertionError("there are none")

    drive, held = one.drives[FIRST], Held()
    repairs = repair.RepairService(held, drive.view.replicas, drive.counters, drive.name, no_images)
    for number in range(repair.AT_ONCE):
        repairs.suspect(key_of(number))
    await until(lambda: len(held.ended) == repair.AT_ONCE, "all that are looked at at once")
    for ended in held.ended:
        ended(Status.OK)
    asyncio.get_running_loop().call_soon(repairs.suspect, key_of(9))
    await until(lambda: len(held.ended) == repair.AT_ONCE + 1, "the next one")
    held.ended[-1](Status.OK)
    await until(lambda: not repairs.waiting, "its end")
    await repairs.aclose()


def test_statuses_have_one_meaning_each() -> None:
    assert set(repair.OUTCOMES.values()) | {repair.Mended.WAITING} == set(repair.Mended)
