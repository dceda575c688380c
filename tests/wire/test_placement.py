"""Placement is frozen: golden vectors, and the properties that made it worth freezing."""

from hashlib import sha256
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from esker.wire.errors import UserError
from esker.wire.ids import object_slot
from esker.wire.limits import PLACEMENT_SLOTS
from esker.wire.placement import Indexes, SlotTable, anchor_objects, anchor_positions, build_slot_table


def chains_of(chain_ids: list[int], weights: list[int]) -> npt.NDArray[Any]:
    """The chain id of every slot."""
    return np.array(chain_ids)[np.frombuffer(build_slot_table(chain_ids, weights), dtype="<u2")]


EVERY_SLOT = b"".join(bytes(14) + slot.to_bytes(2, "big") for slot in range(PLACEMENT_SLOTS))


def slots_of(table: SlotTable) -> Indexes:
    """The chain index of every slot."""
    return table.chain_indexes(EVERY_SLOT)


@pytest.mark.parametrize(
    ("chain_ids", "weights", "digest", "first"),
    [
        ([1, 2, 3, 4], [1, 1, 1, 1], "e2c9cc4eed4ec683", [0, 2, 2, 2]),
        ([1], [7], "fa43239bcee7b97c", [0, 0, 0, 0]),
        ([5, 9, 1000], [1, 2, 4], "3b94daf4847b31f8", [2, 2, 2, 2]),
        (list(range(1, 57)), [1024] * 28 + [2048] * 28, "69f6a33bac8f3bf4", [24, 52, 36, 23]),
    ],
)
def test_golden_vectors(chain_ids: list[int], weights: list[int], digest: str, first: list[int]) -> None:
    table = build_slot_table(chain_ids, weights)
    assert sha256(table).hexdigest()[:16] == digest
    assert np.frombuffer(table, "<u2")[:4].tolist() == first


def test_order_in_the_list_does_not_matter() -> None:
    ids, weights = [3, 1, 4, 15, 9, 2, 6], [5, 3, 5, 8, 9, 7, 9]
    order = [4, 2, 6, 0, 5, 1, 3]
    shuffled = chains_of([ids[at] for at in order], [weights[at] for at in order])
    assert np.array_equal(chains_of(ids, weights), shuffled)


def test_only_the_relation_of_weights_matters_in_equal_lists() -> None:
    assert build_slot_table([1, 2, 3], [1, 1, 1]) == build_slot_table([1, 2, 3], [4096, 4096, 4096])


@pytest.mark.parametrize("weights", [[1] * 12, [100, 200, 300, 400], [2**32 - 1, 2**31], [1000] * 50 + [3000] * 50])
def test_each_chain_gets_its_weights_share(weights: list[int]) -> None:
    counts = np.bincount(np.frombuffer(build_slot_table(range(1, len(weights) + 1), weights), dtype="<u2"))
    for weight, count in zip(weights, counts, strict=True):
        share = weight / sum(weights)
        deviation = (PLACEMENT_SLOTS * share * (1 - share)) ** 0.5
        assert abs(count - PLACEMENT_SLOTS * share) < 5 * deviation


@pytest.mark.parametrize("weights", [[1] * 9, [7, 1, 2, 9, 4, 4, 3, 8, 5]])
def test_a_change_moves_only_its_own_share(weights: list[int]) -> None:
    ids = list(range(1, 10))
    before = chains_of(ids, weights)
    without = chains_of(ids[:-1], weights[:-1])
    kept = before != ids[-1]
    assert np.array_equal(before[kept], without[kept])
    assert not (without == ids[-1]).any()


def test_a_heavier_chain_only_gains() -> None:
    before, after = chains_of([1, 2, 3], [4, 4, 4]), chains_of([1, 2, 3], [4, 4, 6])
    moved = before != after
    assert moved.any()
    assert (after[moved] == 3).all()


@pytest.mark.parametrize(
    ("chain_ids", "weights", "dead", "digest"),
    [
        ([1, 2, 3, 4], [1, 1, 1, 1], {1}, "691de70634f1fbf4"),
        ([5, 9, 1000], [1, 2, 4], {0, 2}, "96196237ef70f282"),
        (list(range(1, 57)), [1024] * 28 + [2048] * 28, {0, 13, 55}, "89fbbf67b2087c37"),
    ],
)
def test_golden_vectors_with_dead_chains(chain_ids: list[int], weights: list[int], dead: set[int], digest: str) -> None:
    home = build_slot_table(chain_ids, weights)
    table = slots_of(SlotTable(home, len(chain_ids)).without(chain_ids, weights, dead))
    assert sha256(table.astype("<u2").tobytes()).hexdigest()[:16] == digest


