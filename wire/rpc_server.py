"""Serves requests over TCP and Unix sockets: handshake, dispatch, cancellation, replies.

Owns connections and the life of a request; knows nothing of what methods do. A handler is called on the loop as
soon as a request's header and body are here; if a payload follows, it names the memory for it. Exactly one last
reply (or failure) ends a request.
"""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from esker.runtime.logging import get_logger
from esker.wire import framing
from esker.wire.codec import decode_body, encode_body
from esker.wire.errors import EskerError, ProtocolError, RequestFailed
from esker.wire.limits import HANDSHAKE_TIMEOUT_S
from esker.wire.listen import tcp_listener, unix_listener, unlink_own
from esker.wire.messages import PROTOCOL_VERSION, Cancel, Empty, Failure, Hello, HelloReply, Message, Method
from esker.wire.status import Status
from esker.wire.stream import FrameStream

log = get_logger("rpc")

M = TypeVar("M", bound=Message)

CONNECTIONS_MAX = 4096
REQUESTS_PER_CONNECTION_MAX = 1024
CANCELS_PER_REQUEST_MAX = 16
BACKLOG = 512
ACCEPT_PAUSE_S = 0.1


@dataclass(frozen=True, slots=True)
class Identity:
    """What a server says of itself in the handshake."""

    cluster_id: str
    drive_id: str
    incarnation: str


class Request:
    """One request under way. The handler may set the three hooks."""

    __slots__ = (
        "_cancels",
        "body",
        "cancelled",
        "connection",
        "method",
        "on_cancel",
        "on_lost",
        "on_payload",
        "payload_bytes",
        "request_id",
    )

    def __init__(
        self, connection: "ServerConnection", method: Method, request_id: int, body: bytes | bytearray, payload: int
    ) -> None:
        self.connection = connection
        self.method = method
        self.request_id = request_id
        self.body = body
        self.payload_bytes = payload
        self.cancelled = False
        self.on_payload: Callable[[], None] | None = None
        """The payload is complete, in the memory that the handler named."""
        self.on_cancel: Callable[[], None] | None = None
        """The client no longer wants the answer: end early if that is easy."""
        self.on_lost: Callable[[], None] | None = None
        """The connection ended before the payload was complete: its memory is free. No reply is possible."""
        self._cancels: list[int] = []

    def reply(
        self,
        body: Message,
        payload: Sequence[memoryview] = (),
        *,
        more: bool = False,
        on_sent: Callable[[], None] | None = None,
    ) -> None:
        """Sends a reply; `more=False` ends the request. `on_sent`: the payload's memory may be used again."""
        size = sum(map(len, payload)) if payload else 0
        kind = framing.Kind.PARTIAL if more else framing.Kind.REPLY
        frame = framing.encode(kind, Status.OK, self.request_id, encode_body(body), size)
        self.connection.stream.send(frame, payload, on_sent)
        if not more:
            self._end()

    def fail(self, status: Status, message: str) -> None:
        """Ends the whole request with `status`."""
        body = encode_body(Failure(message))
        self.connection.stream.send(framing.encode(framing.Kind.REPLY, status, self.request_id, body))
        self._end()

    def _end(self) -> None:
        self.connection.requests.pop(self.request_id, None)
        for cancel_id in self._cancels:
            self.connection.confirm(cancel_id)

    def cancel(self, cancel_id: int) -> bool:
        """Remembers to confirm `cancel_id` when this request has ended. False: too many are remembered already."""
        if len(self._cancels) >= CANCELS_PER_REQUEST_MAX:
            return False
        self._cancels.append(cancel_id)
        self.unwanted()
        return True

    def unwanted(self) -> None:
        """The client cancelled, or is gone."""
        if not self.cancelled:
            self.cancelled = True
            if self.on_cancel is not None:
                self.on_cancel()


Handler = Callable[[Request], Sequence[memoryview] | None]


