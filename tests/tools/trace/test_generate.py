"""Generated traces have the figures they were asked for, from any seed."""

import dataclasses

import pytest

from esker.tools.trace.generate import TraceProfile, generate_trace, quantile
from esker.tools.trace.presets import CONVERSATION
from esker.tools.trace.stats import trace_stats
from esker.wire.errors import UserError

FLAT = ((0.0, 512.0), (1.0, 5_120.0))
SMALL = dataclasses.replace(CONVERSATION, requests=500)


@pytest.mark.parametrize("seed", [0, 1, 2, 42, 12_345])
def test_conversation_preset_matches_the_published_trace(seed: int) -> None:
    stats = trace_stats(generate_trace(CONVERSATION, seed))
    assert stats.requests == 12_031
    assert stats.blocks == pytest.approx(288_500, rel=0.01)
    assert stats.hit_blocks == pytest.approx(105_710, rel=0.01)
    assert stats.hit_share == pytest.approx(0.3664, rel=0.01)
    assert stats.unique_blocks == pytest.approx(182_790, rel=0.01)
    assert stats.duration_s == pytest.approx(3_537, rel=0.05)
    for name, tokens in {"p50": 6_909, "p90": 27_367, "p99": 85_401, "max": 126_195}.items():
        assert stats.input_length[name] == pytest.approx(tokens, rel=0.01)
    # The shape of sharing is only roughly that of the published trace (there: 25 and 106).
    assert stats.request_hit_blocks["p90"] == pytest.approx(25, rel=0.2)
    assert stats.request_hit_blocks["p99"] == pytest.approx(106, rel=0.25)


def test_equal_seeds_give_equal_traces_and_others_do_not() -> None:
    first = list(generate_trace(SMALL, 7))
    assert list(generate_trace(SMALL, 7)) == first
    assert list(generate_trace(SMALL, 8)) != first


def test_requests_are_well_formed() -> None:
    before = 0.0
    parents: dict[int, int] = {}
    for request in generate_trace(SMALL, 3):
        assert request.timestamp >= before
        before = request.timestamp
        assert len(request.hash_ids) == -(-request.input_length // 512)
        parent = -1
        for hash_id in request.hash_ids:
            assert parents.setdefault(hash_id, parent) == parent, "an id stands for one prefix"
            parent = hash_id
    assert sorted(parents) == list(range(len(parents))), "ids are handed out without gaps"


def test_single_turns_without_prompt_share_nothing() -> None:
    profile = dataclasses.replace(SMALL, turns=1, hit_share=None, system_prompt_blocks=0)
    assert trace_stats(generate_trace(profile, 1)).hit_blocks == 0


def test_system_prompts_are_shared_by_all() -> None:
    profile = dataclasses.replace(
        SMALL, turns=1, hit_share=None, system_prompts=3, system_prompt_blocks=2, input_length=FLAT
    )
    requests = list(generate_trace(profile, 1))
    assert len({request.hash_ids[0] for request in requests}) == 3
    assert trace_stats(requests).hit_blocks == 2 * (len(requests) - 3)


def test_more_turns_give_more_hits() -> None:
    def share(turns: float) -> float:
        profile = dataclasses.replace(SMALL, turns=turns, hit_share=None)
        return trace_stats(generate_trace(profile, 1)).hit_share

    assert share(1.2) < share(2) < share(5)


@pytest.mark.parametrize("hit_share", [0.2, 0.5])
def test_hit_share_is_steered_to(hit_share: float) -> None:
    profile = dataclasses.replace(CONVERSATION, requests=4_000, hit_share=hit_share)
    assert trace_stats(generate_trace(profile, 1)).hit_share == pytest.approx(hit_share, rel=0.02)


def test_quantile_is_linear_between_points() -> None:
    assert [quantile(((0.0, 10), (0.5, 20), (1.0, 60)), share) for share in (0, 0.25, 0.5, 0.75, 1)] == [
        10,
        15,
        20,
        40,
        60,
    ]


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"requests": 0}, "requests"),
        ({"turns": 0.5}, "turns"),
        ({"hit_share": 1.0}, "hit share"),
        ({"system_prompts": 0}, "system prompts"),
        ({"requests_per_s": 0}, "requests per second"),
        ({"block_tokens": 0}, "block tokens"),
        ({"input_length": ((0.0, 5),)}, "input length"),
        ({"input_length": ((0.0, 5), (1.0, 4))}, "input length"),
        ({"output_length": ((0.0, 0), (1.0, 4))}, "output length"),
    ],
)
def test_profiles_out_of_range_are_refused(change: dict[str, object], complaint: str) -> None:
    with pytest.raises(UserError, match=complaint):
        TraceProfile(**{**dataclasses.asdict(CONVERSATION), **change})  # type: ignore[arg-type]
