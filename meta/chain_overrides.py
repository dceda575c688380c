"""What an operator may do to chains against the manager's own decisions, carried out by the manager.

`force_chain` gives up what a chain's last serving replicas have, when they will not come back: another replica serves
what it has. It is refused as long as the manager can do better by itself. A drive that was emptied or formatted anew
has another drive id and is in no chain, so it can be neither a candidate nor forced.
"""

from collections.abc import Iterable

import msgspec

from esker.meta import keys
from esker.meta.heartbeats import Heartbeats
from esker.meta.manager import Manager
from esker.meta.records import pack, unpack
from esker.meta.routing import RoutingCache, bump_version
from esker.meta.sightings import DEAD_AFTER_S
from esker.meta.store.base import Transaction
from esker.runtime.logging import get_logger
from esker.wire.errors import RequestFailed
from esker.wire.limits import REPLICAS_MAX
from esker.wire.override_messages import (
    ForceChain,
    ForceChainReply,
    ReplicaReport,
    SetMinReplicas,
    SetMinReplicasReply,
)
from esker.wire.status import Status
from esker.wire.types import Chain, Replica, Routing, TargetState, Worker

log = get_logger("meta.overrides")

CHAINS_PER_TRANSACTION = 1000
COMMIT_TIMEOUT_S = 2.0


class ChainOverrides:
    """Of one server, which must be the manager whenever it is asked. All raise `NotManager` and `StoreError`."""

    def __init__(self, manager: Manager, routing: RoutingCache, heartbeats: Heartbeats) -> None:
        self._manager = manager
        self._routing = routing
        self._heartbeats = heartbeats

    async def force_chain(self, request: ForceChain, now_s: float) -> ForceChainReply:
        """Raises `RequestFailed`, saying why, where the chain must not be forced, or not yet."""
        routing = await self._routing.newest()
        chain = _chain(routing, request.chain_id)
        workers = {worker.drive_id: worker for worker in routing.workers}
        replicas = tuple(self._report(chain, replica, workers, now_s) for replica in chain.replicas)
        if request.lose_data and chain.version > request.chain_version and request.drive_id in _serving(chain):
            return ForceChainReply(chain, replicas, done=True)  # The answer to an earlier attempt was lost.
        _check_forced(chain, request.drive_id, replicas)
        if not request.lose_data:
            return ForceChainReply(chain, replicas, done=False)
        if request.chain_version != chain.version:
            raise RequestFailed(
                Status.CONFLICT, f"chain {chain.chain_id} has changed meanwhile: look at it again, and decide anew"
            )
        forced = _forced(chain, workers[request.drive_id])
        if await self._commit([(chain, forced)]) != 1:
            raise RequestFailed(Status.CONFLICT, f"chain {chain.chain_id} has changed meanwhile: look at it again")
        log.warning(
            "an operator forced a chain: what only its other replicas have is lost",
            chain=chain.chain_id,
            version=forced.version,
            serves=request.drive_id,
            was=", ".join(f"{each.drive_id} {each.state}" for each in chain.replicas),
        )
        await self._routing.newest()
        return ForceChainReply(forced, replicas, done=True)

    async def set_min_replicas(self, request: SetMinReplicas) -> SetMinReplicasReply:
        """Raises `RequestFailed`: NOT_FOUND, BAD_REQUEST where no chain, or not every named one, has so many."""
        routing = await self._routing.newest()
        minimum = request.min_replicas
        if not 1 <= minimum <= REPLICAS_MAX:
            raise RequestFailed(Status.BAD_REQUEST, f"min_replicas is {minimum}; allowed: 1 to {REPLICAS_MAX}")
        named = _named(routing, request)
        sizes = _sizes(routing)
        large = [chain for chain in named if sizes[chain.chain_id] >= minimum]
        by_name = bool(request.chain_id or request.table_id)
        if not large or (by_name and len(large) < len(named)):
            small = (min if by_name else max)(sizes[chain.chain_id] for chain in named)
            raise RequestFailed(
                Status.BAD_REQUEST,
                f"min_replicas is {minimum}, but chains have {small} replicas; allowed: 1 to {small}",
            )
        changes = [
            (chain, msgspec.structs.replace(chain, version=chain.version + 1, min_replicas=minimum))
            for chain in large
            if chain.min_replicas != minimum
        ]
        changed = 0
        for start in range(0, len(changes), CHAINS_PER_TRANSACTION):
            changed += await self._commit(changes[start : start + CHAINS_PER_TRANSACTION])
        if changes:
            await self._routing.newest()
        if changed < len(changes):
            raise RequestFailed(
                Status.CONFLICT, f"{len(changes) - changed} chains were changing at the moment; run it again for them"
            )
        if changed:
            log.info("an operator set how many replicas must serve", min_replicas=minimum, chains=changed)
        short = tuple(chain.chain_id for chain in large if len(_serving(chain)) < minimum)
        return SetMinReplicasReply(len(large), changed, len(named) - len(large), short)

    async def _commit(self, changes: list[tuple[Chain, Chain]]) -> int:
        """How many chains were as they were expected, and are changed now."""

        async def body(transaction: Transaction) -> int:
            done = 0
            stored = await transaction.get_many([keys.chain(before.chain_id) for before, _ in changes])
            for (before, after), value in zip(changes, stored, strict=True):
                key = keys.chain(before.chain_id)
                # After a lost answer it may be changed already, by an earlier attempt.
                found = None if value is None else unpack(Chain, key, value)
                done += found in (before, after)
                if found == before:
                    transaction.set(key, pack(after))
            if done:
                bump_version(transaction)
            return done

        return await self._manager.transact(body, what="an operator's change of chains", timeout_s=COMMIT_TIMEOUT_S)

    def _report(self, chain: Chain, replica: Replica, workers: dict[str, Worker], now_s: float) -> ReplicaReport:
        worker = workers.get(replica.drive_id)
        seen = None if worker is None else self._heartbeats.last(replica.drive_id, worker.incarnation)
        if worker is None or seen is None:
            return ReplicaReport(replica.drive_id, worker.node_id if worker else "", replica.state, -1.0, up=False)
        beat = seen.heartbeat
        heard_s_ago = max(0.0, now_s - seen.at_s)
        up = heard_s_ago < DEAD_AFTER_S and not beat.leaving and chain.chain_id not in beat.offline_chains
        return ReplicaReport(replica.drive_id, worker.node_id, replica.state, heard_s_ago, up)


