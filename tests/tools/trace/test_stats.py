"""The figures of a trace, above all what counts as a prefix hit."""

import os
from pathlib import Path

import pytest

from esker.tools.trace.format import TraceRequest, read_trace
from esker.tools.trace.stats import count_hits, percentile, trace_stats


def request(*hash_ids: int, timestamp: float = 0) -> TraceRequest:
    return TraceRequest(timestamp=timestamp, input_length=512 * len(hash_ids), hash_ids=hash_ids)


def test_a_hit_needs_every_block_before_it() -> None:
    assert count_hits((1, 2, 3), {1, 2}) == 2
    assert count_hits((1, 2, 3), {1, 3}) == 1
    assert count_hits((1, 2, 3), {2, 3}) == 0
    assert count_hits((), {1}) == 0


def test_blocks_of_the_same_request_are_no_hits() -> None:
    assert trace_stats([request(1, 1, 1)]).hit_blocks == 0


def test_figures_of_a_small_trace() -> None:
    stats = trace_stats([request(0, 1), request(0, 2, 1, timestamp=2500), request(0, 2, 1, 9, timestamp=4000)])
    assert (stats.requests, stats.blocks, stats.unique_blocks, stats.hit_blocks) == (3, 9, 4, 4)
    assert stats.hit_share == pytest.approx(4 / 9)
    assert stats.blocks_per_request == 3
    assert stats.request_hit_blocks == {"p50": 1, "p90": 3, "p99": 3, "max": 3}
    assert stats.input_length["max"] == 2048
    assert stats.duration_s == 4
    assert stats.continuing_share == pytest.approx(1 / 3)
    assert stats.used_once_share == pytest.approx(1 / 4)


@pytest.mark.parametrize(("share", "value"), [(0.0, 1), (0.5, 5), (0.51, 6), (0.9, 9), (0.99, 10), (1.0, 10)])
def test_percentile_is_the_nearest_rank(share: float, value: int) -> None:
    assert percentile(range(1, 11), share) == value


def test_figures_of_the_published_conversation_trace() -> None:
    path = os.environ.get("ESKER_TEST_TRACE")
    if not path:
        pytest.skip("ESKER_TEST_TRACE does not name the published conversation trace")
    stats = trace_stats(read_trace(Path(path)))
    assert (stats.requests, stats.blocks, stats.hit_blocks, stats.unique_blocks) == (12_031, 288_500, 105_710, 182_790)
    assert stats.input_length == {"p50": 6_909, "p90": 27_367, "p99": 85_401, "max": 126_195}
