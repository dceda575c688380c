"""For how long replicas are left out: longer each time, anew after a good while, and never for ever in memory."""

from esker.meta.holds import HOLD_MAX_S, HOLD_MIN_S, Holds
from esker.wire.types import Chain, Replica

CHAIN = Chain(1, 1, (Replica("d0"), Replica("d1")))


def held_for_s(holds: Holds, now_s: float, drive_id: str = "d1", life: str = "i") -> float:
    """Holds it from now on, and tells for how long, to a quarter of a second."""
    holds.hold(CHAIN, drive_id, life, now_s)
    steps = range(int(4 * HOLD_MAX_S) + 2)
    return next(step / 4 for step in steps if not holds.holds(CHAIN, drive_id, life, now_s + step / 4))


def test_each_hold_is_longer_up_to_the_longest_and_begins_anew_after_it() -> None:
    holds, now_s, spans = Holds(), 10.0, []
    for _ in range(8):
        spans.append(held_for_s(holds, now_s))
        now_s += spans[-1]
    assert spans[:3] == [HOLD_MIN_S, 2 * HOLD_MIN_S, 4 * HOLD_MIN_S]
    assert spans[-2:] == [HOLD_MAX_S, HOLD_MAX_S]
    assert held_for_s(holds, now_s + HOLD_MAX_S) == HOLD_MAX_S, "it gave cause again"
    assert held_for_s(holds, now_s + 3 * HOLD_MAX_S + 1) == HOLD_MIN_S


def test_a_hold_that_has_not_ended_is_not_made_longer_and_one_that_is_released_ends() -> None:
    holds = Holds()
    assert held_for_s(holds, 10.0) == HOLD_MIN_S
    holds.hold(CHAIN, "d1", "i", 12.0)
    assert not holds.holds(CHAIN, "d1", "i", 10.0 + HOLD_MIN_S)
    holds.hold(CHAIN, "d0", "i", 20.0)
    assert not holds.holds(CHAIN, "d0", "another life", 20.0)
    holds.release(CHAIN, "d0", "i")
    assert not holds.holds(CHAIN, "d0", "i", 20.0)
    assert held_for_s(holds, 20.0, "d0") == HOLD_MIN_S


def test_lives_that_are_over_are_forgotten() -> None:
    holds = Holds()
    for number in range(1000):
        holds.hold(CHAIN, "d1", f"life {number}", number * HOLD_MAX_S)
    assert len(holds._until) <= 3
