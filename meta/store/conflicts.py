"""Optimistic validation: what recent commits wrote, against what a committing transaction read.

Owned by one thread or task. Holds commits younger than `age_s`; a transaction that read before the oldest of them is
too old to judge. Nothing here awaits, and time is an argument.
"""

from bisect import bisect_left
from collections import deque

from esker.meta.store.base import after_key
from esker.meta.store.errors import KeyRange, NotCommitted, TransactionTooOld
from esker.meta.store.writes import CommitSet


class _Commit:
    __slots__ = ("_sorted", "at_s", "points", "ranges", "version")

    def __init__(self, version: int, at_s: float, points: frozenset[bytes], ranges: list[KeyRange]) -> None:
        self.version = version
        self.at_s = at_s
        self.points = points
        self.ranges = ranges
        self._sorted: list[bytes] | None = None

    def conflicts(self, reads: CommitSet) -> list[KeyRange]:
        """The ranges of `reads` that this commit wrote into."""
        found = [(key, after_key(key)) for key in self.points & reads.read_points]
        for begin, end in self.ranges:
            found.extend((key, after_key(key)) for key in reads.read_points if begin <= key < end)
        if reads.read_ranges:
            if self._sorted is None:
                self._sorted = sorted(self.points)
            found.extend(read for read in reads.read_ranges if self._wrote_into(read))
        return found

    def _wrote_into(self, read: KeyRange) -> bool:
        begin, end = read
        assert self._sorted is not None
        at = bisect_left(self._sorted, begin)
        if at < len(self._sorted) and self._sorted[at] < end:
            return True
        return any(begin < wrote_end and wrote_begin < end for wrote_begin, wrote_end in self.ranges)


class ConflictWindow:
    """Recent commits' writes. `version` is the newest version that reads may have seen when the window was opened."""

    def __init__(self, version: int, age_s: float) -> None:
        self._commits: deque[_Commit] = deque()
        self._forgotten_version = version
        self._age_s = age_s

    def check(self, reads: CommitSet) -> None:
        """Raises `NotCommitted`, naming the ranges, or `TransactionTooOld`."""
        version = reads.read_version
        if version is None:
            return
        if version < self._forgotten_version:
            raise TransactionTooOld(f"it read version {version}; the oldest kept is {self._forgotten_version}")
        found: set[KeyRange] = set()
        for commit in reversed(self._commits):
            if commit.version <= version:
                break
            found.update(commit.conflicts(reads))
        if found:
            raise NotCommitted(sorted(found))

    def record(self, version: int, writes: CommitSet, now_s: float) -> None:
        """Remember what the commit of `version` wrote (its versionstamps resolved)."""
        points = frozenset(writes.points.keys() | writes.adds.keys())
        self._commits.append(_Commit(version, now_s, points, writes.cleared + writes.write_ranges))

    def take_back(self, version: int) -> None:
        """What was recorded of `version`, the newest one, was not written after all."""
        while self._commits and self._commits[-1].version == version:
            self._commits.pop()

    def forget_old(self, now_s: float) -> None:
        """Call it only once all that was recorded is durable: who read before what is forgotten is too old."""
        while self._commits and now_s - self._commits[0].at_s > self._age_s:
            self._forgotten_version = self._commits.popleft().version
