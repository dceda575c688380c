"""The files that hold the slots of one size class, and its free map.

`data/<pages>-<segment>.slots`: slot n stands in segment n // slots_per_segment, at its place there times the slot size.
Segments stay below a size that every file system takes. It moves space between the file system and the free map, one
contiguous run at a time; how much there may be in all is decided above.
"""

import re
from collections.abc import Iterator
from pathlib import Path

from esker.chunkserver.engine.files import Files
from esker.chunkserver.engine.free_map import FreeMap, Run, runs, unclaimed
from esker.chunkserver.engine.record import SLOT_PAGES_MAX
from esker.wire.limits import ALIGN_BYTES, GIB

SEGMENT_BYTES_MAX = 256 * GIB
_NAME = re.compile(r"([1-9][0-9]{0,4})-([0-9]{1,6})\.slots")


class Slot:
    """A place on the drive for one chunk, taken and not yet committed."""

    __slots__ = ("fd", "number", "offset", "padded_bytes", "pages", "released", "written")

    def __init__(self, pages: int, number: int, fd: int, offset: int, padded_bytes: int) -> None:
        self.pages = pages
        self.number = number
        self.fd = fd
        self.offset = offset
        self.padded_bytes = padded_bytes
        """What is written and read: the chunk's length in whole pages."""
        self.written = False
        self.released = False


class SlotFiles:
    """One size class. `files` touches the drive; `directory` is the drive's `data`."""

    def __init__(
        self, files: Files, directory: Path, pages: int, segments: int = 0, segment_bytes: int = SEGMENT_BYTES_MAX
    ) -> None:
        self.pages = pages
        self.slot_bytes = pages * ALIGN_BYTES
        self.per_segment = segment_bytes // self.slot_bytes
        self.map = FreeMap()
        self.fds: list[int] = []
        self._files = files
        self._directory = directory
        self._sizes: list[int] = []
        for _ in range(segments):
            self._open_segment()
        if segments:
            self.map.end = (segments - 1) * self.per_segment + self._sizes[-1]
        self._claimed = bytearray(self.map.end)

    def _open_segment(self) -> None:
        path = self._directory / segment_name(self.pages, len(self.fds))
        fd = self._files.open_data(path)
        self.fds.append(fd)
        self._files.sync_directory(self._directory)
        self._sizes.append(min(self._files.size_bytes(fd)[0] // self.slot_bytes, self.per_segment))

    def close(self) -> None:
        for fd in self.fds:
            self._files.close(fd)
        self.fds.clear()

    # Loading

    def claim(self, number: int) -> bool:
        """A record says that it lives in this slot; false when that cannot be, or another one said so before."""
        if not self.exists(number) or self._claimed[number]:
            return False
        self._claimed[number] = 1
        return True

    def exists(self, number: int) -> bool:
        """While loading: whether the files reach that far."""
        segment, place = divmod(number, self.per_segment)
        return segment < len(self._sizes) and place < self._sizes[segment]

    def finish_loading(self) -> int:
        """Takes everything unclaimed as free; the number of claimed slots.

        A file without holes has space behind every slot. In one with holes, which of the free slots have space is not
        known, so all of them give it back.
        """
        claimed_bytes = self._claimed
        claimed = claimed_bytes.count(1)
        self._claimed = bytearray()
        free: list[int] = []
        for segment, fd in enumerate(self.fds):
            first = segment * self.per_segment
            part = claimed_bytes[first : first + self.per_segment]
            size_bytes, backed_bytes = self._files.size_bytes(fd)
            whole = backed_bytes >= size_bytes and self._sizes[segment] == len(part)
            if whole or not (self._files.punches and self._files.preallocates):
                for start, count in unclaimed(part, first):
                    free.extend(range(start, start + count))
            else:
                for run in unclaimed(part, first):
                    self._punch(run)
        free.reverse()
        self.map.free.extend(free)
        return claimed

    # Space

    def place(self, number: int) -> tuple[int, int]:
        """Descriptor and byte offset of a slot."""
        segment, place = divmod(number, self.per_segment)
        return self.fds[segment], place * self.slot_bytes

    def extend(self, count: int) -> int:
        """Up to `count` new slots at the end, as many as the last segment takes; how many. Raises `OSError`."""
        segment, place = divmod(self.map.end, self.per_segment)
        if segment == len(self.fds):
            self._open_segment()
        count = min(count, self.per_segment - place)
        self._files.grow(self.fds[segment], place * self.slot_bytes, count * self.slot_bytes)
        self.map.extend(count)
        return count

    def refill(self, count: int) -> int:
        """Gets space again for up to `count` holes; for how many. Raises `OSError` when that is none for an error."""
        pieces = list(self._pieces(runs(self.map.take_holes(count))))
        filled = 0
        for index, (first, length) in enumerate(pieces):
            fd, offset = self.place(first)
            try:
                self._files.grow(fd, offset, length * self.slot_bytes)
            except OSError:
                for start, rest in pieces[index:]:
                    self.map.holes.extend(range(start, start + rest))
                if filled:
                    break
                raise
            self.map.free.extend(range(first + length - 1, first - 1, -1))
            filled += length
        return filled

    def give_back(self, count: int) -> int:
        """Returns the space of up to `count` free slots to the file system; of how many."""
        chosen = self.map.take_free(count)
        for run in runs(chosen):
            self._punch(run)
        return len(chosen)

    def _punch(self, run: Run) -> None:
        for first, count in self._pieces([run]):
            fd, offset = self.place(first)
            self._files.punch(fd, offset, count * self.slot_bytes)
            self.map.holes.extend(range(first + count - 1, first - 1, -1))

    def _pieces(self, whole: list[Run]) -> Iterator[Run]:
        """Runs cut where a segment ends."""
        for first, count in whole:
            while count:
                length = min(count, self.per_segment - first % self.per_segment)
                yield first, length
                first += length
                count -= length


def segment_name(pages: int, segment: int) -> str:
    """The file's name in the drive's `data`."""
    return f"{pages}-{segment}.slots"


def found_segments(directory: Path) -> dict[int, int]:
    """By size class in pages: how many segments there are. Files of other names are not ours to judge."""
    segments: dict[int, int] = {}
    for entry in directory.iterdir():
        match = _NAME.fullmatch(entry.name)
        if match:
            pages, segment = int(match[1]), int(match[2])
            if pages <= SLOT_PAGES_MAX:
                segments[pages] = max(segments.get(pages, 0), segment + 1)
    return segments
