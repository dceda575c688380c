"""Lease arithmetic: whatever the clocks' rates, a standby's lease begins only after the holder's has ended."""

from hypothesis import given
from hypothesis import strategies as st

from esker.craq.lease import (
    DEATHS_FROM_S,
    TAKEOVER_S,
    Sighting,
    held_until,
    may_declare_dead,
    may_take_over,
    sighted,
)
from esker.wire.limits import CLOCK_SKEW, MANAGER_LEASE_S, WORKER_LEASE_MARGIN_S, WORKER_LEASE_S


def test_a_lease_counts_from_before_its_transaction_began() -> None:
    assert held_until(100.0) == 100.0 + MANAGER_LEASE_S


def test_a_sighting_lasts_as_long_as_the_record_stays_the_same() -> None:
    first = sighted(None, (1, b"a"), 10.0)
    assert first == Sighting((1, b"a"), 10.0)
    assert sighted(first, (1, b"a"), 11.0) is first
    assert sighted(first, (1, b"b"), 11.0) == Sighting((1, b"b"), 11.0)


def test_the_takeover_waits_for_the_whole_lease_and_the_skew() -> None:
    seen = Sighting("r", 10.0)
    assert not may_take_over(seen, 10.0 + MANAGER_LEASE_S)
    assert not may_take_over(seen, 10.0 + TAKEOVER_S - 0.001)
    assert may_take_over(seen, 10.0 + TAKEOVER_S + 0.001)


def test_a_new_manager_declares_nobody_dead_before_older_heartbeats_have_run_out() -> None:
    assert DEATHS_FROM_S > WORKER_LEASE_S + WORKER_LEASE_MARGIN_S
    assert not may_declare_dead(10.0, 10.0 + DEATHS_FROM_S - 0.001)
    assert may_declare_dead(10.0, 10.0 + DEATHS_FROM_S + 0.001)


rate = st.floats(1 - CLOCK_SKEW / 2.1, 1 + CLOCK_SKEW / 2.1)
span = st.floats(0, 30)


@given(rate, rate, st.floats(0, 1e6), st.floats(0, 1e6), span, span, span, span)
def test_two_leases_never_overlap(
    holder_rate: float,
    standby_rate: float,
    holder_offset: float,
    standby_offset: float,
    commit_after: float,
    seen_after: float,
    waited: float,
    taken_after: float,
) -> None:
    """True time: the holder begins at 0 and commits, a standby reads that, waits, and takes over where it may."""

    def holder(true_s: float) -> float:
        return holder_offset + true_s * holder_rate

    def standby(true_s: float) -> float:
        return standby_offset + true_s * standby_rate

    committed = commit_after
    seen_at = committed + seen_after
    begun = seen_at + waited
    if may_take_over(sighted(None, "record", standby(seen_at)), standby(begun)):
        assert holder(begun + taken_after) >= held_until(holder(0.0)) - 1e-6
