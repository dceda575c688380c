"""The overlay of a transaction's writes, and its set of ranges."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from esker.meta.store.errors import InvalidOperation
from esker.meta.store.writes import RangeSet, WriteBuffer, added

ranges = st.lists(st.tuples(st.integers(0, 40), st.integers(1, 8)), max_size=12)


def key(number: int) -> bytes:
    return bytes([number])


@given(ranges, st.integers(0, 40), st.integers(0, 20))
def test_a_range_set_is_the_union_of_its_ranges(parts: list[tuple[int, int]], low: int, length: int) -> None:
    held = RangeSet()
    members: set[int] = set()
    for begin, size in parts:
        held.add(key(begin), key(begin + size))
        members.update(range(begin, begin + size))
    assert [number for number in range(60) if key(number) in held] == sorted(members)
    bounds = list(held)
    assert all(left[1] < right[0] for left, right in pairwise(bounds)), "joined and in order"
    gaps = held.gaps(key(low), key(low + length))
    outside = [number for begin, end in gaps for number in range(begin[0], end[0])]
    assert outside == [number for number in range(low, low + length) if number not in members]


def test_an_addition_wraps_at_its_width() -> None:
    assert added(None, b"\x05\x00") == b"\x05\x00"
    assert added(b"\xff\xff", b"\x01\x00") == b"\x00\x00"
    assert added(b"\x01", b"") == b""


def test_a_stamped_key_hides_only_where_it_may_land() -> None:
    writes = WriteBuffer()
    writes.set_stamped(b"log/", b"", b"v")
    assert writes.lookup(b"log/") == (False, None)
    assert writes.gaps(b"a", b"b") == [(b"a", b"b")]
    for use in (
        lambda: writes.lookup(b"log/" + bytes(10)),
        lambda: writes.gaps(b"a", b"z"),
        lambda: writes.clear_range(b"log", b"log0"),
    ):
        with pytest.raises(InvalidOperation, match="versionstamp"):
            use()


def test_stamps_become_points() -> None:
    writes = WriteBuffer()
    writes.set_stamped(b"a", b"z", b"v")
    writes.commit_set.resolve_stamps(b"0123456789")
    assert writes.commit_set.points == {b"a0123456789z": b"v"}
