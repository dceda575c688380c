"""Counters by outcome and latency histograms, cheap enough for the data path.

They belong to one thread (the loop's): no locks. Whoever publishes them takes a snapshot; nothing here knows how.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

_SUB_BITS = 5
_SUB = 1 << _SUB_BITS
_VALUE_BITS_MAX = 40
_BUCKETS = (_VALUE_BITS_MAX - _SUB_BITS + 1) << _SUB_BITS


class Counters:
    """Named totals that only grow."""

    __slots__ = ("_totals",)

    def __init__(self) -> None:
        self._totals: defaultdict[str, int] = defaultdict(int)

    def add(self, name: str, n: int = 1) -> None:
        """Adds `n`, from zero if the name is new."""
        self._totals[name] += n

    def get(self, name: str) -> int:
        """The total so far; zero for a name never added to."""
        return self._totals.get(name, 0)

    def merge(self, totals: Mapping[str, int]) -> None:
        """Adds another's snapshot to this one."""
        for name, n in totals.items():
            self._totals[name] += n

    def snapshot(self) -> dict[str, int]:
        """A copy, in the order of the names."""
        return dict(sorted(self._totals.items()))


@dataclass(frozen=True, slots=True)
class LatencySummary:
    """What a histogram held at one moment, in microseconds."""

    count: int
    mean_us: float
    p50_us: int
    p90_us: int
    p99_us: int
    max_us: int


class LatencyHistogram:
    """Latencies in whole microseconds, in 32 buckets per power of two: percentiles are at most 3.2 % too high.

    Values beyond 2^40 µs (12 days) count in the last bucket; the maximum stays exact.
    """

    __slots__ = ("_buckets", "_count", "_max_us", "_sum_us")

    def __init__(self) -> None:
        self._buckets = [0] * _BUCKETS
        self._count = 0
        self._sum_us = 0
        self._max_us = 0

    @property
    def count(self) -> int:
        return self._count

    def record(self, latency_us: int, n: int = 1) -> None:
        """Counts `n` operations of `latency_us` each; a negative latency is our own bug."""
        assert latency_us >= 0, latency_us
        self._buckets[_bucket(latency_us)] += n
        self._count += n
        self._sum_us += latency_us * n
        if latency_us > self._max_us:
            self._max_us = latency_us

    def merge(self, other: "LatencyHistogram") -> None:
        """Adds what another histogram holds."""
        self._buckets = [a + b for a, b in zip(self._buckets, other._buckets, strict=True)]
        self._count += other._count
        self._sum_us += other._sum_us
        self._max_us = max(self._max_us, other._max_us)

    def percentile(self, percent: float) -> int:
        """The latency (µs) that `percent` of the operations did not exceed, by nearest rank; 0 when empty."""
        assert 0 < percent <= 100, percent
        rank = max(1, -(-self._count * percent // 100))
        seen = 0
        for index, n in enumerate(self._buckets):
            seen += n
            if n and seen >= rank:
                return min(_highest(index), self._max_us)
        return self._max_us

    def summary(self) -> LatencySummary:
        mean_us = self._sum_us / self._count if self._count else 0.0
        return LatencySummary(
            self._count, mean_us, self.percentile(50), self.percentile(90), self.percentile(99), self._max_us
        )


def _bucket(value: int) -> int:
    """Below 32 each value has its bucket; above, the five bits after the leading one and the magnitude choose it."""
    shift = value.bit_length() - _SUB_BITS - 1
    if shift <= 0:
        return value
    return min((shift << _SUB_BITS) + (value >> shift), _BUCKETS - 1)


def _highest(index: int) -> int:
    """The largest value that falls into a bucket."""
    shift = max(0, (index >> _SUB_BITS) - 1)
    return ((index - (shift << _SUB_BITS) + 1) << shift) - 1
