"""What requests share whose replies bring data: which chunks are open, and slots that stand in between.

Data of `staged` requests lands in slots that are not the callers': a worker of this host writes them by itself, and
what verified is copied to where it belongs. So the callers' memory is never at risk, the end of a connection is enough
for asking elsewhere, and only the slots wait for the worker's process.
"""

from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar, Generic, Protocol, TypeVar

from esker.client.batch import BatchRequest, Row
from esker.client.buffers import Slot
from esker.client.request import status_of
from esker.client.workers import WorkerState
from esker.wire.errors import EskerError, ProtocolError, RequestFailed
from esker.wire.status import Status


class DataSink(Protocol):
    """The batch, as its requests see it."""

    @property
    def rooms(self) -> Sequence[int]:
        """How long each answer may be, bytes: the load that it is to its worker."""

    def failed(self, extent: int, state: WorkerState, status: int) -> None:
        """This worker cannot give the answer."""

    def damaged(self, extent: int, state: WorkerState, version: int) -> None:
        """What this worker gave of the chunk, in this version (0: not told), does not match its checksums, or it could
        not read it.
        """

    def ended(self, request: BatchRequest) -> None:
        """The request has ended; all its extents were settled or failed."""


Landing = tuple[int, memoryview, bytes, Row]
"""Data of one extent on its way here: number in the request, memory, checksums, row."""


S = TypeVar("S", bound=DataSink)


class DataRequest(BatchRequest, Generic[S]):
    """A request for the data of `extents`, which are numbers in the batch."""

    __slots__ = ("_landing", "_sink", "staged")

    NAME: ClassVar[str]
    """Of the request, for errors."""

    def __init__(
        self, sink: S, state: WorkerState, extents: list[int], slots: Sequence[Slot] | None, *, staged: bool
    ) -> None:
        super().__init__(state, extents, slots)
        self._sink = sink
        self.staged = staged
        self._landing: list[Landing] = []

    def on_reply(self, body: bytes | bytearray, payload_bytes: int) -> Sequence[memoryview] | None:
        """See `ReplyHandler`."""
        if self.abandoned:
            return None
        self.heard()
        before = bytes(self.waiting)
        try:
            self._take(body, payload_bytes)
        except (RequestFailed, IndexError, ValueError) as error:
            self.waiting, self._landing = bytearray(before), []  # none of it counts
            raise ProtocolError(f"a reply to {self.NAME} that does not fit it: {error}") from error
        if self.direct or not payload_bytes:
            self._verify()
            return None
        return [view for _, view, _, _ in self._landing]

    def on_payload(self) -> None:
        """See `ReplyHandler`."""
        self._verify()

    @abstractmethod
    def _take(self, body: bytes | bytearray, payload_bytes: int) -> None:
        """Checks a reply against what was asked; what has data is left in `_landing`.

        Raises `RequestFailed`, `IndexError` or `ValueError` for one that does not fit.
        """

    @abstractmethod
    def _verify(self) -> None:
        """The data of `_landing` is here: it counts only if it matches."""

    def take_unanswered(self) -> list[int]:
        """See `BatchRequest`."""
        left = super().take_unanswered()
        left += [landing[0] for landing in self._landing]  # data that was arriving when it ended
        self._landing = []
        self.state.load_bytes -= sum(self._sink.rooms[self.extents[number]] for number in left)
        return left

    def give_up(self) -> list[int]:
        """See `BatchRequest`."""
        extents = super().give_up()
        self._release_staging()
        return extents

    def on_done(self, error: EskerError | None) -> None:
        """See `ReplyHandler`."""
        if self.staged and not self.abandoned and not isinstance(error, RequestFailed | None):
            for extent in self.give_up():
                self._sink.failed(extent, self.state, status_of(error))
            self._sink.ended(self)
        super().on_done(error)

    def finish(self, error: EskerError | None) -> None:
        """See `WorkerRequest`."""
        status = Status.TIMEOUT if self.cancelled else status_of(error)
        for extent in self.unanswered():
            self._sink.failed(extent, self.state, status)
        self._sink.ended(self)
        self._release_staging()

    def _release_staging(self) -> None:
        if self.staged and self.slots is not None:
            for slot in self.slots:
                slot.release()
