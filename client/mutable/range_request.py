"""One READ_RANGE on its way to one worker, and what its replies say.

Owns the extents that this worker has not answered yet, and the memory that the answers land in: a staging slot that a
worker of this host writes by itself, or memory made when the length is known. An extent is settled only once its bytes
are here, match the checksums of the blocks that they cover, and were copied to where they belong; whatever a reply
claims is checked before it is believed.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from esker.client.batch import BatchRequest, Row
from esker.client.buffers import Slot
from esker.client.mutable.types import Range
from esker.client.request import status_of
from esker.client.workers import WorkerState
from esker.wire.checksum import checksums
from esker.wire.codec import decode_body
from esker.wire.errors import EskerError, ProtocolError, RequestFailed
from esker.wire.limits import checksum_blocks
from esker.wire.mutable_columns import covered
from esker.wire.mutable_messages import READ_RANGE_RESULT, ReadRangeReply
from esker.wire.status import Status


class RangeSink(Protocol):
    """The batch, as its requests see it."""

    ranges: Sequence[Range]
    rooms: Sequence[int]

    def settle(self, extent: int, row: Row) -> None:
        """This is the extent's answer, a row of READ_RANGE_RESULT; its bytes are in place."""

    def failed(self, extent: int, state: WorkerState, status: int) -> None:
        """This worker cannot give the answer."""

    def damaged(self, extent: int, state: WorkerState, version: int) -> None:
        """What this worker gave of the chunk, in this version (0: not told), does not match its checksums, or it could
        not read it.
        """

    def ended(self, request: "RangeRequest") -> None:
        """The request has ended; all its extents were settled or failed."""


class _Landing(NamedTuple):
    """Data of one extent on its way here."""

    number: int
    view: memoryview
    sums: bytes
    row: Row


class RangeRequest(BatchRequest):
    """A READ_RANGE of `extents`, which are numbers in the batch. `slots` are staging memory, one for each, or None."""

    __slots__ = ("_landing", "_sink", "waiting")

    def __init__(self, sink: RangeSink, state: WorkerState, extents: list[int], slots: Sequence[Slot] | None) -> None:
        super().__init__(state, extents, slots)
        self._sink = sink
        self.waiting = bytearray(b"\x01") * len(extents)
        """1 for each extent that is neither settled nor failed."""
        self._landing: list[_Landing] = []

    def on_reply(self, body: bytes | bytearray, payload_bytes: int) -> Sequence[memoryview] | None:
        """See `ReplyHandler`."""
        if self.abandoned:
            return None
        self.moved = True
        if self.state.doubted:
            self.state.heard()
        try:
            self._take(decode_body(ReadRangeReply, body), payload_bytes)
        except (RequestFailed, IndexError, ValueError) as error:
            raise ProtocolError(f"a reply to READ_RANGE that does not fit it: {error}") from error
        if self.direct or not payload_bytes:
            self._verify()
            return None
        return [landing.view for landing in self._landing]

    def _take(self, reply: ReadRangeReply, payload_bytes: int) -> None:
        """Checks a reply against what was asked; what has data is left in `_landing`."""
        at = data_bytes = 0
        for row in READ_RANGE_RESULT.iter_unpack(reply.results):
            number, status, _, chunk_bytes, start, length = row
            if not self.waiting[number]:
                raise ValueError(f"extent {number} was answered before")
            self.waiting[number] = 0
            extent = self.extents[number]
            if status == Status.OK:
                range_ = self._sink.ranges[extent]
                first, end = covered(range_.offset, range_.length, chunk_bytes)
                if (start if length else first, length) != (first, end - first):
                    raise ValueError(f"bytes {start} to {start + length} of {chunk_bytes} for extent {number}")
                sums = reply.checksums[at : at + 8 * checksum_blocks(length)]
                at += 8 * checksum_blocks(length)
                if length:
                    data_bytes += length
                    self._landing.append(_Landing(number, self._memory(number, length), sums, row))
                    continue
            self.state.load_bytes -= self._sink.rooms[extent]
            if status in (Status.OK, Status.NOT_FOUND):
                self._sink.settle(extent, row)
            else:
                if status == Status.IO_ERROR:
                    self._sink.damaged(extent, self.state, 0)
                self._sink.failed(extent, self.state, status)
        if at != len(reply.checksums):
            raise ValueError(f"{len(reply.checksums)} bytes of checksums for {at // 8} blocks")
        if payload_bytes != (0 if self.direct else data_bytes):
            raise ValueError(f"{payload_bytes} bytes of payload for {data_bytes} bytes of extents")

    def _memory(self, number: int, length: int) -> memoryview:
        if self.slots is not None:
            return self.slots[number].view[:length]
        return memoryview(bytearray(length))

    def on_payload(self) -> None:
        """See `ReplyHandler`."""
        self._verify()

    def _verify(self) -> None:
        """The data of `_landing` is here: it counts only if it matches."""
        landed, self._landing = self._landing, []
        for number, view, sums, row in landed:
            extent = self.extents[number]
            self.state.load_bytes -= self._sink.rooms[extent]
            if checksums(view) != sums:
                self._sink.damaged(extent, self.state, row[2])
                self._sink.failed(extent, self.state, Status.CHECKSUM)
                continue
            range_ = self._sink.ranges[extent]
            part = view[range_.offset - row[4] :][: range_.length]
            range_.view[: len(part)] = part
            self.state.read_bytes += len(part)
            self._sink.settle(extent, row)

    def take_unanswered(self) -> list[int]:
        """See `BatchRequest`."""
        left = [number for number, open_ in enumerate(self.waiting) if open_]
        left += [landing.number for landing in self._landing]  # data that was arriving when it ended
        self.waiting = bytearray(len(self.waiting))
        self._landing = []
        self.state.load_bytes -= sum(self._sink.rooms[self.extents[number]] for number in left)
        return left

    def give_up(self) -> list[int]:
        """See `BatchRequest`."""
        extents = super().give_up()
        self._release_staging()
        return extents

    def on_done(self, error: EskerError | None) -> None:
        """See `ReplyHandler`. No need to wait for the process's end: the caller's memory is not at risk."""
        if self.direct and not self.abandoned and not isinstance(error, RequestFailed | None):
            for extent in self.give_up():
                self._sink.failed(extent, self.state, status_of(error))
            self._sink.ended(self)
        super().on_done(error)

    def _release_staging(self) -> None:
        if self.slots is not None:
            for slot in self.slots:
                slot.release()

    def finish(self, error: EskerError | None) -> None:
        """See `WorkerRequest`."""
        status = Status.TIMEOUT if self.cancelled else status_of(error)
        for extent in self.unanswered():
            self._sink.failed(extent, self.state, status)
        self._sink.ended(self)
        self._release_staging()
