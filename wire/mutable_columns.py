"""Rows of the columns about mutable chunks, checked: lengths, offsets and kinds are in range before anything uses them.

Pure. Every function raises `RequestFailed` (BAD_REQUEST, TOO_LARGE) for columns that are not whole or do not agree.
"""

from typing import NamedTuple

from esker.wire.columns import rows
from esker.wire.errors import RequestFailed
from esker.wire.limits import ALIGN_BYTES, CHECKSUM_BLOCK_BYTES, CHUNK_BYTES_MAX, aligned, checksum_blocks
from esker.wire.mutable_messages import (
    CLIENT_ID_BYTES,
    READ_RANGE_EXTENT,
    UPDATE_EXTENT,
    WRITE_EXTENT,
    PatchKind,
    Update,
    Write,
)
from esker.wire.status import Status


class WriteRow(NamedTuple):
    """A row of WRITE_EXTENT."""

    object_id: bytes
    chunk_index: int
    chain_id: int
    chain_version: int
    kind: int
    channel: int
    sequence: int
    offset: int
    length: int
    truncate_version: int
    slot_bytes: int
    memory_at: int

    @property
    def payload_bytes(self) -> int:
        return self.length if self.kind == PatchKind.WRITE else 0


class UpdateRow(NamedTuple):
    """A row of UPDATE_EXTENT."""

    object_id: bytes
    chunk_index: int
    chain_id: int
    chain_version: int
    kind: int
    full: int
    hop: int
    previous: int
    version: int
    offset: int
    length: int
    truncate_version: int
    image_bytes: int
    image_truncate_version: int
    slot_bytes: int
    memory_at: int
    client: bytes
    channel: int
    sequence: int

    @property
    def payload_bytes(self) -> int:
        if self.kind == PatchKind.REMOVE:
            return 0
        if self.full:
            return self.image_bytes
        return self.length if self.kind == PatchKind.WRITE else 0


class RangeRow(NamedTuple):
    """A row of READ_RANGE_EXTENT."""

    object_id: bytes
    chunk_index: int
    chain_id: int
    chain_version: int
    offset: int
    length: int
    memory_at: int

    @property
    def room(self) -> int:
        """Bytes of memory that the answer may take."""
        start, end = covered(self.offset, self.length, CHUNK_BYTES_MAX)
        return aligned(end - start)


def covered(offset: int, length_bytes: int, chunk_bytes: int) -> tuple[int, int]:
    """(start, end) in a chunk of `chunk_bytes` of what is read to verify the bytes asked for; equal: nothing."""
    if length_bytes == 0 or offset >= chunk_bytes:
        return 0, 0
    step = CHECKSUM_BLOCK_BYTES
    end = min(offset + length_bytes, chunk_bytes)
    return offset // step * step, min(chunk_bytes, (end + step - 1) // step * step)


def write_rows(write: Write) -> list[tuple[WriteRow, bytes]]:
    """Every extent of a WRITE with the checksums of its payload."""
    if len(write.client) != CLIENT_ID_BYTES or not any(write.client):
        raise RequestFailed(Status.BAD_REQUEST, f"a client id has {CLIENT_ID_BYTES} bytes, not all of them zero")
    result = []
    at = 0
    for values in rows(WRITE_EXTENT, write.extents):
        row = WriteRow(*values)
        _check_patch(row.kind, row.offset, row.length, row.slot_bytes)
        if row.sequence == 0:
            raise RequestFailed(Status.BAD_REQUEST, "sequences begin with 1")
        end = at + 8 * checksum_blocks(row.payload_bytes)
        result.append((row, write.checksums[at:end]))
        at = end
    if at != len(write.checksums):
        raise RequestFailed(Status.BAD_REQUEST, "checksums do not fit the extents")
    return result


def update_rows(update: Update) -> list[tuple[UpdateRow, bytes]]:
    """Every extent of an UPDATE with the checksums of its resulting image."""
    result = []
    at = 0
    for values in rows(UPDATE_EXTENT, update.extents):
        row = UpdateRow(*values)
        if not row.full:
            _check_patch(row.kind, row.offset, row.length, row.slot_bytes)
        elif row.kind not in (PatchKind.WRITE, PatchKind.REMOVE):
            raise RequestFailed(Status.BAD_REQUEST, f"a full update of kind {row.kind}")
        if row.full not in (0, 1) or (row.version == 0 and not (row.full and row.kind == PatchKind.REMOVE)):
            raise RequestFailed(Status.BAD_REQUEST, "an update without a version")
        image_bytes = 0 if row.kind == PatchKind.REMOVE else row.image_bytes
        if image_bytes != row.image_bytes or not image_bytes <= min(row.slot_bytes, CHUNK_BYTES_MAX):
            raise RequestFailed(Status.TOO_LARGE, f"an image of {row.image_bytes} bytes in {row.slot_bytes}")
        end = at + 8 * checksum_blocks(image_bytes)
        result.append((row, update.checksums[at:end]))
        at = end
    if at != len(update.checksums):
        raise RequestFailed(Status.BAD_REQUEST, "checksums do not fit the extents")
    return result


def range_rows(extents: bytes) -> list[RangeRow]:
    """Every extent of a READ_RANGE."""
    result = [RangeRow(*values) for values in rows(READ_RANGE_EXTENT, extents)]
    for row in result:
        if row.offset + row.length > CHUNK_BYTES_MAX:
            raise RequestFailed(
                Status.TOO_LARGE,
                f"bytes {row.offset} to {row.offset + row.length} of a chunk; allowed: {CHUNK_BYTES_MAX}",
            )
    return result


def _check_patch(kind: int, offset: int, length: int, slot_bytes: int) -> None:
    if kind not in (PatchKind.WRITE, PatchKind.TRUNCATE, PatchKind.REMOVE):
        raise RequestFailed(Status.BAD_REQUEST, f"a write of kind {kind}")
    if slot_bytes % ALIGN_BYTES or not ALIGN_BYTES <= slot_bytes <= CHUNK_BYTES_MAX:
        raise RequestFailed(
            Status.BAD_REQUEST,
            f"chunks of {slot_bytes} bytes; allowed: multiples of {ALIGN_BYTES} up to {CHUNK_BYTES_MAX}",
        )
    if offset + length > slot_bytes:
        raise RequestFailed(Status.TOO_LARGE, f"a chunk of {offset + length} bytes; allowed here: {slot_bytes}")
    if kind == PatchKind.WRITE and length == 0:
        raise RequestFailed(Status.BAD_REQUEST, "a write of no bytes")
    if (kind != PatchKind.WRITE and offset) or (kind == PatchKind.REMOVE and length):
        raise RequestFailed(Status.BAD_REQUEST, "an offset or length that means nothing")
