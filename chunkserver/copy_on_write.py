"""New images of mutable chunks: what a patch makes of the one before, written into a slot of its own.

A copy goes through the worker piece by piece: a piece of the base is read and its checksums compared, what the patch
says is laid over it, and the result is written. So a chunk of any length takes a few pieces of memory, and whoever
finds none waits in line; nobody holds a piece without I/O of its own under way.

**Of the base only bytes that verify come into a new image**, under new checksums only where the patch touches a
checksum block. What the patch covers whole is not read. A copy ends once, and not before its last I/O has.
"""

import errno
import mmap
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from esker.chunkserver.engine.image_record import ImageRecord
from esker.chunkserver.engine.images import Images
from esker.chunkserver.engine.slot_files import Slot
from esker.wire.checksum import checksums
from esker.wire.limits import CHECKSUM_BLOCK_BYTES, KIB, aligned
from esker.wire.status import Status

PIECE_BYTES = 512 * KIB
PIECES = 8
PIECES_PER_COPY = 4
"""So that a long chunk does not keep all others waiting."""

Copied = Callable[[Status, bytes], None]
"""How a copy ended, and the image's checksums: OK; CHECKSUM: the base does not verify; IO_ERROR, NO_SPACE: a read or
write failed."""

assert PIECE_BYTES % CHECKSUM_BLOCK_BYTES == 0


class Pieces:
    """The memory for pieces, page-aligned; made at its first use."""

    def __init__(self) -> None:
        self._free: list[memoryview] | None = None
        self._waiting: deque[Callable[[], None]] = deque()

    def take(self, ready: Callable[[], None]) -> memoryview | None:
        """A piece; or None, and `ready` is called, once, when it is worth trying again."""
        if self._free is None:
            arena = memoryview(mmap.mmap(-1, PIECES * PIECE_BYTES))
            self._free = [arena[at : at + PIECE_BYTES] for at in range(0, len(arena), PIECE_BYTES)]
        if self._free:
            return self._free.pop()
        self._waiting.append(ready)
        return None

    def give_back(self, piece: memoryview) -> None:
        """Takes back what `take` gave."""
        assert self._free is not None
        self._free.append(piece)
        while self._free and self._waiting:
            self._waiting.popleft()()

    @property
    def idle(self) -> bool:
        """Nobody has a piece."""
        return self._free is None or len(self._free) == PIECES


@dataclass(frozen=True, slots=True)
class Change:
    """What a new image is made of."""

    base: ImageRecord | None
    """What it begins with; None: nothing."""
    length: int
    """Of the new image, in bytes. Beyond base and patch it is zeros."""
    offset: int = 0
    patch: memoryview | None = None
    """Comes over the base from `offset` on. Verified before; it must not change until the copy has ended."""

    @property
    def kept(self) -> int:
        """How many of the base's first bytes may be part of the image."""
        return 0 if self.base is None else min(self.base.length, self.length)

    @property
    def patch_end(self) -> int:
        return self.offset if self.patch is None else self.offset + len(self.patch)


