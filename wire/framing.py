"""The frame: a fixed header, a body, a payload. Pure bytes in, values out; knows no socket.

Header (32 bytes, little-endian): magic u32 | version u8 | kind u8 | code u16 | request id u64 | body length u32 |
reserved u32 (zero) | payload length u64. `code` is a `Method` in requests and a `Status` in replies.
"""

import struct
from enum import IntEnum

from esker.wire.errors import ProtocolError
from esker.wire.limits import BODY_BYTES_MAX, HEADER_BYTES, PAYLOAD_BYTES_MAX
from esker.wire.messages import PROTOCOL_VERSION

MAGIC = 0x4B_53_45_B5  # b"\xb5ESK" on the wire: not text, so that a stray HTTP client is told apart at once
HEADER = struct.Struct("<IBBHQIIQ")
assert HEADER.size == HEADER_BYTES


class Kind(IntEnum):
    """What a frame is."""

    REQUEST = 1
    REPLY = 2
    """The last or only reply to its request."""
    PARTIAL = 3
    """A reply that others follow."""


REPLY_KINDS = (Kind.REPLY, Kind.PARTIAL)


def encode(kind: int, code: int, request_id: int, body: bytes, payload_bytes: int = 0) -> bytes:
    """Header and body of a frame, ready to be sent before its payload."""
    return HEADER.pack(MAGIC, PROTOCOL_VERSION, kind, code, request_id, len(body), 0, payload_bytes) + body


def decode(header: bytes | bytearray | memoryview, offset: int = 0) -> tuple[int, int, int, int, int]:
    """(kind, code, request id, body length, payload length) of the header at `offset`.

    Raises `ProtocolError`, with what was found and what is allowed, for anything this version does not speak.
    """
    magic, version, kind, code, request_id, body_bytes, reserved, payload_bytes = HEADER.unpack_from(header, offset)
    if magic != MAGIC:
        raise ProtocolError(f"bad magic 0x{magic:08x}: the peer does not speak esker's protocol")
    if version != PROTOCOL_VERSION:
        raise ProtocolError(f"protocol version {version}; this side speaks {PROTOCOL_VERSION}")
    if not Kind.REQUEST <= kind <= Kind.PARTIAL or reserved:
        raise ProtocolError(f"unknown frame kind {kind} (reserved field {reserved})")
    if body_bytes > BODY_BYTES_MAX:
        raise ProtocolError(f"body of {body_bytes} bytes; allowed: {BODY_BYTES_MAX}")
    if payload_bytes > PAYLOAD_BYTES_MAX:
        raise ProtocolError(f"payload of {payload_bytes} bytes; allowed: {PAYLOAD_BYTES_MAX}")
    return kind, code, request_id, body_bytes, payload_bytes
