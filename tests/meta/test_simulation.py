"""Three metadata servers over one store under seeded storms.

At every moment at most one of them takes itself for the manager. What managers write comes in the order of their
terms, and so do the heartbeats that they acknowledge. While one server is healthy requests are answered within their
budget. A worker that lives and speaks is never taken for dead. When the storm is over there is a manager again, and the
cluster map has every server.
"""

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

import pytest

from esker.craq.lease import DEATHS_FROM_S, TAKEOVER_S
from esker.meta import keys
from esker.meta.cluster import found_cluster, join
from esker.meta.manager import NotManager
from esker.meta.records import pack
from esker.meta.registry import SERVER_LIFE_S
from esker.meta.routing import bump_version
from esker.meta.store.base import Transaction
from esker.meta.store.errors import StoreError
from esker.meta.store.memory import MemoryStore
from esker.wire.errors import RequestFailed
from esker.wire.limits import CLOCK_SKEW
from esker.wire.messages import ClusterStatus, GetRouting, Heartbeat
from esker.wire.types import Chain, Replica

from . import virtual_time
from .conftest import cluster_record, dead, worker
from .simulated_servers import Link, Machine

STORM_S = 60.0
CALM_S = 8.0 + TAKEOVER_S + DEATHS_FROM_S + SERVER_LIFE_S
CALL_BUDGET_S = 2.0
LOG = b"\x7f"
CHAIN = Chain(1, 1, (Replica("d0", incarnation="first"),), 1)


async def _make_chain(transaction: Transaction) -> None:
    transaction.set(keys.chain(CHAIN.chain_id), pack(CHAIN))
    bump_version(transaction)


