"""Replicas that are left out because nobody can send to them."""

import pytest

from esker.meta.chain_decisions import ChainDecisions
from esker.meta.cuts import BELIEVED_AFTER_S
from esker.meta.heartbeats import Heartbeats
from esker.meta.holds import HOLD_MAX_S, HOLD_MIN_S, Holds
from esker.meta.sightings import QUIET_AFTER_S
from esker.wire.messages import Heartbeat
from esker.wire.types import Chain, Replica, Routing, TargetState

from .conftest import worker

LETTERS = {
    TargetState.SERVING: "S",
    TargetState.SYNCING: "Y",
    TargetState.WAITING: "W",
    TargetState.LASTSRV: "L",
    TargetState.OFFLINE: "O",
}


def chain_of(count: int, min_replicas: int = 1) -> Chain:
    return Chain(1, 1, tuple(Replica(f"d{number}", incarnation="first") for number in range(count)), min_replicas)


class Watched:
    """A chain whose workers all speak, unless they are silent."""

    def __init__(self, chain: Chain, spoke_for_s: float = BELIEVED_AFTER_S) -> None:
        self.chain = chain
        self.now_s = 100.0
        self.heartbeats = Heartbeats()
        self.decisions = ChainDecisions()
        self.version = 1
        self.unreachable: dict[str, tuple[str, ...]] = {}
        self.silent: set[str] = set()
        if spoke_for_s:
            self.steps(spoke_for_s + 0.5)

    def step(self, pause_s: float = 0.5) -> str:
        """The chain after so long; all that the manager decides takes effect."""
        self.now_s += pause_s
        count = len(self.chain.replicas)
        drives = tuple(worker(number) for number in range(count))
        routing = Routing("c", self.version, drives, (self.chain,), (), count, count)
        for each in drives:
            if each.drive_id not in self.silent:
                synced = ((self.chain.chain_id, self.chain.version),) if not self.unreachable else ()
                beat = Heartbeat(
                    each.drive_id, "first", 1, 0, 1, synced=synced, unreachable=self.unreachable.get(each.drive_id, ())
                )
                self.heartbeats.note(beat, routing, self.now_s)
        changes = self.decisions.look(routing, self.heartbeats, self.now_s, silence_is_death=True)
        for _, self.chain in changes:
            self.version += 1
        return " ".join(f"{each.drive_id}:{LETTERS[each.state]}" for each in self.chain.replicas)

    def steps(self, seconds: float) -> str:
        for _ in range(int(seconds / 0.5)):
            text = self.step()
        return text


def test_the_one_behind_is_left_out_and_tried_again_later() -> None:
    watched = Watched(chain_of(2))
    assert watched.step() == "d0:S d1:S"
    watched.unreachable = {"d0": ("d1",)}
    assert watched.step() == "d0:S d1:O"
    assert watched.steps(HOLD_MIN_S - 0.5) == "d0:S d1:O"
    watched.unreachable = {}
    assert watched.step() == "d0:S d1:Y"
    assert watched.step() == "d0:S d1:S"


def test_what_happens_again_is_left_out_for_longer() -> None:
    watched = Watched(chain_of(2))
    for times in (1, 2, 4):
        watched.unreachable = {"d0": ("d1",)}
        assert watched.step() == "d0:S d1:O"
        watched.unreachable = {}
        assert watched.steps(times * HOLD_MIN_S - 0.5) == "d0:S d1:O"
        assert watched.steps(1.0) == "d0:S d1:S"


def test_who_syncs_is_left_out_too_so_that_no_write_waits_for_it() -> None:
    watched = Watched(chain_of(2))
    watched.unreachable = {"d0": ("d1",)}
    watched.step()
    assert watched.steps(HOLD_MIN_S + 0.5) == "d0:S d1:O", "tried, and still out of reach"


