"""Whatever a request does is done once, also where the answers to its commits are lost."""

from collections.abc import Awaitable, Callable
from random import Random

import pytest

from esker.meta import keys
from esker.meta.chain_setup import ChainSetup
from esker.meta.cluster import found_cluster, join
from esker.meta.manager import Manager
from esker.meta.namespaces import open_namespace
from esker.meta.registry import Registry
from esker.meta.store.base import KEY_END, Store
from esker.meta.store.memory import Fault, MemoryStore
from esker.wire.messages import NamespaceOpen
from esker.wire.types import Geometry

from .conftest import cluster_record, dead, worker

Operation = Callable[[Store], Awaitable[object]]


def still() -> float:
    return 100.0


async def take_lease(store: Store) -> None:
    manager = Manager(store, "i", still)
    manager.address = "h:1"
    await manager.step()


OPERATIONS: dict[str, Operation] = {
    "founding": lambda store: found_cluster(store, cluster_record(2, 2), any_id=True),
    "registration": lambda store: Registry(store, "i", still).register("h:1"),
    "lease": take_lease,
    "join": lambda store: join(store, worker(0), dead),
    "join of the last": lambda store: join(store, worker(1), dead),
    "chains": lambda store: ChainSetup(store).ensure(),
    "namespace": lambda store: open_namespace(
        store, NamespaceOpen("n", Geometry(block_bytes_max=4096)), Random(1).randbytes
    ),
    "join again": lambda store: join(store, worker(0, incarnation="second"), dead),
}
"""In this order each finds what it needs."""


async def everything_after(faults: Callable[[str], Fault]) -> dict[bytes, bytes]:
    """The store once every operation was made; `faults` says what becomes of the next commit of an operation."""
    running = ""
    store = MemoryStore(fault=lambda: faults(running))
    for name, operation in OPERATIONS.items():
        running = name
        await operation(store)
    running = ""
    rows = dict(await store.run(lambda transaction: transaction.get_range(b"", KEY_END), what="read"))
    await store.aclose()
    rows.pop(keys.MANAGER_BEATS)  # Counts attempts.
    return rows


def no_fault(running: str) -> Fault:
    return None


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("lost", [["after"], ["before"], ["after", "after"], ["before", "after", "before"]])
async def test_an_operation_whose_answers_are_lost_is_done_once(name: str, lost: list[Fault]) -> None:
    left = list(lost)

    def faults(running: str) -> Fault:
        return left.pop(0) if running == name and left else None

    assert await everything_after(faults) == await everything_after(no_fault)
    assert len(left) < len(lost)


@pytest.mark.parametrize("seed", range(20))
async def test_many_operations_whose_answers_are_lost(seed: int) -> None:
    chance = Random(seed)

    def faults(running: str) -> Fault:
        return chance.choice([None, "before", "after"]) if running else None

    assert await everything_after(faults) == await everything_after(no_fault)
