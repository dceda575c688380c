"""How a value lies over chunks. Pure arithmetic, and the rule that decides whether chunks make a block.

A value within the stripe unit is one chunk with no put id. A longer one is cut into units; every chunk carries the
put id (XXH3-128 of the value), its length and the chunk count, and index j lies on the j-th next chain. Chunk 0,
created last, says what the block is: only chunks with its put id, length and count belong to it.
"""

from enum import Enum

from xxhash import xxh3_128_digest

from esker.client.batch import Row
from esker.wire.ids import NO_PUT_ID
from esker.wire.status import Status

_STATUS, _LENGTH, _VERSION, _BLOCK_BYTES, _CHUNK_COUNT, _PUT_ID = range(1, 7)


def chunk_count(value_bytes: int, unit: int) -> int:
    """Chunks of a value."""
    return -(-value_bytes // unit)


def chunk_length(value_bytes: int, unit: int, index: int) -> int:
    """Bytes of chunk `index`."""
    return min(unit, value_bytes - index * unit)


def put_id(value: memoryview, unit: int) -> bytes:
    """The value's put id; zeros for a value of one chunk."""
    return NO_PUT_ID if len(value) <= unit else xxh3_128_digest(value)


class Stripe(Enum):
    """What an answer for a stripe chunk means for its block."""

    BELONGS = "belongs"
    FOREIGN = "foreign"
    """Definitely absent, or of another put: the block is broken."""
    UNKNOWN = "unknown"
    """No definite answer."""


def judge(first: Row, row: Row, index: int, unit: int) -> Stripe:
    """Whether the chunk in `row` (READ_RESULT) is chunk `index` of the block whose chunk 0 is `first`."""
    status = row[_STATUS]
    if status == Status.NOT_FOUND:
        return Stripe.FOREIGN
    if status not in (Status.OK, Status.TOO_LARGE):
        return Stripe.UNKNOWN
    block = (chunk_length(first[_BLOCK_BYTES], unit, index), *first[_BLOCK_BYTES:])
    belongs = status == Status.OK and (row[_LENGTH], *row[_BLOCK_BYTES:]) == block
    return Stripe.BELONGS if belongs else Stripe.FOREIGN


def is_single(first: Row) -> bool:
    """Whether chunk 0 is the whole block."""
    return bool(first[_CHUNK_COUNT] <= 1)


def is_sound(first: Row, unit: int, block_bytes_max: int) -> bool:
    """Whether what chunk 0 says of its block can be true."""
    block_bytes, count = first[_BLOCK_BYTES], first[_CHUNK_COUNT]
    if not 1 <= block_bytes <= block_bytes_max or first[_LENGTH] != chunk_length(block_bytes, unit, 0):
        return False
    return bool(max(1, count) == chunk_count(block_bytes, unit))
