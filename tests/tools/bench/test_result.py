"""How measurements of jobs and turns are put together."""

import pytest

from esker.tools.bench.result import Figures, Flow, add_counts, add_jobs, flow_of, medians, percentiles, rounded_us


@pytest.mark.parametrize(
    ("seconds", "microseconds"),
    [(0, 0), (0.000_001, 1), (0.000_999, 999), (0.001_234, 1_230), (0.001_235_1, 1_240), (1.2345678, 1_230_000)],
)
def test_latencies_keep_three_digits(seconds: float, microseconds: int) -> None:
    assert rounded_us(seconds) == microseconds


def test_a_calls_latency_counts_for_each_of_its_blocks() -> None:
    assert flow_of([(0.000_010, 4), (0.000_020, 1)], 512) == Flow(bytes=2560, blocks=5, latencies_us={10: 4, 20: 1})


def test_percentiles_are_nearest_ranks() -> None:
    assert percentiles({10: 50, 20: 49, 1000: 1}) == {"p50": 10, "p90": 20, "p99": 20, "p999": 1000, "max": 1000}
    assert percentiles({}) == {"p50": 0, "p90": 0, "p99": 0, "p999": 0, "max": 0}


def test_rates_of_jobs_add_up() -> None:
    figures = add_jobs([(2.0, Flow(200, 20, {5: 20})), (1.0, Flow(50, 5, {9: 5}))])
    assert (figures.bw_bytes, figures.iops) == (150, 15)
    assert (figures.lat_us["p50"], figures.lat_us["max"]) == (5, 9)


def test_medians_are_taken_figure_by_figure() -> None:
    turns = [Figures(bw, iops, {"p50": p50}) for bw, iops, p50 in ((1, 9, 5), (2, 8, 4), (30, 7, 6))]
    assert medians(turns) == Figures(2, 8, {"p50": 5})


def test_counts_add_up_by_name() -> None:
    assert add_counts([{"a": 1}, {"b": 2, "a": 3}]) == {"a": 4, "b": 2}
