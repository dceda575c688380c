"""Reads of mutable chunks through a client: any serving replica, verified, and another one when that fails."""

import asyncio
from typing import Any

import pytest

from esker.client.fake import FakeCluster
from esker.client.mutable import ChunkClient, ChunkRead
from esker.wire.ids import FILE_SPACE
from esker.wire.limits import CHECKSUM_BLOCK_BYTES
from esker.wire.messages import Method
from esker.wire.scrub_messages import DAMAGED_EXTENT
from esker.wire.status import Status
from esker.wire.types import TargetState

from .chunks import OBJECT, Connect, content, read, write

BLOCK = CHECKSUM_BLOCK_BYTES
DATA = bytes(number % 251 for number in range(3 * BLOCK + 1000))


def asked(cluster: FakeCluster) -> list[int]:
    """How many ranges were asked of each worker."""
    return [worker.requests.count(Method.READ_RANGE) for worker in cluster.workers]


@pytest.fixture
async def client(cluster: FakeCluster, connect: Connect) -> ChunkClient:
    """With `DATA` in chunk 0."""
    client = await connect()
    assert (await client.write([write(0, 0, DATA)]))[0].status is Status.OK
    return client


@pytest.mark.parametrize("transport", ["tcp", "local"])
async def test_every_range_is_what_was_written(cluster: FakeCluster, connect: Connect, transport: str) -> None:
    client = await connect(transport)
    await client.write([write(0, 0, DATA)])
    edges = [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK - 1, 3 * BLOCK, len(DATA) - 1, len(DATA), len(DATA) + BLOCK]
    lengths = [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, 4 * BLOCK]
    ranges = [(offset, length) for offset in edges for length in lengths]
    for _ in range(2):  # with `local` the second time lands in staging memory
        results = await client.read([ChunkRead(OBJECT, 0, offset, length) for offset, length in ranges])
        for (offset, length), result in zip(ranges, results, strict=True):
            assert result.status is Status.OK
            assert result.data == DATA[offset : offset + length], (offset, length)
            assert result.chunk_bytes == len(DATA)


async def test_memory_of_the_callers_gets_what_was_asked_and_no_byte_more(client: ChunkClient) -> None:
    memory = bytearray(b"?" * 300)
    (result,) = await client.read([ChunkRead(OBJECT, 0, BLOCK - 100, 200, memory)])
    assert result.data.obj is memory
    assert memory == DATA[BLOCK - 100 : BLOCK + 100] + b"?" * 100
    (result,) = await client.read([ChunkRead(OBJECT, 0, len(DATA) - 10, 200, memory)])
    assert bytes(result.data) == DATA[-10:]
    assert memory == DATA[-10:] + DATA[BLOCK - 90 : BLOCK + 100] + b"?" * 100


async def test_many_chunks_at_once(client: ChunkClient) -> None:
    values = {index: bytes([index % 251]) * 5000 for index in range(1, 300)}
    results = await client.write([write(index, 0, value) for index, value in values.items()])
    assert {result.status for result in results} == {Status.OK}
    found = await client.read([ChunkRead(OBJECT, index, 0, 5000) for index in values])
    assert [bytes(result.data) for result in found] == list(values.values())


