"""Chunks that one read gets: neighbours on the drive that are wanted as neighbours in memory.

Blocks of a prefix that were written together lie together, so reading them together takes one operation instead of
one for each. Owns when chunks are neighbours; the store says where a segment ends.
"""

from esker.chunkserver.engine.record import ReadRecord
from esker.chunkserver.read_job import Extent
from esker.wire.limits import ALIGN_BYTES, MIB

RUN_BYTES_MAX = MIB
"""A longer read would keep its first chunk waiting for the last."""


class Run:
    """One chunk, or several in whole slots that follow each other."""

    __slots__ = ("_next", "extents", "offset", "records", "size_bytes")

    def __init__(self) -> None:
        self.extents: list[Extent] = []
        self.records: list[ReadRecord] = []
        self.offset = 0
        """In registered memory."""
        self.size_bytes = 0
        self._next = (0, 0)  # size class and slot of the neighbour; no class: it has none

    def begin(self, extent: Extent, record: ReadRecord, padded_bytes: int, offset: int) -> None:
        """The first chunk."""
        self.extents.append(extent)
        self.records.append(record)
        self.offset = offset
        self.size_bytes = padded_bytes
        pages, slot = record[1], record[2]
        self._next = (pages if padded_bytes == pages * ALIGN_BYTES else 0, slot + 1)

    def takes(self, extent: Extent, record: ReadRecord, padded_bytes: int, offset: int | None) -> bool:
        """Adds the chunk if it is the neighbour of the last (`offset` None: in memory that is named afterwards)."""
        pages, slot = record[1], record[2]
        if (
            self._next != (pages, slot)
            or self.size_bytes + padded_bytes > RUN_BYTES_MAX
            or (offset is not None and offset != self.offset + self.size_bytes)
        ):
            return False
        self.extents.append(extent)
        self.records.append(record)
        self.size_bytes += padded_bytes
        self._next = (pages if padded_bytes == pages * ALIGN_BYTES else 0, slot + 1)
        return True
