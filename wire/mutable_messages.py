"""Bodies of requests and replies about mutable chunks, the chunks of files: written in place, truncated, removed.

They live in the file space (`wire/ids.py`), so no message names a space. Batches travel as packed columns like those
of `wire/messages.py`; `wire/mutable_columns.py` checks them. Payload travels as with CREATE and READ: behind the body,
in extent order, or through registered memory on the same host.
"""

import struct
from enum import IntEnum

from esker.wire.messages import Message

CLIENT_ID_BYTES = 16


class PatchKind(IntEnum):
    """What a write does to a chunk; the numbers are part of the protocol."""

    WRITE = 0
    """Bytes at an offset; a gap before it is filled with zeros. Makes the chunk if it is absent."""
    TRUNCATE = 1
    """The chunk has this length from now on; what it grows by is zeros. Makes the chunk if it is absent."""
    REMOVE = 2


# Clients

WRITE_EXTENT = struct.Struct("<16sIIIBIQIIQIQ")
"""object, index, chain id, chain version, kind, channel, sequence, offset, length, truncate version, slot bytes,
offset in registered memory.

`offset` and `length` are the payload's place in the chunk (WRITE); the new length is `length`, with `offset` 0
(TRUNCATE); both are 0 (REMOVE). `slot bytes`: the longest that the file's chunks get, for the slot class.
"""

WRITE_RESULT = struct.Struct("<HHQI")
"""extent number, status, version, length: of the chunk after this write. Version 0: not known."""


class Write(Message, frozen=True):
    """Changes chunks on every replica of their chains; to the heads. Each extent is a write of its own.

    A client has one write outstanding per (chain, channel), and numbers those by `sequence`, from 1 on: a write that
    is sent again with the same sequence is done once. Its id is fresh and random in each of its lives.

    CONDITION: the chunk was truncated with a higher truncate version, or the sequence is older than the channel's
    last. TIMEOUT: unknown.
    """

    client: bytes
    """16 bytes."""
    extents: bytes
    checksums: bytes
    """Of each WRITE's payload, from its own first byte on: u64 per started 64 KiB; concatenated."""
    memory_id: int
    """0: the payload comes behind the body, true lengths, no padding."""
    budget_ms: int


class WriteReply(Message, frozen=True):
    """One or more finished extents; the frame of all but the last is PARTIAL."""

    results: bytes


READ_RANGE_EXTENT = struct.Struct("<16sIIIIIQ")
"""object, index, chain id, chain version, offset, length, offset in registered memory."""

READ_RANGE_RESULT = struct.Struct("<HHQIII")
"""extent number, status, version, length of the chunk, where the data starts in the chunk, bytes of data.

OK: the data are the chunk's bytes over all checksum blocks that the asked range touches, up to the chunk's end: it
starts at a multiple of 64 KiB at or before `offset`. No bytes where the range begins at or past the end. NOT_FOUND: the
chunk is absent in the version given (0: it never was there, or nobody remembers).
"""


class ReadRange(Message, frozen=True):
    """Reads parts of chunks, as committed. `memory_id` 0: the data comes as payload, in the order of the results.

    With registered memory each extent needs room for its checksum blocks, rounded up to 4 KiB, at an offset that is a
    multiple of 4 KiB: `RangeRow.room` of `wire/mutable_columns.py`.
    """

    extents: bytes
    memory_id: int
    budget_ms: int


class ReadRangeReply(Message, frozen=True):
    """One or more finished extents; the frame of all but the last is PARTIAL.

    `checksums`: of the data of each, u64 per started 64 KiB; concatenated.
    """

    results: bytes
    checksums: bytes


CHUNK_EXTENT = struct.Struct("<16sIII")
"""object, index, chain id, chain version."""

CHUNK_STAT_RESULT = struct.Struct("<HHQIQ")
"""extent number, status (NOT_FOUND: absent), version, length, truncate version: as committed."""


class ChunkStat(Message, frozen=True):
    """How long chunks are; under the same rules as a read. `extents` are of CHUNK_EXTENT."""

    extents: bytes
    budget_ms: int


class ChunkStatReply(Message, frozen=True):
    results: bytes


# Between the replicas of a chain


class FetchImage(Message, frozen=True):
    """Asks for a whole image, to mend another replica's. `extent` is of CHUNK_EXTENT; `version` is the image's."""

    extent: bytes
    version: int
    budget_ms: int


class FetchImageReply(Message, frozen=True):
    """The payload is the image; its checksums have been compared."""

    length_bytes: int
    checksums: bytes
    truncate_version: int


class VersionQuery(Message, frozen=True):
    """Asks the last serving replica which versions are committed. `extents` are of CHUNK_EXTENT."""

    extents: bytes
    budget_ms: int


VERSION_QUERY_RESULT = struct.Struct("<HHQ")
"""extent number, status, committed version (0: the chunk is absent and its last version not remembered)."""


class VersionQueryReply(Message, frozen=True):
    results: bytes


UPDATE_EXTENT = struct.Struct("<16sIIIBBQQQIIQIQIQ16sIQ")
"""object, index, chain id, chain version, kind, full, hop, previous version, version, the patch's offset, length and
truncate version, the resulting image's length and truncate version, slot bytes, offset in registered memory; of the
origin: client, channel, sequence.

`full` 1: the payload is the whole image, of which nothing that the successor has is a part (kind REMOVE: nothing is
left). `hop` numbers the messages between the two replicas in a version of the chain, and grows. Previous version 0: the
chunk was absent. Version 0: nothing is left, whatever the version was. Client zeros: no origin.
"""

NO_CLIENT = bytes(CLIENT_ID_BYTES)


class Update(Message, frozen=True):
    """A predecessor's changes. Payload: the patches of kind WRITE and the full images, in extent order."""

    extents: bytes
    checksums: bytes
    """Of each resulting image (none for a removal); concatenated."""
    memory_id: int
    budget_ms: int


UPDATE_RESULT = struct.Struct("<HHQ")
"""extent number, status, version that is durable there now."""


class UpdateReply(Message, frozen=True):
    results: bytes


CHANNEL_ROW = struct.Struct("<16sIQQI")
"""client, channel, sequence of its last write, version and length of the chunk after it."""

CHANNEL_ROWS_MAX = 4096


class Channels(Message, frozen=True):
    """The last write of each channel of a chain, from the predecessor to the syncing replica, in pages.

    A row never takes the place of one with a higher sequence. What the replica had before it began to sync is gone.
    """

    chain_id: int
    chain_version: int
    rows: bytes
    """Of CHANNEL_ROW."""


IMAGE_ROW = struct.Struct("<16sIQQIQQ")
"""object, index, committed version, pending version (0: none), then of the committed image: length, truncate version,
digest of its checksums. Version 0: absent."""


class ScanImages(Message, frozen=True):
    """A page of the mutable chunks of a chain, in key order, after `after` (a chunk id; empty: from the first).

    Answered once the replica knows this version of the chain and has nothing of an earlier one under way.
    """

    chain_id: int
    chain_version: int
    after: bytes
    limit: int
    budget_ms: int


class ScanImagesReply(Message, frozen=True):
    """`rows` are of IMAGE_ROW; `more`: the last row is not the last of the chain."""

    rows: bytes
    more: bool
