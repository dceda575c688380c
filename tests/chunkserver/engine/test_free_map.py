"""The free map of one class, and runs of slots."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from esker.chunkserver.engine.free_map import FreeMap, runs, unclaimed

SLOTS = st.sets(st.integers(0, 300))


@given(SLOTS)
def test_runs_are_the_slots(slots: set[int]) -> None:
    result = runs(slots)
    assert [slot for first, count in result for slot in range(first, first + count)] == sorted(slots)
    ends = [(first, first + count) for first, count in result]
    assert all(end < start for (_, end), (start, _) in pairwise(ends)), "neighbours are joined"


@given(st.lists(st.booleans(), max_size=100), st.integers(0, 1000))
def test_unclaimed_is_what_is_not_claimed(claimed: list[bool], first: int) -> None:
    result = unclaimed(bytearray(claimed), first)
    expected = [first + place for place, taken in enumerate(claimed) if not taken]
    assert [slot for start, count in result for slot in range(start, start + count)] == expected


def test_new_slots_are_taken_lowest_first() -> None:
    free_map = FreeMap()
    free_map.extend(3)
    assert [free_map.free.pop() for _ in range(3)] == [0, 1, 2]
    free_map.extend(2)
    assert free_map.end == 5
    assert free_map.free.pop() == 3


def test_taking_more_than_there_is() -> None:
    free_map = FreeMap()
    free_map.extend(3)
    free_map.holes.extend([7, 8])
    assert sorted(free_map.take_free(5)) == [0, 1, 2]
    assert sorted(free_map.take_holes(5)) == [7, 8]
    assert free_map.take_free(1) == []
    assert free_map.take_holes(1) == []
    assert free_map.end == 3


def test_four_bytes_a_free_slot() -> None:
    free_map = FreeMap()
    free_map.extend(100_000)
    assert free_map.free.buffer_info()[1] * free_map.free.itemsize == 400_000
