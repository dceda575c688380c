"""The chains of a new cluster: planned once, however long that takes and whoever waits for it."""

import asyncio
import threading
from collections.abc import Iterator

import pytest

from esker.meta import chain_setup
from esker.meta.chain_setup import ChainSetup, Plan
from esker.meta.cluster import found_cluster, join
from esker.meta.layout import DriveSite
from esker.meta.store.memory import MemoryStore

from .conftest import cluster_record, dead, worker

WAIT_S = 20.0


class SlowPlan:
    """Plans only once it may; counts how often it was asked."""

    def __init__(self) -> None:
        self.asked = 0
        self.begun = threading.Event()
        self.may = threading.Event()
        self._make = chain_setup._make

    def __call__(self, sites: list[DriveSite], replicas: int) -> Plan:
        self.asked += 1
        self.begun.set()
        assert self.may.wait(WAIT_S)
        return self._make(sites, replicas)


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Iterator[SlowPlan]:
    plan = SlowPlan()
    monkeypatch.setattr(chain_setup, "_make", plan)
    yield plan
    plan.may.set()


async def test_a_plan_that_somebody_stopped_to_wait_for_is_not_lost(slow: SlowPlan) -> None:
    store = MemoryStore()
    await found_cluster(store, cluster_record(2, 2), any_id=True)
    for number in range(2):
        await join(store, worker(number), dead)
    setup = ChainSetup(store)
    first = asyncio.ensure_future(setup.ensure())
    second = asyncio.ensure_future(setup.ensure())
    assert await asyncio.to_thread(slow.begun.wait, WAIT_S)
    first.cancel()
    await asyncio.wait((first,), timeout=WAIT_S)
    assert first.cancelled()
    slow.may.set()
    async with asyncio.timeout(WAIT_S):
        assert await second
        assert not await setup.ensure()
    assert slow.asked == 1
    await store.aclose()
