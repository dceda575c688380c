"""Checks of packed columns: what arrives in a body is whole, bounded and consistent before anything uses it."""

from struct import Struct
from typing import Any

from esker.wire.errors import RequestFailed
from esker.wire.limits import CHUNK_BYTES_MAX, KEY_BYTES_MAX, REQUEST_EXTENTS_MAX, checksum_blocks
from esker.wire.messages import CREATE_EXTENT, Create
from esker.wire.status import Status


def rows(column: Struct, packed: bytes, most: int = REQUEST_EXTENTS_MAX) -> list[tuple[Any, ...]]:
    """The rows of a packed column. Raises `RequestFailed` (BAD_REQUEST) unless it is whole and has 1 to `most` rows."""
    check_rows(column, packed, most)
    return list(column.iter_unpack(packed))


def check_rows(column: Struct, packed: bytes, most: int = REQUEST_EXTENTS_MAX) -> int:
    """How many rows a packed column has; raises like `rows`."""
    count, rest = divmod(len(packed), column.size)
    if rest or not 1 <= count <= most:
        raise RequestFailed(
            Status.BAD_REQUEST, f"a column of {len(packed)} bytes; allowed: 1 to {most} rows of {column.size}"
        )
    return count


def create_rows(create: Create) -> list[tuple[tuple[Any, ...], bytes, bytes]]:
    """(extent row, its checksums, its key) of every extent of a CREATE or CONFIRM.

    Raises `RequestFailed` (BAD_REQUEST, TOO_LARGE) where lengths are out of range or the columns do not agree.
    """
    extents = rows(CREATE_EXTENT, create.extents)
    result = []
    sums_at = keys_at = 0
    for row in extents:
        length, key_bytes = row[4], row[10]
        if not 1 <= length <= CHUNK_BYTES_MAX:
            raise RequestFailed(Status.TOO_LARGE, f"a chunk of {length} bytes; allowed: 1 to {CHUNK_BYTES_MAX}")
        if key_bytes > KEY_BYTES_MAX:
            raise RequestFailed(Status.BAD_REQUEST, f"a key of {key_bytes} bytes; allowed: {KEY_BYTES_MAX}")
        sums_end = sums_at + 8 * checksum_blocks(length)
        keys_end = keys_at + key_bytes
        result.append((row, create.checksums[sums_at:sums_end], create.keys[keys_at:keys_end]))
        sums_at, keys_at = sums_end, keys_end
    if sums_at != len(create.checksums) or keys_at != len(create.keys):
        raise RequestFailed(Status.BAD_REQUEST, "checksums or keys do not fit the extents")
    return result
