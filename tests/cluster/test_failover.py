"""Workers that die, hang and come back: puts flow again, reads never fail, and in the end every replica is the same."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from esker.kvclient import KVCacheClient, Status
from esker.tools.dev_cluster import DevCluster
from esker.wire.admin_messages import SCAN_ROW, Scan, ScanReply
from esker.wire.errors import RequestFailed
from esker.wire.limits import MIB
from esker.wire.messages import Method
from esker.wire.rpc_client import Connection, TcpAddress
from esker.wire.status import Status as Outcome
from esker.wire.types import Chain, TargetState

from ..waiting import until
from .clusters import (
    SINGLE,
    STRIPED,
    connect,
    down,
    get_all,
    key_of,
    put_all,
    put_through,
    running,
    stopped,
    value_of,
    view,
    worker_pid,
)

GOOD = {Status.OK, Status.EXISTS}


class Readers:
    """Clients that read the same blocks again and again, until told to stop. None may ever fail."""

    def __init__(self, values: dict[int, bytes]) -> None:
        self._values = values
        self.rounds = 0
        self.stop = False

    async def read(self, client: KVCacheClient) -> None:
        while not self.stop:
            found = await get_all(client, list(self._values), timeout_s=10)
            wrong = {
                number: each if isinstance(each, Status) else "other bytes"
                for number, each in zip(self._values, found, strict=True)
                if each != self._values[number]
            }
            assert not wrong, f"round {self.rounds}: {wrong}"
            self.rounds += 1
            await asyncio.sleep(0.01)  # so that two cores have time for everything else

    async def some_rounds(self) -> None:
        """Waits until everything has been read twice more."""
        target = self.rounds + 2
        await until(lambda: self.rounds >= target, "rounds of reads")


@asynccontextmanager
async def reading(client: KVCacheClient, values: dict[int, bytes]) -> AsyncIterator[Readers]:
    """Within it all is read all the time."""
    readers = Readers(values)
    async with asyncio.TaskGroup() as group:
        task = group.create_task(readers.read(client))
        try:
            yield readers
            await readers.some_rounds()
        finally:
            readers.stop = True
    assert task.done()


async def records(cluster: DevCluster) -> dict[int, list[dict[bytes, tuple[object, ...]]]]:
    """What the replicas of each chain have, by chain id."""
    routing = (await view(cluster)).routing
    workers = {worker.drive_id: worker for worker in routing.workers}
    found: dict[int, list[dict[bytes, tuple[object, ...]]]] = {}
    for chain in routing.chains:
        for replica in chain.replicas:
            worker = workers[replica.drive_id]
            connection = await Connection.connect(TcpAddress(worker.host, worker.port), role="tool")
            try:
                found.setdefault(chain.chain_id, []).append(await _scanned(connection, chain))
            finally:
                await connection.aclose()
    return found


async def _scanned(connection: Connection, chain: Chain) -> dict[bytes, tuple[object, ...]]:
    rows: dict[bytes, tuple[object, ...]] = {}
    after = b""
    while True:
        scan = Scan(chain.chain_id, after, 1000, chain_version=chain.version, digests=True)
        page = await connection.call(Method.SCAN, scan, ScanReply, timeout_s=10)
        for number, row in enumerate(SCAN_ROW.iter_unpack(page.rows)):
            created_at = 6
            digest = page.digests[8 * number : 8 * number + 8]
            rows[row[0]] = (*row[1:created_at], *row[created_at + 1 :], digest)
        after = page.next_after
        if not after:
            return rows


async def all_the_same(cluster: DevCluster) -> int:
    """Waits until all replicas serve, and requires that those of each chain have the same records; how many."""
    await cluster.settled()
    total = 0

    async def quiet() -> bool:
        """A worker that has yet to hear of the last change answers no scan of it."""
        nonlocal total
        try:
            found = await records(cluster)
        except RequestFailed as refused:
            if refused.status is Outcome.NOT_READY:
                return False
            raise
        for chain_id, replicas in found.items():
            assert all(each == replicas[0] for each in replicas), f"the replicas of chain {chain_id} differ"
        total = sum(len(replicas[0]) for replicas in found.values())
        return True

    await until(quiet, "every worker knows its chains")
    return total


async def test_a_worker_that_dies_and_stays_away_and_comes_back(tmp_path: Path) -> None:
    before = {number: value_of(number, 9000) for number in range(120)}
    async with (
        running(tmp_path, drives=3) as cluster,
        await connect(cluster) as client,
        await connect(cluster, STRIPED) as striped,
    ):
        large = {number: value_of(number, 60_000) for number in range(20)}
        assert set((await put_all(client, before)).values()) == {Status.OK}
        assert set((await put_all(striped, large)).values()) == {Status.OK}
        removed = [number for number in before if number % 10 == 0]
        async with reading(client, {n: value for n, value in before.items() if n not in removed}) as readers:
            with down(cluster, 0) as pid:
                meanwhile = {number: value_of(number, 9000) for number in range(200, 320)}
                await put_through(client, meanwhile)
                dead = (await view(cluster)).routing
                states = {replica.state for chain in dead.chains for replica in chain.replicas}
                assert states == {TargetState.SERVING, TargetState.OFFLINE}
                for number in removed:
                    del before[number]
                assert set(await client.remove([key_of(number) for number in removed])) == {Status.OK}
                more = {number + 100: value_of(number + 100, 60_000) for number in range(10)}
                await put_through(striped, more)
                await readers.some_rounds()
            await cluster.restarted(pid)
            back = {number: value_of(number, 9000) for number in range(400, 460)}
            await put_through(client, back)
            count = await all_the_same(cluster)
        assert count == len(before) + len(meanwhile) + len(back) + 4 * (len(large) + len(more))
        everything = before | meanwhile | back
        assert await get_all(client, list(everything)) == list(everything.values())
        assert set(await get_all(client, removed)) == {Status.NOT_FOUND}
        assert await get_all(striped, [*large, *more]) == [*large.values(), *more.values()]


async def test_a_worker_that_hangs_is_replaced_and_wakes_to_nothing_stale(tmp_path: Path) -> None:
    """It is head, middle and tail, each of other chains."""
    values = {number: value_of(number, 16384) for number in range(60)}
    async with running(tmp_path, drives=4, replicas=3) as cluster, await connect(cluster) as client:
        assert set((await put_all(client, values)).values()) == {Status.OK}
        routing = (await view(cluster)).routing
        hanging = cluster.processes()[2].drive_id
        places = {
            [each.drive_id for each in chain.replicas].index(hanging)
            for chain in routing.chains
            if hanging in {each.drive_id for each in chain.replicas}
        }
        assert places == {0, 1, 2}
        with stopped(worker_pid(cluster, 0)):
            fresh = {number: value_of(number, 5000) for number in range(100, 160)}
            await put_through(client, fresh)
            gone = list(values)[:5]
            assert set(await client.remove([key_of(number) for number in gone])) == {Status.OK}
        assert set(await get_all(client, gone)) <= {Status.NOT_FOUND, *(values[number] for number in gone)}
        for number in gone:
            del values[number]
        values |= fresh
        assert await all_the_same(cluster) == len(values)
        assert await get_all(client, list(values)) == list(values.values())
        assert set(await get_all(client, gone)) == {Status.NOT_FOUND}


async def test_all_workers_die_at_once(tmp_path: Path) -> None:
    values = {number: value_of(number, 9000) for number in range(120)}
    async with running(tmp_path, drives=3) as cluster, await connect(cluster) as client:
        assert set((await put_all(client, values)).values()) == {Status.OK}
        pids = [cluster.kill_worker(number) for number in range(3)]
        for pid in pids:
            await cluster.restarted(pid)
        more = {number: value_of(number, 9000) for number in range(200, 260)}
        await put_through(client, more)
        assert await all_the_same(cluster) == len(values) + len(more)
        assert await get_all(client, list(values | more)) == list((values | more).values())


async def test_everything_dies_at_once_and_one_drive_never_comes_back(tmp_path: Path) -> None:
    """Whoever comes back first of those that served serves again, with everything."""
    values = {number: value_of(number, 9000) for number in range(60)}
    async with running(tmp_path) as cluster, await connect(cluster) as client:
        assert set((await put_all(client, values)).values()) == {Status.OK}
        (supervisor,) = [process.pid for process in cluster.processes() if process.role == "chunkserver"]
        lost = cluster.drive_directories[1]
        lost_id = cluster.processes()[3].drive_id
        sockets = {worker.drive_id: worker.socket_path for worker in (await view(cluster)).routing.workers}
        meta = cluster.kill_meta()
        os.kill(supervisor, signal.SIGSTOP)
        kept = cluster.kill_worker(0)
        cluster.kill_worker(1)
        os.rename(lost, f"{lost}.gone")
        os.symlink("/nowhere", lost)  # so that its worker cannot make a drive of it
        os.unlink(sockets[lost_id])
        await cluster.restarted(meta)
        os.kill(supervisor, signal.SIGCONT)
        await cluster.restarted(kept)

        async def serves() -> bool:
            chains = (await view(cluster)).routing.chains
            return all(chain.replicas[0].state is TargetState.SERVING for chain in chains)

        await until(serves, "the drive that is left serves all chains")

        async def reads() -> bool:
            return await get_all(client, list(values)) == list(values.values())

        await until(reads, "the client reads everything again")
        more = {number: value_of(number, 9000) for number in range(200, 220)}
        await put_through(client, more)


async def test_a_second_start_finds_every_replica_serving_again(tmp_path: Path) -> None:
    values = {number: value_of(number, 9000) for number in range(120)}
    async with running(tmp_path, drives=3) as cluster, await connect(cluster) as client:
        assert set((await put_all(client, values)).values()) == {Status.OK}
    async with running(tmp_path, drives=3) as cluster, await connect(cluster) as client:
        assert await get_all(client, list(values)) == list(values.values())
        assert set((await put_all(client, values)).values()) <= GOOD
        assert await all_the_same(cluster) == len(values)


async def test_the_metadata_server_is_away_while_a_worker_dies(tmp_path: Path) -> None:
    """Nothing changes without it; once it is back, it first lets every worker speak."""
    values = {number: value_of(number, 9000) for number in range(60)}
    async with running(tmp_path, drives=3) as cluster, await connect(cluster) as client:
        assert set((await put_all(client, values)).values()) == {Status.OK}
        (meta,) = [process.pid for process in cluster.processes() if process.role == "meta"]
        async with reading(client, values) as readers:
            with down(cluster, 0) as pid:
                with stopped(meta):
                    await readers.some_rounds()
                    short = {number: value_of(number, 9000) for number in range(200, 210)}
                    assert set((await put_all(client, short, timeout_s=0.5)).values()) & {Status.OK}, (
                        "chains without it"
                    )
                fresh = {number: value_of(number, 9000) for number in range(200, 260)}

                await put_through(client, fresh)
            await cluster.restarted(pid)
            await all_the_same(cluster)
        assert await get_all(client, list(fresh)) == list(fresh.values())


async def test_a_held_up_metadata_server_takes_nobody_for_dead(tmp_path: Path) -> None:
    async with running(tmp_path, drives=3) as cluster, await connect(cluster) as client:
        before = (await view(cluster)).routing.chains
        (meta,) = [process.pid for process in cluster.processes() if process.role == "meta"]
        begun = time.monotonic()
        with stopped(meta):
            await until(lambda: time.monotonic() - begun > 3.0, "longer than it takes to declare a worker dead")
        assert (await put_all(client, {1: b"value"}))[1] is Status.OK
        assert (await view(cluster)).routing.chains == before


async def test_full_resync_of_many_blocks_beside_writes(tmp_path: Path) -> None:
    """More than a page of records, and writes all the while."""
    async with (
        running(tmp_path, drives=2, capacity_bytes=256 * MIB) as cluster,
        await connect(cluster, SINGLE) as client,
    ):
        with down(cluster, 1) as pid:
            values: dict[int, bytes] = {}
            for first in range(0, 1500, 500):
                part = {number: value_of(number, 2000) for number in range(first, first + 500)}
                await put_through(client, part)
                values |= part
        await cluster.restarted(pid)
        for first in range(1500, 2000, 50):
            part = {number: value_of(number, 2000) for number in range(first, first + 50)}
            await put_through(client, part)
            values |= part
        assert await all_the_same(cluster) == len(values)
        counters = await view(cluster)
        assert counters.total("resync_ok") >= 1400