class World:
    def __init__(self, seed: int) -> None:
        self.chance = Random(seed)
        self.stormy = True
        self.terms_acknowledged: list[int] = []
        self.answered = 0
        self.changes = 0

    async def live(self) -> None:
        loop = asyncio.get_running_loop()
        self.store = MemoryStore()
        self.store.retry.clock = self.store.clock = loop.time
        await found_cluster(self.store, cluster_record(1, 1), any_id=True)
        await join(self.store, worker(0), dead)
        await self.store.run(_make_chain, what="test")
        link = Link()
        rates = [1 - CLOCK_SKEW / 2.1, 1.0, 1 + CLOCK_SKEW / 2.1]
        self.machines = [
            Machine(name, self.store, Random(self.chance.random()), rate, link)
            for name, rate in zip("abc", rates, strict=True)
        ]
        link.machines.update({machine.address: machine for machine in self.machines})
        for machine in self.machines:
            await machine.start()
        tasks = [asyncio.ensure_future(each()) for each in (self._watch, self._beat, self._ask, self._act)]
        tasks += [asyncio.ensure_future(self._speak(machine)) for machine in self.machines]
        storm = asyncio.ensure_future(self._storm())
        await asyncio.sleep(STORM_S)
        self.stormy = False
        await storm
        for machine in self.machines:
            machine.slow_share = 0.0
        await asyncio.sleep(CALM_S)
        for task in tasks:
            task.cancel()
        for result in await asyncio.gather(*tasks, return_exceptions=True):
            if not isinstance(result, asyncio.CancelledError):
                raise AssertionError("a part of the simulation ended") from result
        await self._check_the_end()
        for machine in self.machines:
            await machine.chains.aclose()
            await machine.presence.aclose()
        assert not any(machine.term for machine in self.machines)
        await asyncio.gather(*(machine.store.aclose() for machine in self.machines))
        await self.store.aclose()

    async def _watch(self) -> None:
        """Never two at once."""
        before = 0
        while True:
            managers = {machine.name: machine.term for machine in self.machines if machine.term}
            assert len(managers) <= 1, managers
            term = max(managers.values(), default=before)
            assert term >= before
            self.changes += term > before
            before = term
            await asyncio.sleep(0.003)

    async def _beat(self) -> None:
        """A worker's heartbeats, to any server: acknowledged in the order of terms."""
        while True:
            machine = self.chance.choice(self.machines)
            if machine.service is not None:
                try:
                    async with asyncio.timeout(1.0):
                        reply = await machine.call(machine.service.heartbeat(Heartbeat("d0", "first", 0, 1, 2)))
                    if reply.term:
                        self.terms_acknowledged.append(reply.term)
                except (TimeoutError, StoreError, ConnectionResetError):
                    pass
            await asyncio.sleep(0.05)

    async def _speak(self, machine: Machine) -> None:
        """The same worker's steady heartbeats, by way of each server."""
        while True:
            await asyncio.sleep(0.5)
            if machine.service is not None:
                await self._quietly(lambda: machine.call(machine.service.heartbeat(Heartbeat("d0", "first", 0, 1, 2))))

    async def _ask(self) -> None:
        """A client that asks one server after the other, each for half of the time that is left."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(0.2)
            deadline = loop.time() + CALL_BUDGET_S
            servers = self.chance.sample(self.machines, 3)
            always = {machine.name for machine in servers if machine.healthy}
            answered = False
            while not answered and loop.time() < deadline - 0.001:
                servers.append(servers.pop(0))
                machine = servers[-1]
                half_s = max(0.25, (deadline - loop.time()) / 2)
                if machine.service is None:
                    await asyncio.sleep(0.01)
                else:
                    answered = await self._answers(machine, min(half_s, deadline - loop.time()))
                always &= {machine.name for machine in self.machines if machine.healthy}
            self.answered += answered
            assert answered or len(always) < 2, f"{always} were healthy and did not answer"

    async def _answers(self, machine: Machine, timeout_s: float) -> bool:
        try:
            async with asyncio.timeout(timeout_s):
                reply = await machine.call(machine.service.routing(GetRouting(0)))
        except (TimeoutError, StoreError, ConnectionResetError):
            return False
        return reply.routing is not None and reply.routing.workers == (worker(0),)

    async def _act(self) -> None:
        """What a manager does: writes that carry its term."""
        while True:
            for machine in self.machines:
                term = machine.term
                if term:
                    await self._quietly(lambda machine=machine, term=term: self._write(machine, term))
            await asyncio.sleep(0.1)

    async def _write(self, machine: Machine, term: int) -> None:
        async def body(transaction: Transaction) -> None:
            transaction.set_versionstamped_key(LOG, b"", term.to_bytes(4, "big"))
            await asyncio.sleep(machine.chance.random())

        await machine.presence.manager.transact(body, what="a manager's write", timeout_s=3)

    async def _quietly(self, function: Callable[[], Awaitable[Any]]) -> None:
        try:
            async with asyncio.timeout(3):
                await function()
        except (StoreError, NotManager, TimeoutError, ConnectionResetError, RequestFailed):
            pass

    async def _storm(self) -> None:
        while self.stormy:
            await asyncio.sleep(self.chance.random() * 5)
            manager = next((machine for machine in self.machines if machine.term), None)
            machine = (
                manager if manager is not None and self.chance.random() < 0.6 else self.chance.choice(self.machines)
            )
            match self.chance.choice(["kill", "cut", "suspend", "stop"]):
                case "kill":
                    await machine.kill()
                    await asyncio.sleep(self.chance.random() * 10)
                    await self._start(machine)
                case "cut":
                    machine.connected.clear()
                    await asyncio.sleep(self.chance.random() * 10)
                    machine.connected.set()
                case "suspend":
                    machine.running.clear()
                    await asyncio.sleep(self.chance.random() * 10)
                    machine.running.set()
                case "stop":
                    await machine.presence.aclose()
                    await machine.kill()
                    await self._start(machine)

    async def _start(self, machine: Machine) -> None:
        while True:
            try:
                return await machine.start()
            except StoreError:
                await machine.kill()

    async def _check_the_end(self) -> None:
        (manager,) = [machine for machine in self.machines if machine.term]
        for machine in self.machines:
            status = await machine.service.cluster_status(ClusterStatus())
            assert (status.manager, status.term) == (manager.address, manager.term)
            assert status.routing.meta_servers == tuple(machine.address for machine in self.machines)
            assert 0 <= status.workers[0].seconds_since_heartbeat < 5, "the manager knows, whoever was asked"
            assert (await machine.service.routing(GetRouting(0))).routing == status.routing
            assert status.routing.chains == (CHAIN,), "its worker lived and spoke all the while"
        assert self.terms_acknowledged == sorted(self.terms_acknowledged)
        assert self.terms_acknowledged[-1] == manager.term
        rows = await self.store.run(lambda transaction: transaction.get_range(LOG, b"\x80"), what="read")
        written = [int.from_bytes(term, "big") for _, term in rows]
        assert written == sorted(written)
        assert written[-1] == manager.term
        assert self.answered > 100
        assert manager.presence.manager.may_declare_dead


@pytest.mark.parametrize("seed", range(8))
def test_never_two_managers_and_always_one_again(seed: int) -> None:
    world = World(seed)
    virtual_time.run(world.live())
    assert world.changes >= 2, "the storm must have moved the lease"
