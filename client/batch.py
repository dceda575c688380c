"""What all batches of chunk operations share: one deadline, a row per chunk, requests under way, pauses.

Owns the end: when every chunk has its row, the deadline has passed or the caller was cancelled, requests that are
still under way are abandoned, and memory that a worker may still touch stays its own. Knows no operation.

Concurrency: everything between `run`'s awaits happens on the loop without awaiting.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from esker.client.buffers import Slot
from esker.client.request import WorkerRequest
from esker.client.workers import WorkerState

Row = tuple[Any, ...]
"""A row of the operation's result column."""

PAUSE_MIN_S = 0.002
PAUSE_MAX_S = 0.1


class BatchRequest(WorkerRequest):
    """A request for some of a batch's chunks, its `extents`."""

    __slots__ = ("extents", "slots", "waiting")

    def __init__(self, state: WorkerState, extents: list[int], slots: Sequence[Slot] | None) -> None:
        super().__init__(state, direct=slots is not None)
        self.extents = extents
        self.slots = slots
        """The memory of each extent, where the worker reads or writes it by itself; None: all goes by the socket."""
        self.waiting = bytearray(b"\x01") * len(extents)
        """1 for each extent that has no answer."""

    def take_unanswered(self) -> list[int]:
        """Positions in `extents` that have no answer; from now on they are no load of the worker."""
        left = [number for number, open_ in enumerate(self.waiting) if open_]
        self.waiting = bytearray(len(self.waiting))
        return left

    def unanswered(self) -> list[int]:
        """The batch's numbers of those."""
        return [self.extents[number] for number in self.take_unanswered()]

    def give_up(self) -> list[int]:
        """The batch's numbers of the unanswered chunks, whose memory stays the worker's until it lets go of it."""
        numbers = self.take_unanswered()
        self.abandon(() if self.slots is None else [self.slots[number] for number in numbers])
        return [self.extents[number] for number in numbers]


Q = TypeVar("Q", bound=BatchRequest)


class Batch(ABC, Generic[Q]):
    """Base of a batch of `count` chunks; a subclass says how it `begin`s and what a timeout's row is."""

    def __init__(self, count: int) -> None:
        self.rows: list[Row | None] = [None] * count
        self.requests: set[Q] = set()
        self.loop = asyncio.get_running_loop()
        self.deadline = 0.0
        self.closed = False
        self._left = count
        self._done: asyncio.Future[None] = self.loop.create_future()
        self._timers: set[asyncio.Handle] = set()
        self._again: list[int] = []
        self._paused: list[int] = []
        self.pause_s = PAUSE_MIN_S
        """How long the next pause will be."""

    async def run(self, timeout_s: float) -> list[Row]:
        """Works until every chunk has its row or `timeout_s` has passed; then the others' is `timeout_row`."""
        if not self.rows:
            return []
        self.deadline = self.loop.time() + timeout_s
        expiry = self.loop.call_later(timeout_s, self._finish)
        try:
            self.begin(timeout_s)
            await self._done
        finally:
            expiry.cancel()
            self._close()
        return [self.timeout_row() if row is None else row for row in self.rows]

    @abstractmethod
    def begin(self, timeout_s: float) -> None:
        """Sends the first requests."""

    @abstractmethod
    def dispatch(self, extents: Sequence[int]) -> None:
        """Sends these chunks (again)."""

    @abstractmethod
    def timeout_row(self) -> Row:
        """The row of a chunk without an answer."""

    def settle(self, extent: int, row: Row) -> None:
        """This is the chunk's answer."""
        self.rows[extent] = row
        self.settled(1)

    def settled(self, count: int) -> None:
        """So many rows more have been set."""
        self._left -= count
        if self._left == 0:
            self._finish()

    def ended(self, request: BatchRequest) -> None:
        """The request has ended; all its extents were answered or failed."""
        self.requests.difference_update((request,))

    def again(self, extent: int) -> None:
        """Dispatches the chunk again, together with all that fail in this turn of the loop."""
        if not self._again:
            self.later(0.0, self._dispatch_again)
        self._again.append(extent)

    def again_after_pause(self, extent: int) -> None:
        """Dispatches the chunk again after a pause, with all that fail until then; each pause is longer."""
        if not self._paused:
            self.later(self.pause_s, self._pause_over)
            self.pause_s = min(1.5 * self.pause_s, PAUSE_MAX_S)
        self._paused.append(extent)

    def _pause_over(self) -> None:
        extents, self._paused = self._paused, []
        self.dispatch(extents)

    def _dispatch_again(self) -> None:
        extents, self._again = self._again, []
        self.dispatch(extents)

    def later(self, delay_s: float, function: Callable[..., None], *arguments: Any) -> None:
        """Calls `function` after `delay_s`, unless the batch has ended by then."""

        def fire() -> None:
            self._timers.discard(timer)
            function(*arguments)

        timer: asyncio.Handle = self.loop.call_later(delay_s, fire) if delay_s else self.loop.call_soon(fire)
        self._timers.add(timer)

    def budget_ms(self) -> int:
        """What is left of the deadline, for the worker to know."""
        return max(1, int((self.deadline - self.loop.time()) * 1000))

    def _finish(self) -> None:
        if not self._done.done():
            self._done.set_result(None)

    def _close(self) -> None:
        self.closed = True
        for timer in self._timers:
            timer.cancel()
        for request in list(self.requests):
            request.give_up()
        self.requests.clear()
