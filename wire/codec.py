"""Bodies to and from bytes. Decoding checks types; what a handler asks beyond that it checks itself."""

from functools import cache
from typing import Any, TypeVar

import msgspec

from esker.wire.errors import RequestFailed
from esker.wire.messages import Message
from esker.wire.status import Status

encode_body = msgspec.msgpack.Encoder().encode


M = TypeVar("M", bound=Message)


@cache
def _decoder(message_type: type[Message]) -> msgspec.msgpack.Decoder[Any]:
    return msgspec.msgpack.Decoder(message_type)


def decode_body(message_type: type[M], body: bytes | bytearray) -> M:
    """The message in `body`. Raises `RequestFailed` (BAD_REQUEST) where it is not one."""
    try:
        message: M = _decoder(message_type).decode(body)
        return message
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise RequestFailed(Status.BAD_REQUEST, f"malformed {message_type.__name__}: {error}") from None
