"""Every slot of a drive: who gets one, how much there may be, and when a freed one may be used again.

Two budgets bound a drive. `used_bytes` counts slots that are taken, in flight or on their way back, against the
capacity: that is when a put is refused. `backed_bytes` counts the space that data files hold on the file system, free
slots included, against the same capacity: when one class has to grow and others sit on free slots, those give their
space back first (hole punching), so that a drive filled with small chunks and emptied takes large ones again.

Rules:

- A freed slot is handed out only after the commit that freed it is durable (the caller frees it then) and every
  operation that was queued before has completed: a late read can never see another chunk's bytes. One mark per batch
  of freed slots, nothing per slot.
- A reserve stays for replicas down the chain and for deletes; heads allocate without it.
- Growing leaves room on the file system for the index, or nothing could be removed from a full drive.
"""

import errno
from collections import deque
from collections.abc import Sequence
from pathlib import Path

from esker.chunkserver.engine.errors import NoSpace
from esker.chunkserver.engine.files import Files
from esker.chunkserver.engine.interface import IoEngine
from esker.chunkserver.engine.slot_class import padded_bytes, slot_pages
from esker.chunkserver.engine.slot_files import SEGMENT_BYTES_MAX, Slot, SlotFiles, found_segments, segment_name
from esker.runtime.logging import get_logger
from esker.wire.limits import ALIGN_BYTES, MIB

GROW_BYTES = 16 * MIB
"""A class grows by this much, or one slot. The loop waits for it: microseconds on a disk, where space is only promised,
and milliseconds on a RAM-backed file system, which allocates it."""
GROW_SHARE = 16
"""Growing takes at most one part in this many of what is left."""
REFILL_SLOTS_MAX = 64
RECLAIM_SLOTS_MAX = 256
"""Bounds of the work that one allocation may do on the loop."""
RESERVE_BYTES_MAX = 256 * MIB
RESERVE_BYTES_MIN = 4 * MIB

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

_log = get_logger("chunkserver.engine")


