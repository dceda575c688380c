"""Changes chains as their drives come and go: the manager's steady work.

Owns when to look, and the commit of what `chain_decisions.py` wants changed, which requires the manager's term and the
chain as it was read. What was committed reaches workers with their next heartbeat, clients when they ask, other
metadata servers through their watch.

Nothing that matters is kept here: a new manager begins with the chains as they are stored, and declares nobody dead
before every worker had time to speak to it. A server that was held up itself gives them that time once more.

A change that takes SERVING away is committed only once the leases of those who lose it have ended: `fences.py` says
when, and withholds their renewal until the new chain is in the map from which replies are made.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence

from esker.craq.lease import DEATHS_FROM_S
from esker.meta import keys
from esker.meta.chain_decisions import ChainDecisions, Change
from esker.meta.chain_goals import GoalKeeper
from esker.meta.fences import Fences, Term
from esker.meta.heartbeats import Heartbeats
from esker.meta.manager import Manager, NotManager
from esker.meta.records import pack, unpack
from esker.meta.routing import RoutingCache, bump_version
from esker.meta.store.base import Store, Transaction
from esker.meta.store.errors import StoreError
from esker.runtime.logging import get_logger
from esker.wire.types import Chain

log = get_logger("meta.chains")

STEP_INTERVAL_S = 0.25
HELD_UP_S = 1.0
"""Ticks further apart than this: this process was held up, and so were heartbeats to it."""
CHAINS_PER_TRANSACTION = 1000
COMMIT_TIMEOUT_S = 2.0


class ChainManager:
    """Of one server; does nothing while another one is the manager."""

    def __init__(
        self,
        store: Store,
        manager: Manager,
        routing: RoutingCache,
        heartbeats: Heartbeats,
        fences: Fences,
        *,
        clock: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """`clock` is the one by which heartbeats were noted; `sleep` must be in its seconds."""
        self._store = store
        self._manager = manager
        self._routing = routing
        self._heartbeats = heartbeats
        self._fences = fences
        self._fenced_term = 0
        self._clock = clock
        self._sleep = sleep
        self._decisions = ChainDecisions()
        self._goals = GoalKeeper(manager)
        self._ticked_s = float("-inf")
        self._deaths_from_s = float("inf")
        self.tasks: list[asyncio.Task[None]] = []
        """The background work; they end only by `aclose`, or by a bug."""

    def start(self) -> None:
        """Look after the chains from now on."""
        self.tasks = [asyncio.ensure_future(self._run()), asyncio.ensure_future(self._tick_on())]

    async def aclose(self) -> None:
        """Stop."""
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)

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
        term = self._manager.term
        if not term:
            self._decisions.forget()
            return
        if term != self._fenced_term:
            self._fences.forget()
            self._fenced_term = term
        await self._settle()
        routing = await self._routing.recent()
        deaths = self._manager.may_declare_dead and now_s >= self._deaths_from_s
        changes = self._decisions.look(routing, self._heartbeats, now_s, silence_is_death=deaths)
        ready = self._fences.put_up(changes, routing, self._heartbeats, Term(term, self._manager.since_s, now_s))
        for start in range(0, len(ready), CHAINS_PER_TRANSACTION):
            if self._manager.term != term:
                raise NotManager("another term began meanwhile")
            batch = ready[start : start + CHAINS_PER_TRANSACTION]
            self._fences.begin(batch)
            await self._commit(batch)
        if ready:
            await self._routing.newest()
            self._fences.settled(ready)
        if await self._goals.tidy(routing):
            await self._routing.newest()

    async def _settle(self) -> None:
        """Make sure of commits whose outcome is not known: the chains that they left alone are written as they are, so
        that none of them can take effect any more.
        """
        chains = self._fences.unsettled()
        if not chains:
            return

        async def body(transaction: Transaction) -> None:
            stored = await transaction.get_many([keys.chain(chain.chain_id) for chain in chains])
            for chain, value in zip(chains, stored, strict=True):
                if value is not None:
                    transaction.set(keys.chain(chain.chain_id), value)

        await self._manager.transact(body, what="making sure of chains", timeout_s=COMMIT_TIMEOUT_S)
        await self._routing.newest()
        self._fences.put_down(chains)

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


def _text(chain: Chain) -> str:
    return ", ".join(f"{replica.drive_id} {replica.state}" for replica in chain.replicas)
