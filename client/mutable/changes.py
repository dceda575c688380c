"""Changes of many mutable chunks at once: one batch, one deadline, one answer per change.

Each change goes to the head of its chunk's chain, which answers when every serving replica has it. It is sent again,
with the same channel and sequence, to the same head or the next one, for as long as the deadline allows: the chain
does it once. An answer is definite only where no attempt before it may have been taken up; everything else that is not
OK is TIMEOUT, unknown.

Changes of one chunk that are under way at the same time, in one batch or in several, take effect in any order.
"""

from collections.abc import Sequence

from esker.client.batch import Row
from esker.client.buffers import BufferPool, Slot
from esker.client.chains import ChainRoutes
from esker.client.head_batch import HeadBatch
from esker.client.late import may_go_direct
from esker.client.mutable.channels import Channels, WriteChannel
from esker.client.mutable.types import Patch
from esker.client.row_request import RowMethod, WriteRequest
from esker.client.workers import Workers, WorkerState
from esker.wire.checksum import checksums
from esker.wire.limits import REQUEST_PAYLOAD_BYTES_AIM
from esker.wire.messages import Method
from esker.wire.mutable_messages import WRITE_EXTENT, WRITE_RESULT, PatchKind, Write, WriteReply
from esker.wire.status import Status

REQUEST_EXTENTS_AIM = 128
_WRITE = RowMethod(Method.WRITE, WriteReply, WRITE_RESULT)

_AGAIN = frozenset(
    (
        Status.BUSY,
        Status.CANCELLED,
        Status.CHAIN_VERSION,
        Status.CHECKSUM,
        Status.INTERNAL,
        Status.IO_ERROR,
        Status.TIMEOUT,
        Status.UNAVAILABLE,
    )
)
"""What another attempt may end better than."""
_SURELY_NOT_DONE = frozenset(
    (
        Status.BAD_MEMORY,
        Status.BAD_REQUEST,
        Status.BUSY,
        Status.CONDITION,
        Status.FORBIDDEN,
        Status.NOT_FOUND,
        Status.NO_SPACE,
        Status.TOO_LARGE,
    )
)
"""Answers to an attempt that was refused before it was taken up, or taken back on every replica."""


