"""Ends what goals began: drops those that were reached, and forgets drives that others have replaced.

The manager's duty, after it has looked at the chains. Every transaction checks again what it was decided from, as the
cluster map may be older than the store.
"""

import time
from collections.abc import Callable

from esker.craq.goals import reached
from esker.meta import keys
from esker.meta.admin_growth import forget_drive
from esker.meta.manager import Manager
from esker.meta.records import RemovedDrive, unpack
from esker.meta.routing import bump_version, read_routing
from esker.meta.store.base import Transaction
from esker.runtime.logging import get_logger
from esker.wire.types import Chain, ChainGoal, Leaving, Routing

log = get_logger("meta.goals")

GOALS_AT_ONCE = 1000
TIMEOUT_S = 2.0


class GoalKeeper:
    """Of one server."""

    def __init__(self, manager: Manager, wall_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000) -> None:
        """`wall_ms` is for people: when a drive was removed."""
        self._manager = manager
        self._wall_ms = wall_ms

    async def tidy(self, routing: Routing) -> bool:
        """Whether anything was changed. Raises `NotManager`, `StoreError`."""
        over = reached_goals(routing)[:GOALS_AT_ONCE]
        if over:
            await self._manager.transact(lambda found: _drop(found, over), what="end of goals", timeout_s=TIMEOUT_S)
            log.info("chains have the drives that they shall have", chains=len(over))
        replaced = replaced_drives(routing)
        if replaced:
            forgotten = await self._manager.transact(
                lambda found: self._forget(found, replaced), what="removal of replaced drives", timeout_s=TIMEOUT_S
            )
            for leaving in forgotten:
                log.info("a drive has been replaced", drive=leaving.drive_id, by=leaving.replaced_by)
        return bool(over or replaced)

    async def _forget(self, transaction: Transaction, replaced: list[Leaving]) -> list[Leaving]:
        still = {leaving.drive_id for leaving in replaced_drives(await read_routing(transaction))}
        going = [leaving for leaving in replaced if leaving.drive_id in still]
        for leaving in going:
            forget_drive(transaction, RemovedDrive(leaving.drive_id, self._wall_ms(), leaving.replaced_by))
        bump_version(transaction)
        return going


def reached_goals(routing: Routing) -> list[ChainGoal]:
    """Goals of chains that have become what they shall be."""
    if not routing.goals:
        return []
    chains = {chain.chain_id: chain for chain in routing.chains}
    return [goal for goal in routing.goals if goal.chain_id not in chains or reached(chains[goal.chain_id], goal)]


def replaced_drives(routing: Routing) -> list[Leaving]:
    """Drives that others have replaced in every chain."""
    waiting = [leaving for leaving in routing.leaving if leaving.replaced_by]
    if not waiting:
        return []
    used = {replica.drive_id for chain in routing.chains for replica in chain.replicas}
    used |= {drive_id for goal in routing.goals for drive_id in goal.drives}
    return [leaving for leaving in waiting if leaving.drive_id not in used]


async def _drop(transaction: Transaction, over: list[ChainGoal]) -> None:
    stored_chains = await transaction.get_many([keys.chain(goal.chain_id) for goal in over])
    stored_goals = await transaction.get_many([keys.chain_goal(goal.chain_id) for goal in over])
    for goal, chain, found in zip(over, stored_chains, stored_goals, strict=True):
        key = keys.chain_goal(goal.chain_id)
        if found is None or unpack(ChainGoal, key, found) != goal:
            continue  # Another one was set meanwhile.
        if chain is None or reached(unpack(Chain, keys.chain(goal.chain_id), chain), goal):
            transaction.clear(key)
    bump_version(transaction)
