"""Networks that break between processes which all go on: real TCP between nodes in network namespaces of their own."""

import itertools
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from esker.kvclient import KVCacheClient
from esker.wire.limits import MIB
from esker.wire.messages import Method
from esker.wire.mutable_messages import CHUNK_EXTENT, CHUNK_STAT_RESULT, ChunkStat, ChunkStatReply
from esker.wire.rpc_client import Connection, TcpAddress
from esker.wire.status import Status

from ..linearizability import require_linearizable
from ..waiting import until
from .clusters import SINGLE, get_all, put_through, value_of
from .histories import acting
from .network import NetworkCluster, Node, network_cluster, unavailable

pytestmark = [
    pytest.mark.skipif(bool(unavailable()), reason=unavailable() or "available"),
    pytest.mark.asyncio(loop_scope="module"),
]

LENGTH = 10_000
BLOCKS = 60
_fresh: Iterator[int] = itertools.count(0, BLOCKS)


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def cluster(module_directory: Path) -> AsyncIterator[NetworkCluster]:
    async with network_cluster(module_directory) as cluster:
        yield cluster


@pytest_asyncio.fixture(loop_scope="module")
async def client(cluster: NetworkCluster) -> AsyncIterator[KVCacheClient]:
    """Of a cluster that is whole again after the test before."""
    await until(cluster.settled, "all nodes serve")
    client = await KVCacheClient.connect(cluster.address, "partitions", SINGLE, pool_bytes=4 * MIB)
    yield client
    await client.aclose()


async def put_some(client: KVCacheClient) -> dict[int, bytes]:
    """Blocks that nobody has put before, until all are there."""
    first = next(_fresh)
    values = {number: value_of(number, LENGTH) for number in range(first, first + BLOCKS)}
    await put_through(client, values)
    return values


async def read_all(client: KVCacheClient, stored: dict[int, bytes]) -> None:
    assert await get_all(client, list(stored), timeout_s=10) == list(stored.values())


async def test_a_node_that_is_cut_off_is_left_out_and_comes_back(
    cluster: NetworkCluster, client: KVCacheClient
) -> None:
    stored = await put_some(client)
    lost = cluster.nodes[0]
    with cluster.isolated(lost):
        await read_all(client, stored)
        stored |= await put_some(client)
        assert not await cluster.serving(lost), "puts went on without the node"
        await read_all(client, stored)
    await until(cluster.settled, "the node serves again")
    # What it missed it has now: nobody else can be asked.
    with cluster.isolated(cluster.nodes[1]), cluster.isolated(cluster.nodes[2]):
        await read_all(client, stored)


async def test_a_worker_that_only_the_manager_cannot_reach_is_left_out_of_writes_and_gives_what_it_has(
    cluster: NetworkCluster, client: KVCacheClient
) -> None:
    stored = await put_some(client)
    lost = cluster.nodes[1]
    with cluster.cut(lost, cluster.meta):
        await read_all(client, stored)
        stored |= await put_some(client)

        async def left_out() -> bool:
            return not await cluster.serving(lost)

        await until(left_out, "the node is left out")
        await read_all(client, stored)
    await until(cluster.settled, "the node serves again")


async def test_replicas_that_cannot_reach_each_other_do_not_stop_puts(
    cluster: NetworkCluster, client: KVCacheClient
) -> None:
    stored = await put_some(client)
    first, second = await cluster.neighbours()
    with cluster.deaf(first, second):  # What reaches one of them says nothing of the other direction.
        stored |= await put_some(client)
        await read_all(client, stored)
    await until(cluster.settled, "all nodes serve again")
    await read_all(client, stored)


async def test_a_worker_that_the_manager_cannot_reach_answers_for_no_mutable_chunk_once_its_chains_go_on(
    cluster: NetworkCluster, client: KVCacheClient
) -> None:
    stored = await put_some(client)
    lost = cluster.nodes[2]
    routing = (await cluster.view()).routing
    worker = next(each for each in routing.workers if each.host == lost.address)
    chain = next(each for each in routing.chains if worker.drive_id in {on.drive_id for on in each.replicas})
    ask = ChunkStat(CHUNK_EXTENT.pack(b"no such chunk   ", 0, chain.chain_id, chain.version), 1000)
    connection = await Connection.connect(TcpAddress(worker.host, worker.port), role="client")

    async def answer() -> Status:
        reply = await connection.call(Method.CHUNK_STAT, ask, ChunkStatReply, timeout_s=10)
        return Status(CHUNK_STAT_RESULT.unpack(reply.results)[1])

    assert await answer() is Status.NOT_FOUND, "with a lease it knows"
    with cluster.cut(lost, cluster.meta):

        async def refuses() -> bool:
            serves = await cluster.serving(lost)
            said = await answer()
            assert serves or said is Status.UNAVAILABLE, "it was taken out before it was asked"
            return not serves

        await until(refuses, "its chains go on without it")
        counters = (await cluster.view(counters=True)).counters[worker.drive_id]
        assert counters["lease_left_ms"] == 0
        await read_all(client, stored)
    await connection.aclose()
    await until(cluster.settled, "the node serves again")
    counters = (await cluster.view(counters=True)).counters[worker.drive_id]
    assert counters["lease_left_ms"] > 0
    assert counters["lease_lapses"] > 0


async def test_what_clients_see_while_the_network_breaks_is_linearizable(cluster: NetworkCluster) -> None:
    await until(cluster.settled, "all nodes serve")
    async with acting(cluster.address, clients=4, chunks=6, seed=7, transports=("tcp",)) as actors:
        await actors.writes_flow()
        lost = cluster.nodes[0]
        with cluster.cut(lost, cluster.meta):
            await until(lambda: _left_out(cluster, lost), "a worker that clients still reach is left out")
            await actors.writes_flow()
        await until(cluster.settled, "all nodes serve again")
        with cluster.isolated(cluster.nodes[1]):
            await actors.writes_flow()
        await until(cluster.settled, "all nodes serve again")
        await actors.writes_flow()
    wrong = {name for name in actors.ended if name.endswith(("CHECKSUM", "IO_ERROR", "INTERNAL"))}
    assert not wrong, actors.ended
    require_linearizable(actors.operations)


async def _left_out(cluster: NetworkCluster, node: Node) -> bool:
    return not await cluster.serving(node)
