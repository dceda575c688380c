"""Mutable chunks while workers die, hang and come back: what clients saw is linearizable, replicas end up the same.

Each drive is the head of some chains, the middle of others and the tail of the rest, so each death is all three at
once. ESKER_TEST_ROUNDS=10 does everything ten times over, with workers that hang for ten seconds.
"""

import asyncio
import os
import time
from contextlib import ExitStack
from pathlib import Path

from esker.client.mutable.placement import chain_number
from esker.tools.dev_cluster import DevCluster
from esker.tools.inspect_cluster import view_cluster
from esker.wire.errors import RequestFailed
from esker.wire.messages import Method
from esker.wire.mutable_messages import (
    CHUNK_EXTENT,
    CHUNK_STAT_RESULT,
    IMAGE_ROW,
    ChunkStat,
    ChunkStatReply,
    ScanImages,
    ScanImagesReply,
)
from esker.wire.rpc_client import Connection, TcpAddress
from esker.wire.status import Status
from esker.wire.types import TargetState

from ..linearizability import require_linearizable
from ..waiting import until
from .clusters import running, stopped, worker_pid
from .histories import acting

ROUNDS = int(os.environ.get("ESKER_TEST_ROUNDS", "1"))
HANG_S = 0.0 if ROUNDS == 1 else 10.0
"""How long a worker hangs at least; in any case until its chains have gone on without it."""
CHUNKS = 6
CLIENTS = 4
DRIVES = 3


async def images(cluster: DevCluster) -> dict[int, list[bytes]]:
    """What the replicas of each chain have of mutable chunks, by chain id."""
    routing = (await view_cluster(cluster.address)).routing
    workers = {worker.drive_id: worker for worker in routing.workers}
    found: dict[int, list[bytes]] = {}
    for chain in routing.chains:
        for replica in chain.replicas:
            worker = workers[replica.drive_id]
            connection = await Connection.connect(TcpAddress(worker.host, worker.port), role="tool")
            try:
                scan = ScanImages(chain.chain_id, chain.version, b"", 1000, 5000)
                reply = await connection.call(Method.SCAN_IMAGES, scan, ScanImagesReply, timeout_s=10)
            finally:
                await connection.aclose()
            found.setdefault(chain.chain_id, []).append(reply.rows)
    return found


async def all_the_same(cluster: DevCluster) -> int:
    """Waits until all replicas serve, and requires that those of each chain have the same; how many images."""
    await cluster.settled()

    async def quiet() -> dict[int, list[bytes]] | None:
        try:
            return await images(cluster)
        except RequestFailed as refused:
            if refused.status is Status.NOT_READY:  # it has yet to hear of the chain's last change
                return None
            raise

    found = await until(quiet, "every worker knows its chains")
    assert found is not None
    for chain_id, replicas in found.items():
        assert all(each == replicas[0] for each in replicas), f"the replicas of chain {chain_id} differ"
        assert all(pending == 0 for _, _, _, pending, *_ in IMAGE_ROW.iter_unpack(replicas[0])), "nothing is pending"
    return sum(len(replicas[0]) // IMAGE_ROW.size for replicas in found.values())


async def _taken_out(cluster: DevCluster, number: int) -> None:
    """Waits until no chain counts on that worker any more."""
    drive = [process.drive_id for process in cluster.processes() if process.role == "worker"][number]

    async def out() -> bool:
        chains = (await view_cluster(cluster.address)).routing.chains
        replicas = [replica for chain in chains for replica in chain.replicas if replica.drive_id == drive]
        return all(replica.state is TargetState.OFFLINE for replica in replicas)

    await until(out, "the chains go on without it")


class OldQuestion:
    """Asks one worker for the lengths of chunks, in the version that the chains had when this was made.

    A worker that hangs finds the question when it wakes up: by then others have gone on without it, and whatever it
    knows of the chunks is old. Only its lease, which has ended, can tell it so before it has heard of anything.
    """

    def __init__(self, connection: Connection, extents: bytes) -> None:
        self._connection = connection
        self._extents = extents

    @classmethod
    async def prepare(cls, cluster: DevCluster, number: int, object_id: bytes) -> "OldQuestion":
        """Returns once the worker answers it."""
        routing = (await view_cluster(cluster.address)).routing
        versions = {chain.chain_id: chain.version for chain in routing.chains}
        chain_ids = routing.tables[0].chain_ids
        drive = [process.drive_id for process in cluster.processes() if process.role == "worker"][number]
        (worker,) = [worker for worker in routing.workers if worker.drive_id == drive]
        extents = []
        for index in range(CHUNKS):
            chain_id = chain_ids[chain_number(object_id, index, len(chain_ids))]
            extents.append(CHUNK_EXTENT.pack(object_id, index, chain_id, versions[chain_id]))
        connection = await Connection.connect(TcpAddress(worker.host, worker.port), role="tool")
        question = cls(connection, b"".join(extents))

        async def answered() -> bool:
            return await question.ask() <= {Status.OK, Status.NOT_FOUND}

        await until(answered, "the worker knows the present version of its chains")
        return question

    async def ask(self) -> set[Status]:
        """The statuses of the answer; of a worker that hangs it comes when it wakes up."""
        stat = ChunkStat(self._extents, 60_000)
        reply = await self._connection.call(Method.CHUNK_STAT, stat, ChunkStatReply, timeout_s=60)
        return {Status(row[1]) for row in CHUNK_STAT_RESULT.iter_unpack(reply.results)}

    async def aclose(self) -> None:
        """Disconnects."""
        await self._connection.aclose()


async def test_what_clients_see_while_workers_die_and_hang_is_linearizable(tmp_path: Path) -> None:
    async with running(tmp_path, drives=DRIVES, replicas=DRIVES) as cluster:
        (meta,) = [process.pid for process in cluster.processes() if process.role == "meta"]
        for round_ in range(ROUNDS):
            async with acting(cluster.address, clients=CLIENTS, chunks=CHUNKS, seed=round_) as actors:
                await actors.writes_flow()
                await cluster.restarted(cluster.kill_worker(round_ % DRIVES))
                await cluster.settled()
                await actors.writes_flow()
                hanging, begun = (round_ + 1) % DRIVES, time.monotonic()
                question = await OldQuestion.prepare(cluster, hanging, actors.object_id)
                with ExitStack() as later:
                    with stopped(worker_pid(cluster, hanging)):
                        await _taken_out(cluster, hanging)
                        await actors.writes_flow()
                        answer = asyncio.ensure_future(question.ask())
                        await until(lambda begun=begun: time.monotonic() - begun >= HANG_S, "it hung for long enough")
                        later.enter_context(stopped(meta))  # so that nobody tells it of the new chains
                    assert await answer == {Status.UNAVAILABLE}, "it has no lease"
                await question.aclose()
                await cluster.settled()
                await actors.writes_flow()
                for pid in [cluster.kill_worker(number) for number in range(DRIVES)]:
                    await cluster.restarted(pid)
                await actors.writes_flow()
            wrong = {name for name in actors.ended if name.endswith(("CHECKSUM", "IO_ERROR", "INTERNAL"))}
            assert not wrong, actors.ended
            require_linearizable(actors.operations)
            assert await all_the_same(cluster)
