"""Cache mode: one copy of each block, and other drives stand in for a dead one."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest

from esker.client import head_batch, workers
from esker.client.fake import FakeCluster
from esker.kvclient import Geometry, KVCacheClient, Status, UserError, layout
from esker.wire.messages import Method
from esker.wire.types import TargetState

SINGLE = Geometry(block_bytes_max=100)
STRIPED = Geometry(block_bytes_max=16384, stripe_unit_bytes=4096)
BEFORE = [b"before-%d" % number for number in range(200)]
DURING = [b"during-%d" % number for number in range(200)]
BUDGET_S = 600
OK, MISS = Status.OK, Status.NOT_FOUND


@pytest.fixture
async def cluster(short_directory: Path) -> AsyncIterator[FakeCluster]:
    """Four workers, one replica."""
    async with FakeCluster(short_directory, replicas=1) as made:
        yield made


@pytest.fixture
def open_client(connect: Any) -> Any:
    async def make(geometry: Geometry = SINGLE, transport: str = "tcp") -> KVCacheClient:
        client: KVCacheClient = await connect(geometry, mode="cache", transport=transport)
        return client

    return make


def value_of(key: bytes, client: KVCacheClient) -> bytes:
    return key * (client.geometry.block_bytes_max // len(key))


async def put(client: KVCacheClient, keys: Sequence[bytes]) -> list[Status]:
    values = [value_of(key, client) for key in keys]
    return [result.status for result in await client.put(keys, values, timeout_s=BUDGET_S)]


async def get(client: KVCacheClient, keys: Sequence[bytes]) -> list[Status]:
    """The outcomes; what is OK has the right bytes."""
    buffers = [bytearray(client.geometry.block_bytes_max) for _ in keys]
    results = await client.get(keys, buffers, timeout_s=BUDGET_S)
    for key, buffer, result in zip(keys, buffers, results, strict=True):
        assert result.status is not OK or bytes(buffer[: result.length]) == value_of(key, client)
    return [result.status for result in results]


def home(client: KVCacheClient, keys: Sequence[bytes]) -> list[int]:
    """The worker that each key belongs to."""
    _, anchors = client._keyspace.locate(keys, 0, None)
    firsts: list[int] = client._keyspace.newest.home().firsts(anchors).tolist()
    return firsts


async def die(cluster: FakeCluster, client: KVCacheClient, until: Any, number: int) -> None:
    await cluster.workers[number].stop()
    await until(lambda: client._keyspace.workers.by_drive[f"drive{number}"].channel is None)


async def come_back(cluster: FakeCluster, client: KVCacheClient, until: Any, number: int) -> None:
    await cluster.workers[number].start()
    cluster.new_map()
    await client._link.routing.refresh()
    await until(lambda: client._keyspace.workers.by_drive[f"drive{number}"].channel is not None)


@pytest.mark.parametrize("transport", ["tcp", "local"])
async def test_a_dead_drive_costs_its_own_blocks_and_nothing_else(
    open_client: Any, cluster: FakeCluster, until: Any, transport: str
) -> None:
    client = await open_client(transport=transport)
    assert set(await put(client, BEFORE)) == {OK}
    await die(cluster, client, until, 1)
    expected = [MISS if number == 1 else OK for number in home(client, BEFORE)]
    assert 20 < expected.count(MISS) < 90
    assert await get(client, BEFORE) == expected
    assert await client.exists(BEFORE) == [status is OK for status in expected]

    assert set(await put(client, DURING)) == {OK}
    assert set(await get(client, DURING)) == {OK}
    assert all(await client.exists(DURING))
    helpers = {
        number
        for number, worker in enumerate(cluster.workers)
        for chunk in worker.chunks.values()
        if home(client, [chunk.key]) == [1] and number != 1
    }
    assert helpers == {0, 2, 3}, "its share is spread over all others"

    await come_back(cluster, client, until, 1)
    assert set(await get(client, BEFORE)) == {OK}
    assert set(await get(client, DURING)) == {OK}, "what was put elsewhere is remembered"
    assert all(await client.exists([*BEFORE, *DURING]))
    assert await client.exists([b"never"] * 3) == [False] * 3
    other = await open_client()
    assert await get(other, DURING) == [MISS if number == 1 else OK for number in home(client, DURING)], (
        "a client that did not see it die does not know"
    )


async def test_a_put_under_way_goes_elsewhere_when_its_drive_dies(
    open_client: Any, cluster: FakeCluster, until: Any
) -> None:
    client = await open_client()
    worker = cluster.workers[2]
    worker.faults.hold.add(Method.CREATE)
    putting = asyncio.ensure_future(put(client, DURING))
    await until(lambda: Method.CREATE in worker.requests)
    await worker.stop()
    assert set(await putting) == {OK}
    assert not worker.chunks
    assert set(await get(client, DURING)) == {OK}


async def test_a_get_under_way_ends_as_a_miss_when_its_drive_dies(
    open_client: Any, cluster: FakeCluster, until: Any
) -> None:
    client = await open_client()
    await put(client, BEFORE)
    worker = cluster.workers[2]
    worker.faults.hold.add(Method.READ)
    getting = asyncio.ensure_future(get(client, BEFORE))
    await until(lambda: Method.READ in worker.requests)
    await worker.stop()
    assert await getting == [MISS if number == 2 else OK for number in home(client, BEFORE)]


@pytest.mark.parametrize("transport", ["tcp", "local"])
async def test_a_silent_drive_is_given_up(
    open_client: Any, cluster: FakeCluster, until: Any, monkeypatch: pytest.MonkeyPatch, transport: str
) -> None:
    monkeypatch.setattr(head_batch, "ATTEMPT_S", 0.02)
    monkeypatch.setattr(workers, "PROBE_MAX_S", 0.02)
    client = await open_client(transport=transport)
    worker = cluster.workers[0]
    worker.faults.hold |= {Method.CREATE, Method.STATS}
    assert set(await put(client, DURING)) == {OK}
    state = client._keyspace.workers.by_drive["drive0"]
    assert state.silent
    assert set(await get(client, DURING)) == {OK}
    worker.go_on()
    await until(lambda: not state.silent)
    assert set(await get(client, DURING)) == {OK}


async def test_a_slow_drive_is_not_given_up(
    open_client: Any, cluster: FakeCluster, until: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(head_batch, "ATTEMPT_S", 0.02)
    client = await open_client()
    worker = cluster.workers[0]
    worker.faults.hold.add(Method.CREATE)
    putting = asyncio.ensure_future(put(client, DURING))
    await until(lambda: worker.requests.count(Method.STATS) >= 2)
    assert not putting.done()
    worker.go_on()
    assert set(await putting) == {OK}
    assert len(worker.chunks) == home(client, DURING).count(0)


async def test_a_drive_that_cannot_store_is_passed_by(
    open_client: Any, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layout, "REFUSED_S", BUDGET_S)
    client = await open_client()
    await put(client, BEFORE)
    assert len(cluster.workers[0].chunks) < len(BEFORE)
    cluster.workers[0].chunks.clear()
    for number in (1, 2, 3):
        cluster.workers[number].faults.status[Method.CREATE] = Status.UNAVAILABLE
    assert set(await put(client, DURING)) == {OK}
    assert len(cluster.workers[0].chunks) == len(DURING)
    requests = [worker.requests.count(Method.CREATE) for worker in cluster.workers]
    assert set(await put(client, [b"more", b"and more"])) == {OK}
    assert set(await get(client, DURING)) == {OK}
    assert [worker.requests.count(Method.CREATE) for worker in cluster.workers[1:]] == requests[1:], "nobody asks again"
    for number in (1, 2, 3):
        del cluster.workers[number].faults.status[Method.CREATE]
    cluster.fail_over({})
    await client._link.routing.refresh()
    assert await get(client, BEFORE) == [MISS if number == 0 else OK for number in home(client, BEFORE)]
    assert set(await get(client, DURING)) == {OK}, "what was put elsewhere is remembered"
    assert set(await put(client, [b"again-%d" % number for number in range(50)])) == {OK}
    assert all(
        worker.requests.count(Method.CREATE) > count for worker, count in zip(cluster.workers, requests, strict=True)
    )


async def test_with_all_drives_refusing_puts_are_unavailable(open_client: Any, cluster: FakeCluster) -> None:
    client = await open_client()
    for worker in cluster.workers:
        worker.faults.status[Method.CREATE] = Status.UNAVAILABLE
    assert set(await put(client, [b"nobody"])) == {Status.UNAVAILABLE}
    for worker in cluster.workers:
        worker.faults.status.clear()
    assert set(await put(client, [b"nobody"])) == {OK}, "where nobody stands in all are asked"


@pytest.mark.parametrize("state", [TargetState.OFFLINE, TargetState.LASTSRV])
async def test_the_cluster_map_tells_who_is_dead_too(
    open_client: Any, cluster: FakeCluster, state: TargetState
) -> None:
    client = await open_client()
    await put(client, BEFORE)
    cluster.fail_over({"drive3": state})
    await client._link.routing.refresh()
    assert await get(client, BEFORE) == [MISS if number == 3 else OK for number in home(client, BEFORE)]
    assert set(await put(client, DURING)) == {OK}
    cluster.fail_over({})
    await client._link.routing.refresh()
    assert set(await get(client, [*BEFORE, *DURING])) == {OK}


async def test_clients_that_do_not_agree_on_who_is_dead_miss_and_no_more(
    open_client: Any, cluster: FakeCluster, until: Any
) -> None:
    near, far = await open_client(), await open_client()
    await put(near, BEFORE)
    state = near._keyspace.workers.by_drive["drive1"]
    assert state.channel is not None
    channel, state.channel = state.channel, None
    near._keyspace.workers.changed()
    assert await get(near, BEFORE) == [MISS if number == 1 else OK for number in home(near, BEFORE)]
    assert set(await get(far, BEFORE)) == {OK}
    assert set(await put(near, BEFORE)) == {OK, Status.EXISTS}
    assert set(await put(near, DURING)) == {OK}
    assert await get(far, DURING) == [MISS if number == 1 else OK for number in home(near, DURING)]
    state.channel = channel
    near._keyspace.workers.changed()
    assert set(await get(near, [*BEFORE, *DURING])) == {OK}


async def test_a_block_that_a_dead_drive_has_cannot_be_removed(
    open_client: Any, cluster: FakeCluster, until: Any
) -> None:
    client = await open_client()
    await put(client, BEFORE)
    await die(cluster, client, until, 1)
    again = [key for key, number in zip(BEFORE, home(client, BEFORE), strict=True) if number == 1]
    await put(client, again)
    expected = [Status.UNAVAILABLE if number == 1 else OK for number in home(client, BEFORE)]
    assert await client.remove(BEFORE) == expected
    assert set(await get(client, BEFORE)) == {MISS}
    await come_back(cluster, client, until, 1)
    assert set(await client.remove(again)) == {OK}
    assert not any(worker.chunks for worker in cluster.workers)


async def test_blocks_of_many_chunks_are_whole_again_once_they_are_put_again(
    open_client: Any, cluster: FakeCluster, until: Any
) -> None:
    client = await open_client(STRIPED)
    keys = BEFORE[:40]
    assert set(await put(client, keys)) == {OK}
    await die(cluster, client, until, 1)
    first_chunks = {key for worker in cluster.workers for key in worker.chunks if key[3] == 0}
    assert set(await get(client, keys)) == {MISS}, "each has a chunk on each of the four drives"
    assert {key for worker in cluster.workers for key in worker.chunks if key[3] == 0} == first_chunks
    assert set(await put(client, keys)) <= {OK, Status.EXISTS}
    assert set(await put(client, DURING[:40])) == {OK}
    assert set(await get(client, [*keys, *DURING[:40]])) == {OK}
    await come_back(cluster, client, until, 1)
    assert set(await get(client, keys)) == {OK}
    assert set(await put(client, DURING[:40])) <= {OK, Status.EXISTS}
    assert set(await get(client, DURING[:40])) == {OK}


async def test_with_all_drives_dead_everything_is_unavailable(
    open_client: Any, cluster: FakeCluster, until: Any
) -> None:
    client = await open_client()
    for number in range(4):
        await die(cluster, client, until, number)
    assert set(await put(client, DURING[:5])) == {Status.UNAVAILABLE}
    assert set(await get(client, DURING[:5])) == {Status.UNAVAILABLE}
    assert not any(await client.exists(DURING[:5]))


async def test_the_mode_is_the_namespaces(connect: Any) -> None:
    await connect(SINGLE, "ns", mode="cache")
    with pytest.raises(UserError, match=r"you asked .*replicated"):
        await connect(SINGLE, "ns")
    with pytest.raises(UserError, match="mode is 'raid'; allowed: replicated, cache"):
        await connect(SINGLE, "other", mode="raid")


@pytest.mark.parametrize("seed", range(4))
async def test_whatever_dies_and_comes_back_no_byte_is_wrong_and_puts_go_on(
    open_client: Any, cluster: FakeCluster, until: Any, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Two clients with blocks of one to four chunks; all drives but one die under their calls."""
    monkeypatch.setattr(layout, "REFUSED_S", 0.05)
    random = Random(seed)
    clients = [await open_client(STRIPED), await open_client(STRIPED)]
    keys = [b"key-%d" % number for number in range(60)]
    values = {key: key * random.choice([1, 400, 900, 2000]) for key in keys}
    down: set[int] = set()

    async def work(client: KVCacheClient) -> None:
        chosen = random.sample(keys, 20)
        stored = await client.put(chosen, [values[key] for key in chosen], timeout_s=BUDGET_S)
        assert {each.status for each in stored} <= {OK, Status.EXISTS}
        buffers = [bytearray(16384) for _ in keys]
        results = await client.get(keys, buffers, timeout_s=BUDGET_S)
        for key, buffer, result in zip(keys, buffers, results, strict=True):
            assert result.status in (OK, MISS)
            assert result.status is MISS or bytes(buffer[: result.length]) == values[key]
        statuses = await client.remove(random.sample(keys, 2), timeout_s=BUDGET_S)
        assert set(statuses) <= {OK, MISS, Status.UNAVAILABLE}

    async def disturb() -> None:
        number = random.randrange(1, 4)
        if number in down:
            await cluster.workers[number].start()
            cluster.new_map()
            down.discard(number)
        else:
            down.add(number)
            await cluster.workers[number].stop()

    for _ in range(12):
        await asyncio.gather(*(work(client) for client in clients), disturb())
    for number in down:
        await cluster.workers[number].start()
    cluster.new_map()
    for client in clients:
        await client._link.routing.refresh()
        await until(lambda: not client._keyspace.newest.now().dead)  # noqa: B023
    stored = await clients[0].put(keys, list(values.values()))
    assert {each.status for each in stored} <= {OK, Status.EXISTS}
    for client in clients:
        buffers = [bytearray(16384) for _ in keys]
        assert {result.status for result in await client.get(keys, buffers)} == {OK}
