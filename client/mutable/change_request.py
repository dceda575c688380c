"""One WRITE on its way to one head, and what its replies say; what follows from that is for `changes.py`."""

from collections.abc import Sequence
from typing import Protocol

from esker.client.batch import BatchRequest, Row
from esker.client.buffers import Slot
from esker.client.request import status_of
from esker.client.workers import WorkerState
from esker.wire.codec import decode_body
from esker.wire.errors import EskerError, ProtocolError, RequestFailed
from esker.wire.mutable_messages import WRITE_RESULT, WriteReply
from esker.wire.status import Status


class ChangeSink(Protocol):
    """The batch, as its requests see it."""

    def answered(self, extent: int, row: Row, state: WorkerState) -> None:
        """The head says this of the change."""

    def failed(self, extent: int, status: int) -> None:
        """The head did not say anything of the change; the request ended like this."""

    def ended(self, request: "ChangeRequest") -> None:
        """The request has ended; all its extents were answered or failed."""


class ChangeRequest(BatchRequest):
    """A WRITE of `extents` (numbers in the batch) with `size_bytes` of data. A row is a row of WRITE_RESULT."""

    __slots__ = ("_sink", "size_bytes", "waiting")

    def __init__(
        self,
        sink: ChangeSink,
        state: WorkerState,
        extents: list[int],
        slots: Sequence[Slot] | None,
        size_bytes: int,
    ) -> None:
        super().__init__(state, extents, slots)
        self._sink = sink
        self.size_bytes = size_bytes
        self.waiting = bytearray(b"\x01") * len(extents)
        state.creating(size_bytes)

    def on_reply(self, body: bytes | bytearray, payload_bytes: int) -> None:
        """See `ReplyHandler`."""
        if self.abandoned:
            return
        self.moved = True
        if self.state.doubted:
            self.state.heard()
        try:
            for row in WRITE_RESULT.iter_unpack(decode_body(WriteReply, body).results):
                number = row[0]
                if not self.waiting[number]:
                    raise ValueError(f"extent {number} was answered before")
                self.waiting[number] = 0
                self._sink.answered(self.extents[number], row, self.state)
        except (RequestFailed, IndexError, ValueError) as error:
            raise ProtocolError(f"a reply to WRITE that does not fit it: {error}") from error

    def take_unanswered(self) -> list[int]:
        """See `BatchRequest`."""
        left = [number for number, open_ in enumerate(self.waiting) if open_]
        self.waiting = bytearray(len(self.waiting))
        self.state.creating(-self.size_bytes)
        self.size_bytes = 0
        return left

    def finish(self, error: EskerError | None) -> None:
        """See `WorkerRequest`."""
        status = Status.TIMEOUT if self.cancelled else status_of(error)
        for extent in self.unanswered():
            self._sink.failed(extent, status)
        self._sink.ended(self)
