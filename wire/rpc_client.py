"""One connection to a server: handshake, requests by id, replies to their handlers.

Owns no policy: no retries, no choice of server. Every wait has the caller's deadline. When the connection ends,
every request under way is told `ConnectionFailed`, once: whether it was carried out is then unknown.
"""

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self, TypeVar

from esker.wire import framing
from esker.wire.codec import decode_body, encode_body
from esker.wire.errors import ConnectionFailed, DeadlineExceeded, EskerError, ProtocolError, RequestFailed
from esker.wire.limits import CONNECT_TIMEOUT_S
from esker.wire.messages import PROTOCOL_VERSION, Failure, Hello, HelloReply, Message, Method
from esker.wire.status import Status
from esker.wire.stream import FrameStream

R = TypeVar("R", bound=Message)


@dataclass(frozen=True, slots=True)
class TcpAddress:
    """Host and port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class UnixAddress:
    """Path of a Unix socket."""

    path: str

    def __str__(self) -> str:
        return self.path


Address = TcpAddress | UnixAddress


class ReplyHandler(Protocol):
    """Gets the replies to one request, on the loop."""

    def on_reply(self, body: bytes | bytearray, payload_bytes: int) -> Sequence[memoryview] | None:
        """A reply's body. Returns where its payload goes (covering it exactly), or None: throw it away."""

    def on_payload(self) -> None:
        """The payload of the last reply has landed."""

    def on_done(self, error: EskerError | None) -> None:
        """Called once, last: None after the last reply, else why there will be no more."""


class Connection:
    """A connection after its handshake. Make it with `connect`."""

    def __init__(self, address: Address, sock: socket.socket, loop: asyncio.AbstractEventLoop) -> None:
        self.address = address
        self.local = isinstance(address, UnixAddress)
        self.peer = HelloReply(0, "", "", "")
        self._calls: dict[int, ReplyHandler] = {}
        self._next_id = 1
        self._receiving: tuple[int, bool] | None = None  # request id, whether this payload's reply is its last
        self.stream = FrameStream(sock, self, loop)

    @classmethod
    async def connect(
        cls,
        address: Address,
        *,
        role: str,
        cluster_id: str = "",
        peer_id: str = "",
        incarnation: str = "",
        timeout_s: float = CONNECT_TIMEOUT_S,
    ) -> Self:
        """Connects and shakes hands within `timeout_s`.

        Raises `ConnectionFailed`, naming the address, when nobody answers there; `RequestFailed` (WRONG_CLUSTER,
        UNSUPPORTED_VERSION) when the server refuses.
        """
        loop = asyncio.get_running_loop()
        started = loop.time()
        sock = await _connect(address, timeout_s)
        connection = cls(address, sock, loop)
        hello = Hello((PROTOCOL_VERSION,), cluster_id, role, peer_id, incarnation)
        try:
            left_s = max(0.001, timeout_s - (loop.time() - started))
            connection.peer = await connection.call(Method.HELLO, hello, HelloReply, timeout_s=left_s)
        except BaseException as error:
            connection.stream.close()
            if isinstance(error, (DeadlineExceeded, ConnectionFailed)):
                raise ConnectionFailed(f"{address} accepted the connection but did not shake hands: {error}") from error
            raise
        return connection

    @property
    def closed(self) -> bool:
        """Whether the connection has ended."""
        return self.stream.closed

    def start(
        self,
        method: Method,
        body: Message,
        handler: ReplyHandler,
        *,
        payload: Sequence[memoryview] = (),
        released: Callable[[], None] | None = None,
        fds: Sequence[int] = (),
    ) -> int:
        """Sends a request whose replies go to `handler`; returns its id. Never raises for a lost connection.

        `released` is called once, when the payload's memory may change: the kernel took it, or it never will.
        """
        request_id = self._next_id
        self._next_id += 1
        size = sum(map(len, payload)) if payload else 0
        # Before anybody waits for an answer: a body that cannot be encoded is the caller's error and no request.
        frame = framing.encode(framing.Kind.REQUEST, method, request_id, encode_body(body), size)
        if self.closed:
            if released is not None:
                released()
            asyncio.get_running_loop().call_soon(handler.on_done, ConnectionFailed(f"{self.address}: not connected"))
            return request_id
        self._calls[request_id] = handler
        self.stream.send(frame, payload, released, fds)
        return request_id

    def forget(self, request_id: int) -> None:
        """The caller is no longer interested: its handler is not called again, its memory not written any more."""
        self._calls.pop(request_id, None)
        if self._receiving is not None and self._receiving[0] == request_id:
            self._receiving = None
            self.stream.discard_payload()

    async def call(
        self, method: Method, body: Message, reply_type: type[R], *, timeout_s: float, fds: Sequence[int] = ()
    ) -> R:
        """One request, one reply. Raises `DeadlineExceeded`, `ConnectionFailed` or `RequestFailed`."""
        waiter = _Unary(asyncio.get_running_loop())
        request_id = self.start(method, body, waiter, fds=fds)
        try:
            async with asyncio.timeout(timeout_s):
                reply = await waiter.future
        except TimeoutError:
            raise DeadlineExceeded(f"{self.address} did not answer {method.name} within {timeout_s:.3g} s") from None
        finally:
            self.forget(request_id)
        return decode_body(reply_type, reply)

    async def aclose(self) -> None:
        """Ends the connection; what is under way fails."""
        self.stream.close()

    def frame_received(
        self, kind: int, code: int, request_id: int, body: bytes | bytearray, payload_bytes: int
    ) -> Sequence[memoryview] | None:
        """See `FrameHandler`."""
        if kind not in framing.REPLY_KINDS:
            raise ProtocolError("a request where a reply was due")
        handler = self._calls.get(request_id)
        if handler is None:
            return None  # forgotten
        last = kind == framing.Kind.REPLY
        if code != Status.OK:
            del self._calls[request_id]
            handler.on_done(_failure(code, body))
            return None
        segments = handler.on_reply(body, payload_bytes)
        if payload_bytes and segments is not None and request_id in self._calls:
            self._receiving = (request_id, last)
            return segments
        if last and self._calls.pop(request_id, None) is not None:
            handler.on_done(None)
        return None

    def payload_received(self) -> None:
        """See `FrameHandler`."""
        assert self._receiving is not None
        (request_id, last), self._receiving = self._receiving, None
        handler = self._calls.get(request_id)
        if handler is None:
            return
        handler.on_payload()
        if last and self._calls.pop(request_id, None) is not None:
            handler.on_done(None)

    def stream_closed(self, error: EskerError | None) -> None:
        """See `FrameHandler`."""
        self._receiving = None
        calls, self._calls = self._calls, {}
        for handler in calls.values():  # an error each: they are raised in different tasks
            handler.on_done(ConnectionFailed(f"{self.address}: {error or 'the connection was closed'}"))


