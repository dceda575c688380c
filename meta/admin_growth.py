"""Drives that come and go, as operators ask for it: goals of chains, new chains, drives that are forgotten.

Each request was made from one version of the cluster map and changes it in one transaction, only while it still has
that version: what an operator was shown is what happens. Where it has another one, and everything already is as the
request wants it, the answer to an earlier attempt was lost, and the request is answered as done. Which drives go where
is planned by the tools (`replanning.py`); here it is only checked that a request can be meant. What follows from goals
is the manager's.
"""

import asyncio
from collections.abc import Iterable

import msgspec

from esker.meta import keys
from esker.meta.cache_table import newest_table
from esker.meta.chain_setup import write_table
from esker.meta.records import RemovedDrive, StoredRemoval, pack, unpack
from esker.meta.routing import bump_version, read_all, read_routing, read_version
from esker.meta.store.base import VALUE_BYTES_MAX, Store, Transaction
from esker.wire.admin_messages import Expand, ExpandReply, ForgetDrives, GrowthReply, SetGoals
from esker.wire.errors import RequestFailed
from esker.wire.limits import BODY_BYTES_MAX, PLACEMENT_SLOTS
from esker.wire.placement import WEIGHT_MAX, build_slot_table
from esker.wire.status import Status
from esker.wire.types import Chain, ChainTable, Leaving, Namespace, Replica, Routing

CHAINS_MAX = 10_000
"""That one request may name: what fits into a transaction."""
VERSIONS_MAX = 48
"""Of a chain table: who opens a namespace gets the slot tables of all that it is laid out over in one message."""
assert VERSIONS_MAX * 2 * PLACEMENT_SLOTS < 0.8 * BODY_BYTES_MAX, "nobody could open a namespace"


async def set_goals(store: Store, request: SetGoals, now_ms: int) -> GrowthReply:
    """Raises `RequestFailed`: CONFLICT (the map is another by now), BAD_REQUEST (what is named does not exist)."""

    async def body(transaction: Transaction) -> int:
        version = await read_version(transaction)
        if version != request.routing_version and await _goals_are_set(transaction, request):
            return version
        routing = await _routing(transaction, request.routing_version)
        drives = {worker.drive_id for worker in routing.workers}
        chains = {chain.chain_id: chain for chain in routing.chains}
        if len(request.goals) > CHAINS_MAX:
            raise _bad(f"{len(request.goals)} goals at once; allowed: {CHAINS_MAX}")
        for goal in request.goals:
            chain = chains.get(goal.chain_id)
            if chain is None:
                raise _bad(f"there is no chain {goal.chain_id}")
            if not goal.drives:
                transaction.clear(keys.chain_goal(goal.chain_id))
                continue
            _check_drives(goal.drives, drives)
            if len(goal.drives) < chain.min_replicas or not set(goal.added) <= set(goal.drives):
                raise _bad(f"chain {goal.chain_id} would have fewer replicas than the {chain.min_replicas} it needs")
            transaction.set(keys.chain_goal(goal.chain_id), pack(goal))
        for leaving in request.leaving:
            _check_drives(filter(None, (leaving.drive_id, leaving.replaced_by)), drives)
            transaction.set(keys.leaving(leaving.drive_id), pack(msgspec.structs.replace(leaving, since_ms=now_ms)))
        for drive_id in request.staying:
            transaction.clear(keys.leaving(drive_id))
        bump_version(transaction)
        return routing.version + 1

    return GrowthReply(await store.run(body, what="setting the goals of chains"))


async def expand(store: Store, request: Expand) -> ExpandReply:
    """Adds chains to a table. Raises `RequestFailed` as `set_goals` does."""

    routing = await store.run(read_routing, what="reading the cluster map")
    if routing.version != request.routing_version:
        return _grown_already(request, routing)
    table = newest_table(routing, request.table_id)
    if table is None or not 1 <= len(request.chains) <= CHAINS_MAX:
        raise _bad(f"{len(request.chains)} new chains for table {request.table_id}")
    if table.version >= VERSIONS_MAX:
        raise _bad(f"table {table.table_id} has been expanded {VERSIONS_MAX - 1} times, which is as often as it can be")
    first_id = routing.chains[-1].chain_id + 1
    _new_chains(request, routing, first_id)
    weights = tuple(chain.weight for chain in request.chains)
    if not all(1 <= weight <= WEIGHT_MAX for weight in weights):
        raise _bad("a weight is out of range")
    grown = ChainTable(
        table.table_id,
        table.version + 1,
        (*table.chain_ids, *range(first_id, first_id + len(request.chains))),
        (*table.weights, *weights),
    )
    if len(pack(grown)) > VALUE_BYTES_MAX:
        raise _bad(f"table {grown.table_id} would have {len(grown.chain_ids)} chains: more than its record can hold")
    # Hundreds of chains take about a second: too long for the loop, and for a transaction.
    slots = await asyncio.to_thread(build_slot_table, grown.chain_ids, grown.weights)

    async def body(transaction: Transaction) -> ExpandReply:
        now = await read_routing(transaction)
        leaving = {each.drive_id for each in now.leaving} & {each for chain in request.chains for each in chain.drives}
        # Meanwhile workers may have come back and replicas changed their states: what was planned is as good as before.
        if newest_table(now, table.table_id) != table or now.chains[-1].chain_id != first_id - 1 or leaving:
            return _grown_already(request, now)
        for chain in _new_chains(request, now, first_id):
            transaction.set(keys.chain(chain.chain_id), pack(chain))
        write_table(transaction, grown, slots)
        for namespace in await read_all(transaction, keys.namespaces(), Namespace):
            if namespace.table_id == grown.table_id:
                transaction.set(keys.namespace(namespace.namespace_id), pack(_laid_out(namespace, grown.version)))
        for key, stored in await transaction.get_range(*keys.removals()):
            removal = unpack(StoredRemoval, key, stored)
            if removal.namespace.table_id == grown.table_id:
                laid_out = _laid_out(removal.namespace, grown.version)
                transaction.set(key, pack(msgspec.structs.replace(removal, namespace=laid_out)))
        bump_version(transaction)
        return ExpandReply(grown.version, grown.chain_ids[len(table.chain_ids) :])

    return await store.run(body, what="adding chains")