class ServerConnection:
    """One accepted connection."""

    def __init__(self, server: "RpcServer", sock: socket.socket, loop: asyncio.AbstractEventLoop) -> None:
        self.server = server
        self.local = sock.family == socket.AF_UNIX
        self.peer = "unix socket" if self.local else "{}:{}".format(*sock.getpeername()[:2])
        self.hello: Hello | None = None
        self.requests: dict[int, Request] = {}
        self.on_close: list[Callable[[], None]] = []
        """Called once when the connection has ended, before requests are told."""
        self._receiving: Request | None = None
        self._handshake = loop.call_later(HANDSHAKE_TIMEOUT_S, self._no_handshake)
        self.stream = FrameStream(sock, self, loop)

    def _no_handshake(self) -> None:
        self.stream.close(ProtocolError(f"no handshake within {HANDSHAKE_TIMEOUT_S:.0f} s"))

    def frame_received(
        self, kind: int, code: int, request_id: int, body: bytes | bytearray, payload_bytes: int
    ) -> Sequence[memoryview] | None:
        """See `FrameHandler`."""
        if kind != framing.Kind.REQUEST:
            raise ProtocolError(f"a frame of kind {kind} where a request was due")
        if self.hello is None:
            self._greet(code, request_id, body)
            return None
        if code == Method.CANCEL:
            self._cancel(request_id, body)
            return None
        handler = self.server.handlers.get(code)
        if request_id in self.requests:
            raise ProtocolError(f"request id {request_id} is in use")
        if handler is None:
            self._refuse(request_id, Status.BAD_REQUEST, f"method {code} is not served here")
            return None
        if len(self.requests) >= REQUESTS_PER_CONNECTION_MAX:
            self._refuse(request_id, Status.BUSY, f"{len(self.requests)} requests are under way on this connection")
            return None
        request = Request(self, Method(code), request_id, body, payload_bytes)
        self.requests[request_id] = request
        try:
            segments = handler(request)
        except RequestFailed as failure:
            request.fail(failure.status, failure.message)
            return None
        except Exception as error:
            log.exception("a handler failed", method=request.method.name)
            request.fail(Status.INTERNAL, f"{type(error).__name__}: {error}")
            return None
        if segments is not None and payload_bytes:
            self._receiving = request
            return segments
        return None

    def _greet(self, code: int, request_id: int, body: bytes | bytearray) -> None:
        if code != Method.HELLO:
            raise ProtocolError(f"method {code} before the handshake")
        try:
            hello = decode_body(Hello, body)
        except RequestFailed as failure:
            raise ProtocolError(f"malformed handshake: {failure.message}") from failure
        identity = self.server.identity
        if PROTOCOL_VERSION not in hello.versions:
            self._refuse(request_id, Status.UNSUPPORTED_VERSION, f"this side speaks version {PROTOCOL_VERSION}")
            raise ProtocolError(f"the peer speaks versions {hello.versions}, this side {PROTOCOL_VERSION}")
        if hello.cluster_id and hello.cluster_id != identity.cluster_id:
            self._refuse(request_id, Status.WRONG_CLUSTER, f"this is cluster {identity.cluster_id}")
            raise ProtocolError(f"the peer belongs to cluster {hello.cluster_id}, this is {identity.cluster_id}")
        self.hello = hello
        self._handshake.cancel()
        self.server.greeted(self)
        answer = HelloReply(PROTOCOL_VERSION, identity.cluster_id, identity.drive_id, identity.incarnation)
        self.stream.send(framing.encode(framing.Kind.REPLY, Status.OK, request_id, encode_body(answer)))

    def _cancel(self, cancel_id: int, body: bytes | bytearray) -> None:
        try:
            request = self.requests.get(decode_body(Cancel, body).request_id)
        except RequestFailed as failure:
            self._refuse(cancel_id, failure.status, failure.message)
            return
        if request is None:
            self.confirm(cancel_id)
        elif not request.cancel(cancel_id):
            self._refuse(cancel_id, Status.BUSY, "that request is being cancelled already, many times")

    def confirm(self, request_id: int) -> None:
        """Replies with nothing in it."""
        self.stream.send(framing.encode(framing.Kind.REPLY, Status.OK, request_id, encode_body(Empty())))

    def _refuse(self, request_id: int, status: Status, message: str) -> None:
        self.stream.send(framing.encode(framing.Kind.REPLY, status, request_id, encode_body(Failure(message))))

    def payload_received(self) -> None:
        """See `FrameHandler`."""
        request, self._receiving = self._receiving, None
        if request is not None and request.on_payload is not None:
            request.on_payload()

    def stream_closed(self, error: EskerError | None) -> None:
        """See `FrameHandler`."""
        self._handshake.cancel()
        if isinstance(error, ProtocolError):
            log.warning("closed a connection: the peer broke the protocol", peer=self.peer, reason=str(error))
        self.server.forget(self)
        for callback in self.on_close:
            callback()
        receiving, self._receiving = self._receiving, None
        if receiving is not None and receiving.on_lost is not None:
            receiving.on_lost()
        requests, self.requests = list(self.requests.values()), {}
        for request in requests:
            request.unwanted()


