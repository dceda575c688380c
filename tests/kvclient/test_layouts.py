"""Namespaces laid out over several versions of a chain table: everything is found, wherever it was put."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from esker.client import lookups, routing
from esker.client.fake import FakeCluster
from esker.kvclient import Geometry, KVCacheClient, Status, follow, search
from esker.kvclient import client as opening
from esker.wire.messages import Method
from esker.wire.types import Routing

SINGLE = Geometry(block_bytes_max=100)
STRIPED = Geometry(block_bytes_max=16384, stripe_unit_bytes=4096)
OLD = [b"old-%d" % number for number in range(120)]
NEW = [b"new-%d" % number for number in range(120)]


@pytest.fixture
async def cluster(short_directory: Path) -> AsyncIterator[FakeCluster]:
    """Six workers, two replicas; only the chains of the first four are used until an expansion."""
    async with FakeCluster(short_directory, drives=6, used=4) as made:
        yield made


def value_of(key: bytes, client: KVCacheClient) -> bytes:
    return key * (client.geometry.block_bytes_max // len(key))


async def put(client: KVCacheClient, keys: list[bytes]) -> None:
    results = await client.put(keys, [value_of(key, client) for key in keys])
    assert {result.status for result in results} == {Status.OK}


async def check(client: KVCacheClient, keys: list[bytes]) -> None:
    """All are there, with the right bytes."""
    assert await client.match_prefix(keys) == len(keys)
    buffers = [bytearray(client.geometry.block_bytes_max) for _ in keys]
    results = await client.get(keys, buffers)
    assert {result.status for result in results} == {Status.OK}
    for key, buffer, result in zip(keys, buffers, results, strict=True):
        assert bytes(buffer[: result.length]) == value_of(key, client)


def chains_used(cluster: FakeCluster) -> set[int]:
    return {chain_id for worker in cluster.workers for chain_id, *_ in worker.chunks}


async def expand(cluster: FakeCluster, client: KVCacheClient, until: Any, chains: int = 6) -> None:
    """The client knows of it afterwards."""
    epoch = client._keyspace.namespace.layout_epoch
    cluster.namespaces.expand(chains)
    cluster.new_map()
    await client._link.routing.refresh()
    await until(lambda: client._keyspace.namespace.layout_epoch > epoch)


@pytest.mark.parametrize("geometry", [SINGLE, STRIPED])
async def test_an_open_client_goes_on_over_an_expansion(
    connect: Any, cluster: FakeCluster, until: Any, geometry: Geometry
) -> None:
    client = await connect(geometry)
    await put(client, OLD)
    assert chains_used(cluster) == {1, 2, 3, 4}
    await expand(cluster, client, until)
    await check(client, OLD)
    await put(client, NEW)
    await check(client, [*OLD, *NEW])
    assert chains_used(cluster) == {1, 2, 3, 4, 5, 6}
    await check(await connect(geometry), [*OLD, *NEW])
    await expand(cluster, client, until, 5)
    await check(client, [*OLD, *NEW])
    assert await client.remove([*OLD, *NEW]) == [Status.OK] * 240
    assert await client.exists([*OLD, *NEW]) == [False] * 240
    assert not any(worker.chunks for worker in cluster.workers)
    assert await client.remove(OLD) == [Status.NOT_FOUND] * 120


async def test_what_lies_in_two_layouts_is_one_block(connect: Any, cluster: FakeCluster, until: Any) -> None:
    client = await connect(SINGLE)
    await put(client, OLD)
    await expand(cluster, client, until)
    results = await client.put(OLD, [value_of(key, client) for key in OLD])
    assert {result.status for result in results} == {Status.OK, Status.EXISTS}, "only its own share moves"
    await check(client, OLD)
    assert set(await client.remove(OLD)) == {Status.OK}
    assert not any(worker.chunks for worker in cluster.workers)


async def test_only_keys_that_may_lie_elsewhere_are_asked_for_twice(
    connect: Any, cluster: FakeCluster, until: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = await connect(SINGLE)
    await expand(cluster, client, until)
    asked: list[int] = []

    async def counted(routes: Any, space: int, objects: bytes, *others: Any) -> Any:
        asked.append(len(objects) // 16)
        return await lookups.lookup(routes, space, objects, *others)

    monkeypatch.setattr(search, "lookup", counted)
    keys = [b"%d" % number for number in range(3000)]
    assert not any(await client.exists(keys))
    newest, older = asked
    assert newest == 3000
    assert 850 < older < 1150, "two of six chains are new"


async def test_a_block_of_an_older_layout_is_not_taken_for_broken(
    connect: Any, cluster: FakeCluster, until: Any
) -> None:
    """Its chunk 0 may be where a newer layout has it too, but not its other chunks."""
    client = await connect(STRIPED)
    await put(client, OLD)
    await expand(cluster, client, until)
    chunks = [dict(worker.chunks) for worker in cluster.workers]
    for _ in range(2):
        await check(client, OLD)
    assert [dict(worker.chunks) for worker in cluster.workers] == chunks
    await put_again(client, OLD)
    await check(client, OLD)


async def put_again(client: KVCacheClient, keys: list[bytes]) -> None:
    results = await client.put(keys, [value_of(key, client) for key in keys])
    assert {result.status for result in results} <= {Status.OK, Status.EXISTS}


async def test_where_a_drive_cannot_be_asked_a_block_is_not_said_to_be_absent(
    connect: Any, cluster: FakeCluster, until: Any
) -> None:
    client = await connect(SINGLE, transport="tcp")
    await put(client, OLD)
    await expand(cluster, client, until)
    for worker in cluster.workers[4:]:
        await worker.stop()
    await until(lambda: all(client._keyspace.workers.by_drive[f"drive{n}"].channel is None for n in (4, 5)))
    results = await client.get(NEW, [bytearray(100) for _ in NEW])
    assert {result.status for result in results} == {Status.NOT_FOUND, Status.UNAVAILABLE}
    await check(client, OLD)


async def test_at_rest_a_client_learns_of_it_by_itself(
    connect: Any, cluster: FakeCluster, until: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routing, "SETTLED_INTERVAL_S", 0.01)
    client = await connect(SINGLE)
    cluster.namespaces.expand(6)
    cluster.new_map()
    await until(lambda: client._keyspace.namespace.layout_epoch == 2)
    opened = cluster.namespaces.opened
    cluster.new_map()
    version = client._link.routing.routing.version
    await until(lambda: client._link.routing.routing.version > version)
    assert cluster.namespaces.opened == opened, "a map with the same tables says nothing of layouts"


async def test_an_expansion_while_a_client_connects_is_not_missed(
    connect: Any, cluster: FakeCluster, until: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    really_load = opening._load_map

    async def load_after_an_expansion(*arguments: Any) -> Routing:
        cluster.namespaces.expand(6)
        cluster.new_map()
        return await really_load(*arguments)

    monkeypatch.setattr(opening, "_load_map", load_after_an_expansion)
    client = await connect(SINGLE)
    await until(lambda: client._keyspace.namespace.layout_epoch == 2)
    await put(client, NEW)
    assert chains_used(cluster) == {1, 2, 3, 4, 5, 6}


async def test_calls_under_way_end_as_they_began(connect: Any, cluster: FakeCluster, until: Any) -> None:
    client = await connect(SINGLE)
    for worker in cluster.workers[:4]:
        worker.faults.hold.add(Method.CREATE)
    putting = asyncio.ensure_future(client.put(OLD, [value_of(key, client) for key in OLD]))
    await until(lambda: all(Method.CREATE in worker.requests for worker in cluster.workers[:4]))
    await expand(cluster, client, until)
    for worker in cluster.workers[:4]:
        worker.go_on()
    assert {result.status for result in await putting} == {Status.OK}
    await check(client, OLD)


async def test_what_a_client_puts_by_an_older_layout_is_found_by_the_newest(
    connect: Any, cluster: FakeCluster, until: Any
) -> None:
    """And until it has learned of that, what others put there may be a miss for it, but no more."""
    late, early = await connect(SINGLE), await connect(SINGLE)
    await expand(cluster, early, until)
    await put(late, OLD)
    await check(early, OLD)
    await put(early, NEW)
    results = await late.get(NEW, [bytearray(100) for _ in NEW])
    assert {result.status for result in results} == {Status.OK, Status.NOT_FOUND}
    await late._link.routing.refresh()
    await until(lambda: late._keyspace.namespace.layout_epoch == 2)
    await check(late, [*OLD, *NEW])


async def test_a_metadata_server_that_does_not_answer_is_asked_again(
    connect: Any, cluster: FakeCluster, until: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow, "ASK_INTERVAL_S", 0.01)
    client = await connect(SINGLE)
    cluster.namespaces.not_ready = 3
    await expand(cluster, client, until)
    assert cluster.namespaces.not_ready == 0
    await put(client, NEW)
    assert chains_used(cluster) == {1, 2, 3, 4, 5, 6}


@pytest.mark.parametrize("again", [False, True])
async def test_a_namespace_that_is_gone_keeps_its_layout(
    connect: Any, cluster: FakeCluster, until: Any, again: bool
) -> None:
    client = await connect(SINGLE)
    await put(client, OLD)
    cluster.namespaces.forget("ns")
    if again:
        await connect(STRIPED, "another")
        await connect(SINGLE)
    cluster.namespaces.expand(6)
    cluster.new_map()
    await client._link.routing.refresh()
    await until(lambda: client._follower._task is not None and client._follower._task.done())
    assert client._keyspace.namespace.layout_epoch == 1
    await check(client, OLD)


async def test_a_metadata_server_that_does_not_know_the_tables_yet_is_waited_for(
    connect: Any, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was another one that opened the namespace, and made the chains for it."""
    monkeypatch.setattr(opening, "NOT_YET_DELAY_S", 0.01)
    routing = cluster.routing
    lag = [2]

    def lagging() -> Routing:
        lag[0] -= 1
        return routing() if lag[0] < 0 else msgspec.structs.replace(routing(), tables=())

    monkeypatch.setattr(cluster, "routing", lagging)
    await put(await connect(SINGLE), OLD)
