"""Leases under seeded storms: metadata servers that die, hang and lose the store, workers that are cut off or started
anew, networks that break between workers.

At every moment a worker that takes itself for serving a chain, with a live lease, does serve it in the chain that is
stored. When the storm is over every replica serves, with a live lease. Rules that this rests on are broken in turn, and
found missing; those that only matter in rarer moments have tests of their own (`test_fences.py`, `test_server.py`).
"""

import asyncio
from collections.abc import Callable
from random import Random

import pytest

from esker.chunkserver import lease
from esker.craq.lease import DEATHS_FROM_S, TAKEOVER_S
from esker.meta import fences, keys
from esker.meta.cluster import found_cluster, join
from esker.meta.holds import HOLD_MAX_S
from esker.meta.manager import Manager
from esker.meta.records import pack, unpack
from esker.meta.routing import bump_version
from esker.meta.store.base import Transaction
from esker.meta.store.errors import StoreError
from esker.meta.store.memory import MemoryStore
from esker.meta.store.writes import CommitSet
from esker.wire.limits import CLOCK_SKEW
from esker.wire.types import Chain, Replica, TargetState

from . import virtual_time
from .conftest import cluster_record, dead, worker
from .simulated_servers import Link, Machine
from .simulated_workers import SimulatedWorker

STORM_S = 60.0
SEEDS_TO_CATCH = 25
DRIVES = 3
CHAINS = tuple(
    Chain(number, 1, tuple(Replica(f"d{(number + each) % DRIVES}", incarnation="first") for each in range(DRIVES)))
    for number in range(1, DRIVES + 1)
)
CALM_S = TAKEOVER_S + DEATHS_FROM_S + 60.0
"""Holds that a storm of this length can bring about have ended then."""
assert CALM_S < HOLD_MAX_S


class LeaseBroken(AssertionError):
    """A worker would have answered for a chain that does not count on it any more."""


class WatchedStore(MemoryStore):
    """Says when something was committed."""

    on_commit: Callable[[], None] = staticmethod(lambda: None)

    async def apply(self, writes: CommitSet) -> tuple[int, bytes]:
        done = await super().apply(writes)
        self.on_commit()
        return done


async def _make_chains(transaction: Transaction) -> None:
    for chain in CHAINS:
        transaction.set(keys.chain(chain.chain_id), pack(chain))
    bump_version(transaction)


