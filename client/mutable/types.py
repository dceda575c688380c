"""What callers ask of mutable chunks, and what they get. Plain values, checked by `checked_changes` and its like.

A chunk is named by its object (16 bytes; of a file: its inode) and its index in it. Offsets and lengths are bytes in
the chunk.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from types import UnionType
from typing import Any, NamedTuple

from esker.client.buffers import Slot, SlotPart
from esker.client.channel import Transport
from esker.wire.errors import UserError
from esker.wire.limits import ALIGN_BYTES, CHUNK_BYTES_MAX, MIB, OBJECT_BYTES, REQUEST_EXTENTS_MAX
from esker.wire.mutable_messages import PatchKind
from esker.wire.status import Status

CHUNK_BYTES_DEFAULT = MIB


@dataclass(frozen=True, slots=True)
class ChunkWrite:
    """Puts `data` at `offset`; a gap before it becomes zeros. Makes the chunk if it is absent.

    `data` is a slot of the pool, a part of one, or contiguous memory, of 1 byte or more, and must not change before the
    end. It is refused as CONDITION where the chunk was truncated with a higher truncate version than this one's.
    """

    object_id: bytes
    index: int
    offset: int
    data: Any
    chunk_bytes: int = CHUNK_BYTES_DEFAULT
    """The longest that chunks of this object get, a multiple of 4 KiB: the same in every call."""
    truncate_version: int = 0


@dataclass(frozen=True, slots=True)
class ChunkTruncate:
    """Makes the chunk `length` bytes long: cut, or filled with zeros. Makes it if it is absent.

    From then on a change with a lower truncate version is refused.
    """

    object_id: bytes
    index: int
    length: int
    truncate_version: int
    chunk_bytes: int = CHUNK_BYTES_DEFAULT


@dataclass(frozen=True, slots=True)
class ChunkRemove:
    """The chunk is absent afterwards; NOT_FOUND where it was before."""

    object_id: bytes
    index: int
    chunk_bytes: int = CHUNK_BYTES_DEFAULT


Change = ChunkWrite | ChunkTruncate | ChunkRemove


class ChangeResult(NamedTuple):
    """How a change ended.

    TIMEOUT: unknown, it may have taken effect, or still will. Everything else but OK: it did not and will not.
    """

    status: Status
    version: int = 0
    """Of the chunk after it (OK)."""
    length: int = 0
    """Of the chunk after it (OK), bytes."""


@dataclass(frozen=True, slots=True)
class ChunkRead:
    """Reads `length` bytes at `offset`, fewer where the chunk ends before.

    `into` is writable contiguous memory of at least `length` bytes, or a slot; None: the result brings its own.
    """

    object_id: bytes
    index: int
    offset: int
    length: int
    into: Any = None


class ChunkReadResult(NamedTuple):
    """What was read, of one version of the chunk and verified: OK, NOT_FOUND (absent), or why there is nothing."""

    status: Status
    data: memoryview = memoryview(b"")
    """The bytes; in the caller's memory where it gave some. Fewer than asked for at the chunk's end."""
    version: int = 0
    chunk_bytes: int = 0
    """Length of the chunk."""


class ChunkStatus(NamedTuple):
    """A chunk as committed: OK, NOT_FOUND (absent), or why nobody could tell."""

    status: Status
    version: int = 0
    length: int = 0
    truncate_version: int = 0


@dataclass(frozen=True, slots=True)
class ChunkStatistics:
    """Totals of one client since it connected."""

    counters: dict[str, int]
    """How many operations ended how: `change_ok`, `read_not_found` and so on."""
    per_drive_read_bytes: dict[str, int]
    per_drive_written_bytes: dict[str, int]
    transports: dict[str, Transport]
    """How each worker that is up is reached."""


class Patch(NamedTuple):
    """A checked change."""

    object_id: bytes
    chunk_index: int
    kind: PatchKind
    offset: int
    length: int
    truncate_version: int
    chunk_bytes: int
    view: memoryview
    slot: Slot | None


class Range(NamedTuple):
    """A checked read."""

    object_id: bytes
    chunk_index: int
    offset: int
    length: int
    view: memoryview
    slot: Slot | None


_NOTHING = memoryview(b"")


def checked_changes(changes: Sequence[Change]) -> list[Patch]:
    """Raises `UserError`, naming what is wrong with which, before anything is sent."""
    _check_count(changes)
    return [_patch(change, f"change {number}") for number, change in enumerate(changes)]


def checked_reads(reads: Sequence[ChunkRead]) -> list[Range]:
    """Raises `UserError`, naming what is wrong with which, before anything is sent."""
    _check_count(reads)
    return [_range(read, f"read {number}") for number, read in enumerate(reads)]


def checked_chunks(chunks: Sequence[tuple[bytes, int]]) -> list[tuple[bytes, int]]:
    """Raises `UserError`, naming what is wrong with which, before anything is sent."""
    _check_count(chunks)
    for number, chunk in enumerate(chunks):
        _check_kind(chunk, tuple, f"chunk {number}", "a tuple of object id and index")
        if len(chunk) != 2:
            raise UserError(f"chunk {number} has {len(chunk)} parts; pass a tuple of object id and index")
        _check_chunk(*chunk, f"chunk {number}")
    return list(chunks)


def _patch(change: Change, name: str) -> Patch:
    _check_kind(change, Change, name, "a ChunkWrite, ChunkTruncate or ChunkRemove")
    _check_chunk(change.object_id, change.index, name)
    _check_number(change.chunk_bytes, 32, f"{name}: chunk_bytes")
    if change.chunk_bytes % ALIGN_BYTES or not ALIGN_BYTES <= change.chunk_bytes <= CHUNK_BYTES_MAX:
        raise UserError(
            f"{name}: chunk_bytes is {change.chunk_bytes}; allowed: multiples of {ALIGN_BYTES} up to {CHUNK_BYTES_MAX}"
        )
    if isinstance(change, ChunkRemove):
        return Patch(change.object_id, change.index, PatchKind.REMOVE, 0, 0, 0, change.chunk_bytes, _NOTHING, None)
    _check_number(change.truncate_version, 64, f"{name}: truncate_version")
    if isinstance(change, ChunkTruncate):
        _check_within(0, change.length, change.chunk_bytes, name)
        return Patch(
            change.object_id,
            change.index,
            PatchKind.TRUNCATE,
            0,
            change.length,
            change.truncate_version,
            change.chunk_bytes,
            _NOTHING,
            None,
        )
    view, slot = _memory(change.data, name)
    if not len(view):
        raise UserError(f"{name} has no data; a write has 1 byte or more")
    _check_within(change.offset, len(view), change.chunk_bytes, name)
    return Patch(
        change.object_id,
        change.index,
        PatchKind.WRITE,
        change.offset,
        len(view),
        change.truncate_version,
        change.chunk_bytes,
        view,
        slot,
    )


def _range(read: ChunkRead, name: str) -> Range:
    _check_kind(read, ChunkRead, name, "a ChunkRead")
    _check_chunk(read.object_id, read.index, name)
    _check_within(read.offset, read.length, CHUNK_BYTES_MAX, name)
    if read.into is None:
        view, slot = memoryview(bytearray(read.length)), None
    else:
        view, slot = _memory(read.into, name)
        if view.readonly:
            raise UserError(f"{name}: the memory to read into is read-only")
        if len(view) < read.length:
            raise UserError(f"{name}: {read.length} bytes do not fit memory of {len(view)}")
    return Range(read.object_id, read.index, read.offset, read.length, view[: read.length], slot)


def _memory(value: Any, name: str) -> tuple[memoryview, Slot | None]:
    if isinstance(value, Slot):
        return _unreleased(value.view, name), value
    if isinstance(value, SlotPart):
        return _unreleased(value.view, name), value.slot
    try:
        return memoryview(value).cast("B"), None
    except ValueError:
        raise UserError(f"{name}: this memory was released") from None
    except TypeError as error:
        raise UserError(f"{name}: a {type(value).__name__} is no contiguous memory: {error}") from None


def _unreleased(view: memoryview, name: str) -> memoryview:
    """A view of our own: what is queued to be sent outlives a call that ran out, and the slot."""
    try:
        return view[:]
    except ValueError:
        raise UserError(f"{name}: this slot was released; lease another one") from None


def _check_count(asked: Any) -> None:
    if not isinstance(asked, Sequence):
        raise UserError(f"chunks are a {type(asked).__name__}; pass a list")
    if len(asked) > REQUEST_EXTENTS_MAX:
        raise UserError(f"{len(asked)} chunks in one call; allowed: {REQUEST_EXTENTS_MAX}")


def _check_kind(value: Any, kind: type | UnionType, name: str, pass_what: str) -> None:
    if not isinstance(value, kind):
        raise UserError(f"{name} is a {type(value).__name__}; pass {pass_what}")


def _check_chunk(object_id: bytes, index: int, name: str) -> None:
    if not isinstance(object_id, bytes) or len(object_id) != OBJECT_BYTES:
        raise UserError(f"{name}: an object id is {OBJECT_BYTES} bytes")
    _check_number(index, 32, f"{name}: index")


def _check_number(value: int, bits: int, name: str) -> None:
    if not hasattr(value, "__index__") or not 0 <= value < 1 << bits:
        raise UserError(f"{name} is {value!r}; pass an int from 0 to 2**{bits} - 1")


def _check_within(offset: int, length: int, chunk_bytes: int, name: str) -> None:
    for value in (offset, length):
        if not hasattr(value, "__index__") or value < 0:
            raise UserError(f"{name}: offsets and lengths are ints from 0 on, not {value!r}")
    if offset + length > chunk_bytes:
        raise UserError(f"{name}: bytes {offset} to {offset + length} of a chunk of at most {chunk_bytes}")
