"""A chain keeps its promises while its drives are exchanged in the middle of every simulated fault."""

import os

import pytest

from .growing import CarelessManager, GrowingMutableSimulation, GrowingSimulation
from .simulation import Broken

SEEDS = int(os.environ.get("ESKER_TEST_SEEDS", "10"))
SEEDS_UNTIL_CAUGHT = 20


@pytest.mark.parametrize("first", range(0, SEEDS, 10))
@pytest.mark.parametrize("kind", [GrowingSimulation, GrowingMutableSimulation])
def test_the_promises_hold_while_drives_come_and_go(
    kind: type[GrowingSimulation] | type[GrowingMutableSimulation], first: int
) -> None:
    aims = narrow = 0
    for seed in range(first, min(first + 10, SEEDS)):
        simulation = kind(seed)
        simulation.run()
        aims += simulation.aims
        narrow += simulation.narrow
    assert aims
    assert narrow, "some got to where they should"


def test_who_takes_drives_out_too_early_is_caught() -> None:
    for seed in range(SEEDS_UNTIL_CAUGHT):
        try:
            GrowingSimulation(seed, CarelessManager).run()
        except Broken:
            return
    pytest.fail("nothing was noticed")
