"""One READ on its way to one worker, and what its replies say.

Owns the extents that this worker has not answered yet. An extent is settled only once its bytes are here and match
their checksums; whatever a reply claims is checked before it is believed. What follows from a failure is for the
batch (`reads.py`).
"""

from collections.abc import Sequence
from typing import Protocol

from esker.client.batch import BatchRequest, Row
from esker.client.request import status_of
from esker.client.workers import WorkerState
from esker.wire.checksum import checksums
from esker.wire.codec import decode_body
from esker.wire.errors import EskerError, ProtocolError, RequestFailed
from esker.wire.limits import checksum_blocks
from esker.wire.messages import READ_RESULT, ReadReply
from esker.wire.status import Status

_OK = int(Status.OK)
_ANSWERS = frozenset((int(Status.NOT_FOUND), int(Status.TOO_LARGE)))


class ReadSink(Protocol):
    """The batch, as its requests see it."""

    views: Sequence[memoryview]

    def settled(self, extent: int, row: Row, state: WorkerState) -> None:
        """This is the answer."""

    def failed(self, extent: int, state: WorkerState, status: int) -> None:
        """This worker cannot give the answer."""

    def ended(self, request: "ReadRequest") -> None:
        """The request has ended; all its extents were settled or failed."""


class ReadRequest(BatchRequest):
    """A READ of `extents`, which are numbers in the batch. A row is a row of READ_RESULT."""

    __slots__ = ("_landing", "_sink", "extents", "waiting")

    def __init__(self, sink: ReadSink, state: WorkerState, extents: list[int], *, direct: bool) -> None:
        super().__init__(state, direct=direct)
        self._sink = sink
        self.extents = extents
        self.waiting = bytearray(b"\x01") * len(extents)
        """1 for each extent that is neither settled nor failed."""
        self._landing: list[tuple[int, memoryview, bytes, Row]] = []

    def on_reply(self, body: bytes | bytearray, payload_bytes: int) -> Sequence[memoryview] | None:
        """See `ReplyHandler`."""
        if self.abandoned:
            return None
        self.moved = True
        if self.state.suspect:
            self.state.heard()
        try:
            self._take(decode_body(ReadReply, body), payload_bytes)
        except (RequestFailed, IndexError, ValueError) as error:
            raise ProtocolError(f"a reply to READ that does not fit it: {error}") from error
        if self.direct:
            self._verify()
            return None
        return [view for _, view, _, _ in self._landing] if payload_bytes else None

    def _take(self, reply: ReadReply, payload_bytes: int) -> None:
        """Checks a reply against what was asked; what has data is left in `_landing`."""
        packed = reply.results
        if len(packed) % READ_RESULT.size:
            raise ValueError(f"results of {len(packed)} bytes")
        extents, waiting, views, sums = self.extents, self.waiting, self._sink.views, reply.checksums
        at = data_bytes = 0
        for row in READ_RESULT.iter_unpack(packed):
            number, status, length = row[0], row[1], row[2]
            if not waiting[number]:
                raise ValueError(f"extent {number} was answered before")
            extent = extents[number]
            view = views[extent]
            if status == _OK:
                end = at + 8 * checksum_blocks(length)
                if not 0 < length <= len(view) or end > len(sums):
                    raise ValueError(f"extent {number} of {length} bytes with {len(sums) - at} bytes of checksums")
                if length != len(view):
                    view = view[:length]
                self._landing.append((number, view, sums[at:end], row))
                at = end
                data_bytes += length
            else:
                self._close(number)
                if status in _ANSWERS:
                    self._sink.settled(extent, row, self.state)
                else:
                    self._sink.failed(extent, self.state, status)
        if at != len(sums):
            raise ValueError(f"{len(sums) - at} bytes of checksums too many")
        if payload_bytes != (0 if self.direct else data_bytes):
            raise ValueError(f"{payload_bytes} bytes of payload for {data_bytes} bytes of extents")

    def on_payload(self) -> None:
        """See `ReplyHandler`."""
        self._verify()

    def _verify(self) -> None:
        """The data of `_landing` is here: it counts only if it matches."""
        landing, self._landing = self._landing, []
        sink, state, extents = self._sink, self.state, self.extents
        for number, view, sums, row in landing:
            self._close(number)
            if checksums(view) == sums:
                state.read_bytes += row[2]
                sink.settled(extents[number], row, state)
            else:
                sink.failed(extents[number], state, Status.CHECKSUM)

    def _close(self, number: int) -> None:
        self.waiting[number] = 0
        self.state.load_bytes -= len(self._sink.views[self.extents[number]])

    def unanswered(self) -> list[int]:
        """See `BatchRequest`."""
        left = [number for number, open_ in enumerate(self.waiting) if open_]
        for number in left:
            self._close(number)
        return [self.extents[number] for number in left]

    def finish(self, error: EskerError | None) -> None:
        """See `WorkerRequest`."""
        status = Status.TIMEOUT if self.cancelled else status_of(error)
        for extent in self.unanswered():
            self._sink.failed(extent, self.state, status)
        self._sink.ended(self)
