"""The cached cluster map notices every change, whoever made it."""

import asyncio

import pytest

from esker.meta import keys
from esker.meta.cluster import join
from esker.meta.routing import CONFIRMED_S, RoutingCache, read_routing
from esker.meta.store.base import Store, Transaction
from esker.meta.store.errors import StoreFailed
from esker.meta.store.memory import MemoryStore

from .conftest import dead, worker


async def test_two_servers_see_each_others_changes(ready_store: Store) -> None:
    here, there = RoutingCache(ready_store), RoutingCache(ready_store)
    first = await here.newest()
    assert await there.newest() == first
    assert await here.newest() is first

    await join(ready_store, worker(4), dead)
    second = await there.newest()
    assert second.version == first.version + 1
    assert len(second.workers) == 5
    assert await here.newest() == second


async def settled() -> None:
    """Whoever can go on has done so."""
    for _ in range(20):
        await asyncio.sleep(0)


async def test_a_followed_routing_is_handed_out_without_the_store(ready_store: MemoryStore) -> None:
    cache = RoutingCache(ready_store)
    following = asyncio.create_task(cache.follow())
    await settled()
    first = await cache.recent()
    reads = 0
    transaction = ready_store.transaction

    def counted() -> object:
        nonlocal reads
        reads += 1
        return transaction()

    ready_store.transaction = counted
    assert await cache.recent() is first
    assert reads == 0
    await join(ready_store, worker(4), dead)
    await settled()
    reads = 0
    assert (await cache.recent()).version == first.version + 1
    assert reads == 0
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)


async def test_who_has_seen_a_newer_routing_gets_no_older_one(ready_store: Store) -> None:
    cache = RoutingCache(ready_store)
    first = await cache.recent()
    await join(ready_store, worker(4), dead)
    assert await cache.recent(first.version) is first, "nobody follows"
    assert (await cache.recent(first.version + 1)).version == first.version + 1


async def test_what_was_not_confirmed_for_long_is_not_handed_out(ready_store: Store) -> None:
    now_s = 0.0
    cache = RoutingCache(ready_store, lambda: now_s)
    first = await cache.recent()
    await join(ready_store, worker(4), dead)
    now_s += CONFIRMED_S
    assert await cache.recent() is first, "nobody follows"
    now_s += 0.1
    assert (await cache.recent()).version == first.version + 1
    await ready_store.aclose()
    assert await cache.recent()
    now_s += CONFIRMED_S + 0.1
    with pytest.raises(StoreFailed):
        await cache.recent()


async def test_following_goes_on_after_a_failure(ready_store: Store) -> None:
    cache = RoutingCache(ready_store)
    failures = 2
    run = ready_store.run

    async def failing_run(function: object, **options: object) -> object:
        nonlocal failures
        if failures:
            failures -= 1
            raise StoreFailed("for a while")
        return await run(function, **options)

    ready_store.run = failing_run
    pauses: list[float] = []

    async def sleep(pause_s: float) -> None:
        pauses.append(pause_s)

    following = asyncio.create_task(cache.follow(sleep))
    await settled()
    assert len(pauses) == 2
    assert len((await cache.recent()).workers) == 4
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)


async def test_one_read_is_of_one_version(ready_store: Store) -> None:
    async def read(transaction: Transaction) -> None:
        before = await read_routing(transaction)
        await join(ready_store, worker(4), dead)
        assert await read_routing(transaction) == before

    await ready_store.run(read, what="test")


async def test_a_damaged_chain_is_named(ready_store: Store) -> None:
    async def damage(transaction: Transaction) -> None:
        transaction.set(keys.chain(3), b"\x01\xc1")

    await ready_store.run(damage, what="test")
    with pytest.raises(StoreFailed, match=r"metadata under \\x04\\x00\\x00\\x00\\x03 is damaged"):
        await RoutingCache(ready_store).newest()