def unary(request_type: type[M], function: Callable[[M], Awaitable[Message]]) -> Handler:
    """A handler that decodes the body, awaits `function` in a task of the server, and replies once."""

    def handle(request: Request) -> None:
        message = decode_body(request_type, request.body)
        request.connection.server.spawn(_answer(request, function, message))

    return handle


async def _answer(request: Request, function: Callable[[M], Awaitable[Message]], message: M) -> None:
    try:
        request.reply(await function(message))
    except RequestFailed as failure:
        request.fail(failure.status, failure.message)
    except asyncio.CancelledError:
        request.fail(Status.UNAVAILABLE, "the server is stopping")
        raise
    except Exception as error:
        log.exception("a handler failed", method=request.method.name, error=repr(error))
        request.fail(Status.INTERNAL, f"{type(error).__name__}: {error}")


class RpcServer:
    """Listens and serves. Give `handlers` every method but HELLO and CANCEL, which it answers itself.

    `on_connect` sees each connection after its handshake.
    """

    def __init__(
        self,
        handlers: Mapping[Method, Handler],
        identity: Identity,
        *,
        on_connect: Callable[[ServerConnection], None] | None = None,
    ) -> None:
        self.handlers: dict[int, Handler] = {int(method): handler for method, handler in handlers.items()}
        self.identity = identity
        self._on_connect = on_connect
        self._connections: set[ServerConnection] = set()
        self._listeners: list[socket.socket] = []
        self._paths: list[tuple[str, int]] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def listen_tcp(self, host: str, port: int) -> int:
        """Listens on `host`:`port` (0: any free port); returns the port. Raises `UserError` if that cannot be."""
        sock = tcp_listener(host, port, BACKLOG)
        self._accept_on(sock)
        return int(sock.getsockname()[1])

    async def listen_unix(self, path: str) -> None:
        """Listens on the Unix socket `path`, replacing a stale one. Raises `UserError` if that cannot be."""
        sock, inode = unix_listener(path, BACKLOG)
        self._paths.append((path, inode))
        self._accept_on(sock)

    def _accept_on(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._listeners.append(sock)
        loop = asyncio.get_running_loop()
        loop.add_reader(sock.fileno(), self._accept, sock, loop)

    def _accept(self, listener: socket.socket, loop: asyncio.AbstractEventLoop) -> None:
        while True:
            try:
                sock, _ = listener.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError as error:
                log.warning("cannot accept a connection; raise the limit of open files", reason=error.strerror)
                self._rest(listener, loop)
                return
            if len(self._connections) >= CONNECTIONS_MAX:
                log.warning("refused a connection: too many", connections=len(self._connections))
                sock.close()
                continue
            if sock.family != socket.AF_UNIX:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            try:
                self._connections.add(ServerConnection(self, sock, loop))
            except OSError:
                sock.close()  # the peer was gone before its name could be asked

    def _rest(self, listener: socket.socket, loop: asyncio.AbstractEventLoop) -> None:
        """Out of descriptors: stop accepting for a moment instead of spinning on a listener that stays readable."""
        loop.remove_reader(listener.fileno())

        def again() -> None:
            if listener in self._listeners:
                loop.add_reader(listener.fileno(), self._accept, listener, loop)

        loop.call_later(ACCEPT_PAUSE_S, again)

    def greeted(self, connection: ServerConnection) -> None:
        """After a handshake. A worker's newer connection ends its older ones, with what they still had queued."""
        hello = connection.hello
        assert hello is not None
        if hello.role == "worker" and hello.peer_id:
            for other in list(self._connections):
                if other is not connection and other.hello is not None and other.hello.peer_id == hello.peer_id:
                    other.stream.close()
        if self._on_connect is not None:
            self._on_connect(connection)

    def forget(self, connection: ServerConnection) -> None:
        """The connection has ended."""
        self._connections.discard(connection)

    def spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Runs `coroutine` as a task that ends with the server at the latest."""
        task = asyncio.ensure_future(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def aclose(self) -> None:
        """Stops listening, ends tasks and connections, removes socket files that are still its own."""
        loop = asyncio.get_running_loop()
        listeners, self._listeners = self._listeners, []
        for listener in listeners:
            loop.remove_reader(listener.fileno())
            listener.close()
        for path, inode in self._paths:
            unlink_own(path, inode)
        self._paths.clear()
        await self._end_tasks()
        for connection in list(self._connections):
            connection.stream.close()
        await self._end_tasks()  # those of requests that came while the others ended

    async def _end_tasks(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
