"""Removals of many chunks at once, each through the head of its chain, conditionally where the caller says so.

Repeats and deadlines are as for creates (`head_batch.py`); what got no answer has an unknown outcome (TIMEOUT).
"""

from collections.abc import Sequence

from esker.client.batch import BatchRequest, Row
from esker.client.chains import ChainRoutes
from esker.client.head_batch import HeadBatch
from esker.client.request import status_of
from esker.client.workers import Workers, WorkerState
from esker.wire.codec import decode_body
from esker.wire.errors import EskerError, ProtocolError, RequestFailed
from esker.wire.ids import NO_PUT_ID
from esker.wire.limits import REQUEST_EXTENTS_MAX
from esker.wire.messages import REMOVE_EXTENT, REMOVE_RESULT, Method, Remove, RemoveReply
from esker.wire.status import Status

ANY_VERSION = 0
ANY_PUT_ID = NO_PUT_ID


class _RemoveRequest(BatchRequest):
    """A REMOVE of `extents` (numbers in the batch)."""

    __slots__ = ("_batch", "_waiting")

    def __init__(self, batch: "RemoveBatch", state: WorkerState, extents: list[int]) -> None:
        super().__init__(state, extents, None)
        self._batch = batch
        self._waiting = set(range(len(extents)))

    def on_reply(self, body: bytes | bytearray, payload_bytes: int) -> None:
        """See `ReplyHandler`."""
        try:
            for row in REMOVE_RESULT.iter_unpack(decode_body(RemoveReply, body).results):
                self._waiting.remove(row[0])
                self._batch.answered(self.extents[row[0]], row[1])
        except (RequestFailed, KeyError, ValueError) as error:
            raise ProtocolError(f"a reply to REMOVE that does not fit it: {error}") from error

    def take_unanswered(self) -> list[int]:
        """See `BatchRequest`."""
        left, self._waiting = sorted(self._waiting), set()
        return left

    def finish(self, error: EskerError | None) -> None:
        """See `WorkerRequest`."""
        self._batch.requests.discard(self)
        for extent in self.unanswered():
            self._batch.answered(extent, status_of(error))


class RemoveBatch(HeadBatch[_RemoveRequest]):
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
                self.answered(extent, Status.UNAVAILABLE)
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
        request = _RemoveRequest(self, head, extents)
        self.requests.add(request)
        request.send(Method.REMOVE, Remove(self._space, b"".join(rows), self.budget_ms()))

    def answered(self, extent: int, status: int) -> None:
        """The head says this of the chunk, or the request ended like this."""
        if not self.closed:
            self.settle_or_repeat(extent, status, (int(status),))

    def failed_row(self, status: Status) -> Row:
        """See `HeadBatch`."""
        return (int(status),)
