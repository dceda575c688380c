"""Plans for drives that come and go, from the cluster map and what is known of the drives: pure.

A plan is what an operator is shown and what `admin_growth.py` then does. What a chain shall become is planned from its
goal, where it has one already: so a second drain, or a replacement during one, adds to the first. Chains of each table
are balanced among themselves. Raises `UserError` where a plan is impossible, with the reason.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from esker.meta.balance import Balance, fair_shares
from esker.meta.cache_table import cache_weight, newest_table
from esker.meta.chain_setup import CACHE_TABLE_ID, TABLE_ID
from esker.meta.layout import DriveSite, extend_chains, extended_weights, in_turn, min_replicas
from esker.wire.admin_messages import NewChain
from esker.wire.errors import UserError
from esker.wire.types import Chain, ChainGoal, Routing, Worker


@dataclass(frozen=True, slots=True)
class KnownDrive:
    """A drive as the manager sees it."""

    worker: Worker
    alive: bool
    used_bytes: int

    @property
    def site(self) -> DriveSite:
        return DriveSite(self.worker.drive_id, self.worker.node_id, self.worker.capacity_bytes)


class Cluster:
    """The cluster map, and its drives."""

    def __init__(self, routing: Routing, drives: Iterable[KnownDrive]) -> None:
        self.routing = routing
        self.drives = {drive.worker.drive_id: drive for drive in drives}
        self.goals = {goal.chain_id: goal for goal in routing.goals}
        self.leaving = {each.drive_id for each in routing.leaving}
        cache = newest_table(routing, CACHE_TABLE_ID)
        self.cache_chains = frozenset() if cache is None else frozenset(cache.chain_ids)

    def members(self, chain: Chain) -> tuple[str, ...]:
        """The drives that the chain shall have as things stand, head first."""
        goal = self.goals.get(chain.chain_id)
        return goal.drives if goal is not None else tuple(replica.drive_id for replica in chain.replicas)

    def chains_with(self, drive_id: str) -> list[Chain]:
        """Chains that the drive is in now."""
        return [chain for chain in self.routing.chains if any(each.drive_id == drive_id for each in chain.replicas)]

    def node_of(self, drive_id: str) -> str:
        drive = self.drives.get(drive_id)
        return drive_id if drive is None else drive.worker.node_id

    def goal(self, chain: Chain, drives: tuple[str, ...]) -> ChainGoal:
        """That the chain shall have these drives."""
        present = {replica.drive_id for replica in chain.replicas}
        before = self.goals.get(chain.chain_id)
        waited_for = set() if before is None else set(before.added)
        added = tuple(each for each in drives if each not in present or each in waited_for)
        return ChainGoal(chain.chain_id, drives, added, fresh=chain.chain_id in self.cache_chains)


def sharing_chains(cluster: Cluster, goals: Iterable[ChainGoal]) -> list[int]:
    """Chains that shall have more than one replica on a node."""
    return [
        goal.chain_id
        for goal in goals
        if len({cluster.node_of(drive_id) for drive_id in goal.drives}) < len(goal.drives)
    ]


def plan_replacement(cluster: Cluster, old: str, new: str, *, force: bool) -> list[ChainGoal]:
    """`new` in the place of `old` in all chains that shall have it. Empty: there is nothing to be done (any more).

    `force`: also if `new` is in chains already, or shares a node with other replicas although another would not.
    """
    drive = cluster.drives.get(new)
    if drive is None:
        raise UserError(f"drive {new} has not joined this cluster; start its chunk server first")
    if old == new:
        raise UserError(f"drive {old} cannot replace itself")
    _check_not_replaced(cluster, [old], new)
    concerned = [chain for chain in cluster.routing.chains if old in cluster.members(chain)]
    if not concerned:
        return []
    if not drive.alive:
        raise UserError(f"the worker of drive {new} is silent; it must be up to take over")
    if new in cluster.leaving:
        raise UserError(f"drive {new} is being emptied itself; choose another one")
    held = [chain for chain in cluster.routing.chains if new in cluster.members(chain)]
    begun = {goal.chain_id for goal in cluster.routing.goals if new in goal.added}
    if not force and any(chain.chain_id not in begun | cluster.cache_chains for chain in held):
        raise UserError(f"drive {new} is in {len(held)} chains already; choose one that is in none, or give --force")
    if any(new in cluster.members(chain) for chain in concerned):
        raise UserError(f"drives {old} and {new} are in the same chain, which needs both; choose another one")
    _check_room(cluster, [old], [drive])
    goals = [
        cluster.goal(chain, tuple(new if each == old else each for each in cluster.members(chain)))
        for chain in concerned
    ]
    if not force:
        _check_nodes(cluster, goals, old, new)
    return goals


def plan_drain(cluster: Cluster, leaving: Collection[str]) -> list[ChainGoal]:
    """Others in the places of `leaving` in all chains. Empty: there is nothing to be done (any more)."""
    strangers = [drive_id for drive_id in leaving if drive_id not in cluster.drives]
    if strangers:
        raise UserError(f"drive {strangers[0]} is not in this cluster")
    _check_not_replaced(cluster, leaving, "")
    gone = cluster.leaving | set(leaving)
    stay = [drive for drive in cluster.drives.values() if drive.worker.drive_id not in gone and drive.alive]
    concerned = [chain for chain in cluster.routing.chains if set(leaving) & set(cluster.members(chain))]
    if not concerned:
        return []
    _check_room(cluster, leaving, stay)
    goals = []
    for of_cache in (False, True):
        of_table = [chain for chain in cluster.routing.chains if (chain.chain_id in cluster.cache_chains) == of_cache]
        goals += _drained(cluster, of_table, set(leaving), stay)
    return goals


def plan_staying(cluster: Cluster, drives: Collection[str]) -> list[ChainGoal]:
    """Goals by which chains keep those of `drives` that they have still; without drives: the chain stays as it is."""
    goals = []
    chains = {chain.chain_id: chain for chain in cluster.routing.chains}
    for goal in cluster.routing.goals:
        chain = chains.get(goal.chain_id)
        if chain is None or not any(each.drive_id in drives for each in chain.replicas):
            continue
        present = [replica.drive_id for replica in chain.replicas]
        kept = tuple(each for each in present if each not in goal.added)
        goals.append(ChainGoal(goal.chain_id, kept if set(kept) != set(present) else (), (), fresh=goal.fresh))
    return goals


@dataclass(frozen=True, slots=True)
class TableGrowth:
    """New chains of one table."""

    table_id: int
    chains: tuple[NewChain, ...]


def plan_expansion(cluster: Cluster) -> list[TableGrowth]:
    """Chains for the drives that are in none: of the table of replicated chains, and of that of cache mode if there is
    one. Empty: every drive that stays has its chains.
    """
    routing = cluster.routing
    if newest_table(routing, TABLE_ID) is None:
        raise UserError("the cluster has no chains yet: they are made when all expected drives have joined")
    stay = [drive for drive in cluster.drives.values() if drive.worker.drive_id not in cluster.leaving]
    up = [drive for drive in stay if drive.alive]
    grown = [_replicated_growth(cluster, up), _cache_growth(cluster, up)]
    return [growth for growth in grown if growth is not None]


def _replicated_growth(cluster: Cluster, up: Sequence[KnownDrive]) -> TableGrowth | None:
    routing = cluster.routing
    table = newest_table(routing, TABLE_ID)
    assert table is not None
    chains = {chain.chain_id: cluster.members(chain) for chain in routing.chains}
    existing = [chains[chain_id] for chain_id in table.chain_ids]
    used = {drive_id for chain in existing for drive_id in chain}
    fresh = {drive.worker.drive_id for drive in up} - used
    if not fresh:
        return None
    if len(up) < routing.replicas:
        raise UserError(f"{routing.replicas} replicas need as many drives, but only {len(up)} are up")
    sites = in_turn([drive.site for drive in up])
    made = extend_chains(sites, routing.replicas, existing, fresh)
    weights = extended_weights(sites, existing, table.weights, made)
    floor = min_replicas(routing.replicas)
    return TableGrowth(
        TABLE_ID,
        tuple(NewChain(tuple(chain), floor, weight) for chain, weight in zip(made, weights, strict=True)),
    )


def _cache_growth(cluster: Cluster, up: Sequence[KnownDrive]) -> TableGrowth | None:
    used = {
        drive_id
        for chain in cluster.routing.chains
        if chain.chain_id in cluster.cache_chains
        for drive_id in cluster.members(chain)
    }
    sites = in_turn([drive.site for drive in up if drive.worker.drive_id not in used])
    if not sites or not cluster.cache_chains:
        return None
    return TableGrowth(
        CACHE_TABLE_ID, tuple(NewChain((site.drive_id,), 1, cache_weight(site.capacity_bytes)) for site in sites)
    )


def _drained(
    cluster: Cluster, chains: Sequence[Chain], leaving: set[str], stay: Sequence[KnownDrive]
) -> list[ChainGoal]:
    """Goals of those of `chains`, which are of one table, that shall have a drive that leaves."""
    if not any(leaving & set(cluster.members(chain)) for chain in chains):
        return []
    sites = in_turn([drive.site for drive in cluster.drives.values()])
    numbers = {site.drive_id: number for number, site in enumerate(sites)}
    staying = {drive.worker.drive_id for drive in stay}
    may = np.array([site.drive_id in staying for site in sites], dtype=np.bool_)
    width = max(len(cluster.members(chain)) for chain in chains)
    nodes = [site.node_id for site in sites]
    capacities = [site.capacity_bytes if may[number] else 0 for number, site in enumerate(sites)]
    held = sum(len(cluster.members(chain)) for chain in chains)
    balance = Balance(nodes, fair_shares(nodes, capacities, width), held)
    kept: dict[int, list[int]] = {}
    for chain in chains:
        kept[chain.chain_id] = []
        for drive_id in cluster.members(chain):
            if drive_id in numbers and drive_id not in leaving:
                balance.add(kept[chain.chain_id], numbers[drive_id])
                kept[chain.chain_id].append(numbers[drive_id])
    goals = []
    for chain in chains:
        wanted, own = len(cluster.members(chain)), kept[chain.chain_id]
        if not leaving & set(cluster.members(chain)):
            continue
        while len(own) < wanted:
            if not any(may[number] and number not in own for number in range(len(sites))):
                raise UserError(
                    f"chain {chain.chain_id} has {wanted} replicas, and only {len(stay)} drives are up and stay: "
                    "add drives first"
                )
            best = balance.best(own, may, least_loaded=True)
            balance.add(own, best)
            own.append(best)
        goals.append(cluster.goal(chain, tuple(sites[number].drive_id for number in own)))
    return goals


def _check_not_replaced(cluster: Cluster, drives: Collection[str], new: str) -> None:
    """Unless by `new`, none of `drives` is being replaced already."""
    for leaving in cluster.routing.leaving:
        if leaving.drive_id in drives and leaving.replaced_by not in ("", new):
            raise UserError(
                f"drive {leaving.drive_id} is being replaced by {leaving.replaced_by}; "
                f"esker admin drain {leaving.drive_id} --cancel calls that off"
            )


def _check_room(cluster: Cluster, leaving: Iterable[str], takers: Sequence[KnownDrive]) -> None:
    """What is on the drives that leave must fit on the others."""
    needed = sum(cluster.drives[drive_id].used_bytes for drive_id in leaving if drive_id in cluster.drives)
    free = sum(max(0, drive.worker.capacity_bytes - drive.used_bytes) for drive in takers)
    if needed > free:
        raise UserError(f"{needed} bytes have to move, but the others have room for {free}: add drives first")


def _check_nodes(cluster: Cluster, goals: Sequence[ChainGoal], old: str, new: str) -> None:
    """No node gets two replicas of a chain, unless no other node has an empty drive."""
    shared = sharing_chains(cluster, goals)
    apart_before = [
        chain.chain_id
        for chain in cluster.routing.chains
        if chain.chain_id in shared
        and len({cluster.node_of(each) for each in cluster.members(chain)}) == len(cluster.members(chain))
    ]
    if not apart_before:
        return
    used = {old, *cluster.leaving, *(each for chain in cluster.routing.chains for each in cluster.members(chain))}
    empty = [drive.worker for drive_id, drive in cluster.drives.items() if drive.alive and drive_id not in used]
    taken = {cluster.node_of(each) for goal in goals for each in goal.drives}
    others = sorted({worker.node_id for worker in empty} - taken)
    if others:
        raise UserError(
            f"{len(apart_before)} chains would have two replicas on node {cluster.node_of(new)}, whose loss would "
            f"take both; there are empty drives on {', '.join(others)}: choose one of them, or give --force"
        )
