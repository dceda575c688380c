"""What a replay counts, on a clock that the test moves."""

import pytest

from esker.tools.exit_codes import ExitCode
from esker.tools.replay.tally import BusyClock, Summary, Tally


class Hand:
    """A clock that stands where it is put."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def summary(tally: Tally) -> Summary:
    return tally.summary(clients=1, block_bytes=4096, transport="tcp", cluster="h:1")


def test_overlapping_activities_count_their_common_time_once() -> None:
    hand = Hand()
    clock = BusyClock(hand)
    with clock.running():
        hand.now_s += 1
        with clock.running():
            hand.now_s += 1
        hand.now_s += 1
    hand.now_s += 50
    with clock.running():
        hand.now_s += 2
    assert clock.seconds == 5


def test_an_activity_that_fails_is_over() -> None:
    hand = Hand()
    clock = BusyClock(hand)

    def failing() -> None:
        with clock.running():
            hand.now_s += 1
            raise KeyError

    with pytest.raises(KeyError):
        failing()
    hand.now_s += 10
    assert clock.seconds == 1


def test_summary_of_nothing_has_no_division_by_zero() -> None:
    found = summary(Tally(Hand()))
    assert found.hit_share == 0
    assert found.request_latency_ms == {"p50": 0, "p90": 0, "p99": 0}
    assert found.exit_code() is ExitCode.FINE


def test_summary_adds_statuses_of_both_directions() -> None:
    hand = Hand()
    tally = Tally(hand)
    tally.requests, tally.blocks, tally.hit_blocks = 2, 10, 4
    tally.get_statuses.update({"OK": 4, "TIMEOUT": 1, "UNAVAILABLE": 2})
    tally.put_statuses.update({"OK": 3, "UNAVAILABLE": 5, "NO_SPACE": 6})
    tally.latencies_ms = [3.0, 1.0, 2.0]
    hand.now_s += 9
    found = summary(tally)
    assert (found.unavailable, found.timeout, found.no_space, found.seconds) == (7, 1, 6, 9)
    assert found.hit_share == 0.4
    assert found.request_latency_ms == {"p50": 2, "p90": 3, "p99": 3}


@pytest.mark.parametrize(
    ("get", "put", "wrong", "errors", "code"),
    [
        ({"OK": 5, "NOT_FOUND": 1}, {"OK": 5, "EXISTS": 2}, 0, {}, ExitCode.FINE),
        ({"TIMEOUT": 1}, {}, 0, {}, ExitCode.DEGRADED),
        ({}, {"UNAVAILABLE": 1}, 0, {}, ExitCode.DEGRADED),
        ({}, {"NO_SPACE": 1}, 0, {}, ExitCode.DEGRADED),
        ({}, {}, 0, {"ConnectionFailed": 1}, ExitCode.DEGRADED),
        ({"TIMEOUT": 1}, {}, 1, {}, ExitCode.WRONG_BYTES),
    ],
)
def test_exit_code_names_the_worst(
    get: dict[str, int], put: dict[str, int], wrong: int, errors: dict[str, int], code: ExitCode
) -> None:
    tally = Tally(Hand())
    tally.get_statuses.update(get)
    tally.put_statuses.update(put)
    tally.errors.update(errors)
    tally.wrong_blocks = wrong
    assert summary(tally).exit_code() is code