def _check_forced(chain: Chain, drive_id: str, replicas: Iterable[ReplicaReport]) -> None:
    name = f"chain {chain.chain_id}"
    serving = [each.drive_id for each in replicas if each.state is TargetState.SERVING]
    if serving:
        raise RequestFailed(
            Status.CONDITION,
            f"{name} is served by {', '.join(serving)}: nothing has to be forced "
            "(of a worker that died the manager knows within seconds)",
        )
    back = [each.drive_id for each in replicas if each.state is TargetState.LASTSRV and each.up]
    if back:
        raise RequestFailed(
            Status.CONDITION, f"{back[0]} is back, has everything, and serves {name} in a moment: nothing is lost"
        )
    wanted = next((each for each in replicas if each.drive_id == drive_id), None)
    if wanted is None:
        have = ", ".join(each.drive_id for each in replicas)
        raise RequestFailed(Status.BAD_REQUEST, f"drive {drive_id} has no replica of {name}; these have: {have}")
    if not wanted.up:
        raise RequestFailed(
            Status.CONDITION, f"the worker of drive {drive_id} is silent, or its drive fails: bring it up first"
        )


def _forced(chain: Chain, worker: Worker) -> Chain:
    """Served by that worker alone; all others have to be brought up to date from it."""
    others = (Replica(each.drive_id, TargetState.OFFLINE) for each in chain.replicas)
    first = Replica(worker.drive_id, TargetState.SERVING, worker.incarnation)
    rest = (each for each in others if each.drive_id != worker.drive_id)
    return msgspec.structs.replace(chain, version=chain.version + 1, replicas=(first, *rest))


def _chain(routing: Routing, chain_id: int) -> Chain:
    for chain in routing.chains:
        if chain.chain_id == chain_id:
            return chain
    raise RequestFailed(Status.NOT_FOUND, f"there is no chain {chain_id}; esker admin chains lists them")


def _sizes(routing: Routing) -> dict[int, int]:
    """How many replicas each chain has for good: on the way to a goal it has more for a while."""
    goals = {goal.chain_id: len(goal.drives) for goal in routing.goals}
    return {
        chain.chain_id: min(len(chain.replicas), goals.get(chain.chain_id, REPLICAS_MAX)) for chain in routing.chains
    }


def _named(routing: Routing, request: SetMinReplicas) -> list[Chain]:
    if request.chain_id:
        return [_chain(routing, request.chain_id)]
    if not routing.chains:
        raise RequestFailed(Status.NOT_READY, "the cluster has no chains yet: drives are still missing")
    if not request.table_id:
        return list(routing.chains)
    wanted = {
        chain_id for table in routing.tables if table.table_id == request.table_id for chain_id in table.chain_ids
    }
    if not wanted:
        have = ", ".join(map(str, sorted({table.table_id for table in routing.tables})))
        raise RequestFailed(Status.NOT_FOUND, f"there is no chain table {request.table_id}; there are: {have}")
    return [chain for chain in routing.chains if chain.chain_id in wanted]


def _serving(chain: Chain) -> list[str]:
    return [each.drive_id for each in chain.replicas if each.state is TargetState.SERVING]
