"""Mooncake's trace format: one JSON object a line, one line a request.

    {"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": [46, 47, 2353, 2354]}

`timestamp` is in milliseconds from the trace's start; lengths are in tokens; `hash_ids` name the request's blocks
(512 tokens each in the published traces) in order. An id stands for its block *and all blocks before it*, so equal
ids are equal prefixes. `output_length` may be missing; other fields are ignored, blank lines too.

Owns: this file format. Must not know: what the ids are used for.
Invariant: what `read_trace` yields is valid; anything else raised a `UserError` that names file and line.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated

import msgspec

from esker.wire.errors import UserError

Count = Annotated[int, msgspec.Meta(ge=0)]
HASH_ID_MAX = 2**64 - 1


class TraceRequest(msgspec.Struct, frozen=True):
    """One request. `timestamp` in ms, lengths in tokens."""

    timestamp: Annotated[float, msgspec.Meta(ge=0)]
    input_length: Count
    hash_ids: Annotated[tuple[Count, ...], msgspec.Meta(min_length=1)]
    output_length: Count = 0


def read_trace(path: Path, limit: int | None = None) -> Iterator[TraceRequest]:
    """Yields the requests of the file, at most `limit`.

    Raises `UserError` for a file that cannot be read, for the first malformed line (with its number and what is
    wrong with it), and for a file without any request.
    """
    decoder = msgspec.json.Decoder(TraceRequest)
    found = 0
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if found == limit:
                    return
                if line.strip():
                    yield _parse(decoder, line, f"{path}:{number}")
                    found += 1
    except OSError as error:
        raise UserError(f"cannot read the trace {path}: {error.strerror}") from error
    if not found:
        raise UserError(f"the trace {path} holds no request; expected one JSON object a line")


def _parse(decoder: msgspec.json.Decoder[TraceRequest], line: bytes, place: str) -> TraceRequest:
    try:
        request = decoder.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UserError(f"{place}: not a trace request: {error}") from error
    largest = max(request.hash_ids)
    if largest > HASH_ID_MAX:
        raise UserError(f"{place}: not a trace request: hash id {largest} does not fit in 64 bits")
    return request


def format_request(request: TraceRequest) -> bytes:
    """The request as a line, newline included, with the fields in the published traces' order."""
    timestamp = request.timestamp
    fields = {
        "timestamp": int(timestamp) if timestamp == int(timestamp) else timestamp,
        "input_length": request.input_length,
        "output_length": request.output_length,
        "hash_ids": request.hash_ids,
    }
    return msgspec.json.encode(fields) + b"\n"


def write_trace(path: Path, requests: Iterable[TraceRequest]) -> None:
    """Writes the requests to `path`. Raises `UserError` where that cannot be done."""
    try:
        with path.open("wb") as file:
            file.writelines(map(format_request, requests))
    except OSError as error:
        raise UserError(f"cannot write the trace {path}: {error.strerror}") from error
