"""Changes chains as their drives come and go: the manager's steady work.

Owns when to look and what to believe: local states from heartbeats and resyncs, the next chain from
`craq/membership.py`, and its commit, which requires the manager's term and the chain as it was read. What was committed
reaches workers with their next heartbeat, clients when they ask, other metadata servers through their watch.

Nothing that matters is kept here: a new manager begins with the chains as they are stored, and declares nobody dead
before every worker had time to speak to it. A server that was held up itself gives them that time once more.

Taking SERVING away needs no wait here: for immutable chunks the chain version fences (docs/chains.md). Chains of
mutable chunks will have to wait in `ChainManager._commit` until the leases of whoever loses SERVING have ended.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable, Sequence

from esker.craq.lease import DEATHS_FROM_S
from esker.craq.membership import LocalState, Target, local_state, next_chain
from esker.meta import keys
from esker.meta.heartbeats import Heartbeats
from esker.meta.manager import Manager, NotManager
from esker.meta.records import pack, unpack
from esker.meta.routing import RoutingCache, bump_version
from esker.meta.sightings import Sightings
from esker.meta.store.base import Store, Transaction
from esker.meta.store.errors import StoreError
from esker.runtime.logging import get_logger
from esker.wire.types import Chain, Replica, Routing, TargetState

log = get_logger("meta.chains")

STEP_INTERVAL_S = 0.25
HELD_UP_S = 1.0
"""Ticks further apart than this: this process was held up, and so were heartbeats to it."""
STEPS_AT_ONCE = 8
CHAINS_PER_TRANSACTION = 1000
COMMIT_TIMEOUT_S = 2.0
HOLD_MIN_S, HOLD_MAX_S = 5.0, 300.0
"""How long a replica whose resync came to nothing is left out, more each time."""

Change = tuple[Chain, Chain]
"""A chain as it is stored, and as it shall be."""


class ChainManager:
    """Of one server; does nothing while another one is the manager."""

    def __init__(
        self,
        store: Store,
        manager: Manager,
        routing: RoutingCache,
        heartbeats: Heartbeats,
        *,
        clock: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """`clock` is the one by which heartbeats were noted; `sleep` must be in its seconds."""
        self._store = store
        self._manager = manager
        self._routing = routing
        self._heartbeats = heartbeats
        self._clock = clock
        self._sleep = sleep
        self._sightings = Sightings()
        self._index = _Index.empty()
        self._ticked_s = float("-inf")
        self._deaths_from_s = float("inf")
        self._holds = _Holds()
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Look after the chains from now on."""
        self._tasks = [asyncio.ensure_future(self._run()), asyncio.ensure_future(self._tick_on())]

    async def aclose(self) -> None:
        """Stop."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _run(self) -> None:
        silent = False
        while True:
            await self._sleep(STEP_INTERVAL_S)
            try:
                with contextlib.suppress(NotManager):
                    await self.step()
                silent = False
            except StoreError as error:
                if not silent:
                    log.warning("chains cannot be changed: the metadata store fails", reason=str(error))
                silent = True

    async def _tick_on(self) -> None:
        while True:
            await self._sleep(STEP_INTERVAL_S)
            self._tick()

    def _tick(self) -> float:
        """Notices when this process was held up; the time."""
        now_s = self._clock()
        if now_s - self._ticked_s > HELD_UP_S:
            self._deaths_from_s = now_s + DEATHS_FROM_S
        self._ticked_s = now_s
        return now_s

    async def step(self) -> None:
        """Look once, and change what has to be changed. Raises `NotManager`, `StoreError`."""
        now_s = self._tick()
        if not self._manager.term:
            self._sightings.forget()
            return
        routing = await self._routing.recent()
        deaths = self._manager.may_declare_dead and now_s >= self._deaths_from_s
        self._sightings.look(routing, self._heartbeats, now_s, silence_is_death=deaths)
        if self._index.version != routing.version:
            self._index = _Index.of(routing)
        changes = self._changes(now_s)
        for start in range(0, len(changes), CHAINS_PER_TRANSACTION):
            await self._commit(changes[start : start + CHAINS_PER_TRANSACTION])
        if changes:
            await self._routing.newest()

    def _changes(self, now_s: float) -> list[Change]:
        changes = []
        for chain in self._index.restless(self._sightings.troubled()):
            following = self._settled(chain, now_s)
            if following is not chain:
                changes.append((chain, following))
        return changes

    def _settled(self, chain: Chain, now_s: float) -> Chain:
        """The chain after as many steps as there are to take at this moment."""
        for _ in range(STEPS_AT_ONCE):
            targets = self._targets(chain, now_s)
            if not self._sightings.losses_are_sure(chain, targets):
                break
            following = next_chain(chain, targets)
            if following is chain:
                break
            chain = following
        return chain

    def _targets(self, chain: Chain, now_s: float) -> dict[str, Target]:
        """The chain's drives, with what the predecessor of a syncing one says of it in this very chain version."""
        targets = self._sightings.targets(chain)
        held = self._holds
        for replica in chain.replicas:
            target = targets.get(replica.drive_id)
            if target is None or target.state is LocalState.OFFLINE or replica.state is TargetState.SERVING:
                continue
            state: LocalState = target.state
            if replica.state is TargetState.SYNCING:
                state = self._resynced(chain, replica, targets, now_s)
            elif held.holds(chain, replica.drive_id, target.incarnation, now_s):
                state = LocalState.OFFLINE
            targets[replica.drive_id] = target._replace(state=state)
        return targets

    def _resynced(self, chain: Chain, syncing: Replica, targets: dict[str, Target], now_s: float) -> LocalState:
        serving = [replica for replica in chain.replicas if replica.state is TargetState.SERVING]
        if not serving or local_state(serving[-1], targets) is LocalState.OFFLINE:
            return LocalState.ONLINE
        sight = self._sightings.of(serving[-1].drive_id)
        heartbeat = None if sight is None else sight.heartbeat
        this = (chain.chain_id, chain.version)
        if heartbeat is not None and this in heartbeat.stalled:
            self._holds.hold(chain, syncing.drive_id, syncing.incarnation, now_s)
            return LocalState.OFFLINE
        if heartbeat is not None and this in heartbeat.synced:
            self._holds.release(chain, syncing.drive_id, syncing.incarnation)
            return LocalState.UP_TO_DATE
        return LocalState.ONLINE

    async def _commit(self, changes: Sequence[Change]) -> None:
        async def body(transaction: Transaction) -> list[Change]:
            done = []
            stored = await transaction.get_many([keys.chain(before.chain_id) for before, _ in changes])
            for (before, after), value in zip(changes, stored, strict=True):
                key = keys.chain(before.chain_id)
                # Else somebody else changed it: the next step sees what became of it.
                if value is not None and unpack(Chain, key, value) == before:
                    transaction.set(key, pack(after))
                    done.append((before, after))
            if done:
                bump_version(transaction)
            return done

        for before, after in await self._manager.transact(body, what="change of chains", timeout_s=COMMIT_TIMEOUT_S):
            log.info(
                "a chain has changed", chain=after.chain_id, version=after.version, was=_text(before), now=_text(after)
            )


