"""What the catalog is told: everything once and in order, or a mark on the drive that something may be missing."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from esker.chunkserver import catalog_reports
from esker.chunkserver.catalog_reports import REPORT_ENTRIES, CatalogReports
from esker.chunkserver.engine.io import open_engine
from esker.chunkserver.engine.store import DriveStore
from esker.runtime.counters import Counters
from esker.wire.errors import ConnectionFailed, RequestFailed
from esker.wire.limits import MIB
from esker.wire.messages import CatalogEntry, CatalogReport, Empty
from esker.wire.status import Status

from ..waiting import until


class FakeMeta:
    """A metadata server that takes reports, refuses them, or does not answer."""

    def __init__(self) -> None:
        self.taken: list[CatalogReport] = []
        self.failure: Exception | None = None
        self.takes_before_failing = False

    async def call(self, method: object, body: CatalogReport, reply_type: object, *, timeout_s: float) -> Empty:
        if self.failure is None or self.takes_before_failing:
            self.taken.append(body)
        if self.failure is not None:
            raise self.failure
        return Empty()

    @property
    def entries(self) -> list[int]:
        return [entry.created_ms for report in self.taken for entry in report.entries]


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[DriveStore]:
    engine = open_engine()
    opened = DriveStore.open(tmp_path / "d", cluster_id="c", capacity_bytes=64 * MIB, engine=engine, drive_id="d1")
    yield opened
    assert await opened.drain(10)
    opened.close()
    engine.close()


def entry(number: int) -> CatalogEntry:
    return CatalogEntry(1, number.to_bytes(16, "big"), b"k", 1, 1, number)


async def life(store: DriveStore, meta: FakeMeta, number: int = 1) -> CatalogReports:
    """A worker's life that begins now."""
    reports = CatalogReports(store, meta, Counters(), number)
    assert await store.drain(10)
    return reports


async def test_entries_leave_in_order_in_numbered_reports(store: DriveStore) -> None:
    meta = FakeMeta()
    reports = await life(store, meta, 7)
    for number in range(1, REPORT_ENTRIES + 3):
        reports.add(entry(number))
    assert reports.lag().waiting == reports.waiting == REPORT_ENTRIES + 2
    assert await reports.send()
    assert (reports.waiting, reports.done, reports.added) == (2, REPORT_ENTRIES, REPORT_ENTRIES + 2)
    assert await reports.send()
    assert await reports.send(), "nothing is left to be sent"
    assert meta.entries == list(range(1, REPORT_ENTRIES + 3))
    assert [(report.drive_id, report.life, report.number) for report in meta.taken] == [("d1", 7, 1), ("d1", 7, 2)]
    assert reports.lag().lag_ms == reports.lag().waiting == 0


@pytest.mark.parametrize("failure", [ConnectionFailed("gone"), RequestFailed(Status.UNAVAILABLE, "store")])
async def test_a_report_without_an_answer_is_sent_again_as_it_was(store: DriveStore, failure: Exception) -> None:
    meta = FakeMeta()
    meta.failure = failure
    meta.takes_before_failing = True
    reports = await life(store, meta)
    reports.add(entry(1))
    assert not await reports.send()
    reports.add(entry(2))
    assert not await reports.send()
    meta.failure = None
    assert await reports.send()
    assert await reports.send()
    assert meta.taken[0] == meta.taken[1] == meta.taken[2]
    assert [report.number for report in meta.taken] == [1, 1, 1, 2]
    assert reports.lag().check_due == 0


async def test_the_lag_is_the_age_of_the_oldest_entry(store: DriveStore, monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 100.0
    monkeypatch.setattr(catalog_reports, "time", SimpleNamespace(monotonic=lambda: now_s))
    meta = FakeMeta()
    meta.failure = ConnectionFailed("gone")
    reports = await life(store, meta)
    reports.add(entry(1))
    now_s += 1.5
    reports.add(entry(2))
    assert reports.lag().lag_ms == 1500
    await reports.send()
    assert reports.lag().lag_ms == 1500, "what was sent and not taken still counts"


async def test_an_overflow_drops_the_oldest_and_is_kept_until_a_check(
    store: DriveStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalog_reports, "WAITING_MAX", 10)
    meta = FakeMeta()
    reports = await life(store, meta)
    for number in range(1, 16):
        reports.add(entry(number))
    assert (reports.lag().dropped, reports.lag().check_due) == (5, 1)
    assert await reports.send()
    assert meta.entries == list(range(6, 16))
    await reports.finish(1.0)
    assert await store.drain(10)
    second = await life(store, meta, 2)
    assert second.lag().check_due == 1, "a new life knows of it"
    second.checked(1)
    await second.finish(1.0)
    assert await store.drain(10)
    assert (await life(store, meta, 3)).lag().check_due == 0


async def test_a_refused_report_is_given_up_and_remembered(store: DriveStore) -> None:
    meta = FakeMeta()
    meta.failure = RequestFailed(Status.BAD_REQUEST, "malformed")
    reports = await life(store, meta)
    reports.add(entry(1))
    assert await reports.send()
    assert (reports.waiting, reports.lag().dropped, reports.lag().check_due) == (0, 1, 1)


async def test_a_life_that_ended_without_telling_everything_is_made_up_for(store: DriveStore) -> None:
    meta = FakeMeta()
    first = await life(store, meta)
    first.add(entry(1))  # and then kill -9
    second = await life(store, meta, 2)
    assert second.lag().check_due == 1
    meta.failure = ConnectionFailed("gone")
    second.add(entry(2))
    await second.finish(1.0)
    assert await store.drain(10)
    third = await life(store, meta, 3)
    assert third.lag().check_due == 2, "it could not tell the last ones"
    third.checked(1)
    assert third.lag().check_due == 1, "what was lost after a check began is still to be made up for"
    meta.failure = None
    await third.finish(1.0)
    assert await store.drain(10)
    assert (await life(store, meta, 4)).lag().check_due == 1


async def test_it_tells_by_itself_what_gathers(store: DriveStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalog_reports, "INTERVAL_S", 0.001)
    meta = FakeMeta()
    reports = await life(store, meta)
    running = asyncio.ensure_future(reports.run())
    for number in range(1, 4):
        reports.add(entry(number))
        await until(lambda: reports.waiting == 0, "the entry was told")
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert meta.entries == [1, 2, 3]
