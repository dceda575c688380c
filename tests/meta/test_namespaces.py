"""Opening namespaces: made once, found again, refused where geometry, name or cluster do not fit."""

import asyncio
from random import Random

import msgspec
import pytest

from esker.meta import keys
from esker.meta.cache_table import cache_weight
from esker.meta.chain_setup import write_table
from esker.meta.cluster import found_cluster, join
from esker.meta.namespaces import list_namespaces, open_namespace
from esker.meta.records import pack
from esker.meta.routing import RoutingCache, bump_version
from esker.meta.store.base import Store, Transaction
from esker.wire.errors import RequestFailed
from esker.wire.limits import MIB, PLACEMENT_SLOTS
from esker.wire.messages import NamespaceOpen, NamespaceReply
from esker.wire.placement import build_slot_table
from esker.wire.status import Status
from esker.wire.types import ChainTable, Geometry, Leaving, NamespaceMode, TargetState

from .conftest import cluster_record, dead, worker

GEOMETRY = Geometry(block_bytes_max=655360, block_tokens=16, model="llama", dtype="bf16")
random_bytes = Random(3).randbytes


async def opened(
    store: Store,
    name: str = "kv",
    geometry: Geometry = GEOMETRY,
    create: bool = True,
    mode: NamespaceMode = NamespaceMode.REPLICATED,
) -> NamespaceReply:
    reply, _ = await open_namespace(store, NamespaceOpen(name, geometry, create, mode), random_bytes)
    return reply


async def test_it_is_made_once_and_found_again(ready_store: Store) -> None:
    first, made = await open_namespace(ready_store, NamespaceOpen("kv", GEOMETRY), random_bytes)
    assert made
    namespace = first.namespace
    assert (namespace.namespace_id, namespace.name, namespace.table_id, namespace.table_version) == (1, "kv", 1, 1)
    assert namespace.geometry == GEOMETRY.resolved()
    assert len(namespace.salt) == 32
    assert len(first.placement) == 2 * PLACEMENT_SLOTS

    again, made = await open_namespace(ready_store, NamespaceOpen("kv", GEOMETRY.resolved()), random_bytes)
    assert not made
    assert again == first


async def test_each_has_its_own_id_and_salt(ready_store: Store) -> None:
    replies = await asyncio.gather(*(opened(ready_store, name) for name in ("a", "b/c", "d.e_f-g")))
    namespaces = sorted((reply.namespace for reply in replies), key=lambda namespace: namespace.namespace_id)
    assert [namespace.namespace_id for namespace in namespaces] == [1, 2, 3]
    assert len({namespace.salt for namespace in namespaces}) == 3
    assert (await list_namespaces(ready_store)).namespaces == tuple(namespaces)


async def test_two_clients_that_race_get_the_same(ready_store: Store) -> None:
    first, second = await asyncio.gather(opened(ready_store), opened(ready_store))
    assert first == second


async def test_another_geometry_is_refused_with_both_values(ready_store: Store) -> None:
    await opened(ready_store)
    with pytest.raises(RequestFailed) as caught:
        await opened(ready_store, geometry=Geometry(block_bytes_max=1048576, block_tokens=16, model="llama"))
    assert caught.value.status == Status.GEOMETRY
    assert caught.value.message == (
        "namespace 'kv' has another geometry: block_bytes_max: namespace has 655360, you asked 1048576; "
        "stripe_unit_bytes: namespace has 655360, you asked 1048576; dtype: namespace has 'bf16', you asked ''"
    )


async def test_another_mode_is_refused_with_both(ready_store: Store) -> None:
    await opened(ready_store)
    await opened(ready_store, "cached", mode=NamespaceMode.CACHE)
    for name, asked, message in (
        ("kv", NamespaceMode.CACHE, "namespace 'kv' has mode 'replicated', you asked 'cache'"),
        ("cached", NamespaceMode.REPLICATED, "namespace 'cached' has mode 'cache', you asked 'replicated'"),
    ):
        with pytest.raises(RequestFailed, match=message) as caught:
            await opened(ready_store, name, mode=asked)
        assert caught.value.status == Status.GEOMETRY


