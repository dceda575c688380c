"""Records: what is written is read, and nothing else is."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh3_64_intdigest

from esker.chunkserver.engine.errors import CorruptRecord
from esker.chunkserver.engine.record import (
    FORMAT,
    Record,
    chain_prefix,
    decode_for_read,
    decode_record,
    encode_record,
    record_key,
)
from esker.wire.ids import chunk_id
from esker.wire.limits import ALIGN_BYTES, CHUNK_BYTES_MAX, KEY_BYTES_MAX, MIB, checksum_blocks
from esker.wire.messages import READ_RESULT

U32 = st.integers(0, 2**32 - 1)
U64 = st.integers(0, 2**64 - 1)
KEY = record_key(7, chunk_id(1, b"o" * 16, 3))


@st.composite
def records(draw: st.DrawFn, length_max: int = 4 * MIB) -> Record:
    length = draw(st.integers(0, length_max))
    pages_min = max(1, -(-length // ALIGN_BYTES))
    return Record(
        length=length,
        version=draw(U64),
        chain_version=draw(U32),
        block_bytes=draw(U64),
        chunk_count=draw(U32),
        put_id=draw(st.binary(min_size=16, max_size=16)),
        created_ms=draw(U64),
        checksums=draw(st.binary(min_size=8, max_size=8)) * checksum_blocks(length),
        key=draw(st.binary(max_size=KEY_BYTES_MAX)),
        pages=draw(st.integers(pages_min, CHUNK_BYTES_MAX // ALIGN_BYTES)),
        slot=draw(U32),
        flags=draw(st.integers(0, 255)),
    )


def example() -> Record:
    return Record(100_000, 5, 2, 300_000, 3, b"p" * 16, 1_700_000_000_000, b"12345678" * 2, b"the key", 25, 9)


@given(records(), st.binary(min_size=28, max_size=28))
def test_round_trip(record: Record, key: bytes) -> None:
    assert decode_record(key, encode_record(key, record)) == record


@given(records())
def test_what_a_read_gets(record: Record) -> None:
    length, pages, slot, result, checksums = decode_for_read(KEY, encode_record(KEY, record))
    assert (length, pages, slot, checksums) == (record.length, record.pages, record.slot, record.checksums)
    expected = READ_RESULT.pack(
        5, 0, record.length, record.version, record.block_bytes, record.chunk_count, record.put_id
    )
    assert struct.pack("<HH", 5, 0) + result == expected


def test_the_largest_chunk() -> None:
    record = example()._replace(length=CHUNK_BYTES_MAX, checksums=bytes(8 * 1024), pages=16384)
    assert decode_record(KEY, encode_record(KEY, record)) == record


def test_every_flipped_bit_is_noticed() -> None:
    value = encode_record(KEY, example())
    for bit in range(8 * len(value)):
        damaged = bytearray(value)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptRecord):
            decode_for_read(KEY, bytes(damaged))


def test_every_other_length_is_noticed() -> None:
    value = encode_record(KEY, example())
    for length in range(len(value)):
        with pytest.raises(CorruptRecord):
            decode_for_read(KEY, value[:length])
    with pytest.raises(CorruptRecord):
        decode_record(KEY, value + b"\0")


@given(st.binary(max_size=400))
def test_garbage_is_no_record(value: bytes) -> None:
    with pytest.raises(CorruptRecord):
        decode_for_read(KEY, value)


def test_a_record_answers_only_for_its_own_key() -> None:
    value = encode_record(KEY, example())
    with pytest.raises(CorruptRecord, match="fails its checksum"):
        decode_for_read(record_key(8, KEY[4:]), value)


def forged(**changes: int) -> bytes:
    """A record with other fields and a matching checksum, as a bug would write it."""
    fields = {"at_0": FORMAT, "at_8": 25, "at_10": 0, "at_24": 100_000, **changes}
    body = bytearray(encode_record(KEY, example())[:-8])
    body[0] = fields["at_0"]
    struct.pack_into("<H", body, 8, fields["at_8"])
    struct.pack_into("<H", body, 10, fields["at_10"])
    struct.pack_into("<I", body, 24, fields["at_24"])
    return bytes(body) + struct.pack("<Q", xxh3_64_intdigest(KEY + bytes(body)))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"at_0": 2}, "has format 2; this version reads 1"),
        ({"at_8": 0}, "contradicts itself"),
        ({"at_8": 24}, "contradicts itself"),
        ({"at_8": 16385}, "contradicts itself"),
        ({"at_10": 1}, "contradicts itself"),
        ({"at_24": 200_000}, "contradicts itself"),
        ({"at_24": 10}, "contradicts itself"),
    ],
)
def test_a_record_that_contradicts_itself(changes: dict[str, int], message: str) -> None:
    decode_for_read(KEY, forged())
    with pytest.raises(CorruptRecord, match=message):
        decode_for_read(KEY, forged(**changes))


def test_keys_sort_by_chain_then_chunk() -> None:
    keys = [
        record_key(chain, chunk_id(space, bytes([number]) * 16, index))
        for chain in (0, 1, 255, 256, 2**32 - 1)
        for space in (1, 2)
        for number in (0, 200)
        for index in (0, 1, 256)
    ]
    assert keys == sorted(keys)
    assert all(len(key) == 28 for key in keys)
    assert keys[0].startswith(chain_prefix(0))


def test_golden_bytes() -> None:
    """The format on the drive does not change by accident."""
    assert encode_record(KEY, example()).hex() == GOLDEN


GOLDEN = (
    "010007000200000019000000090000000068e5cf8b010000a08601000500000000000000e09304000000000003000000"
    "7070707070707070707070707070707031323334353637383132333435363738746865206b65798b0d8993285903d4"
)
