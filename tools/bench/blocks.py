"""Keys and contents of the blocks that a benchmark's job stores.

Contents are random bytes made once, with every 4 KiB page stamped with the block's number: no two blocks are equal,
and a page of another block, or of an earlier one in the same place, is seen when contents are compared.
"""

import secrets

import numpy as np

from esker.kvclient import Slot
from esker.tools.bench.workload import Workload
from esker.wire.limits import ALIGN_BYTES

PAGE_WORDS = ALIGN_BYTES // 8
RUN_BYTES = 16


class Blocks:
    """Keys and contents of one job's blocks. A block has a set (the turn that wrote it) and a number in it."""

    def __init__(self, workload: Workload) -> None:
        self._run = secrets.token_bytes(RUN_BYTES)
        words = workload.block_bytes // 8
        self.pattern = np.random.default_rng(workload.seed).integers(0, 2**64, words, dtype=np.uint64)

    def key(self, turn: int, block: int) -> bytes:
        return self._run + (turn + 1).to_bytes(4, "big") + block.to_bytes(8, "big")

    @staticmethod
    def mark(turn: int, block: int) -> int:
        return (turn + 1) << 40 | block

    def refill(self, slot: Slot) -> None:
        """Makes any slot one that holds the pattern."""
        slot.numpy(np.uint64)[: len(self.pattern)] = self.pattern

    def stamp(self, slot: Slot, turn: int, block: int) -> None:
        """Makes a slot that holds the pattern (with whatever marks) the block."""
        slot.numpy(np.uint64)[::PAGE_WORDS] = self.mark(turn, block)

    def right(self, slot: Slot, turn: int, block: int) -> bool:
        """Whether the slot holds the block, every byte of it."""
        self.pattern[::PAGE_WORDS] = self.mark(turn, block)
        return bool(np.array_equal(slot.numpy(np.uint64, len(self.pattern)), self.pattern))
