"""Bodies about damage and scrubbing do not change by accident."""

import msgspec
import pytest

from esker.wire.codec import decode_body, encode_body
from esker.wire.messages import Message, Method
from esker.wire.scrub_messages import DAMAGED_EXTENT, Damaged, Scrub, ScrubPass, ScrubReply

PASS = ScrubPass(3, 1000, 2000, 5, 6, 7, 4, 2, 1)
PASS_VALUES = [3, 1000, 2000, 5, 6, 7, 4, 2, 1]


@pytest.mark.parametrize(
    ("message", "values"),
    [
        (Damaged(7, b"extents"), [7, b"extents"]),
        (Scrub(True, 9), [True, 9]),
        (PASS, PASS_VALUES),
        (ScrubReply(PASS, None, 10, 11, 12), [PASS_VALUES, None, 10, 11, 12]),
    ],
)
def test_what_travels(message: Message, values: list[object]) -> None:
    assert msgspec.msgpack.decode(encode_body(message))[: len(values)] == values
    assert decode_body(type(message), msgspec.msgpack.encode([*values, "more"])) == message


def test_column_and_numbers_are_part_of_the_protocol() -> None:
    row = DAMAGED_EXTENT.pack(bytes(range(16)), 2, 3, 4)
    assert row == bytes(range(16)) + bytes.fromhex("02000000 03000000 0400000000000000")
    assert (Method.DAMAGED, Method.SCRUB) == (27, 28)
