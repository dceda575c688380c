"""Damaged copies are mended in the middle of every simulated fault, and no promise is broken by it."""

import os

import pytest

from esker.wire.status import Status

from .rotting import RottingSimulation, Unlocked
from .simulation import Broken

SEEDS = int(os.environ.get("ESKER_TEST_SEEDS", "20"))
SEEDS_UNTIL_CAUGHT = 40


@pytest.mark.parametrize("first", range(0, SEEDS, 10))
def test_what_rots_is_mended_and_the_promises_hold(first: int) -> None:
    rotted = 0
    outcomes: list[Status] = []
    for seed in range(first, min(first + 10, SEEDS)):
        simulation = RottingSimulation(seed)
        simulation.run()
        rotted += simulation.rotted
        outcomes += [status for node in simulation.drives for status in node.repairs]
    assert rotted
    assert {Status.OK, Status.EXISTS, Status.NOT_FOUND} <= set(outcomes)


def test_a_repair_without_the_chunks_lock_is_caught() -> None:
    for seed in range(SEEDS_UNTIL_CAUGHT):
        try:
            RottingSimulation(seed, node_type=Unlocked).run()
        except Broken:
            return
    pytest.fail("nothing was noticed")