async def test_a_bad_copy_is_never_data_and_another_replica_is_read(
    cluster: FakeCluster, client: ChunkClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = cluster.workers[await _reads_at(client, cluster)]
    told: list[tuple[int, bytes]] = []
    state = client._workers.by_drive[bad.drive_id]
    monkeypatch.setattr(state.damage, "add", lambda space, extent: told.append((space, extent)))
    bad.faults.corrupt = True
    assert await content(client, 0) == DATA
    chain_id = next(iter(cluster.mutable.images))[0]
    assert told == [(FILE_SPACE, DAMAGED_EXTENT.pack(OBJECT, 0, chain_id, 1))], "so that it mends its copy"
    for worker in cluster.workers:
        worker.faults.corrupt = True
    assert (await read(client, 0)).status is Status.CHECKSUM


async def _reads_at(client: ChunkClient, cluster: FakeCluster) -> int:
    before = asked(cluster)
    await read(client, 0)
    (changed,) = [number for number, count in enumerate(asked(cluster)) if count != before[number]]
    return changed


@pytest.mark.parametrize("status", [Status.UNAVAILABLE, Status.CHAIN_VERSION, Status.IO_ERROR, Status.BUSY])
async def test_a_replica_that_cannot_is_passed_over_at_once(
    cluster: FakeCluster, client: ChunkClient, status: Status
) -> None:
    bad = cluster.workers[await _reads_at(client, cluster)]
    bad.faults.status[Method.READ_RANGE] = status
    assert await content(client, 0) == DATA
    assert Method.READ_RANGE in bad.requests


async def test_reads_wait_while_no_replica_can_answer(cluster: FakeCluster, client: ChunkClient, until: Any) -> None:
    """As when the tail of a chunk that is being written died: it takes until the chain has changed."""
    for worker in cluster.workers:
        worker.faults.status[Method.READ_RANGE] = Status.UNAVAILABLE
    before = sum(asked(cluster))
    reading = asyncio.create_task(content(client, 0))
    await until(lambda: sum(asked(cluster)) >= before + 9)  # every replica three times
    for worker in cluster.workers:
        worker.faults.status.clear()
    assert await reading == DATA


async def test_a_silent_replica_is_given_up_and_avoided(
    cluster: FakeCluster, connect: Connect, client: ChunkClient, until: Any
) -> None:
    silent = cluster.workers[await _reads_at(client, cluster)]
    silent.faults.hold |= {Method.READ_RANGE, Method.STATS}
    (result,) = await client.read([ChunkRead(OBJECT, 0, 0, 10)], timeout_s=0.6)
    assert result.data == DATA[:10]
    state = client._workers.by_drive[silent.drive_id]
    assert state.suspect
    before = silent.requests.count(Method.READ_RANGE)
    for _ in range(5):
        assert (await read(client, 0, 0, 10)).status is Status.OK
    assert silent.requests.count(Method.READ_RANGE) == before
    silent.go_on()
    await until(lambda: not state.suspect)


async def test_a_worker_of_this_host_that_stops_keeps_only_staging_memory(
    cluster: FakeCluster, connect: Connect, until: Any
) -> None:
    client = await connect("local")
    await client.write([write(0, 0, DATA)])
    await read(client, 0, 0, 10)  # registers the staging memory
    staging = client._stagings[0]
    await until(lambda: staging._pool is not None and staging._registering is not None and staging._registering.done())
    stopped = cluster.workers[await _reads_at(client, cluster)]
    stopped.faults.hold |= {Method.READ_RANGE, Method.STATS}
    memory = bytearray(10)
    (result,) = await client.read([ChunkRead(OBJECT, 0, 0, 10, memory)], timeout_s=0.6)
    assert result.data == DATA[:10]
    assert staging._pool is not None
    assert staging._pool.statistics().quarantined == 1
    memory[:] = b"callers" + b"own"
    stopped.go_on()
    await until(lambda: staging._pool is not None and staging._pool.statistics().quarantined == 0)
    assert memory == b"callersown"


async def test_without_a_serving_replica_there_is_an_answer_at_the_deadline(
    cluster: FakeCluster, client: ChunkClient
) -> None:
    cluster.fail_over({worker.drive_id: TargetState.LASTSRV for worker in cluster.workers})
    await client._link.routing.refresh()
    (result,) = await client.read([ChunkRead(OBJECT, 0, 0, 10)], timeout_s=0.05)
    assert result.status is Status.UNAVAILABLE
    assert (await client.stat([(OBJECT, 0)], timeout_s=0.05))[0].status is Status.UNAVAILABLE


async def test_a_client_with_an_old_map_gets_the_new_one(cluster: FakeCluster, client: ChunkClient) -> None:
    cluster.fail_over({"drive0": TargetState.OFFLINE})
    assert await content(client, 0) == DATA
    assert (await client.stat([(OBJECT, 0)]))[0].length == len(DATA)
    assert (await client.write([write(0, 0, b"new")]))[0].status is Status.OK
