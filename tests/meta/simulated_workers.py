"""Workers as the manager meets them, with real leases: heartbeats that are late, lost, answered twice or out of order,
clocks of their own rates, successors that they cannot reach, new lives.
"""

import asyncio
from collections.abc import Callable, Sequence
from random import Random

from esker.chunkserver.lease import Lease
from esker.meta.cluster import join
from esker.meta.store.base import Store
from esker.meta.store.errors import StoreError
from esker.wire.errors import RequestFailed
from esker.wire.limits import HEARTBEAT_INTERVAL_S
from esker.wire.messages import Heartbeat, HeartbeatReply
from esker.wire.types import Chain, Routing, TargetState

from .conftest import dead, worker
from .simulated_servers import Machine

DELAY_S = 0.02
SLOW_DELAY_S = 3.0
TIMEOUT_S = 1.4


class SimulatedWorker:
    """The worker of one drive, life after life."""

    def __init__(self, number: int, store: Store, machines: Sequence[Machine], chance: Random, rate: float) -> None:
        self.number = number
        self.drive_id = f"d{number}"
        self.life = "first"
        self.reachable = asyncio.Event()
        """Whether it is in touch with the metadata servers."""
        self.reachable.set()
        self.unreachable: tuple[str, ...] = ()
        self.slow_share = 0.1
        self.routing: Routing | None = None
        self.renewed: Callable[[], None] = lambda: None
        """Called when its lease may have been renewed."""
        self._store = store
        self._machines = machines
        self._chance = chance
        self._rate = rate
        self._offset_s = chance.random() * 1e6
        self._number = 0
        self.lease = Lease(self._clock)
        self._sent: set[asyncio.Task[HeartbeatReply]] = set()

    def _clock(self) -> float:
        return self._offset_s + asyncio.get_running_loop().time() * self._rate

    def served(self) -> list[Chain]:
        """The chains, as it knows them, in which it takes itself for serving with a live lease."""
        if self.routing is None:
            return []
        return [
            chain
            for chain in self.routing.chains
            if (self.drive_id, TargetState.SERVING, self.life)
            in {(each.drive_id, each.state, each.incarnation) for each in chain.replicas}
            and self.lease.live(chain.chain_id, chain.version)
        ]

    async def restart(self) -> None:
        """A new life."""
        self.life += "+"
        self.lease = Lease(self._clock)
        self.routing = None
        self._number = 0
        await join(self._store, worker(self.number, incarnation=self.life), dead)

    async def run(self) -> None:
        """Heartbeats, until cancelled."""
        while True:
            again = await self._heartbeat()
            await asyncio.sleep(0.02 if again else HEARTBEAT_INTERVAL_S / self._rate)

    async def _heartbeat(self) -> bool:
        """Whether the manager waits for the next one."""
        life, lease = self.life, self.lease
        self._number += 1
        sent_s, stopped = lease.now_s(), lease.stopped
        version = self.routing.version if self.routing is not None else 0
        beat = Heartbeat(
            self.drive_id,
            life,
            version,
            0,
            1,
            synced=self._synced(),
            number=self._number,
            term=lease.term,
            stopped=stopped,
            unreachable=self.unreachable,
        )
        sent = asyncio.ensure_future(self._deliver(beat, self._chance.choice(self._machines)))
        self._sent.add(sent)
        sent.add_done_callback(self._ended)
        await asyncio.wait((sent,), timeout=TIMEOUT_S / self._rate)
        if not sent.done() or sent.cancelled() or sent.exception() is not None or self.life != life:
            return False
        reply = sent.result()
        if reply.routing is not None and reply.routing.version > version:
            self.routing = reply.routing
        if not reply.term:
            return False
        lease.renew(sent_s, reply.term, reply.withheld)
        self.renewed()
        return bool(set(lease.stopped) - set(stopped))

    def _ended(self, task: asyncio.Task[HeartbeatReply]) -> None:
        self._sent.discard(task)
        if not task.cancelled():
            task.exception()  # Marked as seen: nobody may wait for it any more.

    async def _deliver(self, beat: Heartbeat, machine: Machine) -> HeartbeatReply:
        """Goes on when the worker waits no more: what was sent may arrive all the same."""
        await self._network()
        if machine.service is None:
            raise ConnectionResetError(machine.name)
        try:
            reply = await machine.call(machine.service.heartbeat(beat))
        except (StoreError, RequestFailed) as error:
            raise ConnectionResetError(str(error)) from error
        await self._network()
        return reply

    async def _network(self) -> None:
        slow = self._chance.random() < self.slow_share
        await asyncio.sleep(self._chance.random() * (SLOW_DELAY_S if slow else DELAY_S))
        await self.reachable.wait()

    def _synced(self) -> tuple[tuple[int, int], ...]:
        """Resyncs take no time here."""
        if self.routing is None:
            return ()
        done = []
        for chain in self.routing.chains:
            serving = [each.drive_id for each in chain.replicas if each.state is TargetState.SERVING]
            if serving[-1:] == [self.drive_id] and any(each.state is TargetState.SYNCING for each in chain.replicas):
                done.append((chain.chain_id, chain.version))
        return tuple(done)

    async def aclose(self) -> None:
        """Ends what was sent."""
        tasks = list(self._sent)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
