"""Passes over a drive: when they begin, how fast they go, what they count, and that they go on after a restart."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, cast

import pytest

from esker.chunkserver.config import SCRUB_BYTES_PER_S
from esker.chunkserver.engine.commit_group import CommitDone
from esker.chunkserver.engine.errors import DriveFailed
from esker.chunkserver.repair import Mended
from esker.chunkserver.scrub import PAGE_CHUNKS, PASS_INTERVAL_S, START_DELAY_S, STATE, Scrubber
from esker.chunkserver.scrub_pace import BUSY_FACTOR, ScrubPace
from esker.chunkserver.verify import Pause, Seen, Verdict
from esker.runtime.counters import Counters
from esker.wire.codec import encode_body
from esker.wire.errors import RequestFailed
from esker.wire.limits import MIB
from esker.wire.scrub_messages import Scrub, ScrubReply
from esker.wire.status import Status

from ..meta import virtual_time

BEGUN_S = 1_000_000.0
WEEK_S = PASS_INTERVAL_S


class Kept:
    """A store's own area; it outlives scrubbers."""

    drive_id = "d0"
    used_bytes = 7 * MIB

    def __init__(self) -> None:
        self.states: dict[str, bytes] = {}
        self.status = Status.OK
        self.put = asyncio.Event()

    def state_get(self, name: str) -> bytes | None:
        return self.states.get(name)

    def state_put(self, name: str, value: bytes, done: CommitDone, token: Any) -> None:
        if self.status is Status.OK:
            self.states[name] = value
        asyncio.get_running_loop().call_soon(done, token, self.status)
        self.put.set()


class Chunks:
    """Chunks of 1 MiB by number; some damaged, with what their repair comes to."""

    def __init__(self, count: int, damaged: dict[int, Mended] | None = None) -> None:
        self.keys = [b"%06d" % number for number in range(count)]
        self.damaged = {b"%06d" % number: mended for number, mended in (damaged or {}).items()}
        self.looked_at: list[bytes] = []

    def page(self, after: bytes, limit: int) -> tuple[Sequence[bytes], bytes]:
        found = [key for key in self.keys if key > after][:limit]
        return found, found[-1] if len(found) == limit else b""

    async def look(self, key: bytes, pause: Pause) -> Seen:
        self.looked_at.append(key)
        await pause(MIB)
        return Seen(Verdict.DAMAGED if key in self.damaged else Verdict.WHOLE, MIB)

    async def mend(self, key: bytes) -> Mended:
        return self.damaged[key]


class Asked:
    """A request, and its reply."""

    def __init__(self, body: Scrub) -> None:
        self.body = encode_body(body)
        self.replies: list[ScrubReply] = []

    def reply(self, body: ScrubReply) -> None:
        self.replies.append(body)


def ask(scrubber: Scrubber, *, start: bool = False, rate: int = 0) -> ScrubReply:
    request = Asked(Scrub(start, rate))
    scrubber.scrub(cast(Any, request))
    (reply,) = request.replies
    return reply


