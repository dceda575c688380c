"""Whatever a request does is done once, also where the answers to its commits are lost."""

from collections.abc import Awaitable, Callable
from random import Random

import pytest

from esker.meta import keys
from esker.meta.admin_growth import expand, forget_drives, set_goals
from esker.meta.admin_namespaces import begin_removal
from esker.meta.chain_setup import TABLE_ID, ChainSetup
from esker.meta.cluster import found_cluster, join
from esker.meta.manager import Manager
from esker.meta.namespaces import open_namespace
from esker.meta.registry import Registry
from esker.meta.routing import read_routing
from esker.meta.store.base import KEY_END, Store
from esker.meta.store.memory import Fault, MemoryStore
from esker.wire.admin_messages import Expand, ForgetDrives, NamespaceRemove, NewChain, SetGoals
from esker.wire.messages import NamespaceOpen
from esker.wire.types import ChainGoal, Geometry, Leaving, Routing

from .conftest import cluster_record, dead, worker

Operation = Callable[[Store], Awaitable[object]]


def still() -> float:
    return 100.0


async def take_lease(store: Store) -> None:
    manager = Manager(store, "i", still)
    manager.address = "h:1"
    await manager.step()


async def map_of(store: Store) -> Routing:
    """The cluster map. A reading commits nothing, so that no answer can be lost."""
    return await store.run(read_routing, what="read")


async def grow(store: Store) -> None:
    asked = Expand((await map_of(store)).version, TABLE_ID, (NewChain(("d2", "d0"), 1, 7),))
    reply = await expand(store, asked)
    assert await expand(store, asked) == reply


async def drain(store: Store, drive_id: str) -> None:
    asked = SetGoals((await map_of(store)).version, (ChainGoal(1, ("d2", "d0"), ("d2",)),), (Leaving(drive_id, 0),))
    await set_goals(store, asked, now_ms=5)
    await set_goals(store, asked, now_ms=6)


async def stay(store: Store, drive_id: str) -> None:
    asked = SetGoals((await map_of(store)).version, (ChainGoal(1, ()),), (), (drive_id,))
    await set_goals(store, asked, now_ms=5)
    await set_goals(store, asked, now_ms=6)


async def forget(store: Store, drive_id: str) -> None:
    asked = ForgetDrives((await map_of(store)).version, (drive_id,))
    await forget_drives(store, asked, now_ms=5)
    await forget_drives(store, asked, now_ms=6)


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
    "join of a third": lambda store: join(store, worker(2), dead),
    "expansion": grow,
    "goals": lambda store: drain(store, "d1"),
    "goals that are called off": lambda store: stay(store, "d1"),
    "join of a fourth": lambda store: join(store, worker(3), dead),
    "removal of a drive": lambda store: forget(store, "d3"),
    "removal of a namespace": lambda store: begin_removal(store, NamespaceRemove("n"), now_ms=7),
    "removal of a stray": lambda store: begin_removal(store, NamespaceRemove(strange=9), now_ms=8),
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
