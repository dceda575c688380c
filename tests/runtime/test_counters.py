"""Counters and histograms against plain arithmetic."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from esker.runtime.counters import Counters, LatencyHistogram

LATENCIES_US = st.lists(st.integers(0, 1 << 41), min_size=1, max_size=200)


def _filled(latencies_us: list[int]) -> LatencyHistogram:
    histogram = LatencyHistogram()
    for latency_us in latencies_us:
        histogram.record(latency_us)
    return histogram


def test_counters_add_up_by_name() -> None:
    counters = Counters()
    counters.add("read.hit")
    counters.add("read.hit", 41)
    counters.add("read.bytes", 4096)
    assert counters.get("read.hit") == 42
    assert counters.get("read.miss") == 0
    assert counters.snapshot() == {"read.bytes": 4096, "read.hit": 42}


def test_a_snapshot_is_a_copy_in_order() -> None:
    counters = Counters()
    counters.add("b")
    counters.add("a")
    snapshot = counters.snapshot()
    counters.add("a")
    assert list(snapshot.items()) == [("a", 1), ("b", 1)]


def test_merged_counters_hold_both() -> None:
    counters = Counters()
    counters.add("a", 1)
    counters.merge({"a": 2, "b": 3})
    assert counters.snapshot() == {"a": 3, "b": 3}


@given(LATENCIES_US, st.sampled_from([1, 50, 90, 99, 99.9, 100]))
def test_a_percentile_is_the_nearest_rank_within_a_bucket(latencies_us: list[int], percent: float) -> None:
    exact = sorted(latencies_us)[max(1, int(-(-len(latencies_us) * percent // 100))) - 1]
    estimate = _filled(latencies_us).percentile(percent)
    if exact < 1 << 40:
        assert exact <= estimate <= exact * (1 + 1 / 32)
    else:
        assert estimate >= (1 << 40) - 1


@given(LATENCIES_US, LATENCIES_US)
def test_merged_histograms_equal_one_of_all(first: list[int], second: list[int]) -> None:
    merged = _filled(first)
    merged.merge(_filled(second))
    assert merged.summary() == _filled(first + second).summary()


def test_a_summary() -> None:
    summary = _filled(list(range(1, 101))).summary()
    assert (summary.count, summary.mean_us, summary.max_us) == (100, 50.5, 100)
    assert (summary.p50_us, summary.p90_us, summary.p99_us) == (50, 91, 99)


def test_many_operations_of_one_latency_count_as_many() -> None:
    histogram = LatencyHistogram()
    histogram.record(7, n=3)
    assert (histogram.count, histogram.percentile(50)) == (3, 7)


def test_an_empty_histogram_is_all_zero() -> None:
    summary = LatencyHistogram().summary()
    assert (summary.count, summary.mean_us, summary.p99_us, summary.max_us) == (0, 0, 0, 0)


def test_a_negative_latency_is_our_bug() -> None:
    with pytest.raises(AssertionError):
        LatencyHistogram().record(-1)