class _Index:
    """Which chains of a cluster map have to be looked at."""

    def __init__(self, version: int, unsettled: Sequence[Chain], by_drive: dict[str, list[Chain]]) -> None:
        self.version = version
        self._unsettled = unsettled
        self._by_drive = by_drive

    @classmethod
    def empty(cls) -> "_Index":
        """Of no map."""
        return cls(-1, [], {})

    @classmethod
    def of(cls, routing: Routing) -> "_Index":
        lives = {worker.drive_id: worker.incarnation for worker in routing.workers}
        unsettled = []
        by_drive: dict[str, list[Chain]] = {}
        for chain in routing.chains:
            settled = True
            for replica in chain.replicas:
                by_drive.setdefault(replica.drive_id, []).append(chain)
                serves = replica.state is TargetState.SERVING
                settled = settled and serves and replica.incarnation == lives.get(replica.drive_id)
            if not settled:
                unsettled.append(chain)
        return cls(routing.version, unsettled, by_drive)

    def restless(self, troubled: Iterable[str]) -> list[Chain]:
        """Chains in which something may have to change, given the drives that are in trouble."""
        found = {chain.chain_id: chain for chain in self._unsettled}
        for drive_id in troubled:
            found |= {chain.chain_id: chain for chain in self._by_drive.get(drive_id, ())}
        return list(found.values())


class _Holds:
    """Replicas that are left out for a while, each in the life of its worker in which its resync came to nothing."""

    def __init__(self) -> None:
        self._until: dict[tuple[int, str, str], tuple[float, float]] = {}

    def hold(self, chain: Chain, drive_id: str, incarnation: str, now_s: float) -> None:
        key = (chain.chain_id, drive_id, incarnation)
        until_s, span_s = self._until.get(key, (0.0, HOLD_MIN_S / 2))
        if now_s >= until_s:
            span_s = min(2 * span_s, HOLD_MAX_S)
            self._until[key] = (now_s + span_s, span_s)

    def holds(self, chain: Chain, drive_id: str, incarnation: str, now_s: float) -> bool:
        until_s, _ = self._until.get((chain.chain_id, drive_id, incarnation), (now_s, 0.0))
        return now_s < until_s

    def release(self, chain: Chain, drive_id: str, incarnation: str) -> None:
        self._until.pop((chain.chain_id, drive_id, incarnation), None)


def _text(chain: Chain) -> str:
    return ", ".join(f"{replica.drive_id} {replica.state}" for replica in chain.replicas)
