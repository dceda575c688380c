"""Whether a stored chunk is what its record says: reads it piece by piece and compares the checksums.

Knows one drive's store and nothing of replicas. What does not match, or cannot be read, is read once more before it is
believed: a fault of memory or of a transfer is no damage. Pieces are short, so that the loop and the drive are free in
between and no chunk takes more than one piece of memory; none of it is the pool's, which is for clients.

The record is looked up anew for every piece, in one await-free stretch with the reading of it (the store's read fence):
a chunk that was replaced meanwhile is looked at from its beginning.
"""

import asyncio
import errno
import mmap
from collections.abc import Awaitable, Callable
from enum import Enum, auto
from typing import Any, NamedTuple, Protocol

from esker.chunkserver.engine.errors import CorruptRecord, DriveFailed
from esker.chunkserver.engine.images import Images
from esker.chunkserver.engine.interface import Done
from esker.chunkserver.engine.store import DriveStore
from esker.wire.checksum import checksums
from esker.wire.limits import CHECKSUM_BLOCK_BYTES, MIB, aligned, checksum_blocks

PIECE_BYTES = MIB
CHANGES_MAX = 16
"""A chunk that changes more often while it is looked at has been verified by whoever wrote it."""

Pause = Callable[[int], Awaitable[None]]
"""Accounts for so many bytes that were read, and waits until more may be."""


class Verdict(Enum):
    """What was seen of a chunk."""

    WHOLE = auto()
    DAMAGED = auto()
    """The record or the data does not verify, or the data cannot be read."""
    ABSENT = auto()
    UNREAD = auto()
    """The drive is being closed, or has failed, or the chunk changes all the time."""


class Seen(NamedTuple):
    """A verdict, and how many bytes of data were read for it."""

    verdict: Verdict
    read_bytes: int
    read_again: bool = False
    """Something failed that was fine when it was read once more."""


async def no_pause(size_bytes: int) -> None:
    """Reads at once."""


class Readable(NamedTuple):
    """A chunk's data on the drive."""

    record: Any
    """What names its place and version: two that are equal are the same data."""
    length: int
    checksums: bytes


class Source(Protocol):
    """The chunks of one kind, as they are found and read."""

    def find(self, record_key: bytes) -> Readable | None:
        """What is stored now. Raises `CorruptRecord`, `DriveFailed`."""

    def read_part(self, record: Any, at: int, buffer: memoryview, done: Done, token: Any) -> None:
        """Queues the read of a part, in the same await-free stretch as `find`."""


class BlockSource:
    """Immutable chunks."""

    def __init__(self, store: DriveStore) -> None:
        self._store = store
        self.read_part = store.read_part

    def find(self, record_key: bytes) -> Readable | None:
        """See `Source`."""
        with self._store.reader() as reader:
            record = reader.get(record_key)
        return None if record is None else Readable(record, record[0], record[4])


class ImageSource:
    """The committed images of mutable chunks. What is pending is verified once it is committed."""

    def __init__(self, images: Images) -> None:
        self._images = images
        self.read_part = images.read_part

    def find(self, record_key: bytes) -> Readable | None:
        """See `Source`."""
        chunk = self._images.chunk(record_key)
        if chunk.damaged:
            raise CorruptRecord("an image's record is damaged")
        image = chunk.committed
        return None if image is None or image.absent else Readable(image, image.length, image.checksums)


class Verifier:
    """Of one kind of chunks on one drive. Any number may be looked at at once; each takes `PIECE_BYTES` meanwhile."""

    def __init__(self, source: Source, submit: Callable[[], None]) -> None:
        self._source = source
        self._submit = submit
        self._spare: memoryview | None = None
        self._loop = asyncio.get_running_loop()

    async def look(self, record_key: bytes, pause: Pause = no_pause) -> Seen:
        """Reads the chunk, waiting for `pause` after each piece."""
        buffer, self._spare = self._spare or memoryview(mmap.mmap(-1, PIECE_BYTES)), None
        seen = await self._look(record_key, pause, buffer)
        self._spare = buffer  # not where this was cancelled: then the drive may still be at it
        return seen

    async def _look(self, record_key: bytes, pause: Pause, buffer: memoryview) -> Seen:
        first: Readable | None = None
        at = read_bytes = changes = 0
        again = failed_once = False
        while True:
            try:
                found = self._source.find(record_key)
            except CorruptRecord:
                return Seen(Verdict.DAMAGED, read_bytes)
            except DriveFailed:
                return Seen(Verdict.UNREAD, read_bytes)
            if found is None:
                return Seen(Verdict.ABSENT, read_bytes)
            if found != first:
                first, at, again = found, 0, False
                changes += 1
            if at >= found.length:
                return Seen(Verdict.WHOLE, read_bytes, failed_once)
            if changes > CHANGES_MAX:
                return Seen(Verdict.UNREAD, read_bytes)
            size = min(PIECE_BYTES, aligned(found.length) - at)
            done: asyncio.Future[int] = self._loop.create_future()
            self._source.read_part(found.record, at, buffer[:size], _set, done)
            self._submit()
            result = await done
            read_bytes += size
            if result == -errno.ECANCELED:
                return Seen(Verdict.UNREAD, read_bytes)
            if result == size and _matches(found, at, buffer[: min(size, found.length - at)]):
                at += size
                again = False
                await pause(size)
            elif again:
                return Seen(Verdict.DAMAGED, read_bytes)
            else:
                again = failed_once = True


def _matches(found: Readable, at: int, data: memoryview) -> bool:
    begin = at // CHECKSUM_BLOCK_BYTES
    return checksums(data) == found.checksums[8 * begin : 8 * (begin + checksum_blocks(len(data)))]


def _set(done: "asyncio.Future[int]", result: int) -> None:
    if not done.done():  # else nobody waits any more
        done.set_result(result)


assert PIECE_BYTES % CHECKSUM_BLOCK_BYTES == 0
