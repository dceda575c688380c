"""The worker's line to a metadata server that is there, away, or does not know the worker."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from esker.chunkserver import meta_link
from esker.chunkserver.joins import JoinHistory
from esker.chunkserver.lease import Lease
from esker.chunkserver.meta_link import MetaLink
from esker.wire.errors import ConnectionFailed, RequestFailed, UserError
from esker.wire.limits import WORKER_LEASE_S
from esker.wire.messages import CatalogLag, Heartbeat, HeartbeatReply, JoinReply, Method
from esker.wire.status import Status

from ..waiting import until
from .drives import HEAD, TAIL, ServedDrive, routing_of, served


class Meta:
    """A metadata server as a client of it is seen: answers what the test says, and remembers what it was asked."""

    def __init__(self, drive: ServedDrive) -> None:
        self.routing = routing_of([drive], 2)
        self.failure: dict[Method, Callable[[], Exception]] = {}
        self.asked: list[tuple[Method, Any]] = []
        self.now_s = 100.0
        """By the worker's clock."""
        self.term = 0
        self.withheld: tuple[tuple[int, int], ...] = ()
        self.took_s = 0.0
        """How long a heartbeat takes, by that clock."""

    async def call(self, method: Method, body: Any, reply_type: type, *, timeout_s: float) -> Any:
        assert timeout_s > 0
        self.asked.append((method, body))
        await asyncio.sleep(0)
        if method in self.failure:
            raise self.failure[method]()
        if method is Method.JOIN:
            return JoinReply(self.routing)
        assert method is Method.HEARTBEAT
        self.now_s += self.took_s
        newer = self.routing if body.routing_version < self.routing.version else None
        return HeartbeatReply(newer, self.term, self.withheld)

    def count(self, method: Method) -> int:
        return sum(asked is method for asked, _ in self.asked)

    async def aclose(self) -> None:
        pass


class Reports:
    """The catalog's reports, as far as the link has to do with them."""

    def __init__(self) -> None:
        self.learned: list[object] = []

    def lag(self) -> CatalogLag:
        return CatalogLag()

    def learn(self, servers: object) -> None:
        self.learned.append(servers)

    async def run(self) -> None:
        await asyncio.Event().wait()


RESYNCED = (((7, 3),), ((8, 4), (9, 5)))
"""Chains whose syncing replica is up to date, and those where it does not get on."""


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meta_link, "HEARTBEAT_INTERVAL_S", 0.01)


@asynccontextmanager
async def linked(tmp_path: Path) -> AsyncIterator[tuple[MetaLink, Meta, ServedDrive]]:
    async with served(tmp_path) as (drive,):
        meta = Meta(drive)
        lease = Lease(lambda: meta.now_s)
        used_bytes, unreachable = lambda: drive.store.used_bytes, lambda: ("d9",)
        joins = JoinHistory(drive.store, "life", drive.view.fail_drive)
        link = MetaLink(meta, Reports(), drive.view, used_bytes, lambda: RESYNCED, lease, unreachable, joins=joins)
        yield link, meta, drive


@asynccontextmanager
async def at_work(link: MetaLink) -> AsyncIterator[None]:
    task = asyncio.create_task(link.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert task.cancelled(), task.exception()


async def one_heartbeat(link: MetaLink, meta: Meta) -> Heartbeat:
    """The next one, answered and taken."""
    beats = meta.count(Method.HEARTBEAT)
    async with at_work(link):
        await until(lambda: meta.count(Method.HEARTBEAT) > beats + 1, "a heartbeat, and another one after its answer")
    beat = meta.asked[-1][1]
    assert isinstance(beat, Heartbeat)
    return beat


async def test_it_joins_and_keeps_saying_how_it_is(tmp_path: Path) -> None:
    async with linked(tmp_path) as (link, meta, drive):
        await link.join(drive.worker(5), 1.0)
        assert drive.view.routing == meta.routing
        drive.view.offline_chains.add(7)
        async with at_work(link):
            await until(lambda: meta.count(Method.HEARTBEAT) >= 3, "heartbeats")
        beat = meta.asked[-1][1]
        assert isinstance(beat, Heartbeat)
        assert (beat.drive_id, beat.routing_version, beat.used_bytes) == ("d0", 2, drive.store.used_bytes)
        assert beat.offline_chains == (7,)
        assert (beat.synced, beat.stalled) == RESYNCED
        assert beat.unreachable == ("d9",)


async def test_a_newer_map_comes_with_the_next_heartbeat(tmp_path: Path) -> None:
    async with linked(tmp_path) as (link, meta, drive):
        await link.join(drive.worker(5), 1.0)
        async with at_work(link):
            meta.routing = routing_of([drive], 3)
            await until(lambda: drive.view.routing == meta.routing, "the worker took the newer map")


async def test_whoever_knows_more_makes_it_ask_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meta_link, "HEARTBEAT_INTERVAL_S", 3600.0)
    async with linked(tmp_path) as (link, meta, drive):
        await link.join(drive.worker(5), 1.0)
        async with at_work(link):
            await until(lambda: meta.count(Method.HEARTBEAT) == 1, "the first heartbeat")
            meta.routing = routing_of([drive], 3)
            link.refresh()
            await until(lambda: drive.view.routing == meta.routing, "the worker asked")


