"""How long mutable chunks are, many at once: one batch, one deadline, one answer per chunk."""

from collections.abc import Sequence

from esker.client.batch import BatchRequest, Row
from esker.client.chains import ChainRoutes
from esker.client.mutable.replica_batch import ReplicaBatch
from esker.client.request import status_of
from esker.client.workers import Workers, WorkerState
from esker.wire.codec import decode_body
from esker.wire.errors import EskerError, ProtocolError, RequestFailed
from esker.wire.messages import Method
from esker.wire.mutable_messages import CHUNK_EXTENT, CHUNK_STAT_RESULT, ChunkStat, ChunkStatReply
from esker.wire.status import Status

ANSWER_BYTES = 64
"""What an answer counts as a worker's load."""


class _StatRequest(BatchRequest):
    """A CHUNK_STAT of `extents` (numbers in the batch)."""

    __slots__ = ("_batch", "_waiting")

    def __init__(self, batch: "StatBatch", state: WorkerState, extents: list[int]) -> None:
        super().__init__(state, extents, None)
        self._batch = batch
        self._waiting = set(range(len(extents)))

    def on_reply(self, body: bytes | bytearray, payload_bytes: int) -> None:
        """See `ReplyHandler`."""
        self.moved = True
        if self.state.doubted:
            self.state.heard()
        try:
            for row in CHUNK_STAT_RESULT.iter_unpack(decode_body(ChunkStatReply, body).results):
                self._waiting.remove(row[0])
                self.state.load_bytes -= ANSWER_BYTES
                self._batch.answered(self.extents[row[0]], row, self.state)
        except (RequestFailed, KeyError, ValueError) as error:
            raise ProtocolError(f"a reply to CHUNK_STAT that does not fit it: {error}") from error

    def take_unanswered(self) -> list[int]:
        """See `BatchRequest`."""
        left, self._waiting = sorted(self._waiting), set()
        self.state.load_bytes -= ANSWER_BYTES * len(left)
        return left

    def finish(self, error: EskerError | None) -> None:
        """See `WorkerRequest`."""
        for extent in self.unanswered():
            self._batch.failed(extent, self.state, status_of(error))
        self._batch.ended(self)


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
        request = _StatRequest(self, state, extents)
        self.requests.add(request)
        request.send(Method.CHUNK_STAT, ChunkStat(b"".join(packed), self.budget_ms()))

    def answered(self, extent: int, row: Row, state: WorkerState) -> None:
        """This worker says this of the chunk."""
        if row[1] in (Status.OK, Status.NOT_FOUND):
            self.settle(extent, row)
        else:
            self.failed(extent, state, row[1])

    def failed_row(self, status: int) -> Row:
        """See `ReplicaBatch`."""
        return (0, int(status), 0, 0, 0)
