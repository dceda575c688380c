"""The record of one chunk in a drive's index, as bytes and as an object. Pure.

Record key (28 bytes): chain id u32 big-endian | chunk id (24 bytes), so that one scan gives a chain's chunks in order.

Value, little-endian:

    format u8 | flags u8 | key length u16 | chain version u32 | slot class u16, in 4 KiB pages | reserved u16, zero |
    slot u32 | created u64, ms | length u32 | version u64 | block bytes u64 | chunk count u32 | put id 16 bytes |
    XXH3-64 u64 of each started 64 KiB of the chunk | the block's key | XXH3-64 u64 of record key and all before

The stretch from length to put id is, byte for byte, the tail of a READ result on the wire, so a read passes it on as it
is. A value that fails its checksum, or whose parts contradict each other, raises `CorruptRecord` and nothing of it is
used. The checksum covers the record key: a record can never answer for another chunk.
"""

import struct
from typing import NamedTuple

from xxhash import xxh3_64_intdigest

from esker.chunkserver.engine.errors import CorruptRecord
from esker.wire.ids import FILE_SPACE
from esker.wire.limits import ALIGN_BYTES, CHECKSUM_BLOCK_BYTES, CHUNK_BYTES_MAX, CHUNK_ID_BYTES, checksum_blocks

FORMAT = 1
RECORD_KEY_BYTES = 4 + CHUNK_ID_BYTES
SLOT_PAGES_MAX = CHUNK_BYTES_MAX // ALIGN_BYTES

_CHAIN = struct.Struct(">I")
_HEADER = struct.Struct("<BBHIHHIQIQQI16s")
_FOR_READ = struct.Struct("<BxHxxxxHHI8xI")
"""Format, key length, slot class, reserved, slot and length: the header's fields that a read needs."""
_DIGEST = struct.Struct("<Q")
_RESULT_AT = 24
_HEADER_BYTES = _HEADER.size
_BASE_BYTES = _HEADER_BYTES + _DIGEST.size
_BLOCK_MASK = CHECKSUM_BLOCK_BYTES - 1
_BLOCK_SHIFT = CHECKSUM_BLOCK_BYTES.bit_length() - 1

ReadRecord = tuple[int, int, int, bytes, bytes]
"""Length, slot class in pages, slot, the tail of the READ result (40 bytes), checksums (u64 each)."""


class Record(NamedTuple):
    """All that is known of one chunk."""

    length: int
    """Bytes of the chunk, without padding."""
    version: int
    chain_version: int
    block_bytes: int
    """Length of the whole block that the chunk is part of."""
    chunk_count: int
    put_id: bytes
    created_ms: int
    checksums: bytes
    """XXH3-64 of each started 64 KiB, u64 little-endian, concatenated."""
    key: bytes
    pages: int
    """Size of the slot in 4 KiB pages."""
    slot: int
    """Number of the slot in its class."""
    flags: int = 0


def record_key(chain_id: int, chunk_id: bytes) -> bytes:
    """The index key of a chunk (24-byte id) on one chain."""
    return _CHAIN.pack(chain_id) + chunk_id


def is_mutable(record_key: bytes) -> bool:
    """Whether a record key is of a mutable chunk."""
    return int.from_bytes(record_key[4:8], "big") == FILE_SPACE


def chain_prefix(chain_id: int) -> bytes:
    """What the record keys of a chain begin with."""
    return _CHAIN.pack(chain_id)


def encode_record(record_key: bytes, record: Record) -> bytes:
    """The value stored under `record_key`."""
    assert len(record_key) == RECORD_KEY_BYTES, len(record_key)
    assert len(record.checksums) == 8 * checksum_blocks(record.length), (len(record.checksums), record.length)
    assert record.length <= record.pages * ALIGN_BYTES, (record.length, record.pages)
    body = b"".join(
        (
            _HEADER.pack(
                FORMAT,
                record.flags,
                len(record.key),
                record.chain_version,
                record.pages,
                0,
                record.slot,
                record.created_ms,
                record.length,
                record.version,
                record.block_bytes,
                record.chunk_count,
                record.put_id,
            ),
            record.checksums,
            record.key,
        )
    )
    return body + _DIGEST.pack(xxh3_64_intdigest(record_key + body))


def decode_for_read(record_key: bytes, value: bytes) -> ReadRecord:
    """What a read needs of a record, as cheaply as can be. Raises `CorruptRecord`."""
    size = len(value)
    if size < _BASE_BYTES:
        raise CorruptRecord(f"record of {size} bytes is shorter than {_BASE_BYTES}")
    form, key_length, pages, reserved, slot, length = _FOR_READ.unpack_from(value)
    checksums_end = _HEADER_BYTES + (((length + _BLOCK_MASK) >> _BLOCK_SHIFT) << 3)
    if (
        xxh3_64_intdigest(record_key + value[:-8]) != int.from_bytes(value[-8:], "little")
        or checksums_end + key_length + 8 != size
        or form != FORMAT
        or reserved
        or not 0 < pages <= SLOT_PAGES_MAX
        or length > pages * ALIGN_BYTES
    ):
        raise CorruptRecord(_what_is_wrong(record_key, value))
    return length, pages, slot, value[_RESULT_AT:_HEADER_BYTES], value[_HEADER_BYTES:checksums_end]


def decode_record(record_key: bytes, value: bytes) -> Record:
    """The whole record. Raises `CorruptRecord`."""
    _, _, _, _, checksums = decode_for_read(record_key, value)
    (
        _,
        flags,
        key_length,
        chain_version,
        pages,
        _,
        slot,
        created_ms,
        length,
        version,
        block_bytes,
        chunk_count,
        put_id,
    ) = _HEADER.unpack_from(value)
    key = value[-8 - key_length : -8]
    return Record(
        length, version, chain_version, block_bytes, chunk_count, put_id, created_ms, checksums, key, pages, slot, flags
    )


def _what_is_wrong(record_key: bytes, value: bytes) -> str:
    """For the log."""
    form, key_length, pages, reserved, slot, length = _FOR_READ.unpack_from(value)
    if xxh3_64_intdigest(record_key + value[:-8]) != int.from_bytes(value[-8:], "little"):
        return f"record of {len(value)} bytes fails its checksum"
    if form != FORMAT:
        return f"record has format {form}; this version reads {FORMAT}"
    return (
        f"record of {len(value)} bytes contradicts itself: length {length}, key length {key_length}, "
        f"slot {slot} of {pages} pages, reserved {reserved}"
    )
