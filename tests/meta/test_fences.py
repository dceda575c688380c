"""When a replica may lose SERVING, and what replies withhold until then."""

import msgspec
import pytest

from esker.meta.chain_decisions import Change
from esker.meta.fences import Fences, Term, losers
from esker.meta.heartbeats import Heartbeats
from esker.wire.limits import WORKER_LEASE_MARGIN_S, WORKER_LEASE_S
from esker.wire.messages import Heartbeat
from esker.wire.types import Chain, Replica, Routing, TargetState

from .conftest import worker

S, GONE, L = TargetState.SERVING, TargetState.OFFLINE, TargetState.LASTSRV
BEFORE = Chain(1, 5, (Replica("d0", S, "first"), Replica("d1", S, "first")), 1)
AFTER = Chain(1, 6, (Replica("d0", S, "first"), Replica("d1", GONE)), 1)
WANTED: list[Change] = [(BEFORE, AFTER)]
ROUTING = Routing("c", 1, (worker(0), worker(1)), (BEFORE,), (), 2, 2)
TERM = 4
WAIT_S = WORKER_LEASE_S + WORKER_LEASE_MARGIN_S


class Manager:
    """Its fences, and what it hears."""

    def __init__(self) -> None:
        self.fences = Fences()
        self.heartbeats = Heartbeats()
        self.routing = ROUTING
        self.since_s = 0.0

    def beat(self, now_s: float, drive: str = "d1", **fields: object) -> None:
        beat = Heartbeat(drive, "first", 1, 0, 1, **fields)  # type: ignore[arg-type]
        self.heartbeats.note(beat, ROUTING, now_s)

    def ready(self, now_s: float, wanted: list[Change] = WANTED) -> bool:
        return bool(self.fences.put_up(wanted, self.routing, self.heartbeats, Term(TERM, self.since_s, now_s)))


@pytest.fixture
def manager() -> Manager:
    made = Manager()
    made.beat(100.0)
    return made


STOPPED = {"stopped": ((1, 5),), "term": TERM}


def test_a_live_replica_is_waited_for_until_it_says_that_it_stopped(manager: Manager) -> None:
    assert not manager.ready(100.1)
    assert manager.fences.withheld("d1") == ((1, 5),)
    assert manager.fences.withheld("d0") == (), "which goes on serving"
    manager.beat(100.3)
    assert not manager.ready(100.4)
    manager.beat(100.5, **STOPPED)
    assert manager.ready(100.6)
    assert manager.fences.withheld("d1") == ((1, 5),), "until the new chain is what replies are made from"


@pytest.mark.parametrize(("fields", "why"), [
    ({"stopped": ((1, 5),), "term": TERM - 1}, "it said so to an earlier manager, and may have gone on since"),
    ({"stopped": ((1, 4),), "term": TERM}, "that was an earlier version"),
    ({"stopped": ((2, 5),), "term": TERM}, "that is another chain"),
])  # fmt: skip
def test_what_says_nothing_of_this(manager: Manager, fields: dict[str, object], why: str) -> None:
    assert not manager.ready(100.1)
    manager.beat(100.2, **fields)
    assert not manager.ready(100.3), why


def test_what_was_said_before_the_change_was_wanted_does_not_count(manager: Manager) -> None:
    manager.ready(100.1)
    manager.ready(100.2, [])
    manager.beat(100.3, **STOPPED)  # The reply withholds nothing: it goes on.
    assert not manager.ready(100.3)
    manager.beat(100.4, **STOPPED)
    assert manager.ready(100.5)


def test_a_replica_that_goes_on_speaking_is_given_its_whole_lease(manager: Manager) -> None:
    assert not manager.ready(100.0)
    for tenth in range(1, 20):
        manager.beat(100.0 + tenth / 10)
        assert not manager.ready(100.0 + tenth / 10)
    assert manager.ready(100.0 + WAIT_S)


def test_silence_before_the_change_was_wanted_counts(manager: Manager) -> None:
    assert not manager.ready(100.0 + WAIT_S - 0.01)
    assert Manager.ready(manager, 100.0 + WAIT_S)


def test_silence_before_the_term_does_not_count(manager: Manager) -> None:
    manager.since_s = 150.0
    assert not manager.ready(150.1), "another manager may have acknowledged it a moment ago"
    assert manager.ready(150.0 + WAIT_S)


