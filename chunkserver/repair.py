"""Mends damaged chunks of one drive: whatever was suspected, by clients, reads, resyncs or the scrubber.

A suspicion is no proof: every chunk is read again here, under the lock that it shares with clients' writes, before
anything is done to it (`craq/upkeep.py` has the rules). What could not be done because others were not to be reached is
tried again a few times, later each time; then the next read or scrub finds it again.

Foreground first: few chunks at once, a bounded queue, and a chunk that was just looked at in vain is left in peace for
a while, however often it is reported.
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Mapping
from enum import Enum, auto
from functools import partial
from typing import Protocol

from esker.chunkserver.engine.record import is_mutable, record_key
from esker.chunkserver.operations import SyncEnded
from esker.craq.replica import ChainReplica
from esker.runtime.counters import Counters
from esker.runtime.logging import get_logger
from esker.wire.admin_messages import split_record_key
from esker.wire.codec import decode_body
from esker.wire.columns import rows
from esker.wire.ids import chunk_id
from esker.wire.messages import Empty
from esker.wire.rpc_server import Request
from esker.wire.scrub_messages import DAMAGED_EXTENT, DAMAGED_EXTENTS_MAX, Damaged
from esker.wire.status import Status

log = get_logger("chunkserver.repair")

AT_ONCE = 2
QUEUE_MAX = 4096
REPAIR_TIMEOUT_S = 15.0
RETRY_DELAYS_S = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
"""Before each further try of a chunk for which another replica could not be asked: longer than a failover takes."""
PEACE_S = 60.0
"""How long a chunk is left alone that was seen to be whole, or that nobody has whole."""
PEACE_CHUNKS_MAX = 4096


class Mended(Enum):
    """How a look at a chunk ended."""

    WHOLE = auto()
    """There is no damage."""
    GONE = auto()
    """The chunk is not here, or not this drive's any more."""
    REPAIRED = auto()
    REMOVED = auto()
    """It was the only copy there could be."""
    LOST = auto()
    """No other replica has it whole; it stays."""
    WAITING = auto()
    """It could not be mended at present."""


OUTCOMES = {
    Status.OK: Mended.REPAIRED,
    Status.EXISTS: Mended.WHOLE,
    Status.NOT_FOUND: Mended.GONE,
    Status.CONDITION: Mended.REMOVED,
    Status.CHECKSUM: Mended.LOST,
}
"""What the answers to `craq.Repair` mean; any other: WAITING."""


class Runner(Protocol):
    """What repairs need of the replica runner."""

    def repair(self, replica: ChainReplica, record_key: bytes, timeout_s: float, ended: SyncEnded) -> None: ...


class RepairService:
    """All repairs of one drive. `replicas` is the drive's, by chain id."""

    def __init__(
        self,
        runner: Runner,
        replicas: Mapping[int, ChainReplica],
        counters: Counters,
        drive_id: str,
        mend_image: Callable[[bytes], Awaitable[Mended]],
    ) -> None:
        """`mend_image` is for mutable chunks, whose repair goes its own way."""
        self._runner = runner
        self._replicas = replicas
        self._counters = counters
        self._drive_id = drive_id
        self._mend_image = mend_image
        self._loop = asyncio.get_running_loop()
        self._queue: deque[bytes] = deque()
        self._known: dict[bytes, int] = {}
        """Chunks that wait or are looked at, and how often they were tried."""
        self._peace: OrderedDict[bytes, float] = OrderedDict()
        """Until when a chunk is left alone, the oldest first."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._busy = 0
        """Tasks that will look at the queue again before they end."""
        self._timers: dict[bytes, asyncio.TimerHandle] = {}
        self._closed = False

    @property
    def waiting(self) -> int:
        """Chunks that are suspected and not settled."""
        return len(self._known)

    def suspect(self, key: bytes) -> None:
        """The chunk with this record key may be damaged: it is looked at soon."""
        if self._closed or key in self._known or self._peace.get(key, 0.0) > self._loop.time():
            return
        if len(self._known) >= QUEUE_MAX:
            self._counters.add("suspects_dropped")
            return
        self._counters.add("suspects")
        self._known[key] = 0
        self._add(key)

    def damaged(self, request: Request) -> None:
        """Handles DAMAGED."""
        message = decode_body(Damaged, request.body)
        for object_id, index, chain_id, _ in rows(DAMAGED_EXTENT, message.extents, DAMAGED_EXTENTS_MAX):
            if chain_id in self._replicas:
                self.suspect(record_key(chain_id, chunk_id(message.space, object_id, index)))
        request.reply(Empty())

    async def mend(self, key: bytes) -> Mended:
        """Looks at the chunk now, and mends it where it must and can be."""
        if is_mutable(key):
            outcome = await self._mend_image(key)
            self._note(key, outcome, "no other replica gave its copy")
            return outcome
        replica = self._replicas.get(split_record_key(key)[0])
        if replica is None:
            return Mended.GONE
        ended: asyncio.Future[Status] = self._loop.create_future()
        self._runner.repair(replica, key, REPAIR_TIMEOUT_S, partial(_settle, ended))
        status = await ended
        outcome = OUTCOMES.get(status, Mended.WAITING)
        self._note(key, outcome, status.name)
        return outcome

    async def mend_or_queue(self, key: bytes) -> Mended:
        """`mend`; what has to wait is tried again later."""
        outcome = await self.mend(key)
        if outcome is Mended.WAITING:
            self.suspect(key)
        return outcome

    async def aclose(self) -> None:
        """Ends what is under way."""
        self._closed = True
        for timer in self._timers.values():
            timer.cancel()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _note(self, key: bytes, outcome: Mended, reason: str) -> None:
        self._counters.add(f"repair_{outcome.name.lower()}")
        about = {"drive": self._drive_id, "record_key": key.hex()}
        if outcome is Mended.REPAIRED:
            log.warning("a damaged chunk was replaced by another replica's", **about)
        elif outcome is Mended.REMOVED:
            log.error("a damaged chunk was removed: its chain has no other replica", **about)
        elif outcome is Mended.LOST and key not in self._peace:
            log.error("a chunk is damaged, and no replica of its chain has it whole", **about)
        elif outcome is Mended.WAITING:
            log.info("a chunk cannot be repaired at present", reason=reason, **about)
        if outcome in (Mended.WHOLE, Mended.LOST):
            self._peace.pop(key, None)
            self._peace[key] = self._loop.time() + PEACE_S
            if len(self._peace) > PEACE_CHUNKS_MAX:
                self._peace.popitem(last=False)
        else:
            self._peace.pop(key, None)

    def _add(self, key: bytes) -> None:
        self._timers.pop(key, None)
        self._queue.append(key)
        if self._busy < AT_ONCE:
            self._busy += 1
            task = asyncio.ensure_future(self._work())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _work(self) -> None:
        while self._queue:
            key = self._queue.popleft()
            try:
                outcome = await self.mend(key)
            except Exception:
                log.exception("a repair failed", drive=self._drive_id, record_key=key.hex())
                outcome = Mended.WAITING
            tries = self._known[key]
            if outcome is Mended.WAITING and tries < len(RETRY_DELAYS_S):
                self._known[key] = tries + 1
                self._timers[key] = self._loop.call_later(RETRY_DELAYS_S[tries], self._add, key)
            else:
                del self._known[key]
        self._busy -= 1


def _settle(future: asyncio.Future[Status], status: Status) -> None:
    if not future.done():
        future.set_result(status)
