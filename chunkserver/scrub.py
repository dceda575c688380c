"""Reads everything that a drive holds, from time to time, and has mended what does not verify.

One pass follows the record keys from the first to the last, a page at a time, each page one short read transaction. It
goes at a bounded rate and gives way to clients. Where it is stands in the store's own area: after a restart it goes on
from there, less a few seconds. A pass begins by itself a week after the last one began, or on request.

Owns the passes and their figures; what kinds of chunks there are, how one is verified and how it is mended, is the
`Kind`s'.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from esker.chunkserver.config import SCRUB_BYTES_PER_S
from esker.chunkserver.engine.errors import DriveFailed
from esker.chunkserver.engine.store import DriveStore
from esker.chunkserver.repair import Mended, RepairService
from esker.chunkserver.scrub_pace import ScrubPace
from esker.chunkserver.verify import Pause, Seen, Verdict, Verifier
from esker.runtime.counters import Counters
from esker.runtime.logging import get_logger
from esker.wire.codec import decode_body
from esker.wire.errors import RequestFailed
from esker.wire.rpc_server import Request
from esker.wire.scrub_messages import Scrub, ScrubPass, ScrubReply
from esker.wire.status import Status

log = get_logger("chunkserver.scrub")

PASS_INTERVAL_S = 7 * 24 * 3600.0
START_DELAY_S = 60.0
"""After a start, before anything is read without having been asked for."""
SAVE_INTERVAL_S = 10.0
PAGE_CHUNKS = 256
STATE = "scrub"
RATE_MAX = 1 << 40


class Kind(Protocol):
    """One kind of chunks on the drive, in an order of its own."""

    def page(self, after: bytes, limit: int) -> tuple[Sequence[bytes], bytes]:
        """Keys of up to `limit` chunks behind `after` (empty: from the first), damaged ones included, and where the
        next page begins (empty: there is none).
        """

    async def look(self, key: bytes, pause: Pause) -> Seen:
        """Verifies one."""

    async def mend(self, key: bytes) -> Mended:
        """Looks at it once more, and replaces it where it must and can be."""


class Blocks:
    """The immutable chunks of KV blocks."""

    def __init__(self, store: DriveStore, verifier: Verifier, repairs: RepairService) -> None:
        self._store = store
        self._verifier = verifier
        self._repairs = repairs

    def page(self, after: bytes, limit: int) -> tuple[Sequence[bytes], bytes]:
        """See `Kind`."""
        found = self._store.scan(None, after, limit)
        return sorted([key for key, _ in found.items] + found.damaged), found.next_after or b""

    async def look(self, key: bytes, pause: Pause) -> Seen:
        """See `Kind`."""
        return await self._verifier.look(key, pause)

    async def mend(self, key: bytes) -> Mended:
        """See `Kind`."""
        return await self._repairs.mend_or_queue(key)


class Kept(msgspec.Struct, frozen=True, array_like=True):
    """What is kept on the drive."""

    present: ScrubPass | None = None
    last: ScrubPass | None = None
    kind: int = 0
    """Where the pass under way is: the number of a kind, and the key of the last chunk that was looked at."""
    after: bytes = b""


class Scrubber:
    """The passes of one drive. `rate_bytes_per_s` 0: only on request, at the default rate."""

    def __init__(
        self,
        store: DriveStore,
        kinds: Sequence[Kind],
        counters: Counters,
        rate_bytes_per_s: int,
        quiet: Callable[[], bool],
        *,
        now_s: Callable[[], float] = time.time,
    ) -> None:
        """`quiet`: whether no client waits for the drive. `now_s`: the time of day, for when passes begin."""
        self._store = store
        self._kinds = kinds
        self._counters = counters
        self._own_rate = rate_bytes_per_s
        self._pace = ScrubPace(rate_bytes_per_s or SCRUB_BYTES_PER_S, quiet)
        self._now_s = now_s
        self._asked = asyncio.Event()
        self._saved_s = 0.0
        self._kept = _load(store)
        self._figures = self._kept.present
        """Of the pass under way, ahead of what is kept."""

    @property
    def running(self) -> bool:
        """Whether a pass is under way, be it one that waits for its turn after a start."""
        return self._figures is not None

    def scrub(self, request: Request) -> None:
        """Handles SCRUB."""
        message = decode_body(Scrub, request.body)
        if not 0 <= message.rate_bytes_per_s <= RATE_MAX:
            raise RequestFailed(Status.BAD_REQUEST, f"a rate of {message.rate_bytes_per_s} bytes per second")
        if message.start:
            self._pace.bytes_per_s = message.rate_bytes_per_s or self._own_rate or SCRUB_BYTES_PER_S
            if self._figures is None:
                self._begin()
            self._asked.set()
        request.reply(self.report())

    def report(self) -> ScrubReply:
        """How far it is."""
        last, waits_s = self._kept.last, self._wait_s()
        known = self._figures is None and last is not None and waits_s is not None
        return ScrubReply(
            present=self._figures,
            last=last,
            stored_bytes=self._store.used_bytes,
            rate_bytes_per_s=self._pace.bytes_per_s if self._figures is not None else self._own_rate,
            next_ms=int((self._now_s() + (waits_s or 0.0)) * 1000) if known else 0,
        )

    def counters(self) -> dict[str, int]:
        """Figures of the pass under way and of the last one."""
        present, last = self._figures, self._kept.last
        return {
            "scrub_pass": present.number if present is not None else last.number if last is not None else 0,
            "scrub_running": int(present is not None),
            "scrub_pass_chunks": present.chunks if present is not None else 0,
            "scrub_pass_bytes": present.data_bytes if present is not None else 0,
            "scrub_last_ended_ms": last.ended_ms if last is not None else 0,
            "scrub_last_mismatches": last.mismatches if last is not None else 0,
        }

    async def run(self) -> None:
        """Passes, one after another, until cancelled, or until the drive has failed."""
        await self._asked_within(START_DELAY_S)
        while True:
            self._asked.clear()
            if self._figures is None:
                await self._asked_within(self._wait_s())
                if self._figures is None:  # else it was asked for
                    self._begin()
            try:
                await self._pass()
            except DriveFailed as failure:
                log.error("a scrub cannot go on", drive=self._store.drive_id, reason=failure.message)
                return
            except Exception:
                log.exception("a scrub failed; it goes on later", drive=self._store.drive_id)
                await self._asked_within(START_DELAY_S)

    def save(self) -> None:
        """Keeps the position and the figures on the drive."""
        self._kept = msgspec.structs.replace(self._kept, present=self._figures)
        self._store.state_put(STATE, msgspec.msgpack.encode(self._kept), _saved, self._store.drive_id)
        self._saved_s = asyncio.get_running_loop().time()

    def _wait_s(self) -> float | None:
        """How long until a pass begins by itself; None: it never does."""
        if not self._own_rate:
            return None
        last = self._kept.last
        if last is None:
            return 0.0
        waited_s = self._now_s() - last.began_ms / 1000
        return min(PASS_INTERVAL_S, max(0.0, PASS_INTERVAL_S - waited_s))

    async def _asked_within(self, timeout_s: float | None) -> None:
        """Waits until a pass is asked for, or so long."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._asked.wait()

    def _begin(self) -> None:
        last = self._kept.last
        number = 1 if last is None else last.number + 1
        self._figures = ScrubPass(number, int(self._now_s() * 1000))
        self._kept = Kept(self._figures, last)
        self.save()

    async def _pass(self) -> None:
        """Goes on with the pass under way, to its end."""
        loop = asyncio.get_running_loop()
        while self._kept.kind < len(self._kinds):
            kind = self._kinds[self._kept.kind]
            keys, next_after = kind.page(self._kept.after, PAGE_CHUNKS)
            for key in keys:
                await self._one(kind, key)
                self._kept = msgspec.structs.replace(self._kept, after=key)
                if loop.time() - self._saved_s > SAVE_INTERVAL_S:
                    self.save()
            if next_after:
                self._kept = msgspec.structs.replace(self._kept, after=next_after)
            else:
                self._kept = msgspec.structs.replace(self._kept, kind=self._kept.kind + 1, after=b"")
            await asyncio.sleep(0)  # clients' requests never wait behind more than a page
        self._end()

    def _end(self) -> None:
        figures = self._figures
        assert figures is not None, "a pass is under way"
        figures = msgspec.structs.replace(figures, ended_ms=max(1, int(self._now_s() * 1000)))
        tell = log.info if not figures.lost + figures.waiting else log.error
        tell(
            "a scrub has ended",
            drive=self._store.drive_id,
            number=figures.number,
            chunks=figures.chunks,
            data_bytes=figures.data_bytes,
            mismatches=figures.mismatches,
            repaired=figures.repaired,
            lost=figures.lost,
            waiting=figures.waiting,
        )
        self._counters.add("scrub_passes")
        self._kept = Kept(None, figures)
        self._figures = None
        self._pace.bytes_per_s = self._own_rate or SCRUB_BYTES_PER_S
        self.save()

    async def _one(self, kind: Kind, key: bytes) -> None:
        await self._pace.enter(0)
        seen = await kind.look(key, self._pace.enter)
        self._add(chunks=int(seen.verdict is not Verdict.ABSENT), data_bytes=seen.read_bytes)
        self._counters.add("scrub_chunks")
        self._counters.add("scrub_bytes", seen.read_bytes)
        if seen.read_again:
            self._counters.add("scrub_read_again")
        if seen.verdict is Verdict.DAMAGED:
            self._counters.add("scrub_mismatches")
            mended = await kind.mend(key)
            good = mended in (Mended.REPAIRED, Mended.WHOLE, Mended.GONE)
            waits = mended is Mended.WAITING
            self._add(mismatches=1, repaired=int(good), waiting=int(waits), lost=int(not good and not waits))

    def _add(self, **more: int) -> None:
        assert self._figures is not None, "a pass is under way"
        changed = {name: getattr(self._figures, name) + count for name, count in more.items()}
        self._figures = msgspec.structs.replace(self._figures, **changed)


def _load(store: DriveStore) -> Kept:
    kept = store.state_get(STATE)
    if kept is None:
        return Kept()
    try:
        return msgspec.msgpack.decode(kept, type=Kept)
    except msgspec.DecodeError as error:
        log.warning("what is kept of scrubs cannot be read; they begin anew", drive=store.drive_id, reason=str(error))
        return Kept()


def _saved(drive_id: str, status: Status) -> None:
    if status is not Status.OK:
        log.warning("the position of a scrub cannot be kept", drive=drive_id, reason=status.name)
