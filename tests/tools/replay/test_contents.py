"""Blocks' contents and keys follow from their ids, and any other byte is noticed."""

import pytest

from esker.tools.replay.contents import BlockContents, block_keys, id_word
from esker.wire.errors import UserError


def filled(contents: BlockContents, hash_id: int) -> bytearray:
    block = bytearray(contents.block_bytes)
    contents.fill(memoryview(block), hash_id)
    return block


def test_a_block_matches_its_own_id_only() -> None:
    contents = BlockContents(4096)
    block = filled(contents, 7)
    assert contents.matches(memoryview(block), 7)
    assert not contents.matches(memoryview(block), 8)
    assert block == filled(BlockContents(4096), 7), "the same in every process"


@pytest.mark.parametrize("position", [0, 1, 7, 8, 2000, 4095])
def test_a_single_wrong_bit_is_noticed(position: int) -> None:
    contents = BlockContents(4096)
    block = filled(contents, 3)
    block[position] ^= 1
    assert not contents.matches(memoryview(block), 3)


def test_zeros_and_mixtures_are_noticed() -> None:
    contents = BlockContents(8192)
    assert not contents.matches(memoryview(bytearray(8192)), 3)
    mixture = filled(contents, 3)[:4096] + filled(contents, 4)[4096:]
    assert not contents.matches(memoryview(mixture), 3)


def test_only_the_blocks_own_bytes_of_a_longer_buffer_are_used() -> None:
    contents = BlockContents(64)
    buffer = bytearray(b"\xaa" * 128)
    contents.fill(memoryview(buffer), 1)
    assert buffer[64:] == b"\xaa" * 64
    assert contents.matches(memoryview(buffer), 1)


@pytest.mark.parametrize("block_bytes", [0, -8, 4, 4097])
def test_sizes_that_are_not_whole_words_are_refused(block_bytes: int) -> None:
    with pytest.raises(UserError, match="multiples of 8"):
        BlockContents(block_bytes)


def test_words_and_keys_differ_between_ids() -> None:
    ids = [*range(2000), 2**63, 2**64 - 1]
    assert len({id_word(hash_id) for hash_id in ids}) == len(ids)
    keys = block_keys(ids)
    assert len(set(keys)) == len(ids)
    assert {len(key) for key in keys} == {32}
    assert block_keys([5])[0] == keys[5]
