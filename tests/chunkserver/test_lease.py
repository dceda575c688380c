"""A worker's lease, on a clock that the test moves."""

import time

import pytest

from esker.chunkserver.lease import Lease, boot_clock
from esker.wire.limits import WORKER_LEASE_S


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def lease(clock: Clock) -> Lease:
    return Lease(clock)


def test_a_life_begins_without_one(lease: Lease) -> None:
    assert not lease.live(1, 1)
    assert (lease.term, lease.left_ms, lease.stopped) == (0, 0, ())


def test_it_runs_from_when_the_heartbeat_was_sent(lease: Lease, clock: Clock) -> None:
    lease.renew(99.5, 1, ())
    assert lease.left_ms == int((WORKER_LEASE_S - 0.5) * 1000)
    clock.now_s = 99.5 + WORKER_LEASE_S - 0.001
    assert lease.live(1, 1)
    clock.now_s = 99.5 + WORKER_LEASE_S
    assert not lease.live(1, 1)
    assert lease.left_ms == 0


def test_an_answer_to_an_older_heartbeat_never_shortens_it(lease: Lease, clock: Clock) -> None:
    lease.renew(100.0, 1, ())
    lease.renew(99.0, 1, ())
    clock.now_s = 100.0 + WORKER_LEASE_S - 0.001
    assert lease.live(1, 1)


def test_what_is_withheld_has_ended_up_to_that_version(lease: Lease) -> None:
    lease.renew(100.0, 4, ((1, 5),))
    assert not lease.live(1, 5)
    assert not lease.live(1, 4)
    assert lease.live(1, 6)
    assert lease.live(2, 5)
    assert (lease.stopped, lease.term) == (((1, 5),), 4)
    lease.renew(100.1, 4, ())
    assert lease.live(1, 5), "the change did not come about"


def test_the_end_is_for_good(lease: Lease) -> None:
    lease.renew(100.0, 1, ())
    lease.end()
    assert not lease.live(1, 1)
    assert lease.left_ms == 0
    lease.renew(100.0, 1, ())
    assert not lease.live(1, 1)


def test_times_without_it_are_counted(lease: Lease, clock: Clock) -> None:
    lease.renew(100.0, 1, ())
    assert lease.lapses == 0, "the first one renews nothing"
    clock.now_s = 101.0
    lease.renew(101.0, 1, ())
    assert lease.lapses == 0
    clock.now_s = 101.0 + WORKER_LEASE_S
    lease.renew(102.0, 1, ())
    assert lease.lapses == 1


def test_the_clock_runs_on_while_the_machine_is_suspended() -> None:
    before = time.clock_gettime(time.CLOCK_BOOTTIME)
    assert before <= boot_clock() <= time.clock_gettime(time.CLOCK_BOOTTIME)
