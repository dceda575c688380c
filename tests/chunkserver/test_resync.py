"""A returning replica is brought up to date over real sockets: differences, writes meanwhile, failures, changes."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from esker.chunkserver import resync
from esker.chunkserver.engine.record import record_key
from esker.chunkserver.resync import ResyncService
from esker.chunkserver.scan import ScanService
from esker.wire.errors import RequestFailed
from esker.wire.ids import chunk_id
from esker.wire.limits import MIB
from esker.wire.messages import Method
from esker.wire.rpc_server import Request
from esker.wire.status import Status
from esker.wire.types import Replica, Routing, TargetState

from ..waiting import until
from .drives import HEAD, ServedDrive, routing_of, served
from .raw_client import SPACE, RawClient, content, object_of
from .test_chain import spoil
from .test_scan import Told

S, Y, O, W = TargetState.SERVING, TargetState.SYNCING, TargetState.OFFLINE, TargetState.WAITING  # noqa: E741


def records_agree(drives: list[ServedDrive]) -> bool:
    """Whether both have the same of chain 1, but for where, when and in which version of the chain it was stored."""
    first, second = [
        {key: record._replace(created_ms=0, slot=0, chain_version=0) for key, record in drive.store.scan(HEAD).items}
        for drive in drives
    ]
    return first == second


class Pair:
    """Two drives of one chain, headed by the first; the second comes and goes."""

    def __init__(self, drives: list[ServedDrive], client: RawClient) -> None:
        self.first, self.second = self.drives = drives
        self.client = client
        self.version = 1
        self.ended = 0
        for drive in drives:
            service = ScanService(
                drive.store, drive.runner, Told(), lambda: self.version, lambda: None, drive.view.ready
            )
            assert drive.server is not None
            drive.server.handlers[int(Method.SCAN)] = service.scan
        self.resyncs = ResyncService(
            self.first.store,
            self.first.runner,
            self.first.mutable.runner,
            self.first.view.replicas,
            self.first.view.link,
            self.first.counters,
            200 * MIB,
            2 * MIB,
            self._changed,
        )
        self.first.view.on_chains = [self.first.mutable.look, self.resyncs.look]

    def _changed(self) -> None:
        self.ended += 1

    def routing(self, state: TargetState) -> Routing:
        """The next map: the second drive is in this state."""
        self.version += 1
        routing = routing_of(self.drives, self.version)
        life = "first" if state in (S, Y) else ""
        replicas = (Replica("d0", S, "first"), Replica("d1", state, life))
        return msgspec.structs.replace(routing, chains=(msgspec.structs.replace(routing.chains[0], replicas=replicas),))

    def change(self, state: TargetState) -> None:
        """Both hear of the second drive's state."""
        routing = self.routing(state)
        for drive in self.drives:
            drive.view.take(routing)

    async def create(self, *numbers: int, variant: int = 0) -> None:
        values = {number: content(number + 1000 * variant) for number in numbers}
        assert await self.client.create(values, chain_version=self.version) == dict.fromkeys(numbers, Status.OK)

    async def remove(self, *numbers: int) -> None:
        for number in numbers:
            assert await self.client.remove(number, chain_version=self.version) is Status.OK

    async def synced(self) -> None:
        """Waits until the first drive says that the second is up to date, as it must then be."""
        await until(lambda: self.resyncs.synced == ((HEAD, self.version),), "the resync")
        assert records_agree(self.drives)

    def count(self, name: str) -> int:
        return self.first.counters.snapshot().get(f"resync_{name}", 0)


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[Pair]:
    async with served(tmp_path, 2) as drives, await drives[0].client() as client:
        made = Pair(list(drives), client)
        yield made
        await made.resyncs.aclose()


async def test_what_it_missed_comes_and_what_went_goes(pair: Pair) -> None:
    await pair.create(*range(40))
    pair.change(O)
    await pair.create(*range(40, 60))
    await pair.remove(*range(10))
    await pair.create(*range(5), variant=1)
    pair.change(Y)
    await pair.synced()
    assert len(pair.second.store.scan(HEAD).items) == 55
    assert (pair.count("ok"), pair.count("exists")) == (20 + 5 + 5, 0)
    assert pair.count("compared") == 55
    assert pair.count("chains") == 1
    async with await pair.second.client() as other:
        assert await other.read_one(3) == content(1003)
        pair.change(S)
        assert pair.resyncs.synced == ()
        await pair.create(70)
        assert await other.read_one(70) == content(70)


async def test_many_pages_are_compared(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resync, "OWN_PAGE_RECORDS", 7)
    monkeypatch.setattr(resync, "THEIR_PAGE_RECORDS", 5)
    await pair.create(*range(100))
    pair.change(O)
    await pair.remove(*range(0, 100, 3))
    await pair.create(*range(100, 150))
    pair.change(Y)
    await pair.synced()


