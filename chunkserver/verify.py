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
from typing import NamedTuple

from esker.chunkserver.engine.errors import CorruptRecord
from esker.chunkserver.engine.io import IoEngine
from esker.chunkserver.engine.record import ReadRecord
from esker.chunkserver.engine.store import DriveStore
from esker.wire.checksum import checksums
from esker.wire.limits import CHECKSUM_BLOCK_BYTES, MIB, aligned, checksum_blocks

PIECE_BYTES = MIB
CHANGES_MAX = 16
"""A chunk that changes more often while it is looked at has been verified by whoever wrote it."""

Pause = Callable[[int], Awaitable[None]]
"""Waits until so many bytes may be read."""


class Verdict(Enum):
    """What was seen of a chunk."""

    WHOLE = auto()
    DAMAGED = auto()
    """The record or the data does not verify, or the data cannot be read."""
    ABSENT = auto()
    UNREAD = auto()
    """The drive is being closed, or the chunk changes all the time."""


class Seen(NamedTuple):
    """A verdict, and how many bytes of data were read for it."""

    verdict: Verdict
    read_bytes: int
    read_again: bool = False
    """Something failed that was fine when it was read once more."""


async def no_pause(size_bytes: int) -> None:
    """Reads at once."""


class Verifier:
    """Of one drive. Any number of chunks may be looked at at once; each takes `PIECE_BYTES` meanwhile."""

    def __init__(self, store: DriveStore, engine: IoEngine) -> None:
        self._store = store
        self._engine = engine
        self._loop = asyncio.get_running_loop()

    async def look(self, record_key: bytes, pause: Pause = no_pause) -> Seen:
        """Reads the chunk, waiting for `pause` before each piece."""
        buffer = memoryview(mmap.mmap(-1, PIECE_BYTES))
        first: ReadRecord | None = None
        at = read_bytes = changes = 0
        again = failed_once = False
        while True:
            done: asyncio.Future[int] = self._loop.create_future()
            with self._store.reader() as reader:
                try:
                    record = reader.get(record_key)
                except CorruptRecord:
                    return Seen(Verdict.DAMAGED, read_bytes)
                if record is None:
                    return Seen(Verdict.ABSENT, read_bytes)
                if record != first:
                    first, at, again = record, 0, False
                    changes += 1
                length = record[0]
                if at >= length:
                    return Seen(Verdict.WHOLE, read_bytes, failed_once)
                if changes > CHANGES_MAX:
                    return Seen(Verdict.UNREAD, read_bytes)
                size = min(PIECE_BYTES, aligned(length) - at)
                self._store.read_part(record, at, buffer[:size], _set, done)
            self._engine.submit()
            result = await done
            read_bytes += size
            if result == -errno.ECANCELED:
                return Seen(Verdict.UNREAD, read_bytes)
            if result == size and _matches(record, at, buffer[: min(size, length - at)]):
                at += size
                again = False
                await pause(size)
            elif again:
                return Seen(Verdict.DAMAGED, read_bytes)
            else:
                again = failed_once = True


def _matches(record: ReadRecord, at: int, data: memoryview) -> bool:
    begin = at // CHECKSUM_BLOCK_BYTES
    return checksums(data) == record[4][8 * begin : 8 * (begin + checksum_blocks(len(data)))]


def _set(done: "asyncio.Future[int]", result: int) -> None:
    if not done.done():  # else nobody waits any more
        done.set_result(result)


assert PIECE_BYTES % CHECKSUM_BLOCK_BYTES == 0