def test_who_never_spoke_to_this_manager_has_as_long_from_the_beginning_of_its_term() -> None:
    manager = Manager()
    manager.since_s = 150.0
    assert not manager.ready(150.1)
    assert manager.ready(150.0 + WAIT_S)


@pytest.mark.parametrize("fields", [{"leaving": True}, {"offline_chains": (1,)}])
def test_who_says_that_it_serves_no_more_is_not_waited_for(manager: Manager, fields: dict[str, object]) -> None:
    manager.beat(100.2, **fields)
    assert manager.ready(100.3)


def test_a_new_life_is_the_end_of_the_old_one(manager: Manager) -> None:
    manager.routing = msgspec.structs.replace(ROUTING, workers=(worker(0), worker(1, incarnation="second")))
    assert manager.ready(100.1)


def test_a_drive_that_is_not_known_any_more_is_given_its_lease(manager: Manager) -> None:
    manager.routing = msgspec.structs.replace(ROUTING, workers=(worker(0),))
    assert not manager.ready(100.1)
    assert manager.ready(100.1 + WAIT_S)


def test_nobody_is_waited_for_where_nobody_loses_anything(manager: Manager) -> None:
    moved = msgspec.structs.replace(BEFORE, version=6, min_replicas=2)
    assert manager.ready(100.1, [(BEFORE, moved)])
    assert manager.fences.withheld("d1") == ()


def test_all_that_lose_it_are_waited_for(manager: Manager) -> None:
    manager.beat(100.0, "d0")
    lost = Chain(1, 6, (Replica("d0", L), Replica("d1", L)), 1)
    assert not manager.ready(100.1, [(BEFORE, lost)])
    manager.beat(100.2, "d0", **STOPPED)
    assert not manager.ready(100.3, [(BEFORE, lost)])
    manager.beat(100.4, **STOPPED)
    assert manager.ready(100.5, [(BEFORE, lost)])


def test_a_change_that_is_not_wanted_any_more_is_put_down(manager: Manager) -> None:
    manager.ready(100.1)
    manager.ready(100.2, [])
    assert manager.fences.withheld("d1") == ()
    for tenth in range(3, 22):
        manager.beat(100.0 + tenth / 10)
    assert not manager.ready(102.1), "it is waited for from now on"


def test_what_was_begun_stays_withheld_until_its_outcome_is_known(manager: Manager) -> None:
    manager.beat(100.2, leaving=True)
    assert manager.ready(100.3)
    manager.fences.begin(WANTED)
    assert not manager.ready(100.4, [])
    assert not manager.ready(100.4), "what was begun comes first"
    assert manager.fences.withheld("d1") == ((1, 5),)
    assert manager.fences.unsettled() == [BEFORE]
    manager.fences.put_down([BEFORE])
    assert manager.fences.withheld("d1") == ()
    assert manager.ready(100.5)
    manager.fences.begin(WANTED)
    manager.fences.settled(WANTED)
    assert manager.fences.unsettled() == []
    assert manager.fences.withheld("d1") == ((1, 5),)


def test_a_begun_change_that_took_effect_is_put_down_when_the_map_has_it(manager: Manager) -> None:
    manager.beat(100.2, leaving=True)
    assert manager.ready(100.3)
    manager.fences.begin(WANTED)
    manager.routing = msgspec.structs.replace(ROUTING, chains=(AFTER,))
    manager.ready(100.4, [])
    assert manager.fences.unsettled() == []
    assert manager.fences.withheld("d1") == ()


def test_another_term_begins_with_nothing(manager: Manager) -> None:
    manager.ready(100.1)
    manager.fences.begin(WANTED)
    manager.fences.forget()
    assert manager.fences.withheld("d1") == ()


@pytest.mark.parametrize(("was", "becomes", "lost"), [
    (Replica("d1", S, "first"), Replica("d1", S, "first"), False),
    (Replica("d1", S, "first"), Replica("d1", GONE), True),
    (Replica("d1", S, "first"), Replica("d1", L), True),
    (Replica("d1", S, "first"), Replica("d1", S, "second"), True),
    (Replica("d1", S), Replica("d1", S, "first"), False),
    (Replica("d1", S), Replica("d1", GONE), True),
    (Replica("d1", TargetState.SYNCING, "first"), Replica("d1", GONE), False),
])  # fmt: skip
def test_who_loses_serving(was: Replica, becomes: Replica, lost: bool) -> None:
    assert losers(Chain(1, 1, (was,)), Chain(1, 2, (becomes,))) == ([was] if lost else [])
