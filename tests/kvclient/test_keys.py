"""Prefix keys: frozen by golden vectors, the same for every kind of sequence."""

from hashlib import blake2b
from typing import Any

import numpy as np
import pytest

from esker.kvclient import UserError, prefix_keys

SALT = b"salt"


def test_golden_vectors() -> None:
    keys = prefix_keys(range(40), 16, SALT)
    assert [key.hex()[:16] for key in keys] == ["c57cf67ca9d58234", "1d415d8ccb9c4739"]


def test_the_definition() -> None:
    tokens = [7, 0, 2**32 - 1, 9]
    first = blake2b(bytes(32) + b"\x07\0\0\0" + bytes(4), key=SALT, person=b"esker-prefix", digest_size=32).digest()
    second = blake2b(first + b"\xff" * 4 + b"\x09\0\0\0", key=SALT, person=b"esker-prefix", digest_size=32).digest()
    assert prefix_keys(tokens, 2, SALT) == [first, second]


@pytest.mark.parametrize("convert", [list, tuple, np.array, lambda ids: np.array(ids, dtype=np.uint16)])
def test_every_kind_of_sequence_gives_the_same_keys(convert: Any) -> None:
    ids = [number * 7 % 1000 for number in range(100)]
    assert prefix_keys(convert(ids), 8, SALT) == prefix_keys(ids, 8, SALT)


def test_torch_tensors_are_taken() -> None:
    torch = pytest.importorskip("torch")
    assert prefix_keys(torch.arange(64), 8, SALT) == prefix_keys(list(range(64)), 8, SALT)


def test_a_key_stands_for_all_tokens_before_its_end_and_for_the_salt() -> None:
    keys = prefix_keys([1, 2, 3, 4, 5, 6], 2, SALT)
    changed = prefix_keys([1, 2, 3, 9, 5, 6], 2, SALT)
    assert keys[0] == changed[0]
    assert not set(keys[1:]) & set(changed)
    assert not set(keys) & set(prefix_keys([1, 2, 3, 4, 5, 6], 2, b"other"))


def test_only_whole_blocks_get_keys() -> None:
    assert prefix_keys([], 4, SALT) == []
    assert prefix_keys([1, 2, 3], 4, SALT) == []
    assert len(prefix_keys(range(11), 4, SALT)) == 2


@pytest.mark.parametrize(
    ("ids", "block_tokens", "salt", "message"),
    [
        ([1, 2], 0, SALT, "block_tokens is 0"),
        ([1, 2], 1, b"", "a salt of 0 bytes"),
        ([1, 2], 1, b"x" * 65, "a salt of 65 bytes"),
        ([1, -2], 1, SALT, "token id -2"),
        ([1, 2**32], 1, SALT, "token id 4294967296"),
        ([1, 2**70], 1, SALT, "beyond 64 bits"),
        ([1.5], 1, SALT, "float64"),
        ([True], 1, SALT, "bool"),
        ([[1, 2], [3, 4]], 1, SALT, "2 dimensions"),
        ([[1], [2, 3]], 1, SALT, "cannot be read as an array"),
        (["a"], 1, SALT, "token_ids are of type"),
    ],
)
def test_bad_input_is_refused(ids: Any, block_tokens: int, salt: bytes, message: str) -> None:
    with pytest.raises(UserError, match=message):
        prefix_keys(ids, block_tokens, salt)