async def test_a_join_that_fails_says_so(tmp_path: Path) -> None:
    async with linked(tmp_path) as (link, meta, drive):
        meta.failure[Method.JOIN] = lambda: RequestFailed(Status.FORBIDDEN, "somebody else serves it")
        with pytest.raises(RequestFailed, match="somebody else"):
            await link.join(drive.worker(5), 1.0)


async def test_a_server_that_does_not_know_the_worker_is_joined_again(tmp_path: Path) -> None:
    async with linked(tmp_path) as (link, meta, drive):
        await link.join(drive.worker(5), 1.0)
        async with at_work(link):
            meta.failure[Method.HEARTBEAT] = lambda: RequestFailed(Status.NOT_FOUND, "who are you")
            await until(lambda: meta.count(Method.JOIN) >= 2, "it joined again")
            del meta.failure[Method.HEARTBEAT]
            beats = meta.count(Method.HEARTBEAT)
            await until(lambda: meta.count(Method.HEARTBEAT) > beats + 2, "heartbeats go on")


async def test_a_server_that_is_away_is_asked_until_it_is_back(tmp_path: Path) -> None:
    async with linked(tmp_path) as (link, meta, drive):
        await link.join(drive.worker(5), 1.0)
        meta.failure[Method.HEARTBEAT] = lambda: ConnectionFailed("nobody there")
        async with at_work(link):
            await until(lambda: meta.count(Method.HEARTBEAT) >= 3, "attempts")
            meta.failure.clear()
            meta.routing = routing_of([drive], 3)
            await until(lambda: drive.view.routing == meta.routing, "the worker took the newer map")
        assert meta.count(Method.JOIN) == 1, "it was known all the time"


async def test_a_drive_that_another_worker_serves_is_given_up(tmp_path: Path) -> None:
    async with linked(tmp_path) as (link, meta, drive):
        await link.join(drive.worker(5), 1.0)
        meta.failure[Method.HEARTBEAT] = lambda: RequestFailed(Status.FORBIDDEN, "d0 is served by a copy")
        async with asyncio.timeout(10):
            with pytest.raises(UserError, match=r"^d0 is served by a copy"):
                await link.run()


# The lease


async def test_only_a_manager_renews_the_lease_and_from_when_the_heartbeat_was_sent(tmp_path: Path) -> None:
    async with linked(tmp_path) as (link, meta, drive):
        await link.join(drive.worker(5), 1.0)
        await one_heartbeat(link, meta)
        assert not link._lease.live(HEAD, 2), "no manager has answered"
        meta.term, meta.took_s = 3, 1.0
        beat = await one_heartbeat(link, meta)
        assert link._lease.live(HEAD, 2)
        assert (beat.term, beat.stopped) == (3, ())
        meta.took_s = WORKER_LEASE_S
        await one_heartbeat(link, meta)
        assert not link._lease.live(HEAD, 2), "the answers came when the leases were over"


async def test_a_newer_map_is_taken_before_the_lease_is_renewed(tmp_path: Path) -> None:
    async with linked(tmp_path) as (link, meta, drive):
        await link.join(drive.worker(5), 1.0)
        seen: list[bool] = []
        drive.view.on_chains = [lambda: seen.append(link._lease.live(HEAD, 3))]
        meta.term, meta.routing = 3, routing_of([drive], 3)
        await one_heartbeat(link, meta)
        assert seen == [False]
        assert link._lease.live(HEAD, 3)


async def test_what_is_withheld_ends_at_once_and_the_manager_is_told_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with linked(tmp_path) as (link, meta, drive):
        await link.join(drive.worker(5), 1.0)
        meta.term = 3
        await one_heartbeat(link, meta)
        monkeypatch.setattr(meta_link, "HEARTBEAT_INTERVAL_S", 3600.0)
        meta.withheld = ((HEAD, 2),)
        beat = await one_heartbeat(link, meta)
        assert beat.stopped == ((HEAD, 2),)
        assert not link._lease.live(HEAD, 2)
        assert link._lease.live(HEAD, 3), "that is another version"
        assert link._lease.live(TAIL, 2)


async def test_numbers_of_heartbeats_grow(tmp_path: Path) -> None:
    async with linked(tmp_path) as (link, meta, drive):
        await link.join(drive.worker(5), 1.0)
        meta.failure[Method.HEARTBEAT] = lambda: ConnectionFailed("nobody there")
        await one_heartbeat(link, meta)
        meta.failure.clear()
        await one_heartbeat(link, meta)
        numbers = [body.number for method, body in meta.asked if method is Method.HEARTBEAT]
        assert numbers == list(range(1, len(numbers) + 1))


@pytest.mark.parametrize("away", [False, True])
async def test_whoever_leaves_serves_no_more_and_says_so(tmp_path: Path, away: bool) -> None:
    async with linked(tmp_path) as (link, meta, drive):
        await link.join(drive.worker(5), 1.0)
        meta.term = 3
        await one_heartbeat(link, meta)
        assert link._lease.live(HEAD, 2)
        if away:
            meta.failure[Method.HEARTBEAT] = lambda: ConnectionFailed("nobody there")
        await link.leave()
        assert meta.asked[-1][1].leaving
        assert not link._lease.live(HEAD, 2)


async def test_whoever_never_joined_has_nobody_to_tell(tmp_path: Path) -> None:
    async with linked(tmp_path) as (link, meta, _):
        await link.leave()
        assert meta.asked == []
