"""Servers to test clients against, clients to test servers with, and bare peers that send what they like."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from esker.wire import framing
from esker.wire.codec import decode_body, encode_body
from esker.wire.errors import EskerError
from esker.wire.framing import Kind
from esker.wire.limits import HEADER_BYTES
from esker.wire.messages import PROTOCOL_VERSION, Hello, HelloReply, Message, Method
from esker.wire.rpc_client import Address, Connection, TcpAddress, UnixAddress
from esker.wire.rpc_server import Handler, Identity, RpcServer, ServerConnection
from esker.wire.status import Status

WAIT_S = 10.0
IDENTITY = Identity("cluster-1", "drive-1", "life-1")


@dataclass
class Frame:
    """A frame as a bare peer got it."""

    kind: int
    code: int
    request_id: int
    body: bytes
    payload: bytes


class BarePeer:
    """One end of a connection without any manners."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def connect(cls, address: Address) -> "BarePeer":
        if isinstance(address, UnixAddress):
            return cls(*await asyncio.open_unix_connection(address.path))
        return cls(*await asyncio.open_connection(address.host, address.port))

    @classmethod
    async def greeted(cls, address: Address, role: str = "client", peer_id: str = "") -> "BarePeer":
        """Connected, after a proper handshake."""
        peer = await cls.connect(address)
        peer.request(Method.HELLO, 0, Hello((PROTOCOL_VERSION,), "", role, peer_id, "life-1"))
        assert (await peer.frame()).code == Status.OK
        return peer

    def give(self, data: bytes) -> None:
        self._writer.write(data)

    def request(self, method: int, request_id: int, body: Message | bytes, payload: bytes = b"") -> None:
        self._frame(Kind.REQUEST, method, request_id, body, payload)

    def reply(
        self, request_id: int, body: Message | bytes, payload: bytes = b"", *, more: bool = False, code: int = 0
    ) -> None:
        self._frame(Kind.PARTIAL if more else Kind.REPLY, code, request_id, body, payload)

    def _frame(self, kind: int, code: int, request_id: int, body: Message | bytes, payload: bytes) -> None:
        encoded = body if isinstance(body, bytes) else encode_body(body)
        self.give(framing.encode(kind, code, request_id, encoded, len(payload)) + payload)

    async def frame(self) -> Frame:
        async with asyncio.timeout(WAIT_S):
            header = await self._reader.readexactly(HEADER_BYTES)
            kind, code, request_id, body_bytes, payload_bytes = framing.decode(header)
            body = await self._reader.readexactly(body_bytes)
            return Frame(kind, code, request_id, body, await self._reader.readexactly(payload_bytes))

    async def greet(self, reply: HelloReply | None = None) -> None:
        """Answers the handshake that comes."""
        hello = await self.frame()
        assert hello.code == Method.HELLO
        self.reply(hello.request_id, reply or HelloReply(PROTOCOL_VERSION, "cluster-1", "drive-1", "life-1"))

    async def ended(self) -> bytes:
        """Waits until the other side has closed; returns what it said before."""
        said = bytearray()
        async with asyncio.timeout(WAIT_S):
            try:
                while data := await self._reader.read(65536):
                    said += data
            except ConnectionResetError:
                pass
        return bytes(said)

    def close(self) -> None:
        self._writer.close()

    def abort(self) -> None:
        """Closes without delay, dropping what is not sent yet."""
        self._writer.transport.abort()


@dataclass
class Served:
    """A server that listens on both kinds of address."""

    server: RpcServer
    tcp: TcpAddress
    unix: UnixAddress

    def address(self, kind: str) -> Address:
        return self.unix if kind == "unix" else self.tcp

    async def connect(self, kind: str = "tcp", **hello: Any) -> Connection:
        return await Connection.connect(self.address(kind), **{"role": "client", **hello})


@asynccontextmanager
async def serving(
    directory: Path,
    handlers: Mapping[Method, Handler] | None = None,
    on_connect: Callable[[ServerConnection], None] | None = None,
) -> AsyncIterator[Served]:
    """A server while the block runs."""
    server = RpcServer(handlers or {}, IDENTITY, on_connect=on_connect)
    path = str(directory / "socket")
    port = await server.listen_tcp("127.0.0.1", 0)
    await server.listen_unix(path)
    try:
        yield Served(server, TcpAddress("127.0.0.1", port), UnixAddress(path))
    finally:
        await server.aclose()


@asynccontextmanager
async def bare_server() -> AsyncIterator[tuple[TcpAddress, Callable[[], Any]]]:
    """A listener, and a way to wait for the next connection to it, as a bare peer."""
    arrived: asyncio.Queue[BarePeer] = asyncio.Queue()
    peers = []

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peers.append(BarePeer(reader, writer))
        arrived.put_nowait(peers[-1])

    async def next_peer() -> BarePeer:
        async with asyncio.timeout(WAIT_S):
            return await arrived.get()

    listener = await asyncio.start_server(accept, "127.0.0.1", 0)
    try:
        yield TcpAddress("127.0.0.1", listener.sockets[0].getsockname()[1]), next_peer
    finally:
        listener.close()
        for peer in peers:
            peer.abort()


class Replies:
    """A reply handler that notes every call. `place` says where payload goes; without it, nowhere."""

    def __init__(self, place: Callable[[int], Sequence[memoryview] | None] | None = None) -> None:
        self.place = place or (lambda size: None)
        self.calls: list[str] = []
        self.bodies: list[bytes] = []
        self.error: EskerError | None = None
        self.on_body: Callable[[], None] = lambda: None
        self._done = asyncio.Event()

    def on_reply(self, body: bytes | bytearray, payload_bytes: int) -> Sequence[memoryview] | None:
        self.calls.append(f"reply {payload_bytes}")
        self.bodies.append(bytes(body))
        self.on_body()
        return self.place(payload_bytes) if payload_bytes else None

    def on_payload(self) -> None:
        self.calls.append("payload")

    def on_done(self, error: EskerError | None) -> None:
        self.calls.append("done")
        self.error = error
        self._done.set()

    async def done(self) -> None:
        async with asyncio.timeout(WAIT_S):
            await self._done.wait()

    def decoded(self, message_type: type[Any]) -> list[Any]:
        return [decode_body(message_type, body) for body in self.bodies]
