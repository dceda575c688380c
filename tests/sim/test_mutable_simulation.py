"""Mutable chunks keep their promises under every simulated fault, and the simulation notices whoever breaks a rule."""

import os

import pytest

from esker.craq.mutable_operation import MutableOperation
from esker.craq.replica import ChainReplica
from esker.wire.status import Status

from .mutable_mutants import NODES, OPERATIONS, REPLICAS, replica_with
from .mutable_nodes import MutableNode
from .mutable_simulation import MutableSimulation

SEEDS = int(os.environ.get("ESKER_TEST_SEEDS", "60"))
"""`make sim SEEDS=...` plays many more than every run of the tests."""
SEEDS_UNTIL_CAUGHT = 100


@pytest.mark.parametrize("first", range(0, SEEDS, 10))
def test_the_promises_hold(first: int) -> None:
    for seed in range(first, min(first + 10, SEEDS)):
        MutableSimulation(seed).run()


def test_the_storms_end_in_every_way_and_leave_much_done() -> None:
    reads, writes = dict.fromkeys(Status, 0), dict.fromkeys(Status, 0)
    changes = 0
    for seed in range(10):
        simulation = MutableSimulation(seed)
        simulation.run()
        changes += simulation.changes
        for total, counts in ((reads, simulation.reads), (writes, simulation.writes)):
            for status, count in counts.items():
                total[status] += count
    unsure = (Status.UNAVAILABLE, Status.TIMEOUT, Status.CHAIN_VERSION)
    assert all(writes[status] for status in (*unsure, Status.CONDITION, Status.NO_SPACE, Status.NOT_FOUND))
    assert all(reads[status] for status in (*unsure, Status.BUSY, Status.CHECKSUM))
    assert writes[Status.OK] > 100
    assert reads[Status.OK] > 200
    assert changes > 50


def test_a_seed_plays_the_same_every_time() -> None:
    def played() -> list[str]:
        simulation = MutableSimulation(5)
        simulation.run()
        return [str(operation) for operation in simulation.history.operations]

    assert played() == played()


def caught(first: int, **changes: object) -> None:
    """The simulation notices the mutant, from the seed `first` on. Fails if it does not."""
    for seed in range(first, first + SEEDS_UNTIL_CAUGHT):
        try:
            MutableSimulation(seed, **changes).run()  # type: ignore[arg-type]
        except AssertionError:  # of the simulation, or of the code itself
            return
    pytest.fail(f"{SEEDS_UNTIL_CAUGHT} seeds did not notice it")


@pytest.mark.parametrize(("arrival", "operation", "first"), OPERATIONS)
def test_an_operation_that_breaks_a_rule_is_caught(
    arrival: type, operation: type[MutableOperation], first: int
) -> None:
    caught(first, factory=replica_with(arrival, operation))


@pytest.mark.parametrize(("mutant", "first"), REPLICAS)
def test_a_replica_that_breaks_a_rule_is_caught(mutant: type[ChainReplica], first: int) -> None:
    caught(first, factory=mutant)


@pytest.mark.parametrize(("mutant", "first"), NODES)
def test_a_drive_or_a_resync_that_breaks_a_rule_is_caught(mutant: type[MutableNode], first: int) -> None:
    caught(first, node_type=mutant)