@pytest.mark.parametrize(("said", "why"), [
    ({"d1": ("d0",)}, "it sends nothing to the one before it"),
    ({"d0": ("d2",)}, "it sends to another one in this chain"),
    ({"d2": ("d1",)}, "it is not the one before it"),
])  # fmt: skip
def test_only_who_sends_to_it_is_asked(said: dict[str, tuple[str, ...]], why: str) -> None:
    watched = Watched(chain_of(3))
    watched.unreachable = said
    assert watched.step() == "d0:S d1:S d2:S", why


def test_one_at_a_time() -> None:
    watched = Watched(chain_of(3))
    watched.unreachable = {"d0": ("d1",), "d1": ("d2",)}
    assert watched.step() == "d0:S d2:S d1:O"


def test_who_has_trouble_with_more_others_goes() -> None:
    watched = Watched(chain_of(3))
    watched.unreachable = {"d0": ("d1", "d2")}
    assert watched.step() == "d1:S d2:S d0:O", "the others reach each other"
    watched = Watched(chain_of(3))
    watched.unreachable = {"d0": ("d1",), "d1": ("d0",), "d2": ("d0",)}
    assert watched.step() == "d1:S d2:S d0:O"


def test_silent_others_are_no_trouble() -> None:
    watched = Watched(chain_of(3))
    watched.silent = {"d2"}
    watched.steps(QUIET_AFTER_S)
    watched.unreachable = {"d0": ("d1", "d2")}
    assert watched.step() == "d0:S d2:S d1:O"


def test_who_was_silent_is_not_left_out_for_what_was_true_then() -> None:
    watched = Watched(chain_of(2))
    watched.silent = {"d1"}
    watched.steps(QUIET_AFTER_S)
    watched.unreachable = {"d0": ("d1",)}
    assert watched.steps(3.0) == "d0:S d1:O"
    watched.silent = set()
    assert watched.steps(2.0) == "d0:S d1:Y", "it is admitted while the other one's report still stands"
    watched.unreachable = {}
    assert watched.steps(1.0) == "d0:S d1:S"


def test_who_was_silent_and_stays_out_of_reach_is_left_out() -> None:
    watched = Watched(chain_of(2))
    watched.silent = {"d1"}
    watched.steps(QUIET_AFTER_S)
    watched.unreachable = {"d0": ("d1",)}
    watched.steps(3.0)
    watched.silent = set()
    assert watched.steps(BELIEVED_AFTER_S + 1.0) == "d0:S d1:O"


def test_none_is_left_out_that_the_chain_cannot_do_without() -> None:
    watched = Watched(chain_of(2, min_replicas=2))
    watched.unreachable = {"d0": ("d1",)}
    assert watched.steps(3.0) == "d0:S d1:S"


def test_of_two_that_may_have_gone_down_together_neither_is_left_out() -> None:
    watched = Watched(chain_of(2), spoke_for_s=0)
    watched.unreachable = {"d0": ("d1",)}
    watched.silent = {"d1"}
    watched.step()
    watched.silent = {"d0", "d1"}
    assert watched.steps(QUIET_AFTER_S - 0.5) == "d0:S d1:S"
    assert watched.steps(3.0) == "d0:L d1:L"


def test_holds_begin_anew_after_a_long_calm() -> None:
    holds, chain = Holds(), chain_of(2)
    for now_s, until_s in ((0.0, HOLD_MIN_S), (10.0, 10.0 + 2 * HOLD_MIN_S), (1000.0, 1000.0 + HOLD_MIN_S)):
        holds.hold(chain, "d1", "first", now_s)
        assert holds.holds(chain, "d1", "first", until_s - 0.1)
        assert not holds.holds(chain, "d1", "first", until_s)
    for now_s in range(2000, 10000, 301):
        holds.hold(chain, "d1", "first", now_s)
    assert holds.holds(chain, "d1", "first", now_s + HOLD_MIN_S - 1)
    assert not holds.holds(chain, "d1", "first", now_s + HOLD_MAX_S)
    holds.hold(chain, "d1", "first", 20000.0)
    holds.release(chain, "d1", "first")
    assert not holds.holds(chain, "d1", "first", 20001.0)
