"""The window of recent commits: what conflicts, what is forgotten."""

import pytest

from esker.meta.store.conflicts import ConflictWindow
from esker.meta.store.errors import NotCommitted, TransactionTooOld
from esker.meta.store.writes import CommitSet


def test_only_later_commits_conflict() -> None:
    window = ConflictWindow(0, age_s=5)
    window.record(1, CommitSet(points={b"a": b"1"}), 0.0)
    window.record(2, CommitSet(cleared=[(b"m", b"p")], points={b"z": None}), 0.1)
    window.check(CommitSet(read_version=2, read_points={b"a", b"n", b"z"}, read_ranges=[(b"a", b"zz")]))
    window.check(CommitSet(read_version=1, read_points={b"a", b"p"}, read_ranges=[(b"a", b"m"), (b"p", b"z")]))
    window.check(CommitSet(read_version=None, read_points={b"a"}))
    reads = CommitSet(read_version=0, read_points={b"a", b"b", b"n"}, read_ranges=[(b"o", b"q"), (b"y", b"zz")])
    with pytest.raises(NotCommitted) as caught:
        window.check(reads)
    assert caught.value.ranges == ((b"a", b"a\x00"), (b"n", b"n\x00"), (b"o", b"q"), (b"y", b"zz"))


def test_what_is_older_than_the_window_cannot_be_judged() -> None:
    window = ConflictWindow(7, age_s=5)
    window.check(CommitSet(read_version=7, read_points={b"a"}))
    with pytest.raises(TransactionTooOld):
        window.check(CommitSet(read_version=6))
    window.record(8, CommitSet(points={b"a": b"1"}), 100.0)
    window.record(9, CommitSet(points={b"b": b"1"}), 104.0)
    with pytest.raises(NotCommitted):
        window.check(CommitSet(read_version=7, read_points={b"a"}))
    window.record(10, CommitSet(points={b"c": b"1"}), 105.1)
    window.check(CommitSet(read_version=8, read_points={b"a"}))
    window.forget_old(105.1)
    with pytest.raises(TransactionTooOld, match="read version 7; the oldest kept is 8"):
        window.check(CommitSet(read_version=7, read_points={b"a"}))
    window.check(CommitSet(read_version=8, read_points={b"a"}))


def test_what_is_taken_back_was_never_written() -> None:
    window = ConflictWindow(3, age_s=5)
    window.record(4, CommitSet(points={b"a": b"1"}), 0.0)
    window.record(5, CommitSet(points={b"b": b"1"}), 0.0)
    window.record(5, CommitSet(points={b"c": b"1"}), 0.0)
    window.take_back(5)
    window.check(CommitSet(read_version=4, read_points={b"b", b"c"}))
    with pytest.raises(NotCommitted):
        window.check(CommitSet(read_version=3, read_points={b"a"}))
