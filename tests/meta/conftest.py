"""A store in memory and workers to fill it with."""

import time
from collections.abc import AsyncIterator, Callable

import pytest

from esker.meta.chain_setup import ChainSetup
from esker.meta.cluster import found_cluster, join
from esker.meta.presence import Presence
from esker.meta.records import ClusterRecord
from esker.meta.server import MetaService
from esker.meta.store.base import Store
from esker.meta.store.memory import MemoryStore
from esker.wire.limits import GIB
from esker.wire.types import Worker


def worker(number: int, *, node: str = "n1", incarnation: str = "first", port: int = 0, join: int = 0) -> Worker:
    """Worker of drive d<number>."""
    return Worker(
        drive_id=f"d{number}",
        node_id=node,
        host="127.0.0.1",
        port=port or 7000 + number,
        socket_path="",
        boot_id="boot",
        incarnation=incarnation,
        capacity_bytes=100 * GIB,
        join=join,
    )


async def dead(recorded: Worker) -> bool:
    """A probe that finds nobody."""
    return False


class NoLink:
    """Reaches no manager."""

    async def forward(self, *_: object) -> None:
        return None

    async def aclose(self) -> None:
        pass


def service_of(store: Store, clock: Callable[[], float] = time.monotonic) -> MetaService:
    """A server that has not joined the others."""
    return MetaService(store, Presence(store, "i", clock=clock), NoLink(), probe=dead, clock=clock)


def cluster_record(drives: int = 4, replicas: int = 2, cluster_id: str = "c1") -> ClusterRecord:
    return ClusterRecord(cluster_id, drives, replicas, created_ms=1)


async def join_all(store: Store, count: int, nodes: int = 1) -> None:
    """Found a cluster of `count` drives, join them all, make the chains."""
    await found_cluster(store, cluster_record(count, min(2, count)), any_id=True)
    for number in range(count):
        await join(store, worker(number, node=f"n{number % nodes}"), dead)
    assert await ChainSetup(store).ensure()


@pytest.fixture
async def store() -> AsyncIterator[Store]:
    opened = MemoryStore()
    yield opened
    await opened.aclose()


@pytest.fixture
async def ready_store(store: Store) -> Store:
    """A store whose cluster of four drives has chains."""
    await join_all(store, 4)
    return store
