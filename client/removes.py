"""Removals of many chunks at once, each through the head of its chain, conditionally where the caller says so.

Repeats and deadlines are as for creates (`head_batch.py`); what got no answer has an unknown outcome (TIMEOUT).
"""

from collections.abc import Sequence

from esker.client.batch import Row
from esker.client.chains import ChainRoutes
from esker.client.head_batch import HeadBatch
from esker.client.row_request import RowMethod, RowRequest
from esker.client.workers import Workers, WorkerState
from esker.wire.ids import NO_PUT_ID
from esker.wire.limits import REQUEST_EXTENTS_MAX
from esker.wire.messages import REMOVE_EXTENT, REMOVE_RESULT, Method, Remove, RemoveReply
from esker.wire.status import Status

ANY_VERSION = 0
ANY_PUT_ID = NO_PUT_ID
_REMOVE = RowMethod(Method.REMOVE, RemoveReply, REMOVE_RESULT)


class RemoveBatch(HeadBatch[RowRequest]):
    """Removes chunk (`objects[i]`, `indexes[i]`), on chain number `chains[i]` of the table.

    `conditions[i]` is (version, put id) that the stored chunk must have: `ANY_VERSION`, `ANY_PUT_ID` ask nothing.
    Rows are (status,): OK, NOT_FOUND, CONDITION, or why it was not removed.
    """

    def __init__(
        self,
        workers: Workers,
        routes: ChainRoutes,
        space: int,
        *,
        objects: Sequence[bytes],
        indexes: Sequence[int],
        chains: Sequence[int],
        conditions: Sequence[tuple[int, bytes]],
    ) -> None:
        super().__init__(workers, routes, chains)
        self._space = space
        self._objects = objects
        self._indexes = indexes
        self._conditions = conditions

    def dispatch(self, extents: Sequence[int]) -> None:
        """Groups the chunks by head and sends the requests."""
        groups: dict[WorkerState, list[int]] = {}
        for extent, head in self.by_head(extents):
            groups.setdefault(head, []).append(extent)
        for head, group in groups.items():
            for start in range(0, len(group), REQUEST_EXTENTS_MAX):
                self._send(head, group[start : start + REQUEST_EXTENTS_MAX])

    def _send(self, head: WorkerState, extents: list[int]) -> None:
        if head.channel is None:
            for extent in extents:
                self.failed(extent, head, Status.UNAVAILABLE)
            return
        chains = self._routes.now().chains
        rows = []
        for extent in extents:
            chain = chains[self._chains[extent]]
            version, put_id = self._conditions[extent]
            rows.append(
                REMOVE_EXTENT.pack(
                    self._objects[extent], self._indexes[extent], chain.chain_id, chain.version, version, put_id
                )
            )
        request = RowRequest(self, _REMOVE, head, extents)
        self.requests.add(request)
        request.ask(Remove(self._space, b"".join(rows), self.budget_ms()))

    def answered(self, extent: int, row: Row, state: WorkerState) -> None:
        """See `RowSink`."""
        self.failed(extent, state, row[1])

    def failed(self, extent: int, state: WorkerState, status: int) -> None:
        """See `RowSink`."""
        if not self.closed:
            self.settle_or_repeat(extent, status, (int(status),))

    def failed_row(self, status: Status) -> Row:
        """See `HeadBatch`."""
        return (int(status),)
