"""What the manager makes of heartbeats, joins and silence, in time that the tests move by hand."""

import msgspec
import pytest

from esker.craq.membership import LocalState, Target
from esker.meta.heartbeats import Heartbeats
from esker.meta.sightings import DEAD_AFTER_S, QUIET_AFTER_S, Sightings
from esker.wire.limits import HEARTBEAT_INTERVAL_S
from esker.wire.messages import Heartbeat
from esker.wire.types import Chain, Replica, Routing, TargetState

from .conftest import worker

CHAIN = Chain(1, 5, (Replica("d0", incarnation="first"), Replica("d1", incarnation="first")), 1)
ROUTING = Routing("c", 1, (worker(0), worker(1)), (CHAIN,), (), 2, 2)


class Watched:
    """Two workers and whoever watches them."""

    def __init__(self) -> None:
        self.heartbeats = Heartbeats()
        self.sightings = Sightings()
        self.routing = ROUTING

    def beat(self, number: int, now_s: float, *, offline: tuple[int, ...] = (), incarnation: str = "first") -> None:
        beat = Heartbeat(f"d{number}", incarnation, 1, 0, 1, offline_chains=offline)
        self.heartbeats.note(beat, self.routing, now_s)

    def restart(self, number: int) -> None:
        workers = tuple(
            worker(number, incarnation="second") if each.drive_id == f"d{number}" else each
            for each in self.routing.workers
        )
        self.routing = msgspec.structs.replace(self.routing, workers=workers)

    def look(self, now_s: float, *, deaths: bool = True) -> dict[str, Target]:
        self.sightings.look(self.routing, self.heartbeats, now_s, silence_is_death=deaths)
        return self.sightings.targets(CHAIN)

    def sure(self) -> bool:
        return self.sightings.losses_are_sure(CHAIN, self.sightings.targets(CHAIN))


@pytest.fixture
def watched() -> Watched:
    """Who has been watched for a while."""
    made = Watched()
    made.look(0.0)
    return made


def states(targets: dict[str, Target]) -> list[LocalState]:
    return [targets[f"d{number}"].state for number in range(2)]


ON, OFF = LocalState.ONLINE, LocalState.OFFLINE


def test_silence_is_death_after_a_while(watched: Watched) -> None:
    watched.beat(0, 10.0)
    watched.beat(1, 10.0)
    assert states(watched.look(10.1)) == [ON, ON]
    watched.beat(1, 11.9)
    assert states(watched.look(10.0 + DEAD_AFTER_S - 0.01)) == [ON, ON]
    assert states(watched.look(10.0 + DEAD_AFTER_S)) == [OFF, ON]
    assert watched.sightings.troubled() == {"d0"}


def test_a_young_manager_takes_no_silence_for_death(watched: Watched) -> None:
    watched.look(10.0)
    assert states(watched.look(100.0, deaths=False)) == [ON, ON]


def test_who_never_spoke_has_as_long_from_when_it_became_known() -> None:
    watched = Watched()
    assert states(watched.look(10.0)) == [ON, ON]
    assert states(watched.look(11.9)) == [ON, ON]
    assert states(watched.look(12.0)) == [OFF, OFF]


def test_a_life_that_joined_counts_as_alive_then(watched: Watched) -> None:
    watched.beat(0, 10.0)
    watched.look(10.0)
    watched.restart(0)
    targets = watched.look(13.0)
    assert targets["d0"] == Target(ON, "second")
    assert watched.look(15.0)["d0"].state is OFF, "it did not speak in time"


def test_a_failing_drive_is_offline_for_the_chains_that_it_names(watched: Watched) -> None:
    watched.beat(1, 10.0)
    watched.beat(0, 10.0, offline=(1, 7))
    assert states(watched.look(10.1)) == [OFF, ON]
    assert watched.sightings.troubled() == {"d0"}
    assert watched.sure(), "it says so itself: nothing went down"
    other = msgspec.structs.replace(CHAIN, chain_id=2)
    assert watched.sightings.targets(other)["d0"].state is ON


