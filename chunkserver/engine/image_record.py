"""The images of a mutable chunk in a drive's index, and the last writes of channels, as bytes and as objects. Pure.

Image key (29 bytes): record key of the chunk (chain id u32 | chunk id, big-endian) | which u8: 0 committed, 1 pending;
so one scan gives a chain's chunks in order, and the two images of a chunk stand together.

Value, little-endian:

    format u8 | flags u8 (1: absent) | slot class u16, in 4 KiB pages | chain version u32 | slot u32 | length u32 |
    version u64 | truncate version u64 | previous version u64 | slot bytes u32 |
    origin: client 16 bytes, channel u32, sequence u64 | the channel's write before: sequence u64, version u64,
    length u32 |
    XXH3-64 u64 of each started 64 KiB | XXH3-64 u64 of image key and all before

Channel key (24 bytes): chain id u32 | client 16 bytes | channel u32, big-endian. Value, little-endian:

    format u8 | length u32 | sequence u64 | version u64 | XXH3-64 u64 of channel key and all before

What fails its checksum, or contradicts itself, raises `CorruptRecord` and nothing of it is used.
"""

import struct
from typing import NamedTuple

from xxhash import xxh3_64_intdigest

from esker.chunkserver.engine.errors import CorruptRecord
from esker.chunkserver.engine.record import RECORD_KEY_BYTES, SLOT_PAGES_MAX
from esker.wire.limits import ALIGN_BYTES, checksum_blocks
from esker.wire.mutable_messages import CLIENT_ID_BYTES, NO_CLIENT

FORMAT = 1
COMMITTED, PENDING = b"\x00", b"\x01"
"""Last byte of an image key."""
IMAGE_KEY_BYTES = RECORD_KEY_BYTES + 1
CHANNEL_KEY_BYTES = 4 + CLIENT_ID_BYTES + 4

_ABSENT = 1
_IMAGE = struct.Struct("<BBHIIIQQQI16sIQQQI")
_CHANNEL = struct.Struct("<BIQQ")
_CHANNEL_KEY = struct.Struct(">I16sI")
_DIGEST = struct.Struct("<Q")


class ChannelRecord(NamedTuple):
    """The last write of a channel, and the version and length of the chunk after it."""

    sequence: int
    version: int
    length: int


NO_WRITE = ChannelRecord(0, 0, 0)


class ImageRecord(NamedTuple):
    """A chunk in one version. A removal has no length, checksums or slot, and `pages` 0."""

    version: int
    length: int = 0
    """Bytes of the chunk, without padding."""
    checksums: bytes = b""
    """XXH3-64 of each started 64 KiB, u64 little-endian, concatenated."""
    truncate_version: int = 0
    previous: int = 0
    """The version that it was made from; 0: the chunk was absent."""
    chain_version: int = 0
    slot_bytes: int = 0
    """The longest that chunks of its file get."""
    pages: int = 0
    """Size of the slot in 4 KiB pages; 0: the chunk is absent in this version."""
    slot: int = 0
    client: bytes = NO_CLIENT
    """Of the write that made it; zeros: not told."""
    channel: int = 0
    sequence: int = 0
    before: ChannelRecord = NO_WRITE
    """The last write of its channel before that one; sequence 0: none."""

    @property
    def absent(self) -> bool:
        return self.pages == 0


def image_key(record_key: bytes, which: bytes) -> bytes:
    """The index key of a chunk's image: `COMMITTED` or `PENDING`."""
    return record_key + which


def encode_image(key: bytes, image: ImageRecord) -> bytes:
    """The value stored under `key`."""
    assert len(key) == IMAGE_KEY_BYTES, len(key)
    assert len(image.checksums) == 8 * checksum_blocks(image.length), (len(image.checksums), image.length)
    assert image.length <= image.pages * ALIGN_BYTES, (image.length, image.pages)
    body = (
        _IMAGE.pack(
            FORMAT,
            _ABSENT if image.absent else 0,
            image.pages,
            image.chain_version,
            image.slot,
            image.length,
            image.version,
            image.truncate_version,
            image.previous,
            image.slot_bytes,
            image.client,
            image.channel,
            image.sequence,
            *image.before,
        )
        + image.checksums
    )
    return body + _DIGEST.pack(xxh3_64_intdigest(key + body))


def decode_image(key: bytes, value: bytes) -> ImageRecord:
    """What is stored under `key`. Raises `CorruptRecord`."""
    if len(value) < _IMAGE.size + _DIGEST.size:
        raise CorruptRecord(f"image of {len(value)} bytes is shorter than {_IMAGE.size + _DIGEST.size}")
    _check_digest(key, value)
    (
        form,
        flags,
        pages,
        chain_version,
        slot,
        length,
        version,
        truncate_version,
        previous,
        slot_bytes,
        client,
        channel,
        sequence,
        *before,
    ) = _IMAGE.unpack_from(value)
    sums = value[_IMAGE.size : -_DIGEST.size]
    if (
        form != FORMAT
        or flags not in (0, _ABSENT)
        or bool(flags) != (pages == 0)
        or pages > SLOT_PAGES_MAX
        or length > pages * ALIGN_BYTES
        or len(sums) != 8 * checksum_blocks(length)
        or version == 0
    ):
        raise CorruptRecord(f"image contradicts itself: format {form}, flags {flags}, length {length}, {pages} pages")
    return ImageRecord(
        version,
        length,
        sums,
        truncate_version,
        previous,
        chain_version,
        slot_bytes,
        pages,
        slot,
        client,
        channel,
        sequence,
        ChannelRecord(*before),
    )


def channel_key(chain_id: int, client: bytes, channel: int) -> bytes:
    """The index key of a channel."""
    return _CHANNEL_KEY.pack(chain_id, client, channel)


def split_channel_key(key: bytes) -> tuple[int, bytes, int]:
    """Chain id, client, channel."""
    chain_id, client, channel = _CHANNEL_KEY.unpack(key)
    return chain_id, client, channel


def encode_channel(key: bytes, channel: ChannelRecord) -> bytes:
    """The value stored under `key`."""
    assert len(key) == CHANNEL_KEY_BYTES, len(key)
    body = _CHANNEL.pack(FORMAT, channel.length, channel.sequence, channel.version)
    return body + _DIGEST.pack(xxh3_64_intdigest(key + body))


def decode_channel(key: bytes, value: bytes) -> ChannelRecord:
    """What is stored under `key`. Raises `CorruptRecord`."""
    if len(value) != _CHANNEL.size + _DIGEST.size:
        raise CorruptRecord(f"a channel's record of {len(value)} bytes")
    _check_digest(key, value)
    form, length, sequence, version = _CHANNEL.unpack_from(value)
    if form != FORMAT:
        raise CorruptRecord(f"a channel's record has format {form}; this version reads {FORMAT}")
    return ChannelRecord(sequence, version, length)


def _check_digest(key: bytes, value: bytes) -> None:
    if xxh3_64_intdigest(key + value[:-8]) != int.from_bytes(value[-8:], "little"):
        raise CorruptRecord(f"record of {len(value)} bytes fails its checksum")
