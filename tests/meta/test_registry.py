"""Metadata servers come, go, and are removed when they fall silent."""

import pytest

from esker.craq.lease import DEATHS_FROM_S
from esker.meta.cluster import found_cluster
from esker.meta.manager import Manager
from esker.meta.registry import SERVER_LIFE_S, Registry
from esker.meta.routing import RoutingCache
from esker.meta.store.base import Store
from esker.meta.store.memory import MemoryStore
from esker.wire.types import Routing

from .conftest import cluster_record


class Time:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
async def founded(store: Store) -> Store:
    await found_cluster(store, cluster_record(), any_id=True)
    return store


async def routing_of(store: Store) -> Routing:
    return await RoutingCache(store).newest()


async def test_servers_come_and_go_with_the_routing_version(founded: Store, time: Time) -> None:
    before = await routing_of(founded)
    a, b = Registry(founded, "a", time), Registry(founded, "b", time)
    await a.register("a:1")
    await b.register("b:1")
    both = await routing_of(founded)
    assert both.meta_servers == ("a:1", "b:1")
    assert both.version == before.version + 2

    for _ in range(3):
        await a.beat()
    assert await routing_of(founded) == both, "beats change nothing that others need to know"

    restarted = Registry(founded, "a again", time)
    await restarted.register("a:1")
    assert await routing_of(founded) == both
    await a.withdraw()
    assert await routing_of(founded) == both, "another serves there by now"
    await restarted.withdraw()
    assert (await routing_of(founded)).meta_servers == ("b:1",)


async def test_a_server_without_an_address_is_not_told(founded: Store, time: Time) -> None:
    before = await routing_of(founded)
    hidden = Registry(founded, "a", time)
    await hidden.register("")
    await hidden.beat()
    await hidden.withdraw()
    assert await routing_of(founded) == before


async def test_the_manager_removes_who_is_silent(founded: Store, time: Time) -> None:
    a, b = Registry(founded, "a", time), Registry(founded, "b", time)
    await a.register("a:1")
    await b.register("b:1")
    manager = Manager(founded, "a", time)
    await manager.step()
    passed_s = 0.0
    while passed_s <= SERVER_LIFE_S:
        await manager.step()
        await a.beat()
        await a.remove_silent(manager)
        assert (await routing_of(founded)).meta_servers == ("a:1", "b:1")
        time.now_s += 1.0
        passed_s += 1.0
    await manager.step()
    await a.remove_silent(manager)
    assert (await routing_of(founded)).meta_servers == ("a:1",)

    await b.beat()
    assert (await routing_of(founded)).meta_servers == ("a:1", "b:1"), "it was only cut off"
    await a.remove_silent(manager)
    assert (await routing_of(founded)).meta_servers == ("a:1", "b:1")


async def test_one_that_speaks_again_just_then_stays(founded: Store, time: Time) -> None:
    a, b = Registry(founded, "a", time), Registry(founded, "b", time)
    await b.register("b:1")
    manager = Manager(founded, "a", time)
    await manager.step()
    await a.remove_silent(manager)
    time.now_s += SERVER_LIFE_S + DEATHS_FROM_S
    await manager.step()
    await b.beat()
    await a.remove_silent(manager)
    assert (await routing_of(founded)).meta_servers == ("b:1",)


async def test_who_is_not_the_manager_removes_nobody(founded: Store, time: Time) -> None:
    a, b = Registry(founded, "a", time), Registry(founded, "b", time)
    await b.register("b:1")
    manager = Manager(founded, "a", time)
    await manager.step()
    await a.remove_silent(manager)
    time.now_s += SERVER_LIFE_S + DEATHS_FROM_S
    await a.remove_silent(manager)
    assert (await routing_of(founded)).meta_servers == ("b:1",), "the lease has run out"


async def test_over_an_exclusive_store_no_other_is_left(monkeypatch: pytest.MonkeyPatch, time: Time) -> None:
    store = MemoryStore()
    monkeypatch.setattr(store, "exclusive", True)
    await found_cluster(store, cluster_record(), any_id=True)
    await Registry(store, "before", time).register("a:1")
    after = Registry(store, "after", time)
    await after.register("a:2")
    assert (await routing_of(store)).meta_servers == ("a:2",)
    commits = store.statistics()["store_commits"]
    await after.beat()
    await after.withdraw()
    assert store.statistics()["store_commits"] == commits, "its lock tells all that beats would"
    await store.aclose()
