"""Requests of which every reply is rows of one column: the answers for chunks, a row each.

Owns which chunks the worker has not answered yet, and the bound on data under way; what follows from a status is for
the batch. A row is as it travelled: its first value is the chunk's number in the request, the second a status.
"""

from collections.abc import Sequence
from struct import Struct
from typing import NamedTuple, Protocol

from esker.client.batch import BatchRequest, Row
from esker.client.buffers import Slot
from esker.client.request import status_of
from esker.client.workers import WorkerState
from esker.wire.codec import decode_body
from esker.wire.errors import EskerError, ProtocolError, RequestFailed
from esker.wire.messages import CreateReply, Message, Method, RemoveReply
from esker.wire.mutable_messages import ChunkStatReply, WriteReply

RowReply = CreateReply | RemoveReply | WriteReply | ChunkStatReply


class RowMethod(NamedTuple):
    """A method that is answered in rows."""

    method: Method
    reply_type: type[RowReply]
    column: Struct


class RowSink(Protocol):
    """The batch, as its requests see it."""

    def answered(self, extent: int, row: Row, state: WorkerState) -> None:
        """The worker says this of the chunk."""

    def failed(self, extent: int, state: WorkerState, status: int) -> None:
        """The worker did not say anything of the chunk; the request ended like this."""

    def ended(self, request: BatchRequest) -> None:
        """The request has ended; all its extents were answered or failed."""


class RowRequest(BatchRequest):
    """A request about `extents`, which are numbers in the batch."""

    __slots__ = ("_how", "_sink")

    def __init__(
        self,
        sink: RowSink,
        how: RowMethod,
        state: WorkerState,
        extents: list[int],
        slots: Sequence[Slot] | None = None,
    ) -> None:
        super().__init__(state, extents, slots)
        self._sink = sink
        self._how = how

    def ask(self, body: Message, payload: Sequence[memoryview] = ()) -> None:
        """Hands the request to the connection."""
        self.send(self._how.method, body, payload)

    def on_reply(self, body: bytes | bytearray, payload_bytes: int) -> None:
        """See `ReplyHandler`."""
        if self.abandoned:
            return
        self.heard()
        method, reply_type, column = self._how
        try:
            packed = decode_body(reply_type, body).results
            if len(packed) % column.size:
                raise ValueError(f"results of {len(packed)} bytes")
            for row in column.iter_unpack(packed):
                number = row[0]
                if not self.waiting[number]:
                    raise ValueError(f"extent {number} was answered before")
                self.waiting[number] = 0
                self._sink.answered(self.extents[number], row, self.state)
        except (RequestFailed, IndexError, ValueError) as error:
            raise ProtocolError(f"a reply to {method.name} that does not fit it: {error}") from error

    def finish(self, error: EskerError | None) -> None:
        """See `WorkerRequest`."""
        for extent in self.unanswered():
            self._sink.failed(extent, self.state, status_of(error))
        self._sink.ended(self)


class WriteRequest(RowRequest):
    """One that brings `size_bytes` of data, which count as under way at its worker until it has ended."""

    __slots__ = ("size_bytes",)

    def __init__(
        self,
        sink: RowSink,
        how: RowMethod,
        state: WorkerState,
        extents: list[int],
        slots: Sequence[Slot] | None,
        size_bytes: int,
    ) -> None:
        super().__init__(sink, how, state, extents, slots)
        self.size_bytes = size_bytes
        state.creating(size_bytes)

    def take_unanswered(self) -> list[int]:
        """See `BatchRequest`."""
        left = super().take_unanswered()
        size_bytes, self.size_bytes = self.size_bytes, 0
        self.state.creating(-size_bytes)
        return left
