"""What a transaction has written so far, laid over what it reads.

Kept as a final state, not as a log: first the cleared ranges apply, then the points. A point is absolute (a value, or
None: cleared) or relative (operands to add to whatever the store holds). `commit_set` hands that state to an engine.
Knows nothing of engines; nothing here awaits.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator
from dataclasses import dataclass, field

from esker.meta.store.base import VERSIONSTAMP_BYTES
from esker.meta.store.errors import InvalidOperation, KeyRange


@dataclass(slots=True)
class CommitSet:
    """What an engine validates and applies at a commit. `read_version` is None where nothing was read."""

    read_version: int | None = None
    read_points: set[bytes] = field(default_factory=set)
    read_ranges: list[KeyRange] = field(default_factory=list)
    cleared: list[KeyRange] = field(default_factory=list)
    points: dict[bytes, bytes | None] = field(default_factory=dict)
    adds: dict[bytes, list[bytes]] = field(default_factory=dict)
    stamped: list[tuple[bytes, bytes, bytes]] = field(default_factory=list)
    """(prefix, suffix, value): the versionstamp goes between."""
    write_ranges: list[KeyRange] = field(default_factory=list)
    """Only conflicts; nothing is written."""

    def resolve_stamps(self, stamp: bytes) -> None:
        """Turn the versionstamped keys into points."""
        for prefix, suffix, value in self.stamped:
            self.points[prefix + stamp + suffix] = value
        self.stamped.clear()


def added(value: bytes | None, operand: bytes) -> bytes:
    """FoundationDB's atomic add: little-endian, modulo the operand's width."""
    width = len(operand)
    total = int.from_bytes((value or b"")[:width], "little") + int.from_bytes(operand, "little")
    return (total % (1 << (8 * width))).to_bytes(width, "little") if width else b""


class RangeSet:
    """Disjoint half-open key ranges, sorted."""

    def __init__(self) -> None:
        self._begins: list[bytes] = []
        self._ends: list[bytes] = []

    def __bool__(self) -> bool:
        return bool(self._begins)

    def __iter__(self) -> Iterator[KeyRange]:
        return zip(self._begins, self._ends, strict=True)

    def __contains__(self, key: bytes) -> bool:
        at = bisect_right(self._begins, key) - 1
        return at >= 0 and key < self._ends[at]

    def add(self, begin: bytes, end: bytes) -> None:
        """Add [begin, end), joined with what it overlaps or touches."""
        first = bisect_left(self._ends, begin)
        last = bisect_right(self._begins, end)
        if first < last:
            begin = min(begin, self._begins[first])
            end = max(end, self._ends[last - 1])
        self._begins[first:last] = [begin]
        self._ends[first:last] = [end]

    def gaps(self, begin: bytes, end: bytes) -> list[KeyRange]:
        """The parts of [begin, end) outside the set, in order."""
        found = []
        for cleared_begin, cleared_end in self:
            if cleared_end <= begin:
                continue
            if cleared_begin >= end:
                break
            if begin < cleared_begin:
                found.append((begin, cleared_begin))
            begin = cleared_end
        if begin < end:
            found.append((begin, end))
        return found


class WriteBuffer:
    """The overlay. `lookup` and `written_between` answer reads; an unreadable key raises `InvalidOperation`."""

    def __init__(self) -> None:
        self.commit_set = CommitSet()
        self._cleared = RangeSet()
        self._sorted: list[bytes] | None = []
        """Written keys in order; None while stale. Sorted only when a range needs it, as most never do."""

    def set(self, key: bytes, value: bytes | None) -> None:
        self._note(key)
        self.commit_set.adds.pop(key, None)
        self.commit_set.points[key] = value

    def clear_range(self, begin: bytes, end: bytes) -> None:
        self._refuse_unreadable(begin, end)
        for key in self._keys_between(begin, end):
            self.commit_set.points.pop(key, None)
            self.commit_set.adds.pop(key, None)
        self._sorted = None
        self._cleared.add(begin, end)
        self.commit_set.cleared = list(self._cleared)

    def add(self, key: bytes, operand: bytes) -> None:
        points = self.commit_set.points
        if key in points or key in self._cleared:
            self.set(key, added(points.get(key), operand))
        else:
            self._note(key)
            self.commit_set.adds.setdefault(key, []).append(operand)

    def set_stamped(self, prefix: bytes, suffix: bytes, value: bytes) -> None:
        self.commit_set.stamped.append((prefix, suffix, value))

    def lookup(self, key: bytes) -> tuple[bool, bytes | None]:
        """(whether the value is known without the store, that value)."""
        self._refuse_unreadable(key, key + b"\x00")
        points = self.commit_set.points
        if key in points:
            return True, points[key]
        if key in self.commit_set.adds:
            return False, None
        return key in self._cleared, None

    def over(self, key: bytes, stored: bytes | None) -> bytes | None:
        """`stored` with this transaction's operands added."""
        for operand in self.commit_set.adds.get(key, ()):
            stored = added(stored, operand)
        return stored

    def gaps(self, begin: bytes, end: bytes) -> list[KeyRange]:
        """The parts of [begin, end) whose stored pairs still show."""
        self._refuse_unreadable(begin, end)
        return self._cleared.gaps(begin, end) if self._cleared else [(begin, end)]

    def written_between(self, begin: bytes, end: bytes) -> list[bytes]:
        """Keys in [begin, end) that have a point (set, cleared or added to), in order."""
        return self._keys_between(begin, end)

    def _note(self, key: bytes) -> None:
        if self._sorted is not None and key not in self.commit_set.points and key not in self.commit_set.adds:
            if self._sorted and key < self._sorted[-1]:
                self._sorted = None
            else:
                insort(self._sorted, key)

    def _keys_between(self, begin: bytes, end: bytes) -> list[bytes]:
        if self._sorted is None:
            self._sorted = sorted(self.commit_set.points.keys() | self.commit_set.adds.keys())
        return self._sorted[bisect_left(self._sorted, begin) : bisect_left(self._sorted, end)]

    def _refuse_unreadable(self, begin: bytes, end: bytes) -> None:
        for prefix, suffix, _ in self.commit_set.stamped:
            lowest = prefix + bytes(VERSIONSTAMP_BYTES) + suffix
            highest = prefix + b"\xff" * VERSIONSTAMP_BYTES + suffix
            if begin <= highest and lowest < end:
                raise InvalidOperation("use of a range that holds a key whose versionstamp is not known yet")