class Copy:
    """One image being written. `ended` is called once."""

    def __init__(
        self, images: Images, pieces: Pieces, change: Change, slot: Slot, submit: Callable[[], None], ended: Copied
    ) -> None:
        self._images = images
        self._pieces = pieces
        self._change = change
        self._slot = slot
        self._submit = submit
        self._ended = ended
        self._size = max(aligned(change.length), aligned(1))
        self._next = 0
        self._under_way = 0
        self._waiting = False
        self._over = False
        self._status = Status.OK
        self._sums: dict[int, bytes] = {}

    def start(self) -> None:
        """Begins; in the same await-free stretch as the lookup of the base."""
        self._go_on()

    def _go_on(self) -> None:
        self._waiting = False
        while self._next < self._size and self._under_way < PIECES_PER_COPY and self._status is Status.OK:
            piece = self._pieces.take(self._go_on)
            if piece is None:
                self._waiting = True
                break
            start = self._next
            self._next = min(self._size, start + PIECE_BYTES)
            self._under_way += 1
            self._read(start, piece[: self._next - start], piece)
        self._submit()
        if self._under_way == 0 and not self._waiting and not self._over:
            self._over = True
            self._slot.written = self._status is Status.OK
            self._ended(self._status, b"".join(self._sums[at] for at in sorted(self._sums)))

    def _read(self, start: int, view: memoryview, piece: memoryview) -> None:
        change = self._change
        until = self._base_until(start, start + len(view))
        covered = change.patch is not None and change.offset <= start and min(change.kept, until) <= change.patch_end
        if until <= start or covered:
            self._write(start, view, piece, start)
            return
        assert change.base is not None
        token = (start, view, piece, until)
        self._images.read_part(change.base, start, piece[: aligned(until - start)], self._read_done, token)

    def _base_until(self, start: int, end: int) -> int:
        """Where the part of the base ends that a piece needs: with whole checksum blocks, so that they verify."""
        change = self._change
        if change.base is None or change.kept <= start:
            return start
        step = CHECKSUM_BLOCK_BYTES
        whole = min(change.base.length, (change.kept + step - 1) // step * step)
        return min(end, whole) if end < self._size else min(start + PIECE_BYTES, whole)

    def _read_done(self, token: tuple[int, memoryview, memoryview, int], result: int) -> None:
        start, view, piece, until = token
        change = self._change
        assert change.base is not None
        if result != aligned(until - start):
            self._piece_over(piece, Status.IO_ERROR)
        elif checksums(piece[: until - start]) != _sums_of(change.base, start, until):
            self._piece_over(piece, Status.CHECKSUM)
        else:
            self._write(start, view, piece, until)

    def _write(self, start: int, view: memoryview, piece: memoryview, until: int) -> None:
        """`view`, the beginning of `piece`, holds the base up to `until`."""
        change = self._change
        kept = max(start, min(change.kept, until))
        first, last = max(start, change.offset), min(start + len(view), change.patch_end)
        if change.patch is not None and first < last:
            view[first - start : last - start] = change.patch[first - change.offset : last - change.offset]
            _zero(view, kept - start, first - start)
            _zero(view, max(kept, last) - start, len(view))
        else:
            first = last = start
            _zero(view, kept - start, len(view))
        end = min(start + len(view), change.length)
        self._sums[start] = self._sums_after(start, end, view, kept, (first, last))
        self._images.write_part(self._slot, start, view, self._write_done, piece)

    def _sums_after(self, start: int, end: int, view: memoryview, kept: int, patched: tuple[int, int]) -> bytes:
        """The checksums of the piece's blocks: the base's own where a block is as it was."""
        step = CHECKSUM_BLOCK_BYTES
        base = self._change.base
        sums = []
        for at in range(start, end, step):
            stop = min(end, at + step)
            untouched = patched[1] <= at or stop <= patched[0]
            if base is not None and untouched and stop <= kept and stop == min(base.length, at + step):
                sums.append(_sums_of(base, at, stop))
            else:
                sums.append(checksums(view[at - start : stop - start]))
        return b"".join(sums)

    def _write_done(self, piece: memoryview, result: int) -> None:
        self._piece_over(piece, Status.OK if result == 0 else _write_failure(result))

    def _piece_over(self, piece: memoryview, status: Status) -> None:
        self._under_way -= 1
        if self._status is Status.OK:
            self._status = status
        self._pieces.give_back(piece)
        if not self._waiting:
            self._go_on()


def _zero(view: memoryview, start: int, end: int) -> None:
    if start < end:
        view[start:end] = bytes(end - start)


def _sums_of(image: ImageRecord, start: int, end: int) -> bytes:
    """The checksums of an image's blocks from `start`, a block's first byte, up to `end`."""
    step = CHECKSUM_BLOCK_BYTES
    return image.checksums[start // step * 8 : (end + step - 1) // step * 8]


def _write_failure(result: int) -> Status:
    return Status.NO_SPACE if result == -errno.ENOSPC else Status.IO_ERROR
