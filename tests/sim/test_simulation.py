"""A chain keeps its promises under every simulated fault, and the simulation notices whoever breaks a rule."""

import os

import pytest

from esker.craq.replica import ChainReplica
from esker.wire.status import Status

from .manager import Manager
from .mutants import MANAGERS, NODES, REPLICAS, AnswersTwice
from .nodes import Node
from .simulation import ACKNOWLEDGED, TRANSCRIPT_LINES, Broken, Simulation

SEEDS = int(os.environ.get("ESKER_TEST_SEEDS", "100"))
"""`make sim SEEDS=...` plays many more than every run of the tests."""
SEEDS_UNTIL_CAUGHT = 150


@pytest.mark.parametrize("first", range(0, SEEDS, 10))
def test_the_promises_hold(first: int) -> None:
    for seed in range(first, min(first + 10, SEEDS)):
        Simulation(seed).run()


def test_a_seed_plays_the_same_every_time() -> None:
    def answers() -> list[list[Status]]:
        simulation = Simulation(7)
        simulation.run()
        return [request.answers for request in simulation.requests]

    assert answers() == answers()


def test_the_storms_leave_definite_answers_and_cause_every_other_kind_and_changes_of_the_chain() -> None:
    seen = dict.fromkeys(Status, 0)
    lost = changes = 0
    for seed in range(20):
        simulation = Simulation(seed)
        simulation.run()
        changes += simulation.changes
        for request in simulation.requests:
            lost += request.lost
            for status in request.answers:
                seen[status] += 1
    definite = (*ACKNOWLEDGED, Status.NOT_FOUND, Status.CONDITION, Status.NO_SPACE)
    assert all(seen[status] for status in (*definite, Status.UNAVAILABLE, Status.TIMEOUT, Status.CHAIN_VERSION))
    assert lost
    assert sum(seen[status] for status in definite) > sum(seen.values()) / 2
    assert changes > 100


def caught(**changes: object) -> str:
    """What the simulation says of a mutant. Fails if it notices nothing."""
    for seed in range(SEEDS_UNTIL_CAUGHT):
        try:
            Simulation(seed, **changes).run()  # type: ignore[arg-type]
        except AssertionError as error:  # of the simulation, or of the code itself
            return str(error)
    pytest.fail(f"{SEEDS_UNTIL_CAUGHT} seeds did not notice it")


def test_a_failing_seed_prints_a_short_transcript() -> None:
    with pytest.raises(Broken, match=r"seed 0: .* answers \d+ twice\n") as failure:
        Simulation(0, factory=AnswersTwice).run()
    assert 1 < len(str(failure.value).splitlines()) <= TRANSCRIPT_LINES + 1


@pytest.mark.parametrize("mutant", REPLICAS)
def test_a_replica_that_breaks_a_rule_is_caught(mutant: type[ChainReplica]) -> None:
    caught(factory=mutant)


@pytest.mark.parametrize("mutant", NODES)
def test_a_resync_that_breaks_a_rule_is_caught(mutant: type[Node]) -> None:
    caught(node_type=mutant)


@pytest.mark.parametrize("mutant", MANAGERS)
def test_a_manager_that_breaks_a_rule_is_caught(mutant: type[Manager]) -> None:
    caught(manager_type=mutant)