class IgnoredReply:
    """The handler of a request whose answer nobody needs."""

    __slots__ = ()

    def on_reply(self, body: bytes | bytearray, payload_bytes: int) -> None:
        """See `ReplyHandler`."""

    def on_payload(self) -> None:
        """See `ReplyHandler`."""

    def on_done(self, error: EskerError | None) -> None:
        """See `ReplyHandler`."""


class _Unary:
    """The handler of a request with one small reply."""

    __slots__ = ("_reply", "future")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.future: asyncio.Future[bytes | bytearray] = loop.create_future()
        self._reply: bytes | bytearray = b""

    def on_reply(self, body: bytes | bytearray, payload_bytes: int) -> None:
        self._reply = body

    def on_payload(self) -> None:
        raise AssertionError("no memory was named")

    def on_done(self, error: EskerError | None) -> None:
        if self.future.done():
            return
        if error is None:
            self.future.set_result(self._reply)
        else:
            self.future.set_exception(error)


def _failure(code: int, body: bytes | bytearray) -> EskerError:
    try:
        return RequestFailed(Status(code), decode_body(Failure, body).message)
    except (RequestFailed, ValueError):
        return ProtocolError(f"a failure with unknown status {code}")


async def _connect(address: Address, timeout_s: float) -> socket.socket:
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(timeout_s):
            if isinstance(address, UnixAddress):
                return await _connect_to(loop, socket.AF_UNIX, address.path)
            infos = await loop.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
            for info in infos[:-1]:
                with contextlib.suppress(OSError):
                    return await _connect_to(loop, info[0], info[4])
            return await _connect_to(loop, infos[-1][0], infos[-1][4])
    except TimeoutError:
        raise ConnectionFailed(f"{address} did not accept a connection within {timeout_s:.3g} s") from None
    except (OSError, ValueError, OverflowError) as error:
        number = getattr(error, "errno", None) or 0
        why = os.strerror(number) if number > 0 else getattr(error, "strerror", None) or error
        raise ConnectionFailed(f"cannot connect to {address}: {why}") from error


async def _connect_to(loop: asyncio.AbstractEventLoop, family: int, place: Any) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        if family != socket.AF_UNIX:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await loop.sock_connect(sock, place)
    except BaseException:
        sock.close()
        raise
    return sock
