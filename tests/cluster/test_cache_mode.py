"""Cache mode on real processes: a drive that dies costs its own blocks for a while, and no put."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path

from esker.kvclient import KVCacheClient, Status
from esker.wire.types import TargetState

from ..waiting import until
from .clusters import connect, down, get_all, key_of, put_all, running, stopped, value_of, worker_pid

BLOCK_BYTES = 9000
BATCH = 20
RESIDENT = {number: value_of(number, BLOCK_BYTES) for number in range(400)}
"""Blocks that are there before, and that nobody puts again."""


class Load:
    """One client as an engine would be: puts a batch of new blocks, reads it and an earlier one, and goes on."""

    def __init__(self, client: KVCacheClient) -> None:
        self._client = client
        self._loop = asyncio.get_running_loop()
        self.batches = 0
        self.stop = False
        self.longest_gap_s = 0.0
        """Between the ends of two puts."""
        self.hits = self.asked = 0

    async def run(self) -> None:
        last_s = self._loop.time()
        for batch in count():
            if self.stop:
                return
            numbers = range(1000 + batch * BATCH, 1000 + (batch + 1) * BATCH)
            values = {number: value_of(number, BLOCK_BYTES) for number in numbers}
            statuses = await put_all(self._client, values)
            assert set(statuses.values()) <= {Status.OK, Status.EXISTS}, f"batch {batch}: {statuses}"
            now_s = self._loop.time()
            self.longest_gap_s, last_s = max(self.longest_gap_s, now_s - last_s), now_s
            earlier = range(1000 + batch // 2 * BATCH, 1000 + (batch // 2 + 1) * BATCH)
            self.count(await get_all(self._client, [*numbers, *earlier]), [*numbers, *earlier])
            self.batches += 1
            await asyncio.sleep(0.005)  # so that two cores have time for everything else

    def count(self, found: list[bytes | Status], numbers: list[int]) -> None:
        """Hits and misses; never other bytes, and nothing but a miss."""
        for number, value in zip(numbers, found, strict=True):
            assert value in (value_of(number, BLOCK_BYTES), Status.NOT_FOUND, Status.TIMEOUT), f"block {number}"
            self.hits += isinstance(value, bytes)
        self.asked += len(numbers)

    async def more(self, batches: int) -> None:
        """Waits until so many more are done."""
        target = self.batches + batches
        await until(lambda: self.batches >= target, "batches of the load")


@asynccontextmanager
async def loaded(client: KVCacheClient) -> AsyncIterator[Load]:
    """Within it the load goes on."""
    load = Load(client)
    async with asyncio.TaskGroup() as group:
        group.create_task(load.run())
        try:
            yield load
        finally:
            load.stop = True


async def resident(client: KVCacheClient) -> list[bool]:
    """Which of the resident blocks are found; all that is found is right."""
    found = await get_all(client, list(RESIDENT))
    allowed = (Status.NOT_FOUND, Status.TIMEOUT)
    assert all(value in (RESIDENT[number], *allowed) for number, value in zip(RESIDENT, found, strict=True))
    return [isinstance(value, bytes) for value in found]


async def homes(client: KVCacheClient) -> list[str]:
    """The drive that each resident block belongs to."""
    _, anchors = client._keyspace.locate([key_of(number) for number in RESIDENT], 0, None)
    place = client._keyspace.newest.home()
    chains = place.routes.now().chains
    return [chains[first].replicas[0].drive_id for first in place.firsts(anchors).tolist()]


async def test_a_drive_that_dies_costs_its_share_until_it_is_back(tmp_path: Path) -> None:
    async with (
        running(tmp_path, drives=4) as cluster,
        await connect(cluster, mode="cache") as client,
        await connect(cluster, mode="cache") as loading,
    ):
        assert set((await put_all(client, RESIDENT)).values()) == {Status.OK}
        drives = await homes(client)
        dead = next(process.drive_id for process in cluster.processes() if process.role == "worker")
        async with loaded(loading) as load:
            await load.more(5)
            undisturbed_s, load.longest_gap_s = load.longest_gap_s, 0.0
            with down(cluster, 0) as pid:
                await load.more(5)
                gap_s = load.longest_gap_s
                during = [drive != dead for drive in drives]
                await until(lambda: found_are(client, during), "its own blocks are misses, and no others")
                await until(lambda: any_not_serving(loading), "the manager notices too")
                await load.more(3)
                longest_s = load.longest_gap_s
                await until(lambda: found_are(client, during), "it stays so")
            await cluster.restarted(pid)
            await until(lambda: all_found(client), "the drive's blocks are found again")
            await load.more(3)
            numbers = list(range(1000, 1000 + load.batches * BATCH))
            found = await get_all(loading, numbers)
            load.count(found, numbers)
            assert all(isinstance(value, bytes) for value in found), "what was put meanwhile is found too"
        await cluster.settled()
        print(
            f"\nlongest time between puts: {gap_s * 1000:.0f} ms at the kill, {longest_s * 1000:.0f} ms until the "
            f"manager had noticed, {undisturbed_s * 1000:.0f} ms before; hits: {during.count(True) / len(during):.1%} "
            f"of what was there while one of four drives is dead, then all; {load.hits / load.asked:.1%} of the load's"
        )


def any_not_serving(client: KVCacheClient) -> bool:
    chains = client._link.routing.routing.chains
    return any(replica.state is not TargetState.SERVING for chain in chains for replica in chain.replicas)


async def test_a_drive_that_hangs_is_passed_by(tmp_path: Path) -> None:
    async with running(tmp_path, drives=2) as cluster, await connect(cluster, mode="cache") as client:
        assert set((await put_all(client, RESIDENT)).values()) == {Status.OK}
        async with loaded(client) as load:
            await load.more(3)
            load.longest_gap_s = 0.0
            with stopped(worker_pid(cluster, 0)):
                await load.more(5)
            await load.more(3)
        await until(lambda: all_found(client), "everything is found again")
        print(f"\nlongest time without a put while a drive hangs: {load.longest_gap_s:.2f} s")


async def found_are(client: KVCacheClient, expected: list[bool]) -> bool:
    """A machine that is busy may keep a live worker from answering for a while."""
    return await resident(client) == expected


async def all_found(client: KVCacheClient) -> bool:
    return all(await resident(client))
