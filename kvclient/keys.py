"""Keys of a prefix's blocks, chained so that a key stands for all tokens up to its block's end.

Definition, frozen by golden vectors: key 0 follows 32 zero bytes; key i is BLAKE2b-256, keyed with the salt and
personalised `esker-prefix`, of key i-1 followed by the block's token ids as little-endian u32. Tenants with different
salts neither collide with nor guess each other's keys.
"""

import sys
from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

import numpy as np
import numpy.typing as npt

from esker.client.arguments import checked_integer
from esker.wire.errors import UserError

PREFIX_KEY_BYTES = 32
SALT_BYTES_MAX = blake2b.MAX_KEY_SIZE
TOKEN_ID_MAX = 2**32 - 1
_TOKEN_BYTES = 4
_PERSON = b"esker-prefix"


def prefix_keys(token_ids: Sequence[int] | npt.NDArray[Any], block_tokens: int, salt: bytes) -> list[bytes]:
    """One 32-byte key per whole block of `block_tokens` tokens; a partial last block gets none.

    `token_ids` is a list, tuple, numpy array or CPU torch tensor of integers in one dimension; `salt` is 1 to 64
    bytes. Raises `UserError` for anything else, and for ids outside 0 to 2^32 - 1.
    """
    if not isinstance(salt, bytes):
        raise UserError(f"salt is a {type(salt).__name__}; pass bytes")
    block_tokens = checked_integer(block_tokens, "block_tokens")
    if block_tokens < 1:
        raise UserError(f"block_tokens is {block_tokens}; allowed: 1 and up")
    if not 1 <= len(salt) <= SALT_BYTES_MAX:
        raise UserError(f"a salt of {len(salt)} bytes; allowed: 1 to {SALT_BYTES_MAX}")
    packed = _packed(token_ids)
    block_bytes = block_tokens * _TOKEN_BYTES
    copy = blake2b(digest_size=PREFIX_KEY_BYTES, key=salt, person=_PERSON).copy
    key = bytes(PREFIX_KEY_BYTES)
    keys = []
    for end in range(block_bytes, len(packed) + 1, block_bytes):
        state = copy()
        state.update(key)
        state.update(packed[end - block_bytes : end])
        key = state.digest()
        keys.append(key)
    return keys


def _packed(token_ids: Sequence[int] | npt.NDArray[Any]) -> memoryview:
    """The ids as little-endian u32."""
    if not hasattr(token_ids, "__len__"):
        raise UserError(f"token_ids are a {type(token_ids).__name__}; pass one sequence of ids")
    if len(token_ids) == 0:
        return memoryview(b"")
    try:
        ids = np.asarray(token_ids)
    except (ValueError, TypeError, RuntimeError, OverflowError) as error:
        raise UserError(f"token_ids cannot be read as an array: {error}") from error
    if ids.ndim != 1:
        raise UserError(f"token_ids have {ids.ndim} dimensions; pass one sequence of ids")
    if ids.dtype.kind not in "iu":
        raise UserError(f"token_ids are {_described(ids)}; pass integers from 0 to {TOKEN_ID_MAX}")
    low, high = int(ids.min()), int(ids.max())
    if low < 0 or high > TOKEN_ID_MAX:
        raise UserError(f"token id {low if low < 0 else high}; allowed: 0 to {TOKEN_ID_MAX}")
    packed = np.ascontiguousarray(ids, dtype="<u4")
    return packed.data.cast("B") if sys.byteorder == "little" else memoryview(packed.tobytes())


def _described(ids: npt.NDArray[Any]) -> str:
    return "integers beyond 64 bits" if ids.dtype.kind == "O" else f"of type {ids.dtype}"
