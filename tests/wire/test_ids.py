"""Ids decide where blocks lie, so they never change: golden vectors."""

from hashlib import blake2b

import pytest
from hypothesis import given
from hypothesis import strategies as st

from esker.wire.ids import NO_PUT_ID, block_object, block_objects, chunk_id, object_slot
from esker.wire.limits import CHUNK_ID_BYTES, KEY_BYTES_MAX, OBJECT_BYTES, PLACEMENT_SLOTS, PUT_ID_BYTES

SALT = bytes(range(32))


@pytest.mark.parametrize(
    ("key", "salt", "expected"),
    [
        (b"", b"", "cae66941d9efbd404e4d88758ea67670"),
        (b"key", b"", "82af27c64245bfd15a520134b44e6bb1"),
        (b"key", SALT, "a3b17c0f0a3a3f859b4b43820bedf824"),
        (b"key", bytes(64), "8b0a0a3b2e7250ad82c29b9853862262"),
        (b"k" * KEY_BYTES_MAX, SALT, "52790e76e719bf01ab81affeb9f8fe49"),
    ],
    ids=["empty", "without salt", "with salt", "longest salt", "longest key"],
)
def test_golden_objects(key: bytes, salt: bytes, expected: str) -> None:
    assert block_object(key, salt).hex() == expected


@given(st.lists(st.binary(max_size=300), max_size=5), st.binary(max_size=64))
def test_objects_in_bulk_are_those_one_by_one(keys: list[bytes], salt: bytes) -> None:
    assert block_objects(keys, salt) == [block_object(key, salt) for key in keys]
    assert all(blake2b(key, digest_size=16, key=salt).digest() == block_object(key, salt) for key in keys)


def test_golden_chunk_id() -> None:
    assert chunk_id(0x01020304, bytes(range(16)), 0x0A0B0C0D).hex(" ", 4) == (
        "01020304 00010203 04050607 08090a0b 0c0d0e0f 0a0b0c0d"
    )


@given(
    st.lists(
        st.tuples(st.integers(0, 2**32 - 1), st.binary(min_size=16, max_size=16), st.integers(0, 2**32 - 1)), max_size=8
    )
)
def test_the_order_of_chunk_ids_is_that_of_their_parts(parts: list[tuple[int, bytes, int]]) -> None:
    assert sorted(chunk_id(*part) for part in parts) == [chunk_id(*part) for part in sorted(parts)]


def test_sizes_are_the_limits() -> None:
    assert len(chunk_id(1, bytes(16))) == CHUNK_ID_BYTES
    assert len(block_object(b"k", b"")) == OBJECT_BYTES
    assert len(NO_PUT_ID) == PUT_ID_BYTES
    assert not any(NO_PUT_ID)


def test_the_slot_is_the_objects_low_16_bits() -> None:
    assert object_slot(bytes(14) + b"\x12\x34") == 0x1234
    assert object_slot(b"\xff" * 16) == PLACEMENT_SLOTS - 1
    assert object_slot(b"\xff" * 14 + bytes(2)) == 0