class ChangeBatch(HeadBatch[WriteRequest]):
    """Makes `patches[i]`, on chain number `chains[i]` of the table. Rows are rows of WRITE_RESULT."""

    def __init__(
        self,
        workers: Workers,
        routes: ChainRoutes,
        channels: Channels,
        patches: Sequence[Patch],
        chains: Sequence[int],
    ) -> None:
        super().__init__(workers, routes, chains)
        self._channels = channels
        self._patches = patches
        self._taken: list[WriteChannel | None] = [None] * len(patches)
        self._under_way = bytearray(len(patches))
        """1 for each change of which an attempt was sent and has not ended."""
        self._maybe = bytearray(len(patches))
        """1 for each change of which an attempt that has ended may have been taken up."""
        self._last = [Status.UNAVAILABLE] * len(patches)
        """How the last attempt ended."""

    async def run(self, timeout_s: float) -> list[Row]:
        """See `Batch`. Changes without an answer are TIMEOUT where one was sent, else what kept them from it."""
        try:
            await super().run(timeout_s)
        finally:
            for extent, row in enumerate(self.rows):
                if row is None:
                    self._release(extent, known=not self._unknown(extent))
        return [self._unanswered(extent) if row is None else row for extent, row in enumerate(self.rows)]

    def dispatch(self, extents: Sequence[int]) -> None:
        """Groups the changes by head and memory, and sends those that have, or get, a channel."""
        groups: dict[tuple[WorkerState, BufferPool | None], list[int]] = {}
        for extent, head in self.by_head(extents):
            if self._taken[extent] is None and not self._take_channel(extent):
                continue
            slot = self._patches[extent].slot
            groups.setdefault((head, None if slot is None else slot.pool), []).append(extent)
        for (head, pool), group in groups.items():
            start = size = 0
            for end, extent in enumerate(group, 1):
                size += len(self._patches[extent].view)
                full = size >= REQUEST_PAYLOAD_BYTES_AIM or end - start >= REQUEST_EXTENTS_AIM
                if full or end == len(group):
                    self._send_when_room(head, pool, group[start:end], size)
                    start, size = end, 0

    def _take_channel(self, extent: int) -> bool:
        """Whether the change has a channel now; else it is dispatched again when one is free."""
        chain = self._channels.of(self._routes.now().chain_ids[self._chains[extent]])
        self._taken[extent] = chain.take()
        if self._taken[extent] is None:
            chain.when_free(lambda: self._channel_is_free(extent))
            return False
        return True

    def _channel_is_free(self, extent: int) -> None:
        if not self.closed:
            self.dispatch([extent])

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
                self.settle_or_repeat(extent, Status.UNAVAILABLE, self.failed_row(Status.UNAVAILABLE))
            return
        memory_id = 0
        if pool is not None and may_go_direct(pool):
            memory_id = channel.memory_ids.get(pool, 0)
        patches = [self._patches[extent] for extent in extents]
        for extent in extents:
            self._under_way[extent] = 1
        body = Write(
            self._channels.client_id,
            b"".join([self._row(extent) for extent in extents]),
            b"".join([checksums(patch.view) for patch in patches if patch.kind is PatchKind.WRITE]),
            memory_id,
            self.budget_ms(),
        )
        slots: list[Slot] | None = [patch.slot for patch in patches if patch.slot is not None] if memory_id else None
        request = WriteRequest(self, _WRITE, head, extents, slots, size)
        self.requests.add(request)
        payload = () if memory_id else [patch.view for patch in patches if patch.kind is PatchKind.WRITE]
        request.ask(body, payload)

    def _row(self, extent: int) -> bytes:
        patch, channel = self._patches[extent], self._taken[extent]
        assert channel is not None, "changes are sent with a channel"
        chain = self._routes.now().chains[self._chains[extent]]
        return WRITE_EXTENT.pack(
            patch.object_id,
            patch.chunk_index,
            chain.chain_id,
            chain.version,
            patch.kind,
            channel.number,
            channel.sequence,
            patch.offset,
            patch.length,
            patch.truncate_version,
            patch.chunk_bytes,
            0 if patch.slot is None else patch.slot.offset,
        )

    # Answers

    def answered(self, extent: int, row: Row, state: WorkerState) -> None:
        """See `RowSink`."""
        if row[1] == Status.OK:
            state.written_bytes += len(self._patches[extent].view)
            self.settle(extent, row)
        else:
            self.failed(extent, state, row[1])

    def failed(self, extent: int, state: WorkerState, status: int) -> None:
        """See `RowSink`."""
        if not self.closed:
            self.settle_or_repeat(extent, status, self.failed_row(Status(status)))

    def settle_or_repeat(self, extent: int, status: int, row: Row) -> None:
        """See `HeadBatch`: here everything is tried again that may end otherwise, until the deadline."""
        if self._under_way[extent] and status not in _SURELY_NOT_DONE:
            self._maybe[extent] = 1
        self._under_way[extent] = 0
        self._last[extent] = Status(status)
        if status in (Status.CHAIN_VERSION, Status.UNAVAILABLE):
            self._workers.lost()
        if status in _AGAIN:
            self.again_after_pause(extent)
        else:
            self.settle(extent, self.failed_row(Status.TIMEOUT) if self._maybe[extent] else row)

    def settle(self, extent: int, row: Row) -> None:
        """See `Batch`."""
        super().settle(extent, row)
        self._release(extent, known=row[1] != Status.TIMEOUT)

    def failed_row(self, status: Status) -> Row:
        """See `HeadBatch`."""
        return (0, int(status), 0, 0)

    def _unanswered(self, extent: int) -> Row:
        return self.failed_row(Status.TIMEOUT if self._unknown(extent) else self._last[extent])

    def _unknown(self, extent: int) -> bool:
        return bool(self._under_way[extent] or self._maybe[extent])

    def _release(self, extent: int, *, known: bool) -> None:
        channel, self._taken[extent] = self._taken[extent], None
        if channel is None:
            return
        if known:
            channel.give_back()
        else:
            channel.retire()