def test_a_drive_that_never_joined_is_unknown(watched: Watched) -> None:
    watched.look(1.0)
    stranger = msgspec.structs.replace(CHAIN, replicas=(Replica("d9"),))
    assert watched.sightings.targets(stranger) == {}
    assert watched.sightings.of("d9") is None


def test_who_leaves_is_gone_at_once(watched: Watched) -> None:
    watched.heartbeats.note(Heartbeat("d0", "first", 1, 0, 1, leaving=True), watched.routing, 10.0)
    watched.beat(1, 10.0)
    assert states(watched.look(10.1, deaths=False)) == [OFF, ON]
    assert watched.sightings.troubled() == {"d0"}
    watched.restart(0)
    assert states(watched.look(10.2)) == [ON, ON], "that is another life"


def test_only_who_was_heard_of_a_moment_ago_speaks(watched: Watched) -> None:
    watched.beat(0, 10.0)
    watched.look(10.1)
    assert watched.sightings.speaks("d0", 10.1)
    assert not watched.sightings.speaks("d0", 10.0 + QUIET_AFTER_S)
    assert not watched.sightings.speaks("d1", 10.1)
    assert not watched.sightings.speaks("d9", 10.1)


# Whether a loss is sure


def test_a_loss_is_sure_once_another_was_heard_after_it_began_to_show(watched: Watched) -> None:
    watched.beat(0, 10.0)
    watched.beat(1, 10.0 + QUIET_AFTER_S + 0.1)
    watched.look(10.0 + DEAD_AFTER_S)
    assert watched.sure()


def test_who_went_quiet_at_the_same_time_is_waited_for(watched: Watched) -> None:
    watched.beat(0, 10.0)
    watched.beat(1, 10.4)
    assert states(watched.look(12.1)) == [OFF, ON]
    assert not watched.sure()
    assert states(watched.look(12.4)) == [OFF, OFF]
    assert watched.sure(), "both are gone: both stay candidates"


def test_a_restart_is_a_loss_only_once_another_speaks(watched: Watched) -> None:
    watched.beat(0, 10.0)
    watched.beat(1, 10.0)
    watched.look(10.1)
    watched.restart(0)
    watched.look(10.2)
    assert not watched.sure()
    watched.beat(1, 10.3)
    watched.look(10.4)
    assert watched.sure()


def test_all_that_were_started_anew_are_lost_together(watched: Watched) -> None:
    watched.beat(0, 10.0)
    watched.beat(1, 10.0)
    watched.look(10.1)
    watched.restart(0)
    watched.restart(1)
    watched.look(10.2)
    assert watched.sure()


def test_who_leaves_is_taken_out_once_another_one_stays(watched: Watched) -> None:
    watched.beat(1, 10.0)
    watched.heartbeats.note(Heartbeat("d0", "first", 1, 0, 1, leaving=True), watched.routing, 10.0)
    watched.beat(1, 10.0 + HEARTBEAT_INTERVAL_S)
    watched.look(10.5)
    assert not watched.sure(), "the other one may be about to leave too"
    watched.beat(1, 10.1 + HEARTBEAT_INTERVAL_S)
    watched.look(10.7)
    assert watched.sure()


def test_all_that_leave_together_stay_candidates(watched: Watched) -> None:
    for number in range(2):
        beat = Heartbeat(f"d{number}", "first", 1, 0, 1, leaving=True)
        watched.heartbeats.note(beat, watched.routing, 10.0 + number / 10)
    assert states(watched.look(10.3)) == [OFF, OFF]
    assert watched.sure()


def test_without_a_loss_there_is_nothing_to_be_sure_of(watched: Watched) -> None:
    watched.look(10.0)
    assert watched.sure()
    calm = msgspec.structs.replace(CHAIN, replicas=(*CHAIN.replicas[:1], Replica("d1", TargetState.OFFLINE)))
    assert watched.sightings.losses_are_sure(calm, watched.sightings.targets(calm))


def test_what_was_known_is_forgotten(watched: Watched) -> None:
    watched.beat(0, 10.0)
    watched.look(20.0)
    assert watched.sightings.dead == {"d0", "d1"}
    watched.sightings.forget()
    assert watched.sightings.dead == frozenset()
    assert watched.sightings.of("d0") is None
