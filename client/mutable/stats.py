"""How long mutable chunks are, many at once: one batch, one deadline, one answer per chunk."""

from collections.abc import Sequence

from esker.client.batch import Row
from esker.client.chains import ChainRoutes
from esker.client.mutable.replica_batch import ReplicaBatch
from esker.client.row_request import RowMethod, RowRequest
from esker.client.workers import Workers, WorkerState
from esker.wire.messages import Method
from esker.wire.mutable_messages import CHUNK_EXTENT, CHUNK_STAT_RESULT, ChunkStat, ChunkStatReply
from esker.wire.status import Status

ANSWER_BYTES = 64
"""What an answer counts as a worker's load."""
_STAT = RowMethod(Method.CHUNK_STAT, ChunkStatReply, CHUNK_STAT_RESULT)


class _StatRequest(RowRequest):
    """A CHUNK_STAT, a load of its worker until it is answered."""

    __slots__ = ()

    def take_unanswered(self) -> list[int]:
        """See `BatchRequest`."""
        left = super().take_unanswered()
        self.state.load_bytes -= ANSWER_BYTES * len(left)
        return left


class StatBatch(ReplicaBatch[_StatRequest]):
    """Asks of `chunks[i]` (object, index), on chain number `chains[i]` of the table. Rows: of CHUNK_STAT_RESULT."""

    def __init__(
        self,
        workers: Workers,
        routes: ChainRoutes,
        chunks: Sequence[tuple[bytes, int]],
        chains: Sequence[int],
    ) -> None:
        super().__init__(workers, routes, chains, [ANSWER_BYTES] * len(chunks))
        self._chunks = chunks

    def send(self, state: WorkerState, extents: list[int]) -> None:
        """See `ReplicaBatch`."""
        chains = self._routes.now().chains
        packed = []
        for extent in extents:
            chain = chains[self._chains[extent]]
            packed.append(CHUNK_EXTENT.pack(*self._chunks[extent], chain.chain_id, chain.version))
        request = _StatRequest(self, _STAT, state, extents)
        self.requests.add(request)
        request.ask(ChunkStat(b"".join(packed), self.budget_ms()))

    def answered(self, extent: int, row: Row, state: WorkerState) -> None:
        """See `RowSink`."""
        state.load_bytes -= ANSWER_BYTES
        if row[1] in (Status.OK, Status.NOT_FOUND):
            self.settle(extent, row)
        else:
            self.failed(extent, state, row[1])

    def failed_row(self, status: int) -> Row:
        """See `ReplicaBatch`."""
        return (0, int(status), 0, 0, 0)
