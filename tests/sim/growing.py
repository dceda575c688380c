"""The storms of the other simulations while an operator takes drives out of the chain and puts them back."""

import msgspec

from esker.craq.goals import reached
from esker.wire.types import Chain, ChainGoal

from .leasing_manager import LeasingManager
from .manager import CHAIN_ID, Manager
from .mutable_simulation import MutableSimulation
from .simulation import DRIVES, Simulation


class Aims(Manager):
    """Also keeps the chain's goal, as the store does."""

    def aim(self, drives: tuple[str, ...]) -> None:
        """The chain shall have these drives."""
        present = {replica.drive_id for replica in self.chain.replicas}
        added = tuple(drive for drive in drives if drive not in present)
        self._change(goals=(ChainGoal(CHAIN_ID, drives, added),))

    def step(self, now_s: float) -> bool:
        changed = super().step(now_s)
        if any(reached(self.chain, goal) for goal in self.routing.goals):
            self._change(goals=())
        return changed


class AimingManager(Aims):
    """Of immutable chunks."""


class AimingLeasingManager(Aims, LeasingManager):
    """Of mutable chunks."""


class CarelessManager(AimingManager):
    """A mutant: takes out who shall leave before those who were added serve."""

    def _change(self, **fields: object) -> None:
        for goal in self.routing.goals:
            chains = fields.get("chains")
            if isinstance(chains, tuple):
                fields["chains"] = tuple(_without_others(chain, goal) for chain in chains)
        super()._change(**fields)


def _without_others(chain: Chain, goal: ChainGoal) -> Chain:
    kept = tuple(replica for replica in chain.replicas if replica.drive_id in goal.drives)
    return msgspec.structs.replace(chain, replicas=kept) if kept else chain


class Growing(Simulation):
    """Whose drives come and go. In the end all are in the chain."""

    manager: Aims
    aims = narrow = 0

    def _fault(self) -> None:
        if self.random.random() < 0.7:
            super()._fault()
            return
        fewest = self.manager.chain.min_replicas
        drives = tuple(self.random.sample(DRIVES, self.random.randint(fewest, len(DRIVES))))
        self.note(f"operator: the chain shall have {drives}")
        self.aims += 1
        self.manager.aim(drives)

    def _check(self) -> None:
        super()._check()
        self.narrow += len(self.manager.chain.replicas) < len(DRIVES)

    def _calm_down(self) -> None:
        self.manager.aim(DRIVES)
        super()._calm_down()

    def _settled(self) -> bool:
        return len(self.manager.chain.replicas) == len(DRIVES) and super()._settled()


class GrowingSimulation(Growing):
    """With immutable chunks."""

    def __init__(self, seed: int, manager_type: type[AimingManager] = AimingManager) -> None:
        super().__init__(seed, manager_type=manager_type)


class GrowingMutableSimulation(Growing, MutableSimulation):
    """With mutable chunks, leases and fences."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed, manager_type=AimingLeasingManager)
