"""The longest time without a success."""

from esker.tools.bench.gap import Gap


def test_the_longest_gap_between_successes_and_up_to_now() -> None:
    gap = Gap(10.0)
    assert gap.longest_s(10.5) == 0.5
    for now_s in (11.0, 14.0, 15.0):
        gap.success(now_s)
    assert gap.longest_s(15.0) == 3.0
    assert gap.longest_s(19.0) == 4.0


def test_forgetting_keeps_the_open_gap() -> None:
    gap = Gap(0.0)
    gap.success(5.0)
    gap.forget()
    assert gap.longest_s(6.0) == 1.0
    gap.success(7.0)
    assert gap.longest_s(7.0) == 2.0
