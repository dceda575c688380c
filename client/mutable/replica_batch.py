"""What reads and status queries of mutable chunks share: each is answered by one serving replica, whichever can.

Any replica that serves the chain in its present version, with a live lease, gives the same answers. Where one fails
(not: where it says that the chunk is absent) another is asked at once; when all have been asked they are asked again
after a pause, with a newer cluster map, until the deadline: the chain may be changing. A replica that is silent for
`ATTEMPT_S` is given up.
"""

from abc import abstractmethod
from collections.abc import Sequence
from typing import TypeVar

from esker.client.batch import Batch, BatchRequest, Row
from esker.client.chains import ChainRoutes
from esker.client.request import LOOKS
from esker.client.workers import Workers, WorkerState
from esker.wire.status import Status

ATTEMPT_S = 1.0
REQUEST_BYTES_AIM = 4 << 20
REQUEST_EXTENTS_AIM = 128

_LATER = frozenset(
    (Status.BUSY, Status.CANCELLED, Status.CHAIN_VERSION, Status.TIMEOUT, Status.UNAVAILABLE, Status.NOT_READY)
)
"""What the same replica may answer better a moment later."""

Q = TypeVar("Q", bound=BatchRequest)


class ReplicaBatch(Batch[Q]):
    """Base of batches in which chunk i lies on chain number `chains[i]` and may need `rooms[i]` bytes of answer."""

    def __init__(self, workers: Workers, routes: ChainRoutes, chains: Sequence[int], rooms: Sequence[int]) -> None:
        super().__init__(len(chains))
        self.rooms = rooms
        self._workers = workers
        self._routes = routes
        self._chains = chains
        self._tried: dict[int, dict[WorkerState, int]] = {}
        self._last: dict[int, int] = {}
        self._look_s = ATTEMPT_S / LOOKS

    async def run(self, timeout_s: float) -> list[Row]:
        """See `Batch`. What has no answer ends as the last attempt at it did; TIMEOUT where nobody said anything."""
        await super().run(timeout_s)
        return [
            self.failed_row(self._last.get(extent, Status.TIMEOUT)) if row is None else row
            for extent, row in enumerate(self.rows)
        ]

    def begin(self, timeout_s: float) -> None:
        """See `Batch`."""
        self._look_s = min(ATTEMPT_S, timeout_s / 3) / LOOKS
        self.later(self._look_s, self._look)
        self.dispatch(range(len(self.rows)))

    def dispatch(self, extents: Sequence[int]) -> None:
        """Chooses a replica for each chunk and sends the requests."""
        serving, chains, rooms = self._routes.now().serving, self._chains, self.rooms
        groups: dict[WorkerState, list[int]] = {}
        for extent in extents:
            tried = self._tried.get(extent, {})
            up = [state for state in serving[chains[extent]] if state.channel is not None and state not in tried]
            candidates = [state for state in up if not state.suspect] or up
            if not candidates:
                self._out_of_replicas(extent)
                continue
            best = min(candidates, key=lambda state: state.load_bytes)
            best.load_bytes += rooms[extent]
            groups.setdefault(best, []).append(extent)
        for state, group in groups.items():
            start = size = 0
            for end, extent in enumerate(group, 1):
                size += rooms[extent]
                full = size >= REQUEST_BYTES_AIM or end - start >= REQUEST_EXTENTS_AIM
                if full or end == len(group):
                    self._send_or_fail(state, group[start:end])
                    start, size = end, 0

    def _send_or_fail(self, state: WorkerState, extents: list[int]) -> None:
        if state.channel is None:  # lost while an earlier request of this dispatch was being sent
            for extent in extents:
                state.load_bytes -= self.rooms[extent]
                self.failed(extent, state, Status.UNAVAILABLE)
            return
        self.send(state, extents)

    @abstractmethod
    def send(self, state: WorkerState, extents: list[int]) -> None:
        """Asks a worker that is up for these; `rooms` go off the worker's load as the request is answered."""

    @abstractmethod
    def failed_row(self, status: int) -> Row:
        """The row of a chunk that ended so."""

    def timeout_row(self) -> Row:
        """See `Batch`."""
        return self.failed_row(Status.TIMEOUT)

    def failed(self, extent: int, state: WorkerState, status: int) -> None:
        """This worker cannot give the answer."""
        if self.closed:
            return
        if status in (Status.UNAVAILABLE, Status.CHAIN_VERSION):
            self._workers.lost()
        self._last[extent] = status
        self._tried.setdefault(extent, {})[state] = status
        self.again(extent)

    def _out_of_replicas(self, extent: int) -> None:
        tried = self._tried.pop(extent, {})
        everybody = self._routes.now().serving[self._chains[extent]]
        final = [tried[state] for state in everybody if tried.get(state, Status.BUSY) not in _LATER]
        if everybody and len(final) == len(everybody):
            self.settle(extent, self.failed_row(final[-1]))
            return
        if not tried:
            self._last.setdefault(extent, Status.UNAVAILABLE)
        self._workers.lost()
        self.again_after_pause(extent)

    def _look(self) -> None:
        """Gives up on requests that do not move; their chunks are asked elsewhere."""
        for request in list(self.requests):
            if not request.stands_still():
                continue
            request.state.mark_suspect()
            self._workers.lost()
            self.requests.discard(request)
            for extent in request.give_up():
                self.failed(extent, request.state, Status.TIMEOUT)
        self.later(self._look_s, self._look)
