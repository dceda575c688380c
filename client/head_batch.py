"""What batches of creates and of removals share: each chunk goes to the head of its chain, which may change meanwhile.

Busy heads and other versions of a chain are asked again until the deadline. Where a head, or a replica behind it, is
unavailable the chain is about to get another head: the chunk is tried again while a newer cluster map can bring one,
for `FAILOVER_S` at most, and fails at once where the map says that no replica will serve soon. A head that is silent is
given up once the map names another, and one whose connection ended at once, even if its process lives on.

Where other chains stand in for one that does not serve (`ChainRoutes.waits` is False), nothing waits for another head:
chunks whose chain cannot take them fail as UNAVAILABLE, and `unavailable` names the chains.
"""

from abc import abstractmethod
from collections.abc import Sequence
from typing import TypeVar

from esker.client.batch import Batch, BatchRequest, Row
from esker.client.chains import ChainRoutes
from esker.client.request import LOOKS
from esker.client.workers import Workers, WorkerState
from esker.wire.status import Status

FAILOVER_S = 7.0
"""Longer than it takes until the chains of a worker that died have changed: two seconds to notice it, up to two more
where it may still hold a lease, and up to 2.6 more where the manager died with it."""
ATTEMPT_S = 1.0
"""A head that said nothing for so long may be dead: a newer cluster map is asked for."""

Q = TypeVar("Q", bound=BatchRequest)


class HeadBatch(Batch[Q]):
    """Base of batches in which chunk i lies on chain number `chains[i]` of the table."""

    def __init__(self, workers: Workers, routes: ChainRoutes, chains: Sequence[int]) -> None:
        super().__init__(len(chains))
        self._workers = workers
        self._routes = routes
        self._chains = chains
        self._give_up_at: dict[int, float] = {}
        """Until when each chunk that met an unavailable worker is tried again."""
        self.unavailable: set[int] = set()
        """Chains (indexes) of chunks that ended as UNAVAILABLE."""

    def begin(self, timeout_s: float) -> None:
        """See `Batch`."""
        look_s = min(ATTEMPT_S if self._routes.waits else ATTEMPT_S / 2, timeout_s / 3) / LOOKS
        self.later(look_s, self._look, look_s)
        self.dispatch(range(len(self.rows)))

    def by_head(self, extents: Sequence[int]) -> list[tuple[int, WorkerState]]:
        """These chunks with the worker of each one's head; those without are seen to here."""
        heads, chains = self._routes.now().heads, self._chains
        found = []
        for extent in extents:
            head = heads[chains[extent]]
            if head is None:
                self.settle_or_repeat(extent, Status.UNAVAILABLE, self.failed_row(Status.UNAVAILABLE))
            else:
                found.append((extent, head))
        return found

    @abstractmethod
    def failed_row(self, status: Status) -> Row:
        """The row of a chunk that ended so."""

    def timeout_row(self) -> Row:
        """See `Batch`."""
        return self.failed_row(Status.TIMEOUT)

    def settle_or_repeat(self, extent: int, status: int, row: Row) -> None:
        """The chunk ended like this at its head: that is its answer, unless another attempt may end otherwise."""
        if status in (Status.CHAIN_VERSION, Status.UNAVAILABLE):
            self._workers.lost()
        if status == Status.CHAIN_VERSION and not self._routes.waits and not self._may_still(extent):
            status, row = Status.UNAVAILABLE, self.failed_row(Status.UNAVAILABLE)
        if status in (Status.BUSY, Status.CHAIN_VERSION) or (
            status == Status.UNAVAILABLE and self._may_get_a_head(extent)
        ):
            self.again_after_pause(extent)
            return
        if status == Status.UNAVAILABLE:
            self.unavailable.add(self._chains[extent])
        self.settle(extent, row)

    def _may_get_a_head(self, extent: int) -> bool:
        routes = self._routes
        return routes.waits and routes.now().hopeful[self._chains[extent]] and self._may_still(extent)

    def _may_still(self, extent: int) -> bool:
        """Whether the chunk may be tried again, counted from the first time that this was asked."""
        now = self.loop.time()
        give_up_at = self._give_up_at.setdefault(extent, min(now + FAILOVER_S, self.deadline))
        return now + self.pause_s < give_up_at

    def _look(self, look_s: float) -> None:
        """Gives up on silent requests whose chunks have another head by now, and on those that cannot be answered."""
        routes = self._routes.now()
        for request in list(self.requests):
            if request.cut_off:
                self.give_up(request)
                continue
            if not request.stands_still():
                continue
            request.state.mark_suspect(may_wait_for_others=True)
            self._workers.lost()
            serving = [routes.serving[self._chains[extent]] for extent in request.extents]
            moved = all(not states or states[0] is not request.state for states in serving)
            if moved or (request.state.silent and not self._routes.waits):
                self.give_up(request)
        self.later(look_s, self._look, look_s)

    def give_up(self, request: Q) -> None:
        """The request may still be carried out; its open chunks are tried again, or end as unknown."""
        self.requests.discard(request)
        for extent in request.give_up():
            self.settle_or_repeat(extent, Status.UNAVAILABLE, self.timeout_row())
