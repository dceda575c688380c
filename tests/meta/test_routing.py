"""The cached cluster map notices every change, whoever made it."""

import pytest

from esker.meta import keys
from esker.meta.cluster import join
from esker.meta.routing import RoutingCache, read_routing
from esker.meta.store.base import Store, Transaction
from esker.meta.store.errors import StoreFailed

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
