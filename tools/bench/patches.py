"""The mutable chunks of one benchmark's job: where its blocks lie in them, and what each holds now.

A block is a part of a chunk that is written and read as a whole. Contents are random bytes made once, with every 4 KiB
page stamped with the block's number and how often it was written: a page of another block, or an older one, is seen
when contents are compared. A block has one operation under way at a time, so that what it holds is known.
"""

import secrets
from collections.abc import Iterable, Iterator

import numpy as np

from esker.client.mutable import ChunkRead, ChunkWrite
from esker.kvclient import Slot
from esker.tools.bench.workload import Workload
from esker.wire.limits import ALIGN_BYTES, OBJECT_BYTES

PAGE_WORDS = ALIGN_BYTES // 8
UNKNOWN = -1


class Patches:
    """Blocks of one job: `workload.blocks` of `workload.block_bytes`, in chunks of `chunk_bytes`."""

    def __init__(self, workload: Workload, chunk_bytes: int) -> None:
        self._object = secrets.token_bytes(OBJECT_BYTES)
        self._block_bytes = workload.block_bytes
        self._chunk_bytes = chunk_bytes
        self._per_chunk = chunk_bytes // workload.block_bytes
        self._written = [0] * workload.blocks
        self._busy: set[int] = set()
        words = workload.block_bytes // 8
        self._pattern = np.random.default_rng(workload.seed).integers(0, 2**64, words, dtype=np.uint64)

    @property
    def chunks(self) -> list[tuple[bytes, int]]:
        """All chunks, (object, index)."""
        return [(self._object, index) for index in range(-(-len(self._written) // self._per_chunk))]

    def take(self, order: Iterator[int], count: int) -> list[int]:
        """The next `count` blocks of `order` that have nothing under way; from now on they have."""
        found: list[int] = []
        for number in order:
            if number not in self._busy:
                self._busy.add(number)
                found.append(number)
            if len(found) == count or len(self._busy) == len(self._written):
                break
        return found

    def done(self, numbers: Iterable[int]) -> None:
        """Nothing is under way there any more."""
        self._busy.difference_update(numbers)

    def write(self, number: int, slot: Slot) -> ChunkWrite:
        """The next write of a block, with its content made in `slot`."""
        words = slot.numpy(np.uint64)
        words[: len(self._pattern)] = self._pattern
        words[: len(self._pattern) : PAGE_WORDS] = self._mark(number, self._written[number] + 1)
        index, offset = self._place(number)
        return ChunkWrite(self._object, index, offset, slot.first(self._block_bytes), self._chunk_bytes)

    def first_write(self, index: int) -> tuple[range, ChunkWrite]:
        """The blocks of a chunk, and the write that stores all of them at once for the first time."""
        first = index * self._per_chunk
        numbers = range(first, min(first + self._per_chunk, len(self._written)))
        words = np.tile(self._pattern, (len(numbers), 1))
        words[:, ::PAGE_WORDS] = np.array([self._mark(number, 1) for number in numbers], dtype=np.uint64)[:, None]
        return numbers, ChunkWrite(self._object, index, 0, words.data.cast("B"), self._chunk_bytes)

    def wrote(self, number: int, *, ok: bool) -> None:
        """How that write ended; one that did not end well may have been done or not."""
        if self._written[number] != UNKNOWN:
            self._written[number] = self._written[number] + 1 if ok else UNKNOWN

    def read(self, number: int, slot: Slot) -> ChunkRead:
        """A read of a block into `slot`."""
        index, offset = self._place(number)
        return ChunkRead(self._object, index, offset, self._block_bytes, slot)

    def right(self, number: int, slot: Slot) -> bool:
        """Whether `slot` holds the block as it was written last, every byte of it; true where nobody can tell."""
        if self._written[number] == UNKNOWN:
            return True
        self._pattern[::PAGE_WORDS] = self._mark(number, self._written[number])
        return bool(np.array_equal(slot.numpy(np.uint64, len(self._pattern)), self._pattern))

    def _mark(self, number: int, written: int) -> int:
        return written << 40 | number

    def _place(self, number: int) -> tuple[int, int]:
        index, part = divmod(number, self._per_chunk)
        return index, part * self._block_bytes


def without_end(workload: Workload, turn: int, writes: Iterator[int]) -> Iterator[int]:
    """A turn's order of writes, again and again: what is written in place can be written any number of times."""
    order = list(writes)
    assert len(order) == workload.blocks, f"turn {turn} leaves blocks out"
    while True:
        yield from order