async def test_nothing_to_do_is_done(pair: Pair) -> None:
    pair.change(Y)
    await pair.synced()
    assert pair.ended == 1


async def test_writes_and_removals_meanwhile_wait_for_it_too(pair: Pair) -> None:
    pair.change(O)
    await pair.create(*range(200))
    pair.change(Y)
    for number in range(200, 260, 4):
        await pair.create(*range(number, number + 4))
        await pair.remove(number - 190, number - 2)
    await pair.synced()


async def test_a_create_of_what_is_there_in_another_copy_replaces_it(pair: Pair) -> None:
    await pair.create(1)
    pair.change(O)
    await pair.remove(1)
    await pair.create(1, variant=1)
    pair.first.view.on_chains = ()  # no resync: the write alone must see to it
    pair.change(Y)
    values = {1: content(1001)}
    assert await pair.client.create(values, chain_version=pair.version) == {1: Status.EXISTS}
    assert records_agree(pair.drives)


async def test_what_cannot_be_read_is_left_alone_there(pair: Pair, tmp_path: Path) -> None:
    """The record of one chunk and the bytes of another are damaged; the other drive may have the last good copies."""
    await pair.create(1, 2, 3)
    pair.change(O)
    key = record_key(HEAD, chunk_id(SPACE, object_of(1)))
    with pair.first.store._index.env.begin(write=True, db=pair.first.store._index.chunks) as txn:
        txn.put(key, b"\0" * 100)
    await pair.remove(2)
    await pair.create(2, variant=1)
    spoil(pair.first, 2)
    pair.change(Y)
    await until(lambda: pair.resyncs.synced == ((HEAD, pair.version),), "the resync")
    assert pair.count("checksum") == 2
    async with await pair.second.client() as other:
        assert [await other.read_one(number) for number in (1, 2, 3)] == [content(1), content(2), content(3)]


async def test_a_scan_waits_for_writes_of_an_earlier_version(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the syncing replica still had under way may become durable after it was scanned."""
    held: list[tuple[object, ...]] = []
    commit_put = pair.second.store.commit_put
    monkeypatch.setattr(pair.second.store, "commit_put", lambda *arguments: held.append(arguments))
    creating = asyncio.ensure_future(pair.client.create({1: content(1)}, chain_version=pair.version))
    await until(lambda: held, "the second drive is about to commit")
    pair.change(O)
    assert (await creating)[1] is Status.CHAIN_VERSION
    await pair.remove(1)
    pair.change(Y)
    assert not pair.second.view.ready(HEAD, pair.version)
    assert pair.second.server is not None
    scan, refused = pair.second.server.handlers[int(Method.SCAN)], []

    def noted(request: Request) -> None:
        try:
            scan(request)
        except RequestFailed as failure:
            refused.append(failure.status)
            raise

    pair.second.server.handlers[int(Method.SCAN)] = noted
    await until(lambda: refused, "a scan was refused")
    assert pair.resyncs.synced == ()
    monkeypatch.undo()
    commit_put(*held[0])  # type: ignore[arg-type]
    await pair.synced()
    assert not pair.second.store.scan(HEAD).items, "its removal was acknowledged"


async def test_a_change_of_the_chain_ends_it_and_it_begins_anew(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def not_yet(request: Request) -> None:
        asked.append(pair.version)
        raise RequestFailed(Status.NOT_READY, "not yet")

    assert pair.second.server is not None
    scan = pair.second.server.handlers[int(Method.SCAN)]
    pair.second.server.handlers[int(Method.SCAN)] = not_yet
    pair.change(Y)
    await until(lambda: asked, "its scan was asked for")
    pair.change(O)
    assert pair.resyncs.under_way == 0
    pair.second.server.handlers[int(Method.SCAN)] = scan
    pair.change(Y)
    await pair.synced()
    assert pair.ended == 1, "only the last one came to an end"


async def test_who_does_not_get_on_is_reported(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resync, "STALL_S", 0.1)
    pair.change(O)
    await pair.create(1)
    await pair.second.silence()
    pair.change(Y)
    await until(lambda: pair.resyncs.stalled == ((HEAD, pair.version),), "the stall")
    assert pair.resyncs.synced == ()
    assert pair.count("stalled") == 1
    pair.change(O)
    assert pair.resyncs.stalled == ()


async def test_a_full_drive_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resync, "STALL_S", 0.1)
    async with served(tmp_path, 2) as drives, await drives[0].client() as client:
        pair = Pair(list(drives), client)
        pair.change(O)
        await pair.create(*range(8))
        monkeypatch.setattr(pair.second.store._slots, "capacity_bytes", 0)
        pair.change(Y)
        await until(lambda: pair.resyncs.stalled == ((HEAD, pair.version),), "the stall")
        await pair.resyncs.aclose()


async def test_a_failed_drive_brings_nobody_up(pair: Pair) -> None:
    pair.first.view.fail_drive("it smokes")
    pair.change(Y)
    assert pair.resyncs.under_way == 0
