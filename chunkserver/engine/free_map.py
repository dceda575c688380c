"""Which slots of one size class are free. Pure; knows numbers, not files.

A slot below `end` is in one of four places: used, free, a hole, or on its way back (which the owner keeps). Free slots
have space on the drive. Holes are free too, but their space was given back: it must be had again before use. Both are
kept as arrays of u32, four bytes each; used slots cost nothing here, for the index knows them.
"""

from array import array
from collections.abc import Iterable

Run = tuple[int, int]
"""First slot, number of slots."""


class FreeMap:
    """See the module. A freshly made map has no slots at all."""

    __slots__ = ("end", "free", "holes")

    def __init__(self) -> None:
        self.end = 0
        self.free = array("I")
        self.holes = array("I")

    def extend(self, count: int) -> None:
        """`count` new slots at the end, with space; lower numbers are taken first."""
        self.free.extend(range(self.end + count - 1, self.end - 1, -1))
        self.end += count

    def take_free(self, count: int) -> list[int]:
        """Takes out `count` free slots (or all there are), those that waited longest."""
        chosen = list(self.free[:count])
        del self.free[:count]
        return chosen

    def take_holes(self, count: int) -> list[int]:
        """Takes out `count` holes (or all there are)."""
        first = max(0, len(self.holes) - count)
        chosen = list(self.holes[first:])
        del self.holes[first:]
        return chosen


def runs(slots: Iterable[int]) -> list[Run]:
    """Neighbouring slots as runs, in order."""
    result: list[Run] = []
    first = last = -2
    for slot in sorted(slots):
        if slot != last + 1:
            if first >= 0:
                result.append((first, last - first + 1))
            first = slot
        last = slot
    if first >= 0:
        result.append((first, last - first + 1))
    return result


def unclaimed(claimed: bytearray, first: int = 0) -> list[Run]:
    """Runs of zero bytes in `claimed` (one byte per slot), numbered from `first`."""
    result: list[Run] = []
    position = claimed.find(0)
    while position >= 0:
        end = claimed.find(1, position)
        if end < 0:
            end = len(claimed)
        result.append((first + position, end - position))
        position = claimed.find(0, end)
    return result
