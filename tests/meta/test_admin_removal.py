"""The removal of a namespace in the background: whatever fails or dies on the way, in the end nothing of it is left."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from random import Random

import pytest

from esker.meta import keys
from esker.meta.admin_namespaces import begin_removal, removals_under_way
from esker.meta.admin_removal import BATCH_CHUNKS, RemovalJob
from esker.meta.catalog import Catalog
from esker.meta.manager import Manager, NotManager
from esker.meta.routing import RoutingCache
from esker.meta.store.base import Store
from esker.meta.store.memory import MemoryStore
from esker.wire.admin_messages import RECORD_KEY, SCAN_ROW, NamespaceRemove, Scan, ScanReply, split_record_key
from esker.wire.errors import ConnectionFailed, RequestFailed
from esker.wire.ids import chunk_id
from esker.wire.messages import REMOVE_EXTENT, CatalogEntry, CatalogReport
from esker.wire.status import Status
from esker.wire.types import Chain, Routing, Worker

from .conftest import join_all
from .test_admin_namespaces import make, routing_of

A, B = 1, 2
"""The namespace that is removed, and one that stays."""


class FakeDrives:
    """Workers with the chunks of their drives; a removal at a head goes down its chain."""

    def __init__(self, routing: Routing) -> None:
        self.chains = {chain.chain_id: chain for chain in routing.chains}
        self.chunks: dict[str, set[bytes]] = {worker.drive_id: set() for worker in routing.workers}
        self.down: set[str] = set()
        self.routing_version = routing.version + 1
        self.busy: dict[str, int] = {}
        """Writes under way of the removed namespace, told by so many scans of the drive."""
        self.refused: Status | None = None
        self.calls = 0
        self.die_after: int | None = None

    def fill(self, space: int, count: int) -> None:
        for chain in self.chains.values():
            for number in range(count):
                key = RECORD_KEY.pack(chain.chain_id, chunk_id(space, number.to_bytes(16, "big"), number % 3))
                for replica in chain.replicas:
                    self.chunks[replica.drive_id].add(key)

    def left(self, space: int) -> int:
        return sum(split_record_key(key)[1] == space for chunks in self.chunks.values() for key in chunks)

    def _call(self, worker: Worker) -> None:
        self.calls += 1
        if self.die_after is not None and self.calls > self.die_after:
            raise asyncio.CancelledError
        if worker.drive_id in self.down:
            raise ConnectionFailed(f"cannot connect to {worker.host}:{worker.port}")

    async def scan(self, worker: Worker, scan: Scan) -> ScanReply:
        self._call(worker)
        if self.routing_version < scan.routing_version:
            raise RequestFailed(Status.NOT_READY, "this worker's cluster map is older")
        under_way = self.busy.get(worker.drive_id, 0)
        self.busy[worker.drive_id] = max(0, under_way - 1)
        found = sorted(
            key
            for key in self.chunks[worker.drive_id]
            if key > scan.after and split_record_key(key)[:2] == (scan.chain_id, scan.space)
        )
        page = found[: scan.limit]
        rows = b"".join(SCAN_ROW.pack(key, 1, 1, 1, 1, bytes(16), 1, 0) for key in page)
        await asyncio.sleep(0)
        return ScanReply(rows, b"", page[-1] if len(found) > len(page) else b"", under_way)

    async def remove(self, worker: Worker, space: int, extents: Sequence[bytes]) -> list[Status]:
        self._call(worker)
        if self.refused is not None:
            return [self.refused, *[Status.OK] * (len(extents) - 1)]
        assert len(extents) <= BATCH_CHUNKS
        statuses = []
        for object_id, index, chain_id, chain_version, version, put_id in map(REMOVE_EXTENT.unpack, extents):
            chain: Chain = self.chains[chain_id]
            assert worker.drive_id == chain.replicas[0].drive_id, "removals go through the head"
            assert (chain_version, version, put_id) == (chain.version, 0, bytes(16))
            key = RECORD_KEY.pack(chain_id, chunk_id(space, object_id, index))
            there = [key in self.chunks[replica.drive_id] for replica in chain.replicas]
            for replica in chain.replicas:
                self.chunks[replica.drive_id].discard(key)
            statuses.append(Status.OK if any(there) else Status.NOT_FOUND)
        await asyncio.sleep(0)
        return statuses

    async def aclose(self) -> None:
        pass


class Removing:
    """A store with a namespace that is being removed, and drives that are full of it."""

    def __init__(self, store: Store, drives: FakeDrives) -> None:
        self.store = store
        self.drives = drives
        self.now_s = 0.0
        self.manager = Manager(store, "i", lambda: self.now_s)
        self.catalog = Catalog(store)

    def job(self) -> RemovalJob:
        routing = RoutingCache(self.store, lambda: self.now_s)
        return RemovalJob(self.store, self.manager, routing, self.drives, clock=lambda: self.now_s)

    async def record(self) -> object:
        (removal,) = await removals_under_way(self.store)
        return removal

    async def check_gone(self) -> None:
        assert await removals_under_way(self.store) == []
        assert self.drives.left(A) == 0
        assert self.drives.left(B) > 0
        assert await self.catalog.totals() == {B: (10, 1000)}
        rows = await self.store.run(lambda transaction: transaction.get_range(*keys.blocks(A)), what="test")
        assert rows == []


@pytest.fixture
async def removing() -> AsyncIterator[Removing]:
    store = MemoryStore()
    await join_all(store, 4)
    await make(store, "a", "b")
    drives = FakeDrives(await routing_of(store))
    drives.fill(A, 30)
    drives.fill(B, 5)
    found = Removing(store, drives)
    entries = [CatalogEntry(space, bytes([n]) * 16, b"k", 100, 1, 5) for space in (A, B) for n in range(10)]
    await found.catalog.report(CatalogReport(tuple(entries)))
    await found.manager.step()
    assert found.manager.term == 1
    await begin_removal(store, NamespaceRemove("a"), now_ms=1)
    yield found
    await store.aclose()


async def test_chunks_entries_and_counters_go_and_nothing_else(removing: Removing) -> None:
    await removing.job().step()
    await removing.check_gone()
    await removing.job().step()


async def test_many_chunks_go_in_bounded_batches(removing: Removing) -> None:
    removing.drives.fill(A, 2 * BATCH_CHUNKS + 10)
    await removing.job().step()
    await removing.check_gone()


async def test_a_drive_that_is_down_holds_up_only_its_chains(removing: Removing) -> None:
    removing.drives.down = {"d1"}
    await removing.job().step()
    removal = await removing.record()
    others = [chain for chain in removing.drives.chains.values() if all(r.drive_id != "d1" for r in chain.replicas)]
    assert set(removal.chains_done) == {chain.chain_id for chain in others}
    assert removal.chains == len(removing.drives.chains)
    assert "cannot connect to" in removal.waiting_for
    assert "more chains" in removal.waiting_for
    assert (await removing.catalog.totals())[A] == (10, 1000), "the list goes last"
    removing.drives.down = set()
    await removing.job().step()
    await removing.check_gone()


async def test_what_only_a_follower_has_goes_too(removing: Removing) -> None:
    for chunks in removing.drives.chunks.values():
        chunks.clear()
    removing.drives.fill(B, 5)
    tail = removing.drives.chains[1].replicas[1].drive_id
    removing.drives.chunks[tail].add(RECORD_KEY.pack(1, chunk_id(A, bytes(16))))
    await removing.job().step()
    await removing.check_gone()


async def test_a_worker_that_does_not_know_of_the_removal_yet_is_waited_for(removing: Removing) -> None:
    removing.drives.routing_version = 1
    await removing.job().step()
    assert "cluster map is older" in (await removing.record()).waiting_for
    assert removing.drives.left(A) > 0
    removing.drives.routing_version = 1000
    await removing.job().step()
    await removing.check_gone()


async def test_writes_under_way_keep_a_chain_open(removing: Removing) -> None:
    removing.drives.busy = {"d0": 1000}
    await removing.job().step()
    assert "writes of the namespace are still under way on drive d0" in (await removing.record()).waiting_for
    removing.drives.busy = {"d0": 1}
    await removing.job().step()
    await removing.check_gone()


async def test_chunks_that_are_not_removed_are_told(removing: Removing) -> None:
    removing.drives.refused = Status.UNAVAILABLE
    await removing.job().step()
    assert "did not remove every chunk: 1 UNAVAILABLE" in (await removing.record()).waiting_for
    removing.drives.refused = None
    await removing.job().step()
    await removing.check_gone()


@pytest.mark.parametrize("seed", range(12))
async def test_a_server_that_dies_at_any_point_loses_nothing_of_it(removing: Removing, seed: int) -> None:
    chance = Random(seed)
    deaths = 0
    while await removals_under_way(removing.store):
        removing.drives.calls = 0
        removing.drives.die_after = chance.randrange(1, 40)
        try:
            await removing.job().step()
        except asyncio.CancelledError:
            deaths += 1
    assert deaths > 0
    await removing.check_gone()


async def test_only_the_manager_removes(removing: Removing) -> None:
    other = Manager(removing.store, "other", lambda: removing.now_s)
    removing.now_s += 1000.0  # the lease has ended
    await removing.job().step()
    assert removing.drives.calls == 0
    for _ in range(2):
        await other.step()
        removing.now_s += 1000.0
    await other.step()
    removing.now_s = 0.1  # this server believes that it still has it
    with pytest.raises(NotManager):
        await removing.job().step()
    assert (await removing.record()).chains_done == ()


async def test_two_namespaces_go_one_after_the_other(removing: Removing) -> None:
    await begin_removal(removing.store, NamespaceRemove("b"), now_ms=2)
    removing.drives.routing_version += 1
    await removing.job().step()
    assert removing.drives.left(A) == removing.drives.left(B) == 0
    assert await removing.catalog.totals() == {}
    assert await removals_under_way(removing.store) == []
