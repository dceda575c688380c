"""The frame's header: golden bytes, round trips, and a clear refusal of everything else."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from esker.wire import framing
from esker.wire.errors import ProtocolError
from esker.wire.framing import HEADER, MAGIC, Kind, decode, encode
from esker.wire.limits import BODY_BYTES_MAX, HEADER_BYTES, PAYLOAD_BYTES_MAX
from esker.wire.messages import PROTOCOL_VERSION

GOOD = (MAGIC, PROTOCOL_VERSION, int(Kind.REPLY), 7, 99, 3, 0, 4096)
FIELDS = ("magic", "version", "kind", "code", "request_id", "body_bytes", "reserved", "payload_bytes")


def header(**changes: int) -> bytes:
    """A good header but for `changes`."""
    return HEADER.pack(*(changes.get(name, value) for name, value in zip(FIELDS, GOOD, strict=True)))


def test_golden_bytes() -> None:
    frame = encode(Kind.REQUEST, 16, 0x0102030405060708, b"body", 0x0A0B0C)
    assert frame.hex(" ", 4) == "b545534b 01011000 08070605 04030201 04000000 00000000 0c0b0a00 00000000 626f6479"


@given(
    kind=st.sampled_from(Kind),
    code=st.integers(0, 2**16 - 1),
    request_id=st.integers(0, 2**64 - 1),
    body=st.binary(max_size=100),
    payload_bytes=st.integers(0, PAYLOAD_BYTES_MAX),
    offset=st.integers(0, 50),
)
def test_round_trip(kind: Kind, code: int, request_id: int, body: bytes, payload_bytes: int, offset: int) -> None:
    frame = encode(kind, code, request_id, body, payload_bytes)
    assert frame[HEADER_BYTES:] == body
    assert decode(bytes(offset) + frame, offset) == (kind, code, request_id, len(body), payload_bytes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"magic": MAGIC ^ 1}, r"bad magic 0x4b5345b4: the peer does not speak esker's protocol"),
        ({"magic": 0x20544547}, r"bad magic 0x20544547: the peer"),
        ({"version": 0}, r"protocol version 0; this side speaks 1$"),
        ({"version": 2}, r"protocol version 2; this side speaks 1$"),
        ({"kind": 0}, r"unknown frame kind 0 "),
        ({"kind": 4}, r"unknown frame kind 4 "),
        ({"kind": 255}, r"unknown frame kind 255 "),
        ({"reserved": 1}, r"reserved field 1"),
        ({"body_bytes": BODY_BYTES_MAX + 1}, rf"body of {BODY_BYTES_MAX + 1} bytes; allowed: {BODY_BYTES_MAX}$"),
        ({"body_bytes": 2**32 - 1}, r"body of 4294967295 bytes"),
        ({"payload_bytes": PAYLOAD_BYTES_MAX + 1}, rf"payload of .* bytes; allowed: {PAYLOAD_BYTES_MAX}$"),
        ({"payload_bytes": 2**64 - 1}, r"payload of 18446744073709551615 bytes"),
    ],
)
def test_what_is_not_spoken_is_refused_with_what_was_found_and_what_is_allowed(
    changes: dict[str, int], message: str
) -> None:
    with pytest.raises(ProtocolError, match=message):
        decode(header(**changes))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"body_bytes": BODY_BYTES_MAX},
        {"payload_bytes": PAYLOAD_BYTES_MAX},
        {"body_bytes": 0, "payload_bytes": 0},
        {"code": 2**16 - 1, "request_id": 2**64 - 1},
    ],
)
def test_the_limits_themselves_are_allowed(changes: dict[str, int]) -> None:
    fields = dict(zip(FIELDS, GOOD, strict=True)) | changes
    expected = tuple(fields[name] for name in ("kind", "code", "request_id", "body_bytes", "payload_bytes"))
    assert decode(header(**changes)) == expected


@given(st.binary(min_size=HEADER_BYTES, max_size=HEADER_BYTES))
def test_random_bytes_raise_nothing_else(noise: bytes) -> None:
    # The magic and version of a true header, so that the fields behind them are reached too.
    for candidate in (noise, header()[:5] + noise[5:], header()[:8] + noise[8:], header()[:20] + noise[20:]):
        try:
            kind, _, _, body_bytes, payload_bytes = decode(candidate)
        except ProtocolError:
            continue
        assert kind in set(Kind)
        assert body_bytes <= BODY_BYTES_MAX
        assert payload_bytes <= PAYLOAD_BYTES_MAX


def test_a_short_header_is_the_callers_mistake() -> None:
    with pytest.raises(struct.error):
        decode(header()[:-1])


def test_an_http_request_is_told_apart_by_its_first_byte() -> None:
    with pytest.raises(ProtocolError, match="does not speak esker's protocol"):
        decode(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert struct.pack("<I", MAGIC)[0] >= 0x80
    assert set(framing.REPLY_KINDS) == set(Kind) - {Kind.REQUEST}