async def test_the_first_namespace_of_mode_cache_brings_a_chain_on_every_drive(ready_store: Store) -> None:
    await opened(ready_store)
    cache = RoutingCache(ready_store)
    before = await cache.newest()
    first = await opened(ready_store, "a", mode=NamespaceMode.CACHE)
    after = await cache.newest()
    assert after.version > before.version, "workers and clients are told"
    assert after.chains[: len(before.chains)] == before.chains
    table = after.tables[-1]
    assert (table.table_id, table.version) == (first.namespace.table_id, first.namespace.table_version) == (2, 1)
    made = after.chains[len(before.chains) :]
    assert tuple(chain.chain_id for chain in made) == table.chain_ids
    assert sorted(replica.drive_id for chain in made for replica in chain.replicas) == ["d0", "d1", "d2", "d3"]
    assert {(replica.state, replica.incarnation) for chain in made for replica in chain.replicas} == {
        (TargetState.SERVING, "first")
    }
    assert {chain.min_replicas for chain in made} == {1}
    assert table.weights == (100 * 1024,) * 4
    assert first.placement == build_slot_table(table.chain_ids, table.weights)

    second = await opened(ready_store, "b", mode=NamespaceMode.CACHE)
    assert (await cache.newest()).tables == after.tables, "it is made once"
    assert second.placement == first.placement
    assert (await opened(ready_store, "c")).namespace.table_id == 1


def test_the_weight_of_a_cache_chain_is_the_drives_capacity() -> None:
    assert [cache_weight(size) for size in (1, MIB, 100 * MIB, 1 << 70)] == [1, 1, 100, 127 << 25]
    assert cache_weight(3_840_755_982_336) == cache_weight(3_840_000_000_000), "two models of one size"
    for size in range(1 << 30, 1 << 42, (1 << 42) // 997):
        assert 0.984 <= cache_weight(size) / (size / MIB) <= 1


async def test_a_drive_that_is_being_emptied_gets_no_cache_chain(ready_store: Store) -> None:
    async def leave(transaction: Transaction) -> None:
        transaction.set(keys.leaving("d2"), pack(Leaving("d2", 1)))
        bump_version(transaction)

    await ready_store.run(leave, what="a drain")
    await opened(ready_store, "a", mode=NamespaceMode.CACHE)
    routing = await RoutingCache(ready_store).newest()
    made = [chain for chain in routing.chains if chain.chain_id in routing.tables[-1].chain_ids]
    assert {replica.drive_id for chain in made for replica in chain.replicas} == {"d0", "d1", "d3"}


async def test_two_first_namespaces_of_mode_cache_that_race(ready_store: Store) -> None:
    replies = await asyncio.gather(*(opened(ready_store, name, mode=NamespaceMode.CACHE) for name in ("a", "b")))
    assert {reply.namespace.table_version for reply in replies} == {1}
    assert len((await RoutingCache(ready_store).newest()).tables) == 2


async def test_older_versions_come_with_their_slot_tables(ready_store: Store) -> None:
    first = await opened(ready_store)
    chain_ids = (await RoutingCache(ready_store).newest()).tables[-1].chain_ids
    newer = build_slot_table(chain_ids[:3], [1, 1, 1])

    async def expand(transaction: Transaction) -> None:
        write_table(transaction, ChainTable(1, 2, chain_ids[:3], (1, 1, 1)), newer)
        namespace = msgspec.structs.replace(first.namespace, table_version=2, older_versions=(1,), layout_epoch=2)
        transaction.set(keys.namespace(1), pack(namespace))

    await ready_store.run(expand, what="a newer version of the chain table")
    again = await opened(ready_store)
    assert (again.placement, again.older) == (newer, (first.placement,))
    later = await opened(ready_store, "later")
    assert (later.namespace.table_version, later.namespace.older_versions, later.older) == (2, (), ())


async def test_absent_and_not_to_be_made(ready_store: Store) -> None:
    with pytest.raises(RequestFailed, match="there is no namespace 'kv'") as caught:
        await opened(ready_store, create=False)
    assert caught.value.status == Status.NOT_FOUND
    assert (await list_namespaces(ready_store)).namespaces == ()


async def test_before_the_chains_exist(store: Store) -> None:
    await found_cluster(store, cluster_record(), any_id=True)
    await join(store, worker(0), dead)
    await join(store, worker(1), dead)
    with pytest.raises(RequestFailed, match="no chains yet: 2 of 4 drives have joined") as caught:
        await opened(store)
    assert caught.value.status == Status.NOT_READY


@pytest.mark.parametrize("name", ["", "a b", "x" * 129, "naïve", "a\n", "a:b", "\x00"])
async def test_bad_names(ready_store: Store, name: str) -> None:
    with pytest.raises(RequestFailed, match="allowed: 1 to 128 characters of") as caught:
        await opened(ready_store, name)
    assert caught.value.status == Status.BAD_REQUEST


@pytest.mark.parametrize("geometry", [
    Geometry(block_bytes_max=0),
    Geometry(block_bytes_max=65536, stripe_unit_bytes=5000),
    Geometry(block_bytes_max=65536, stripe_unit_bytes=128 << 20),
    Geometry(block_bytes_max=65536, run_blocks=0),
])  # fmt: skip
async def test_bad_geometries(ready_store: Store, geometry: Geometry) -> None:
    with pytest.raises(RequestFailed, match="allowed") as caught:
        await opened(ready_store, geometry=geometry)
    assert caught.value.status == Status.BAD_REQUEST
