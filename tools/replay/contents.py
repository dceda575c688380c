"""The keys and contents of a trace's blocks. Both follow from the block's id alone, so a reader can check every byte.

A block is one fixed random pattern, each 8-byte word of it combined with a word made from the id: as fast to make and
to check as memory is to read, and no two ids share a single word at any place.
"""

from collections.abc import Iterable
from hashlib import blake2b

import numpy as np

from esker.wire.errors import UserError

KEY_BYTES = 32
WORD_BYTES = 8
PATTERN_SEED = 0x65736B6572
_MASK = 2**64 - 1


def block_keys(hash_ids: Iterable[int]) -> list[bytes]:
    """A trace's ids stand for a block and all before it, and so do these keys."""
    copy = blake2b(digest_size=KEY_BYTES, person=b"esker replay").copy
    keys = []
    for hash_id in hash_ids:
        state = copy()
        state.update(hash_id.to_bytes(8, "big"))
        keys.append(state.digest())
    return keys


def id_word(hash_id: int) -> int:
    """A 64-bit word that is different for every id and looks random (the finalizer of splitmix64, a bijection)."""
    word = (hash_id + 0x9E3779B97F4A7C15) & _MASK
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & _MASK
    return word ^ (word >> 31)


class BlockContents:
    """Makes and checks blocks of `block_bytes`, which must be a positive multiple of 8."""

    def __init__(self, block_bytes: int) -> None:
        if block_bytes <= 0 or block_bytes % WORD_BYTES:
            raise UserError(f"blocks of {block_bytes} bytes; allowed: positive multiples of {WORD_BYTES}")
        self.block_bytes = block_bytes
        random = np.random.default_rng(PATTERN_SEED)
        self._pattern = random.integers(0, 2**64, block_bytes // WORD_BYTES, dtype=np.uint64)
        self._scratch = np.empty_like(self._pattern)

    def fill(self, view: memoryview, hash_id: int) -> None:
        """Writes the block into the first `block_bytes` of `view`."""
        np.bitwise_xor(self._pattern, np.uint64(id_word(hash_id)), out=self._words(view))

    def matches(self, view: memoryview, hash_id: int) -> bool:
        """Whether the first `block_bytes` of `view` are the block, every byte of it."""
        np.bitwise_xor(self._words(view), self._pattern, out=self._scratch)
        return bool((self._scratch == np.uint64(id_word(hash_id))).all())

    def _words(self, view: memoryview) -> "np.ndarray[tuple[int], np.dtype[np.uint64]]":
        return np.frombuffer(view, dtype=np.uint64, count=len(self._pattern))