class World:
    def __init__(self, seed: int) -> None:
        self.chance = Random(seed)
        self.stormy = True
        self.broken: list[str] = []
        self.taken_from_live_workers = 0
        self.stored: dict[int, Chain] = {}

    async def live(self) -> None:
        loop = asyncio.get_running_loop()
        self.store = WatchedStore()
        self.store.retry.clock = self.store.clock = loop.time
        await found_cluster(self.store, cluster_record(DRIVES, DRIVES), any_id=True)
        for number in range(DRIVES):
            await join(self.store, worker(number), dead)
        await self.store.run(_make_chains, what="test")
        link = Link()
        rates = [1 - CLOCK_SKEW / 2.1, 1.0, 1 + CLOCK_SKEW / 2.1]
        self.machines = [
            Machine(name, self.store, Random(self.chance.random()), rate, link)
            for name, rate in zip("abc", rates, strict=True)
        ]
        link.machines.update({machine.address: machine for machine in self.machines})
        self.workers = [
            SimulatedWorker(number, self.store, self.machines, Random(self.chance.random()), rate)
            for number, rate in enumerate(self.chance.sample(rates, DRIVES))
        ]
        self.stored = {chain.chain_id: chain for chain in CHAINS}
        self.store.on_commit = self._committed
        for machine in self.machines:
            await machine.start()
        for each in self.workers:
            each.renewed = self._check
        tasks = [asyncio.ensure_future(each.run()) for each in self.workers]
        storms = [asyncio.ensure_future(each()) for each in (self._server_storm, self._worker_storm, self._link_storm)]
        await asyncio.sleep(STORM_S)
        self.stormy = False
        await asyncio.gather(*storms)
        for each in (*self.machines, *self.workers):
            each.slow_share = 0.0
        await asyncio.sleep(CALM_S)
        for task in tasks:
            assert not task.done(), task
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for each in self.workers:
            await each.aclose()
        for machine in self.machines:
            await machine.kill()
        await asyncio.gather(*(machine.store.aclose() for machine in self.machines))
        await self.store.aclose()
        if self.broken:
            raise LeaseBroken(self.broken[0])
        for chain in self.stored.values():
            assert {each.state for each in chain.replicas} == {TargetState.SERVING}, chain
        for each in self.workers:
            assert len(each.served()) == len(CHAINS), "whoever serves has a lease"

    def _committed(self) -> None:
        before, self.stored = self.stored, {}
        snapshot = self.store.open_snapshot()
        for key, value in snapshot.get_range(*keys.chains(), limit=DRIVES, reverse=False):
            chain = unpack(Chain, key, value)
            self.stored[chain.chain_id] = chain
        snapshot.release()
        for chain_id, chain in self.stored.items():
            if chain.version > before[chain_id].version:
                self._count(before[chain_id], chain)
        self._check()

    def _count(self, before: Chain, after: Chain) -> None:
        lost = {each.drive_id: each.incarnation for each in fences.losers(before, after)}
        self.taken_from_live_workers += sum(
            lost.get(each.drive_id) == each.life and each.reachable.is_set() for each in self.workers
        )

    def _check(self) -> None:
        now_s = asyncio.get_running_loop().time()
        for each in self.workers:
            for known in each.served():
                stored = self.stored[known.chain_id]
                serving = {
                    (replica.drive_id, replica.incarnation)
                    for replica in stored.replicas
                    if replica.state is TargetState.SERVING
                }
                if (each.drive_id, each.life) not in serving:
                    self.broken.append(f"{now_s:.3f} s: {each.drive_id} goes by {known}, but there is {stored}")

    async def _server_storm(self) -> None:
        while self.stormy:
            await asyncio.sleep(self.chance.random() * 6)
            manager = next((machine for machine in self.machines if machine.term), None)
            machine = (
                manager if manager is not None and self.chance.random() < 0.7 else self.chance.choice(self.machines)
            )
            match self.chance.choice(["kill", "cut", "suspend"]):
                case "kill":
                    await machine.kill()
                    await asyncio.sleep(self.chance.random() * 5)
                    await self._start(machine)
                case "cut":
                    machine.connected.clear()
                    await asyncio.sleep(self.chance.random() * 5)
                    machine.connected.set()
                case "suspend":
                    machine.running.clear()
                    await asyncio.sleep(self.chance.random() * 5)
                    machine.running.set()

    async def _start(self, machine: Machine) -> None:
        while True:
            try:
                return await machine.start()
            except StoreError:
                await machine.kill()

    async def _worker_storm(self) -> None:
        while self.stormy:
            await asyncio.sleep(self.chance.random() * 8)
            hit = self.chance.choice(self.workers)
            if self.chance.random() < 0.3:
                await hit.restart()
            else:
                hit.reachable.clear()
                await asyncio.sleep(self.chance.random() * 5)
                hit.reachable.set()

    async def _link_storm(self) -> None:
        while self.stormy:
            await asyncio.sleep(self.chance.random() * 6)
            hit = self.chance.choice(self.workers)
            other = self.chance.choice([each for each in self.workers if each is not hit])
            hit.unreachable = (other.drive_id,)
            await asyncio.sleep(self.chance.random() * 4)
            hit.unreachable = ()


def storm(seed: int) -> World:
    world = World(seed)
    virtual_time.run(world.live())
    return world


@pytest.mark.parametrize("seed", range(5))
def test_nobody_serves_who_was_taken_out(seed: int) -> None:
    assert storm(seed).taken_from_live_workers >= 1, "the storm must have been one"


# The same with a rule broken


def no_wait(patch: pytest.MonkeyPatch) -> None:
    """Chains change at once."""
    patch.setattr(fences, "_over", lambda *_: True)


def nothing_withheld(patch: pytest.MonkeyPatch) -> None:
    """Leases are renewed while a chain is about to change."""
    patch.setattr(fences.Fences, "withheld", lambda self, drive_id: ())


def counts_from_the_answer(patch: pytest.MonkeyPatch) -> None:
    """A lease runs from when the answer came."""
    renew = lease.Lease.renew
    patch.setattr(lease.Lease, "renew", lambda self, _, term, withheld: renew(self, self.now_s(), term, withheld))


def acknowledges_without_lease(patch: pytest.MonkeyPatch) -> None:
    """A manager does not look at its own lease when it answers."""
    patch.setattr(Manager, "term", property(lambda self: self._term))


@pytest.mark.parametrize(("break_rule", "first_seed"), [
    (no_wait, 0),
    (nothing_withheld, 0),
    (counts_from_the_answer, 0),
    (acknowledges_without_lease, 6),
])  # fmt: skip
def test_a_broken_rule_is_found(
    break_rule: Callable[[pytest.MonkeyPatch], None], first_seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    break_rule(monkeypatch)
    for seed in range(first_seed, first_seed + SEEDS_TO_CATCH):
        try:
            storm(seed)
        except LeaseBroken:
            return
    raise AssertionError("nobody noticed")