class Scrubbed:
    """A drive that is scrubbed in virtual time."""

    def __init__(self, *kinds: Chunks, rate: int = MIB, store: Kept | None = None, quiet: bool = True) -> None:
        self.store = store or Kept()
        self.counters = Counters()
        self._loop = asyncio.get_running_loop()
        self.scrubber = Scrubber(
            cast(Any, self.store), kinds, self.counters, rate, lambda: quiet, now_s=lambda: BEGUN_S + self._loop.time()
        )
        self._task = asyncio.ensure_future(self.scrubber.run())

    async def last(self, number: int) -> float:
        """Waits for the end of that pass; when it ended."""
        while (last := self.scrubber.report().last) is None or last.number < number:
            await self.store.put.wait()
            self.store.put.clear()
        return self._loop.time()

    async def ended(self) -> None:
        """Waits until no pass will follow."""
        await self._task

    async def aclose(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self.scrubber.save()


def test_a_pass_begins_after_the_start_and_then_every_week() -> None:
    async def run() -> None:
        chunks = Chunks(600)
        drive = Scrubbed(chunks)
        assert await drive.last(1) == pytest.approx(START_DELAY_S + 600, abs=1)
        assert chunks.looked_at == chunks.keys
        assert await drive.last(2) == pytest.approx(START_DELAY_S + WEEK_S + 600, abs=1)
        assert chunks.looked_at == 2 * chunks.keys
        report = drive.scrubber.report()
        assert report.present is None
        assert report.last is not None
        assert (report.last.number, report.last.chunks, report.last.data_bytes) == (2, 600, 600 * MIB)
        assert report.next_ms == pytest.approx((BEGUN_S + START_DELAY_S + 2 * WEEK_S) * 1000, abs=1000)
        assert drive.counters.get("scrub_passes") == 2
        await drive.aclose()

    virtual_time.run(run())


def test_what_became_of_damage_is_counted() -> None:
    async def run() -> None:
        outcomes = dict(enumerate(Mended))
        drive = Scrubbed(Chunks(20, outcomes))
        await drive.last(1)
        last = drive.scrubber.report().last
        assert last is not None
        assert (last.mismatches, last.repaired, last.lost, last.waiting) == (6, 3, 2, 1)
        assert last.ended_ms > last.began_ms
        assert drive.counters.get("scrub_mismatches") == drive.scrubber.counters()["scrub_last_mismatches"] == 6
        await drive.aclose()

    virtual_time.run(run())


def test_a_drive_that_has_failed_is_not_scrubbed_any_more() -> None:
    class Failed(Chunks):
        def page(self, after: bytes, limit: int) -> tuple[Sequence[bytes], bytes]:
            if after:
                raise DriveFailed("its index cannot be read")
            return super().page(after, limit)

    async def run() -> None:
        chunks = Failed(600)
        drive = Scrubbed(chunks)
        await drive.ended()
        assert chunks.looked_at == chunks.keys[:PAGE_CHUNKS]
        assert drive.scrubber.running, "a worker that is started anew goes on with it"
        await drive.aclose()

    virtual_time.run(run())


def test_it_goes_on_after_a_restart_from_where_it_was() -> None:
    async def run() -> None:
        store, first, second = Kept(), Chunks(5), Chunks(1000, {1: Mended.LOST})
        drive = Scrubbed(first, second, store=store)
        await asyncio.sleep(START_DELAY_S + 500.5)
        await drive.aclose()
        done = len(second.looked_at)
        assert 490 < done < 500
        assert first.looked_at == first.keys
        again = Scrubbed(first, second, store=store)
        assert ask(again.scrubber).present is not None, "it waits for its turn"
        await again.last(1)
        assert first.looked_at == first.keys
        assert set(second.looked_at) == set(second.keys)
        assert len(second.looked_at) <= 1001, "at most one chunk was looked at twice"
        last = again.scrubber.report().last
        assert last is not None
        assert (last.number, last.chunks, last.lost) == (1, 1005, 1)
        await again.aclose()
        later = Scrubbed(first, second, store=store)
        await asyncio.sleep(2 * START_DELAY_S)
        assert not later.scrubber.running, "the next one is due in a week"
        await later.aclose()

    virtual_time.run(run())


def test_a_crash_costs_a_few_seconds() -> None:
    async def run() -> None:
        store, chunks = Kept(), Chunks(1000)
        drive = Scrubbed(chunks, store=store)
        await asyncio.sleep(START_DELAY_S + 500.5)
        kept = dict(store.states)
        await drive.aclose()
        store.states = kept
        again = Scrubbed(chunks, store=store)
        await again.last(1)
        assert 1000 < len(chunks.looked_at) <= 1012
        await again.aclose()

    virtual_time.run(run())


def test_on_request_it_begins_at_once_and_as_fast_as_asked() -> None:
    async def run() -> None:
        loop = asyncio.get_running_loop()
        drive = Scrubbed(Chunks(100))
        present = ask(drive.scrubber, start=True, rate=10 * MIB).present
        assert present is not None
        assert present.number == 1
        assert await drive.last(1) == pytest.approx(10, abs=0.2)
        assert ask(drive.scrubber).rate_bytes_per_s == MIB, "only that pass"
        begun_s = loop.time()
        ask(drive.scrubber, start=True)
        await asyncio.sleep(50)
        again = ask(drive.scrubber, start=True, rate=50 * MIB).present
        assert again is not None
        assert again.number == 2, "the pass under way goes on"
        assert await drive.last(2) - begun_s == pytest.approx(51, abs=0.2)
        await drive.aclose()

    virtual_time.run(run())


def test_without_a_rate_it_begins_only_on_request() -> None:
    async def run() -> None:
        chunks = Chunks(100)
        drive = Scrubbed(chunks, rate=0)
        await asyncio.sleep(3 * WEEK_S)
        assert chunks.looked_at == []
        assert ask(drive.scrubber).next_ms == 0
        begun_s = asyncio.get_running_loop().time()
        ask(drive.scrubber, start=True)
        assert await drive.last(1) - begun_s == pytest.approx(100 * MIB / SCRUB_BYTES_PER_S, abs=0.2)
        await drive.aclose()

    virtual_time.run(run())


def test_rates_that_make_no_sense_are_refused() -> None:
    async def run() -> None:
        drive = Scrubbed(Chunks(1))
        for rate in (-1, 1 << 50):
            with pytest.raises(RequestFailed, match="BAD_REQUEST: a rate of"):
                ask(drive.scrubber, start=True, rate=rate)
        assert not drive.scrubber.running
        await drive.aclose()

    virtual_time.run(run())


def test_what_is_kept_may_be_unreadable_or_impossible_to_keep() -> None:
    async def run() -> None:
        store = Kept()
        store.states[STATE] = b"\xff\xff"
        store.status = Status.NO_SPACE
        drive = Scrubbed(Chunks(30), store=store)
        await drive.last(1)
        assert store.states[STATE] == b"\xff\xff"
        await drive.aclose()

    virtual_time.run(run())


def test_a_bug_does_not_end_scrubbing() -> None:
    async def run() -> None:
        chunks = Chunks(10, {5: Mended.REPAIRED})
        del chunks.damaged[b"000005"]
        look = chunks.look

        async def once(key: bytes, pause: Pause) -> Seen:
            if key == b"000005" and chunks.looked_at.count(key) == 0:
                chunks.looked_at.append(key)
                raise RuntimeError("a bug")
            return await look(key, pause)

        chunks.look = once  # type: ignore[method-assign]
        drive = Scrubbed(chunks)
        assert await drive.last(1) == pytest.approx(2 * START_DELAY_S + 10, abs=1)
        await drive.aclose()

    virtual_time.run(run())


@pytest.mark.parametrize(
    ("quiet", "times"),
    [(lambda: True, 1), (lambda: False, 1 + BUSY_FACTOR)],
)
def test_beside_clients_it_goes_slower_and_never_stands_still(quiet: Callable[[], bool], times: int) -> None:
    async def run() -> None:
        loop = asyncio.get_running_loop()
        pace = ScrubPace(10 * MIB, quiet)
        for _ in range(100):
            await pace.enter(MIB)
        assert loop.time() == pytest.approx(10 * times, rel=0.01)

    virtual_time.run(run())


def test_it_goes_on_as_soon_as_clients_are_gone() -> None:
    async def run() -> None:
        loop = asyncio.get_running_loop()
        pace = ScrubPace(MIB, lambda: loop.time() > 1.5)
        await pace.enter(MIB)
        assert loop.time() == pytest.approx(1.5, abs=0.02)

    virtual_time.run(run())


def test_small_chunks_cost_more_than_their_bytes() -> None:
    async def run() -> None:
        pace = ScrubPace(MIB, lambda: True)
        for _ in range(16):
            await pace.enter(100)
        assert asyncio.get_running_loop().time() == pytest.approx(1.0)

    virtual_time.run(run())
