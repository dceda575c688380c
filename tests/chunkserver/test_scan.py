"""Scans of a drive over a real socket: every record once, in order, whatever the pages; and reports on request."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from esker.chunkserver import scan
from esker.chunkserver.catalog_reports import creation
from esker.chunkserver.engine.record import record_key
from esker.chunkserver.scan import REPORTS_WAITING_MAX, ScanService
from esker.wire.admin_messages import (
    BLOCK_PLACE,
    RECORD_KEY,
    SCAN_ROW,
    SCAN_ROWS_MAX,
    CatalogChecked,
    ReportBlocks,
    ReportBlocksReply,
    Scan,
    ScanReply,
    space_before,
    split_record_key,
)
from esker.wire.errors import RequestFailed
from esker.wire.ids import chunk_id
from esker.wire.messages import CatalogEntry, Empty, Method
from esker.wire.status import Status

from .drives import ServedDrive, served
from .raw_client import SPACE, TIMEOUT_S, RawClient, content, object_of


class Told:
    """What the catalog would be told."""

    def __init__(self) -> None:
        self.entries: list[CatalogEntry] = []
        self.waiting = 0
        self.made_up_for = 0

    @property
    def added(self) -> int:
        return len(self.entries)

    @property
    def done(self) -> int:
        return self.added - self.waiting

    def add(self, entry: CatalogEntry) -> None:
        self.entries.append(entry)

    def checked(self, check_due: int) -> None:
        self.made_up_for += check_due


class Scanned:
    """A drive with a scan service, and a client of it."""

    def __init__(self, drive: ServedDrive, client: RawClient) -> None:
        self.drive = drive
        self.client = client
        self.told = Told()
        self.routing_version = 5
        self.refreshes = 0
        service = ScanService(
            drive.store, drive.runner, self.told, lambda: self.routing_version, self._refresh, drive.view.ready
        )
        assert drive.server is not None
        handlers = {
            Method.SCAN: service.scan,
            Method.REPORT_BLOCKS: service.report_blocks,
            Method.CATALOG_CHECKED: service.checked,
        }
        drive.server.handlers.update({int(method): handler for method, handler in handlers.items()})

    def _refresh(self) -> None:
        self.refreshes += 1

    async def page(self, message: Scan) -> ScanReply:
        return await self.client.connection.call(Method.SCAN, message, ScanReply, timeout_s=TIMEOUT_S)

    async def everything(self, chain_id: int = 0, limit: int = 100, **others: object) -> list[tuple[bytes, bytes]]:
        """(record key, key) of every record that the scan gives."""
        found: list[tuple[bytes, bytes]] = []
        after = b""
        while True:
            page = await self.page(Scan(chain_id, after, limit, **others))
            at = 0
            for row in SCAN_ROW.iter_unpack(page.rows):
                found.append((row[0], page.keys[at : at + row[7]]))
                at += row[7]
            assert at == len(page.keys)
            if not page.next_after:
                return found
            assert page.next_after > after
            after = page.next_after

    async def ask(self, *places: bytes, report: bool = False) -> ReportBlocksReply:
        message = ReportBlocks(SPACE, b"".join(places), report)
        return await self.client.connection.call(Method.REPORT_BLOCKS, message, ReportBlocksReply, timeout_s=TIMEOUT_S)


@pytest.fixture
async def scanned(tmp_path: Path) -> AsyncIterator[Scanned]:
    """Drive 0 of two heads chain 1 and follows in chain 2."""
    async with served(tmp_path, 2) as drives, await drives[0].client() as client:
        yield Scanned(drives[0], client)


async def fill(scanned: Scanned, count: int) -> list[bytes]:
    """Creates chunks on the chain that the drive heads; their record keys in order."""
    values = {number: content(number, 100) for number in range(count)}
    assert set((await scanned.client.create(values)).values()) == {Status.OK}
    return [record_key(1, chunk_id(SPACE, object_of(number))) for number in range(count)]


@pytest.mark.parametrize("limit", [1, 7, 100, SCAN_ROWS_MAX])
@pytest.mark.parametrize("slice_records", [3, 256])
async def test_every_record_comes_once_and_in_order(
    scanned: Scanned, monkeypatch: pytest.MonkeyPatch, limit: int, slice_records: int
) -> None:
    monkeypatch.setattr(scan, "SLICE_RECORDS", slice_records)
    wanted = await fill(scanned, 20)
    everything = [(key, b"key %d" % number) for number, key in enumerate(wanted)]
    assert await scanned.everything(0, limit) == everything
    assert await scanned.everything(1, limit) == everything
    assert await scanned.everything(1, limit, space=SPACE) == everything
    assert await scanned.everything(2, limit) == []
    assert await scanned.everything(1, limit, space=SPACE + 1) == []
    assert await scanned.everything(1, limit, space=SPACE - 1) == []


async def test_a_row_holds_what_the_record_does(scanned: Scanned) -> None:
    (key,) = await fill(scanned, 1)
    page = await scanned.page(Scan(1, b"", 10))
    ((row_key, version, length, block_bytes, chunk_count, put_id, created_ms, _),) = SCAN_ROW.iter_unpack(page.rows)
    with scanned.drive.store.reader() as reader:
        record = reader.record(key)
    assert record is not None
    assert row_key == key
    assert (version, length, block_bytes, chunk_count, put_id, created_ms) == (
        record.version,
        record.length,
        record.block_bytes,
        record.chunk_count,
        record.put_id,
        record.created_ms,
    )


async def test_only_first_chunks_are_given_if_asked_and_pages_stay_bounded(
    scanned: Scanned, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(scanned, 30)
    monkeypatch.setattr(scan, "PAGE_RECORDS_MAX", 10)
    monkeypatch.setattr(scan, "SLICE_RECORDS", 5)
    # All are first chunks; a page that finds enough of them ends before it has looked at everything.
    assert len(await scanned.everything(1, 100, first_chunks=True)) == 30
    page = await scanned.page(Scan(1, b"", 100, first_chunks=True))
    assert len(page.rows) == 10 * SCAN_ROW.size
    assert split_record_key(page.next_after)[2] == object_of(9)


async def test_writes_under_way_are_those_of_the_space(scanned: Scanned, tmp_path: Path) -> None:
    class Busy:
        def under_way(self, space: int) -> int:
            return {0: 9, SPACE: 2}.get(space, 0)

    service = ScanService(scanned.drive.store, Busy(), scanned.told, lambda: 5, lambda: None, lambda *_: True)
    assert scanned.drive.server is not None
    scanned.drive.server.handlers[int(Method.SCAN)] = service.scan
    assert (await scanned.page(Scan(1, b"", 1))).writes_under_way == 9
    assert (await scanned.page(Scan(1, b"", 1, SPACE))).writes_under_way == 2
    assert (await scanned.page(Scan(1, b"", 1, SPACE + 1))).writes_under_way == 0


async def test_a_worker_with_an_old_map_asks_for_a_newer_one(scanned: Scanned) -> None:
    with pytest.raises(RequestFailed, match="older than version 6") as caught:
        await scanned.page(Scan(1, b"", 1, routing_version=6))
    assert caught.value.status is Status.NOT_READY
    assert scanned.refreshes == 1
    await scanned.page(Scan(1, b"", 1, routing_version=5))


@pytest.mark.parametrize(
    ("message", "complaint"),
    [
        (Scan(1, b"", 0), "allowed: 1 to"),
        (Scan(1, b"", SCAN_ROWS_MAX + 1), "allowed: 1 to"),
        (Scan(1, b"short", 1), "record key of 28 bytes"),
        (Scan(1, RECORD_KEY.pack(2, bytes(24)), 1), "begins on another chain"),
        (Scan(0, b"", 1, space=3), "only within a chain"),
        (Scan(1 << 32, b"", 1), "out of range"),
        (Scan(1, b"", 1, space=-1), "out of range"),
    ],
)
async def test_malformed_scans_are_refused(scanned: Scanned, message: Scan, complaint: str) -> None:
    with pytest.raises(RequestFailed, match=complaint) as caught:
        await scanned.page(message)
    assert caught.value.status is Status.BAD_REQUEST


async def test_blocks_are_reported_as_the_drive_has_them(scanned: Scanned) -> None:
    keys = await fill(scanned, 2)
    places = [BLOCK_PLACE.pack(object_of(number), 1, 77) for number in (1, 5)]
    reply = await scanned.ask(*places)
    assert [row[0] for row in SCAN_ROW.iter_unpack(reply.rows)] == [keys[1]]
    assert reply.keys == b"key 1"
    assert scanned.told.entries == []
    reply = await scanned.ask(*places, report=True)
    with scanned.drive.store.reader() as reader:
        record = reader.record(keys[1])
    assert record is not None
    gone = CatalogEntry(SPACE, object_of(5), b"", 0, 0, 0, 77, 1)
    assert scanned.told.entries == [creation(keys[1], record), gone]
    assert (reply.reports, reply.reports_done) == (2, 2)


async def test_no_block_is_reported_while_too_much_waits(scanned: Scanned) -> None:
    scanned.told.waiting = REPORTS_WAITING_MAX
    with pytest.raises(RequestFailed, match="entries wait") as caught:
        await scanned.ask(BLOCK_PLACE.pack(object_of(1), 1, 0), report=True)
    assert caught.value.status is Status.BUSY
    await scanned.ask(BLOCK_PLACE.pack(object_of(1), 1, 0))


async def test_a_check_is_noted(scanned: Scanned) -> None:
    await scanned.client.connection.call(Method.CATALOG_CHECKED, CatalogChecked(3), Empty, timeout_s=TIMEOUT_S)
    assert scanned.told.made_up_for == 3


def test_record_keys_come_apart_and_spaces_have_their_places() -> None:
    key = record_key(3, chunk_id(7, object_of(1), 2))
    assert split_record_key(key) == (3, 7, object_of(1), 2)
    assert (
        record_key(3, chunk_id(6, b"\xff" * 16, 0xFFFFFFFF))
        == space_before(3, 7)
        < record_key(3, chunk_id(7, bytes(16)))
    )


async def test_digests_stand_for_the_checksums_of_each_row(scanned: Scanned, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan, "SLICE_RECORDS", 3)
    values = {number: content(number, 100 + number) for number in range(10)}
    assert set((await scanned.client.create(values)).values()) == {Status.OK}
    page = await scanned.page(Scan(1, b"", 100, digests=True))
    expected = [scan.digest(record.checksums) for _, record in scanned.drive.store.scan(1).items]
    assert page.digests == b"".join(expected)
    assert len(set(expected)) == 10
    assert (await scanned.page(Scan(1, b"", 100))).digests == b""


async def test_a_scan_of_another_version_of_the_chain_is_refused(scanned: Scanned) -> None:
    assert (await scanned.page(Scan(1, b"", 1, chain_version=1))).next_after == b""
    for version in (2, 7):
        with pytest.raises(RequestFailed, match="not part of chain 1 in version") as refused:
            await scanned.page(Scan(1, b"", 1, chain_version=version))
        assert refused.value.status is Status.NOT_READY
    assert scanned.refreshes == 2
    with pytest.raises(RequestFailed, match="not part of chain 99"):
        await scanned.page(Scan(99, b"", 1, chain_version=1))
    with pytest.raises(RequestFailed, match="a chain version without a chain"):
        await scanned.page(Scan(0, b"", 1, chain_version=1))
