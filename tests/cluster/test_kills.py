"""kill -9 of any process at random instants: no acknowledged block is lost, none is torn, none is wrong."""

import asyncio
import random
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from esker.kvclient import Geometry, KVCacheClient, Status
from esker.tools.dev_cluster import DevCluster
from esker.wire.limits import MIB

from ..waiting import until
from .clusters import SINGLE, STRIPED, connect, get_all, key_of, opened, put_all, records_by_key, running, value_of

CLIENTS = 3
KILLS = 5
BATCH = 8
BLOCKS = 1000
"""After so many they are put once more."""
PAUSE_S = 0.02
GOOD = (Status.OK, Status.EXISTS)
UNKNOWN = (Status.UNAVAILABLE, Status.TIMEOUT, Status.BUSY, Status.CHAIN_VERSION)
"""What a put or a get may end as while a process is down."""


class Load:
    """Clients that put new blocks and get acknowledged ones, until told to stop."""

    def __init__(self, seed: int, geometry: Geometry) -> None:
        self._random = random.Random(seed)
        self._geometry = geometry
        self._next = 0
        self.acknowledged: dict[int, bytes] = {}
        self.batches = 0
        """Those with an acknowledged put."""
        self.unknown = 0
        self.stop = False

    def _value(self, number: int) -> bytes:
        longest = self._geometry.block_bytes_max
        return value_of(number, random.Random(number).choice((1, longest // 4, longest // 2 + 1, longest)))

    async def client(self, client: KVCacheClient) -> None:
        """One client's work. Fails at the first wrong byte, and when an acknowledged block is said to be absent."""
        while not self.stop:
            numbers = range(self._next, self._next + BATCH)
            self._next = (self._next + BATCH) % BLOCKS
            unknown = self.unknown
            values = {number: self._value(number) for number in numbers}
            progress = 0
            for number, status in (await put_all(client, values, timeout_s=3)).items():
                assert status in GOOD + UNKNOWN, f"put of block {number} ended as {status.name}"
                if status in GOOD:
                    self.acknowledged[number] = values[number]
                    progress = 1
                else:
                    self.unknown += 1
            if self.acknowledged:
                wanted = self._random.choices(sorted(self.acknowledged), k=BATCH)
                for number, found in zip(wanted, await get_all(client, wanted, timeout_s=3), strict=True):
                    assert found == self.acknowledged[number] or found in UNKNOWN, f"block {number}: {found!r:.60}"
            self.batches += progress
            if self.unknown > unknown:
                await asyncio.sleep(PAUSE_S)  # as whoever meets a worker that is down would

    async def reached(self, batches: int) -> None:
        await until(lambda: self.batches >= batches, f"batch {batches}")


async def kill(cluster: DevCluster, chance: random.Random) -> list[int]:
    """Kills one or two processes; their pids."""
    kills = [cluster.kill_meta, lambda: cluster.kill_worker(0), lambda: cluster.kill_worker(1)]
    return [each() for each in chance.sample(kills, chance.choice((1, 1, 2)))]


@pytest.mark.parametrize(("seed", "geometry"), [(1, SINGLE), (2, STRIPED), (3, SINGLE)])
async def test_kills_at_random_instants_lose_nothing(tmp_path: Path, seed: int, geometry: Geometry) -> None:
    chance = random.Random(seed)
    load = Load(seed, geometry)
    async with running(tmp_path, capacity_bytes=256 * MIB) as cluster, AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(await connect(cluster, geometry)) for _ in range(CLIENTS)]
        async with asyncio.TaskGroup() as group:
            for client in clients:
                group.create_task(load.client(client))
            try:
                for _ in range(KILLS):
                    await load.reached(load.batches + chance.randrange(1, 30))
                    for pid in await kill(cluster, chance):
                        await cluster.restarted(pid)
                await load.reached(load.batches + 10)
            finally:
                load.stop = True
        assert len(load.acknowledged) > 100, "the clients made progress"
        await cluster.settled()
        numbers = sorted(load.acknowledged)
        for client in clients:
            found = dict(zip(numbers, await get_all(client, numbers, timeout_s=20), strict=True))
            assert found == load.acknowledged
            assert await client.match_prefix([key_of(number) for number in numbers]) == len(numbers)
        directories = cluster.drive_directories

    with opened(directories) as stores:
        everywhere = [records_by_key(store) for store in stores]
    for number in numbers:
        copies = [
            sorted((record.version, record.put_id, record.checksums) for record in records.get(key_of(number), []))
            for records in everywhere
        ]
        assert copies[0], f"block {number} was acknowledged and is not on drive 0"
        assert copies[0] == copies[1], f"the replicas of block {number} differ"


async def test_a_block_that_both_replicas_lost_their_workers_for_is_served_again(tmp_path: Path) -> None:
    values = {number: value_of(number, 16384) for number in range(50)}
    async with running(tmp_path) as cluster, await connect(cluster) as client:
        assert set((await put_all(client, values)).values()) == {Status.OK}
        pids = [cluster.kill_worker(0), cluster.kill_worker(1), cluster.kill_meta()]
        for pid in pids:
            await cluster.restarted(pid)

        async def served() -> bool:
            return await get_all(client, list(values)) == list(values.values())

        await until(served, "the same client reads everything again")

        async def confirmed() -> bool:
            return set((await put_all(client, values)).values()) == {Status.EXISTS}

        await until(confirmed, "both replicas confirm everything")