def reserve_bytes(capacity_bytes: int) -> int:
    """What heads leave free: 2 % up to 256 MiB, but room for a few chunks (at most an eighth of a tiny drive)."""
    return max(min(capacity_bytes // 50, RESERVE_BYTES_MAX), min(RESERVE_BYTES_MIN, capacity_bytes // 8))


class Slots:
    """See the module. `engine` is asked only for marks."""

    def __init__(
        self,
        files: Files,
        directory: Path,
        capacity_bytes: int,
        engine: IoEngine,
        *,
        segment_bytes: int = SEGMENT_BYTES_MAX,
    ) -> None:
        self.capacity_bytes = capacity_bytes
        self.reserve_bytes = reserve_bytes(capacity_bytes)
        self.used_bytes = 0
        self.backed_bytes = 0
        self.used_slots = 0
        self.no_space = 0
        self.classes: dict[int, SlotFiles] = {}
        self._files = files
        self._directory = directory
        self._engine = engine
        self._segment_bytes = segment_bytes
        self._returning: deque[tuple[int, list[tuple[int, int]]]] = deque()
        for pages, segments in sorted(found_segments(directory).items()):
            self.classes[pages] = SlotFiles(files, directory, pages, segments, segment_bytes)

    def claim(self, pages: int, number: int) -> bool:
        """While loading: a record says that it lives in this slot. False when that cannot be."""
        owner = self.classes.get(pages)
        return owner is not None and owner.claim(number)

    def missing_file(self, pages: int, number: int) -> Path | None:
        """While loading: the file that is absent or too short to hold this slot; None when the slot is there."""
        owner = self.classes.get(pages)
        if owner is not None and owner.exists(number):
            return None
        return self._directory / segment_name(pages, number // (self._segment_bytes // (pages * ALIGN_BYTES)))

    def finish_loading(self) -> None:
        """After the last claim: all other slots are free."""
        for owner in self.classes.values():
            claimed = owner.finish_loading()
            self.used_slots += claimed
            self.used_bytes += claimed * owner.slot_bytes
            self.backed_bytes += (claimed + len(owner.map.free)) * owner.slot_bytes
        if self.used_bytes > self.capacity_bytes:
            _log.warning(
                "drive holds more than its capacity, puts are refused",
                directory=self._directory.parent,
                used_bytes=self.used_bytes,
                capacity_bytes=self.capacity_bytes,
            )

    def allocate(self, length: int, slot_bytes: int, *, reserve: bool) -> Slot:
        """A slot for `length` bytes of a namespace with chunks of `slot_bytes`. With `reserve`, the last of the
        capacity may be used. Raises `NoSpace`; `ValueError` for sizes that are no slot's; `OSError` when the file
        system fails otherwise."""
        pages = slot_pages(length, slot_bytes)
        owner = self.classes.get(pages)
        if owner is None:
            owner = self.classes[pages] = SlotFiles(self._files, self._directory, pages, 0, self._segment_bytes)
        if self._returning:
            self.take_back()
        limit_bytes = self.capacity_bytes if reserve else self.capacity_bytes - self.reserve_bytes
        if self.used_bytes + owner.slot_bytes > limit_bytes:
            self.no_space += 1
            raise NoSpace(f"{self.used_bytes} of {self.capacity_bytes} bytes are used")
        free = owner.map.free
        if not free:
            self._make_room(owner, reserve=reserve)
        number = free.pop()
        self.used_bytes += owner.slot_bytes
        self.used_slots += 1
        fd, offset = owner.place(number)
        return Slot(pages, number, fd, offset, padded_bytes(length))

    def give_back(self, slots: Sequence[tuple[int, int]]) -> None:
        """Slots (class in pages, number) that no durable record names any more."""
        if slots:
            self._returning.append((self._engine.mark(), list(slots)))

    def take_back(self) -> None:
        """Makes those slots free that no operation can touch any more; `allocate` does it by itself."""
        returning, passed, classes = self._returning, self._engine.passed, self.classes
        while returning and passed(returning[0][0]):
            for pages, number in returning.popleft()[1]:
                owner = classes[pages]
                owner.map.free.append(number)
                self.used_bytes -= owner.slot_bytes
                self.used_slots -= 1

    def close(self) -> None:
        for owner in self.classes.values():
            owner.close()

    def _make_room(self, owner: SlotFiles, *, reserve: bool) -> None:
        """Gives `owner` at least one free slot, or raises."""
        size = owner.slot_bytes
        # In sparse files free slots hold no space, so only the used ones count.
        held_bytes = self.backed_bytes if self._files.preallocates else self.used_bytes
        left_bytes = self.capacity_bytes - held_bytes
        if left_bytes < size:
            left_bytes += self._reclaim(owner, size - left_bytes)
        floor_bytes = self.reserve_bytes // 4 if reserve else self.reserve_bytes
        room_bytes = self._files.free_bytes(self._directory) - floor_bytes
        if room_bytes < size:
            room_bytes += self._reclaim(owner, size)
        if room_bytes < size:
            self._refuse("the file system is full")
        if left_bytes < size:
            self._refuse("freed slots are not back yet")
        share_bytes = min(left_bytes, room_bytes) // GROW_SHARE
        count = max(1, min(GROW_BYTES, share_bytes) // size)
        while True:
            try:
                self._grow(owner, count)
            except OSError as error:
                if error.errno not in _FULL:
                    raise
                if count > 1:
                    count = max(1, count // 4)
                elif not self._reclaim(owner, size):
                    self._refuse(f"the file system is full: {error}")
            else:
                return

    def _grow(self, owner: SlotFiles, count: int) -> None:
        grown = owner.refill(min(count, REFILL_SLOTS_MAX)) if owner.map.holes else owner.extend(count)
        self.backed_bytes += grown * owner.slot_bytes

    def _reclaim(self, growing: SlotFiles, wanted_bytes: int) -> int:
        """Makes other classes give back the space of free slots, at least `wanted_bytes` if they can; how much."""
        if not (self._files.punches and self._files.preallocates):
            return 0
        got_bytes = 0
        for owner in sorted(self.classes.values(), key=_free_bytes, reverse=True):
            if owner is growing or not owner.map.free:
                continue
            needed = -(-(wanted_bytes - got_bytes) // owner.slot_bytes)
            count = owner.give_back(max(needed, min(RECLAIM_SLOTS_MAX, GROW_BYTES // owner.slot_bytes)))
            got_bytes += count * owner.slot_bytes
            if got_bytes >= wanted_bytes:
                break
        self.backed_bytes -= got_bytes
        return got_bytes

    def _refuse(self, reason: str) -> None:
        self.no_space += 1
        raise NoSpace(reason)


def _free_bytes(owner: SlotFiles) -> int:
    return len(owner.map.free) * owner.slot_bytes
