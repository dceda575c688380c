"""The stored form of a block: fixed bytes, small, and damage that is named."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from esker.meta.catalog_record import StoredBlock, pack_block, unpack_block
from esker.meta.store.errors import StoreFailed

KEY = b"\x20key"
U64 = st.integers(0, 2**64 - 1)


def test_golden_bytes() -> None:
    block = StoredBlock(b"key", 655360, 1, 1_700_000_000_000, 300, 5 << 40)
    assert pack_block(block) == bytes.fromhex("02 808028 01 80d095ffbc31 ac02 8080808080a001 6b6579".replace(" ", ""))
    assert unpack_block(KEY, pack_block(block)) == block


def test_a_block_of_a_one_mebibyte_namespace_takes_few_bytes() -> None:
    block = StoredBlock(bytes(32), 1 << 20, 1, 2_000_000_000_000, 5000, 1000 << 40)
    assert len(pack_block(block)) <= 21 + 32


@given(st.builds(StoredBlock, st.binary(max_size=256), U64, U64, U64, U64, U64))
def test_round_trip(block: StoredBlock) -> None:
    assert unpack_block(KEY, pack_block(block)) == block


@pytest.mark.parametrize("stored", [b"", b"\x01\x94", b"\x02", b"\x02\x01\x01", b"\x02" + b"\xff" * 11, b"\x02\xff"])
def test_damage_is_named(stored: bytes) -> None:
    with pytest.raises(StoreFailed, match=r"under \\x20key|under \\x20|under .*key"):
        unpack_block(KEY, stored)
