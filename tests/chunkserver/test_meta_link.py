"""The worker's line to a metadata server that is there, away, or does not know the worker."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from esker.chunkserver import meta_link
from esker.chunkserver.meta_link import MetaLink
from esker.wire.errors import ConnectionFailed, RequestFailed, UserError
from esker.wire.messages import CatalogLag, Heartbeat, HeartbeatReply, JoinReply, Method
from esker.wire.status import Status

from ..waiting import until
from .drives import ServedDrive, routing_of, served


class Meta:
    """A metadata server as a client of it is seen: answers what the test says, and remembers what it was asked."""

    def __init__(self, drive: ServedDrive) -> None:
        self.routing = routing_of([drive], 2)
        self.failure: dict[Method, Callable[[], Exception]] = {}
        self.asked: list[tuple[Method, Any]] = []

    async def call(self, method: Method, body: Any, reply_type: type, *, timeout_s: float) -> Any:
        assert timeout_s > 0
        self.asked.append((method, body))
        await asyncio.sleep(0)
        if method in self.failure:
            raise self.failure[method]()
        if method is Method.JOIN:
            return JoinReply(self.routing)
        assert method is Method.HEARTBEAT
        return HeartbeatReply(self.routing if body.routing_version < self.routing.version else None)

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
        link = MetaLink(meta, Reports(), drive.view, lambda: drive.store.used_bytes, lambda: RESYNCED)
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
            with pytest.raises(UserError, match="^d0 is served by a copy"):
                await link.run()