async def forget_drives(store: Store, request: ForgetDrives, now_ms: int) -> GrowthReply:
    """Raises `RequestFailed` as `set_goals` does; CONFLICT also while a drive is in a chain, or is to be in one."""

    async def body(transaction: Transaction) -> int:
        version = await read_version(transaction)
        if version != request.routing_version and await _are_forgotten(transaction, request):
            return version
        routing = await _routing(transaction, request.routing_version)
        used = {replica.drive_id for chain in routing.chains for replica in chain.replicas}
        used |= {drive_id for goal in routing.goals for drive_id in goal.drives}
        _check_drives(request.drives, {worker.drive_id for worker in routing.workers})
        for drive_id in request.drives:
            if drive_id in used:
                raise RequestFailed(Status.CONFLICT, f"drive {drive_id} still holds replicas; drain it first")
            forget_drive(transaction, RemovedDrive(drive_id, now_ms))
        bump_version(transaction)
        return routing.version + 1

    return GrowthReply(await store.run(body, what="removing drives"))


def forget_drive(transaction: Transaction, removed: RemovedDrive) -> None:
    """Part of a transaction that bumps the routing version. The drive must be in no chain."""
    for key in (keys.drive, keys.leaving, keys.report):
        transaction.clear(key(removed.drive_id))
    transaction.set(keys.removed_drive(removed.drive_id), pack(removed))


async def _goals_are_set(transaction: Transaction, request: SetGoals) -> bool:
    if not (request.goals or request.leaving or request.staying):
        return False
    goals = await transaction.get_many([keys.chain_goal(goal.chain_id) for goal in request.goals])
    if goals != [pack(goal) if goal.drives else None for goal in request.goals]:
        return False
    leaving = {each.drive_id: each.replaced_by for each in await read_all(transaction, keys.all_leaving(), Leaving)}
    wanted = {each.drive_id: each.replaced_by for each in request.leaving}
    return wanted.items() <= leaving.items() and not leaving.keys() & set(request.staying)


def _grown_already(request: Expand, routing: Routing) -> ExpandReply:
    """The reply, if the last chains of the table are those that were asked for. Raises `RequestFailed` (CONFLICT)."""
    table = newest_table(routing, request.table_id)
    if table is None or table.version == 1 or not request.chains:
        raise _changed()
    drives = {chain.chain_id: tuple(each.drive_id for each in chain.replicas) for chain in routing.chains}
    chain_ids, weights = table.chain_ids[-len(request.chains) :], table.weights[-len(request.chains) :]
    there = [(drives[chain_id], weight) for chain_id, weight in zip(chain_ids, weights, strict=True)]
    if there != [(chain.drives, chain.weight) for chain in request.chains]:
        raise _changed()
    return ExpandReply(table.version, chain_ids)


async def _are_forgotten(transaction: Transaction, request: ForgetDrives) -> bool:
    workers = await transaction.get_many([keys.drive(drive_id) for drive_id in request.drives])
    removed = await transaction.get_many([keys.removed_drive(drive_id) for drive_id in request.drives])
    return all(removed) and not any(workers)


def _laid_out(namespace: Namespace, version: int) -> Namespace:
    """The namespace over a newer version of its table; blocks may be where the earlier ones say, too."""
    return msgspec.structs.replace(
        namespace,
        table_version=version,
        older_versions=(namespace.table_version, *namespace.older_versions),
        layout_epoch=namespace.layout_epoch + 1,
    )


def _new_chains(request: Expand, routing: Routing, first_id: int) -> list[Chain]:
    """All replicas are admitted in the present lives of their workers: there is nothing to be brought up to date."""
    lives = {worker.drive_id: worker.incarnation for worker in routing.workers}
    chains = []
    for chain_id, chain in enumerate(request.chains, start=first_id):
        _check_drives(chain.drives, set(lives))
        if not 1 <= chain.min_replicas <= len(chain.drives):
            raise _bad(f"a chain of {len(chain.drives)} replicas of which {chain.min_replicas} have to serve")
        replicas = tuple(Replica(drive_id, incarnation=lives[drive_id]) for drive_id in chain.drives)
        chains.append(Chain(chain_id, 1, replicas, chain.min_replicas))
    return chains


def _check_drives(drives: Iterable[str], known: set[str]) -> None:
    named = list(drives)
    strangers = [drive_id for drive_id in named if drive_id not in known]
    if strangers:
        raise _bad(f"drive {strangers[0]} is not in this cluster")
    if len(set(named)) != len(named):
        raise _bad("a drive is named twice")


async def _routing(transaction: Transaction, version: int) -> Routing:
    if await read_version(transaction) != version:
        raise _changed()
    return await read_routing(transaction)


def _changed() -> RequestFailed:
    return RequestFailed(Status.CONFLICT, "the cluster has changed meanwhile; try again")


def _bad(why: str) -> RequestFailed:
    return RequestFailed(Status.BAD_REQUEST, why)
