"""Reads of ranges of many mutable chunks at once: one batch, one deadline, one answer per range.

Each answer is of one committed version of its chunk. Which replica is asked is for `replica_batch.py`, what an answer
has to be for `range_request.py`.
"""

from collections.abc import Sequence

from esker.client.batch import Row
from esker.client.chains import ChainRoutes
from esker.client.mutable.range_request import RangeRequest
from esker.client.mutable.replica_batch import ReplicaBatch
from esker.client.mutable.types import Range
from esker.client.staging import Staging
from esker.client.workers import Workers, WorkerState
from esker.wire.ids import FILE_SPACE
from esker.wire.limits import CHUNK_BYTES_MAX, aligned
from esker.wire.messages import Method
from esker.wire.mutable_columns import covered
from esker.wire.mutable_messages import READ_RANGE_EXTENT, ReadRange
from esker.wire.scrub_messages import DAMAGED_EXTENT


def room(offset: int, length_bytes: int) -> int:
    """Memory that the answer to such a read may take, bytes."""
    start, end = covered(offset, length_bytes, CHUNK_BYTES_MAX)
    return aligned(end - start)


class RangeBatch(ReplicaBatch[RangeRequest]):
    """Reads `ranges[i]`, on chain number `chains[i]` of the table. Rows are rows of READ_RANGE_RESULT."""

    def __init__(
        self,
        workers: Workers,
        routes: ChainRoutes,
        stagings: Sequence[Staging],
        ranges: Sequence[Range],
        chains: Sequence[int],
    ) -> None:
        super().__init__(workers, routes, chains, [room(each.offset, each.length) for each in ranges])
        self.ranges = ranges
        self._stagings = stagings

    def send(self, state: WorkerState, extents: list[int]) -> None:
        """See `ReplicaBatch`."""
        channel = state.channel
        assert channel is not None, "requests go to workers that are up"
        memory_id, slots = 0, None
        if channel.local:
            rooms = [self.rooms[extent] for extent in extents]
            for staging in self._stagings:
                memory_id, slots = staging.lease(channel, rooms)
                if slots is not None:
                    break
        chains = self._routes.now().chains
        packed = []
        for at, extent in enumerate(extents):
            asked, chain = self.ranges[extent], chains[self._chains[extent]]
            packed.append(
                READ_RANGE_EXTENT.pack(
                    asked.object_id,
                    asked.chunk_index,
                    chain.chain_id,
                    chain.version,
                    asked.offset,
                    asked.length,
                    0 if slots is None else slots[at].offset,
                )
            )
        request = RangeRequest(self, state, extents, slots, staged=slots is not None)
        self.requests.add(request)
        request.send(Method.READ_RANGE, ReadRange(b"".join(packed), memory_id, self.budget_ms()))

    def damaged(self, extent: int, state: WorkerState, version: int) -> None:
        """See `DataSink`. The worker is told, so that it mends its copy."""
        asked, chain = self.ranges[extent], self._routes.now().chains[self._chains[extent]]
        row = DAMAGED_EXTENT.pack(asked.object_id, asked.chunk_index, chain.chain_id, version)
        state.damage.add(FILE_SPACE, row)

    def failed_row(self, status: int) -> Row:
        """See `ReplicaBatch`."""
        return (0, int(status), 0, 0, 0, 0)
