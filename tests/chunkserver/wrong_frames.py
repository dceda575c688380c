"""Bytes that no server may take for a request, and a peer that sends them."""

import asyncio

from esker.wire import framing
from esker.wire.codec import encode_body
from esker.wire.limits import BODY_BYTES_MAX, PAYLOAD_BYTES_MAX
from esker.wire.messages import PROTOCOL_VERSION, Hello, Method
from esker.wire.rpc_client import TcpAddress

from ..waiting import WAIT_S


def frame(method: int, body: bytes, *, request_id: int = 1) -> bytes:
    return framing.encode(framing.Kind.REQUEST, method, request_id, body)


HELLO = frame(Method.HELLO, encode_body(Hello((PROTOCOL_VERSION,), "", "client", "", "")))
HEADER = framing.HEADER
WRONG_FRAMES = {
    "http": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n" + b" " * 32,
    "zeros": bytes(64),
    "ones": b"\xff" * 64,
    "version": HEADER.pack(framing.MAGIC, PROTOCOL_VERSION + 1, 1, Method.HELLO, 1, 0, 0, 0),
    "kind": HEADER.pack(framing.MAGIC, PROTOCOL_VERSION, 9, Method.HELLO, 1, 0, 0, 0),
    "reserved": HEADER.pack(framing.MAGIC, PROTOCOL_VERSION, 1, Method.HELLO, 1, 0, 1, 0),
    "body too long": HEADER.pack(framing.MAGIC, PROTOCOL_VERSION, 1, Method.HELLO, 1, BODY_BYTES_MAX + 1, 0, 0),
    "payload too long": HEADER.pack(framing.MAGIC, PROTOCOL_VERSION, 1, Method.READ, 1, 0, 0, PAYLOAD_BYTES_MAX + 1),
    "no handshake": frame(Method.READ, b"\x90"),
    "handshake of garbage": frame(Method.HELLO, b"\xc1" * 10),
    "a reply": HELLO + framing.encode(framing.Kind.REPLY, 0, 1, b"\x90"),
}


async def talk(address: TcpAddress | str, sent: bytes) -> bytes:
    """Everything the worker says before it closes the connection."""
    async with asyncio.timeout(WAIT_S):
        if isinstance(address, str):
            reader, writer = await asyncio.open_unix_connection(address)
        else:
            reader, writer = await asyncio.open_connection(address.host, address.port)
        writer.write(sent)
        try:
            return await reader.read()
        except ConnectionResetError:
            return b""
        finally:
            writer.close()
