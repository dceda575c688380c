"""Creates of many chunks at once: one batch, one deadline, one answer per chunk.

Each chunk goes to the head of its chain, which answers when every serving replica has it. Creating is idempotent, so
it may be sent again, to the same head or the next one (`head_batch.py`). What got no answer in time has an unknown
outcome: TIMEOUT, never a failure.
"""

from collections.abc import Sequence

from esker.client.batch import Row
from esker.client.buffers import BufferPool, Slot
from esker.client.chains import ChainRoutes
from esker.client.head_batch import HeadBatch
from esker.client.late import may_go_direct
from esker.client.row_request import RowMethod, WriteRequest
from esker.client.workers import Workers, WorkerState
from esker.wire.checksum import checksums
from esker.wire.ids import NO_PUT_ID
from esker.wire.limits import ALIGN_BYTES, REQUEST_PAYLOAD_BYTES_AIM
from esker.wire.messages import CREATE_EXTENT, CREATE_RESULT, Create, CreateReply, Method
from esker.wire.status import Status

REQUEST_EXTENTS_AIM = 512
VERSION_BY_HEAD = 0
_CREATE = RowMethod(Method.CREATE, CreateReply, CREATE_RESULT)


class CreateBatch(HeadBatch[WriteRequest]):
    """Creates chunk (`objects[i]`, `indexes[i]`), on chain number `chains[i]` of the table, from `views[i]`.

    `slots[i]` is the slot of which `views[i]` is the part at `offsets[i]` of the arena; None for other memory.
    `blocks[i]` is (block bytes, chunk count, put id), `keys[i]` the block's key. The data must not change before the
    end. Rows are rows of CREATE_RESULT; besides the head's statuses there are UNAVAILABLE and TIMEOUT (unknown).
    """

    def __init__(
        self,
        workers: Workers,
        routes: ChainRoutes,
        space: int,
        slot_bytes: int,
        *,
        objects: Sequence[bytes],
        indexes: Sequence[int],
        chains: Sequence[int],
        views: Sequence[memoryview],
        slots: Sequence[Slot | None],
        offsets: Sequence[int],
        blocks: Sequence[tuple[int, int, bytes]],
        keys: Sequence[bytes],
    ) -> None:
        super().__init__(workers, routes, chains)
        self._space = space
        self._slot_bytes = slot_bytes
        self._objects = objects
        self._indexes = indexes
        self._views = views
        self._slots = slots
        self._offsets = offsets
        self._blocks = blocks
        self._keys = keys
        self._repeated: set[int] = set()

    def dispatch(self, extents: Sequence[int]) -> None:
        """Groups the chunks by head and memory, and sends what the heads have room for."""
        slots = self._slots
        groups: dict[tuple[WorkerState, BufferPool | None], list[int]] = {}
        for extent, head in self.by_head(extents):
            slot = slots[extent]
            groups.setdefault((head, None if slot is None else slot.pool), []).append(extent)
        for (head, pool), group in groups.items():
            start = size = 0
            for end, extent in enumerate(group, 1):
                size += len(self._views[extent])
                full = size >= REQUEST_PAYLOAD_BYTES_AIM or end - start >= REQUEST_EXTENTS_AIM
                if full or end == len(group):
                    self._send_when_room(head, pool, group[start:end], size)
                    start, size = end, 0

    def _send_when_room(self, head: WorkerState, pool: BufferPool | None, extents: list[int], size: int) -> None:
        if head.may_create() and not head.create_queue:
            self._send(head, pool, extents, size)
        else:
            head.create_queue.append(lambda: self._send(head, pool, extents, size))

    def _send(self, head: WorkerState, pool: BufferPool | None, extents: list[int], size: int) -> None:
        if self.closed:
            return
        channel = head.channel
        if channel is None:
            for extent in extents:
                self.failed(extent, head, Status.UNAVAILABLE)
            return
        memory_id = 0
        if pool is not None and may_go_direct(pool):
            memory_id = channel.memory_ids.get(pool, 0)
        routes = self._routes.now()
        objects, indexes, chains, views, keys = self._objects, self._indexes, self._chains, self._views, self._keys
        rows = []
        for extent in extents:
            chain = routes.chains[chains[extent]]
            block_bytes, chunk_count, put_id = self._blocks[extent]
            rows.append(
                CREATE_EXTENT.pack(
                    objects[extent],
                    indexes[extent],
                    chain.chain_id,
                    chain.version,
                    len(views[extent]),
                    self._offsets[extent] // ALIGN_BYTES,
                    VERSION_BY_HEAD,
                    block_bytes,
                    chunk_count,
                    put_id,
                    len(keys[extent]),
                )
            )
        body = Create(
            self._space,
            self._slot_bytes,
            b"".join(rows),
            b"".join([checksums(views[extent]) for extent in extents]),
            b"".join([keys[extent] for extent in extents]),
            memory_id,
            self.budget_ms(),
        )
        slots = [slot for extent in extents if (slot := self._slots[extent]) is not None] if memory_id else None
        request = WriteRequest(self, _CREATE, head, extents, slots, size)
        self.requests.add(request)
        request.ask(body, () if memory_id else [views[extent] for extent in extents])

    def answered(self, extent: int, row: Row, state: WorkerState) -> None:
        """See `RowSink`."""
        status = row[1]
        if status == Status.OK or (status == Status.EXISTS and extent in self._repeated):
            # A head that could not finish an earlier attempt may have stored the chunk: then that is what exists.
            row = (row[0], int(Status.OK), *row[2:])
            state.written_bytes += len(self._views[extent])
            self.settle(extent, row)
        else:
            self._repeated.add(extent)
            self.settle_or_repeat(extent, status, row)

    def failed(self, extent: int, state: WorkerState, status: int) -> None:
        """See `RowSink`."""
        if not self.closed:
            if status == Status.UNAVAILABLE:
                self._repeated.add(extent)
            self.settle_or_repeat(extent, status, failure_row(status))

    def give_up(self, request: WriteRequest) -> None:
        """See `HeadBatch`."""
        self._repeated.update(request.extents)
        super().give_up(request)

    def failed_row(self, status: Status) -> Row:
        """See `HeadBatch`."""
        return failure_row(status)


def failure_row(status: int) -> Row:
    """The row of CREATE_RESULT of a chunk that was not answered."""
    return (0, int(status), 0, 0, NO_PUT_ID)
