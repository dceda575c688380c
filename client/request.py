"""A request to one worker that may touch this client's memory, and when that memory is the client's again.

Through a socket, memory is free once the request is forgotten. Where the worker reads or writes memory by itself
(`direct`), it is free only when the worker has answered for good, or its process is gone: the end of a connection
says nothing, a stopped worker may still wake up and write.

Concurrency: all on the loop, without awaiting. `finish` may be called while the request is being sent.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence

from esker.client.buffers import Slot
from esker.client.late import LateSlots
from esker.client.workers import WorkerState
from esker.wire.errors import ConnectionFailed, EskerError, RequestFailed
from esker.wire.messages import Cancel, Message, Method
from esker.wire.rpc_client import IgnoredReply
from esker.wire.status import Status

LOOKS = 4
"""How often a batch looks after its requests in the time that it grants a worker to say something."""


class WorkerRequest(ABC):
    """Base of batch requests: `on_reply` and `finish` are the subclass's."""

    __slots__ = (
        "_channel",
        "_late",
        "_request_id",
        "_still",
        "abandoned",
        "cancelled",
        "direct",
        "ended",
        "moved",
        "state",
    )

    def __init__(self, state: WorkerState, *, direct: bool) -> None:
        channel = state.channel
        assert channel is not None, "requests go to workers that are up"
        self.state = state
        self.direct = direct
        self._channel = channel
        self._request_id = 0
        self._late = LateSlots()
        self.moved = True
        """Something happened since the batch last looked."""
        self._still = 0
        self.cancelled = False
        self.abandoned = False
        self.ended = False

    def send(self, method: Method, body: Message, payload: Sequence[memoryview] = ()) -> None:
        """Hands the request to the connection."""
        self._request_id = self._channel.bulk.start(method, body, self, payload=payload)

    @property
    def cut_off(self) -> bool:
        """Whether its connection has ended. Where it has not ended itself, only the end of the process will end it."""
        return self._channel.bulk.closed

    def heard(self) -> None:
        """A reply came."""
        self.moved = True
        if self.state.doubted:
            self.state.heard()

    def stands_still(self) -> bool:
        """Whether nothing happened for `LOOKS` looks; to be asked at regular times, each of which is a look."""
        if self.moved:
            self.moved = False
            self._still = 0
            return False
        self._still += 1
        return self._still >= LOOKS

    def cancel(self) -> None:
        """Tells the worker that the answer is no longer wanted; it will still end the request."""
        if not self.cancelled and not self.ended:
            self.cancelled = True
            self._still = 0
            self._channel.bulk.start(Method.CANCEL, Cancel(self._request_id), IgnoredReply())

    def abandon(self, slots: Iterable[Slot]) -> None:
        """The operation gives up: `finish` will not be called. `slots` are those that the worker may still touch."""
        if self.ended or self.abandoned:
            return
        self.abandoned = True
        self.cancel()
        if self.direct:
            self._late.keep(slots)
        else:
            self._channel.bulk.forget(self._request_id)

    @abstractmethod
    def on_reply(self, body: bytes | bytearray, payload_bytes: int) -> Sequence[memoryview] | None:
        """See `ReplyHandler`."""

    def on_payload(self) -> None:
        """See `ReplyHandler`."""
        raise AssertionError("no memory was named")

    def on_done(self, error: EskerError | None) -> None:
        """See `ReplyHandler`."""
        watch = self._channel.watch
        if self.direct and watch is not None and not isinstance(error, RequestFailed | None):
            watch.when_gone(lambda: self._end(error))
        else:
            self._end(error)

    def _end(self, error: EskerError | None) -> None:
        self.ended = True
        self._late.let_go()
        if not self.abandoned:
            self.finish(error)

    @abstractmethod
    def finish(self, error: EskerError | None) -> None:
        """The request has ended: nothing it was given is touched any more."""


def status_of(error: EskerError | None) -> Status:
    """What the end of a request says of the extents that it did not answer."""
    if isinstance(error, RequestFailed):
        return error.status
    return Status.UNAVAILABLE if isinstance(error, ConnectionFailed) else Status.INTERNAL