@settings(max_examples=20)
@given(st.lists(st.integers(1, 5), min_size=1, max_size=12), st.data())
def test_slots_of_dead_chains_go_to_the_best_of_the_living_and_no_other_moves(weights: list[int], data: Any) -> None:
    ids = data.draw(st.permutations([17 * number + 3 for number in range(len(weights))]))
    dead = data.draw(st.sets(st.integers(0, len(ids) - 1)))
    home = SlotTable(build_slot_table(ids, weights), len(ids))
    table = home.without(ids, weights, dead)
    alive = [index for index in range(len(ids)) if index not in dead]
    if not alive:
        assert table is home
        return
    among_the_living = chains_of([ids[index] for index in alive], [weights[index] for index in alive])
    assert np.array_equal(np.array(ids)[slots_of(table)], among_the_living)
    stay = np.isin(slots_of(home), alive)
    assert np.array_equal(slots_of(table)[stay], slots_of(home)[stay])


def test_what_one_table_says_of_some_chains_slots_can_be_taken_into_another() -> None:
    ids, weights = [1, 2, 3, 4], [1, 1, 1, 1]
    home = SlotTable(build_slot_table(ids, weights), 4)
    other = home.without(ids, weights, {1, 2})
    taken = home.taking(other, home, {1})
    own = slots_of(home) == 1
    assert np.array_equal(slots_of(taken)[own], slots_of(other)[own])
    assert np.array_equal(slots_of(taken)[~own], slots_of(home)[~own])


@pytest.mark.parametrize(
    ("chain_ids", "weights", "message"),
    [
        ([], [], "0 chains"),
        ([1, 2], [1], "2 chains but 1 weights"),
        ([1, 1], [1, 1], "twice"),
        ([2**32], [1], "chain id 4294967296"),
        ([1], [0], "weight 0"),
        ([1], [2**32], "weight 4294967296"),
    ],
)
def test_bad_tables_are_refused(chain_ids: list[int], weights: list[int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build_slot_table(chain_ids, weights)


@given(st.lists(st.binary(min_size=16, max_size=16), min_size=1, max_size=50))
def test_lookups_one_by_one_and_in_bulk_agree(objects: list[bytes]) -> None:
    packed = build_slot_table([1, 2, 3, 4, 5], [1, 2, 3, 4, 5])
    table = SlotTable(packed, 5)
    expected = [int.from_bytes(packed[2 * object_slot(each) :][:2], "little") for each in objects]
    assert table.chain_indexes(b"".join(objects)).tolist() == expected
    assert [table.chain_index(each) for each in objects] == expected


def test_a_table_of_another_size_or_with_unknown_chains_is_refused() -> None:
    with pytest.raises(ValueError, match="131072"):
        SlotTable(bytes(100), 1)
    with pytest.raises(ValueError, match="names chain 3 of 3"):
        SlotTable(build_slot_table([1, 2, 3, 4], [1] * 4), 3)


@given(st.integers(1, 40), st.integers(0, 100), st.integers(1, 20))
def test_anchors_follow_the_definition(count: int, start: int, run_blocks: int) -> None:
    anchors = [(block // run_blocks) * run_blocks for block in range(start, start + count)]
    expected = [max(anchor - start, -1) for anchor in anchors]
    assert anchor_positions(count, start, run_blocks).tolist() == expected


def test_anchor_objects_take_the_given_anchor_only_inside_a_run() -> None:
    objects = [bytes([number]) * 16 for number in range(5)]
    given_anchor = b"a" * 16
    assert anchor_objects(objects, 6, 4, given_anchor) == given_anchor * 2 + objects[2] * 3
    assert anchor_objects(objects, 8, 4, given_anchor) == objects[0] * 4 + objects[4]
    assert anchor_objects(objects, 6, 1, None) == b"".join(objects)


def test_a_missing_anchor_says_which_key_is_wanted() -> None:
    with pytest.raises(UserError, match=r"block 6 lies inside a run of 4 blocks: pass anchor=, the key of block 4"):
        anchor_objects([bytes(16)], 6, 4, None)
    with pytest.raises(UserError, match="start is -1"):
        anchor_objects([bytes(16)], -1, 4, None)
