"""Goals, new chains and drives that are forgotten, in the store: what is written, what is refused, and how it ends."""

import asyncio

import pytest

from esker.craq.goals import reached
from esker.meta import admin_growth, keys
from esker.meta.admin_growth import expand, forget_drives, set_goals
from esker.meta.chain_goals import GoalKeeper
from esker.meta.chain_setup import TABLE_ID
from esker.meta.cluster import join
from esker.meta.manager import Manager
from esker.meta.namespaces import open_namespace
from esker.meta.records import RemovedDrive, pack
from esker.meta.routing import bump_version, read_placement, read_routing
from esker.meta.store.base import Store, Transaction
from esker.wire.admin_messages import Expand, ForgetDrives, NewChain, SetGoals
from esker.wire.errors import RequestFailed
from esker.wire.messages import NamespaceOpen
from esker.wire.placement import build_slot_table
from esker.wire.status import Status
from esker.wire.types import Chain, ChainGoal, Geometry, Leaving, Replica, Routing

from .conftest import dead, worker


async def routing_of(store: Store) -> Routing:
    return await store.run(read_routing, what="test")


async def change_chains(store: Store, changed: list[Chain]) -> None:
    """As the manager would have done it."""

    async def body(transaction: Transaction) -> None:
        for chain in changed:
            transaction.set(keys.chain(chain.chain_id), pack(chain))
        bump_version(transaction)

    await store.run(body, what="test")


async def begin_replacement(store: Store) -> Routing:
    """d4 shall replace d0."""
    await join(store, worker(4), dead)
    routing = await routing_of(store)
    goals = tuple(
        ChainGoal(
            chain.chain_id, tuple("d4" if each.drive_id == "d0" else each.drive_id for each in chain.replicas), ("d4",)
        )
        for chain in routing.chains
        if any(each.drive_id == "d0" for each in chain.replicas)
    )
    await set_goals(store, SetGoals(routing.version, goals, (Leaving("d0", 0, "d4"),)), now_ms=5)
    return await routing_of(store)


async def keeper(store: Store) -> GoalKeeper:
    manager = Manager(store, "i", lambda: 0.0)
    await manager.step()
    return GoalKeeper(manager, lambda: 9)


async def test_a_replaced_drive_is_forgotten_once_no_chain_has_it(ready_store: Store) -> None:
    routing = await begin_replacement(ready_store)
    assert len(routing.goals) == 6
    assert routing.leaving == (Leaving("d0", 5, "d4"),)
    tidying = await keeper(ready_store)
    assert not await tidying.tidy(routing), "nothing is over yet"

    goals = {goal.chain_id: goal for goal in routing.goals}
    became = [
        Chain(chain.chain_id, 2, tuple(map(Replica, goals[chain.chain_id].drives)), 1)
        for chain in routing.chains
        if chain.chain_id in goals
    ]
    await change_chains(ready_store, became[:2])
    assert await tidying.tidy(await routing_of(ready_store))
    assert set(goals) - {goal.chain_id for goal in (await routing_of(ready_store)).goals} == {
        chain.chain_id for chain in became[:2]
    }
    await change_chains(ready_store, became[2:])
    assert await tidying.tidy(await routing_of(ready_store))
    after = await routing_of(ready_store)
    assert (after.goals, after.leaving) == ((), ())
    assert [each.drive_id for each in after.workers] == ["d1", "d2", "d3", "d4"]
    assert not await tidying.tidy(after)
    with pytest.raises(RequestFailed, match=r"it was replaced by drive d4\. What is on it stays there") as caught:
        await join(ready_store, worker(0, incarnation="later"), dead)
    assert caught.value.status is Status.FORBIDDEN


async def test_a_goal_that_was_changed_meanwhile_is_kept(ready_store: Store) -> None:
    routing = await begin_replacement(ready_store)
    goal = routing.goals[0]
    (chain,) = [chain for chain in routing.chains if chain.chain_id == goal.chain_id]
    await change_chains(ready_store, [Chain(chain.chain_id, 2, tuple(map(Replica, goal.drives)), 1)])
    seen = await routing_of(ready_store)
    other = ChainGoal(goal.chain_id, ("d1", "d2"), ("d2",))
    await set_goals(ready_store, SetGoals(seen.version, (other,)), 1)
    await (await keeper(ready_store)).tidy(seen)
    assert other in (await routing_of(ready_store)).goals


async def test_goals_and_drains_are_called_off(ready_store: Store) -> None:
    routing = await begin_replacement(ready_store)
    off = tuple(ChainGoal(goal.chain_id, ()) for goal in routing.goals)
    await set_goals(ready_store, SetGoals(routing.version, off, staying=("d0",)), 1)
    after = await routing_of(ready_store)
    assert (after.goals, after.leaving, after.chains) == ((), (), routing.chains)


@pytest.mark.parametrize(
    ("goals", "leaving", "why"),
    [
        ((ChainGoal(99, ("d1",)),), (), "there is no chain 99"),
        ((ChainGoal(1, ("d0", "d9")),), (), "drive d9 is not in this cluster"),
        ((ChainGoal(1, ("d0", "d0")),), (), "a drive is named twice"),
        ((ChainGoal(1, ("d0", "d1"), ("d2",)),), (), "fewer replicas than"),
        ((), (Leaving("d9", 0),), "drive d9 is not in this cluster"),
    ],
)
async def test_goals_that_cannot_be_meant(
    ready_store: Store, goals: tuple[ChainGoal, ...], leaving: tuple[Leaving, ...], why: str
) -> None:
    before = await routing_of(ready_store)
    with pytest.raises(RequestFailed, match=why):
        await set_goals(ready_store, SetGoals(before.version, goals, leaving), 1)
    assert await routing_of(ready_store) == before


async def test_what_was_planned_from_an_older_map_is_refused(ready_store: Store) -> None:
    old = (await routing_of(ready_store)).version
    await join(ready_store, worker(4), dead)
    for attempt in (
        set_goals(ready_store, SetGoals(old, ()), 1),
        expand(ready_store, Expand(old, TABLE_ID, (NewChain(("d4",), 1, 1),))),
        forget_drives(ready_store, ForgetDrives(old, ("d4",)), 1),
    ):
        with pytest.raises(RequestFailed, match="the cluster has changed meanwhile") as caught:
            await attempt
        assert caught.value.status is Status.CONFLICT


async def test_an_expansion_lays_namespaces_out_anew(ready_store: Store) -> None:
    async def opened(name: str) -> object:
        ask = NamespaceOpen(name, Geometry(block_bytes_max=4096))
        return (await open_namespace(ready_store, ask, lambda count: bytes(count)))[0].namespace

    before = await opened("a")
    await join(ready_store, worker(4), dead)
    routing = await routing_of(ready_store)
    (old,) = routing.tables
    new = NewChain(("d4", "d0"), 1, 700)
    reply = await expand(ready_store, Expand(routing.version, TABLE_ID, (new, new)))
    assert (reply.table_version, reply.chain_ids) == (2, (13, 14))

    after = await routing_of(ready_store)
    assert after.chains[-1] == Chain(14, 1, (Replica("d4", incarnation="first"), Replica("d0", incarnation="first")), 1)
    table = after.tables[-1]
    assert (table.chain_ids, table.weights) == ((*old.chain_ids, 13, 14), (*old.weights, 700, 700))
    assert after.tables[0] == old
    stored = await ready_store.run(lambda found: read_placement(found, TABLE_ID, 2), what="test")
    assert stored == build_slot_table(table.chain_ids, table.weights)

    namespace = await opened("a")
    assert (namespace.table_version, namespace.older_versions, namespace.layout_epoch) == (2, (1,), 2)  # type: ignore[attr-defined]
    assert namespace.salt == before.salt  # type: ignore[attr-defined]
    later = await opened("b")
    assert (later.table_version, later.older_versions) == (2, ())  # type: ignore[attr-defined]
    await expand(ready_store, Expand(after.version, TABLE_ID, (new,)))
    assert (await opened("a")).older_versions == (2, 1)  # type: ignore[attr-defined]


async def test_an_expansion_goes_by_what_has_changed_while_it_was_computed(
    ready_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that was started anew meanwhile is admitted in its present life; another expansion comes first."""
    await join(ready_store, worker(4), dead)
    routing = await routing_of(ready_store)
    ask = Expand(routing.version, TABLE_ID, (NewChain(("d4", "d0"), 1, 700),))
    compute = asyncio.to_thread

    async def restarted(*work: object) -> object:
        await join(ready_store, worker(4, incarnation="second"), dead)
        return await compute(*work)  # type: ignore[arg-type]

    monkeypatch.setattr(asyncio, "to_thread", restarted)
    await expand(ready_store, ask)
    after = await routing_of(ready_store)
    assert after.chains[-1].replicas == (Replica("d4", incarnation="second"), Replica("d0", incarnation="first"))

    async def grown(*work: object) -> object:
        monkeypatch.setattr(asyncio, "to_thread", compute)
        await expand(ready_store, Expand(after.version, TABLE_ID, (NewChain(("d0", "d4"), 1, 700),)))
        return await compute(*work)  # type: ignore[arg-type]

    monkeypatch.setattr(asyncio, "to_thread", grown)
    with pytest.raises(RequestFailed, match="the cluster has changed meanwhile"):
        await expand(ready_store, Expand(after.version, TABLE_ID, ask.chains))
    assert (await routing_of(ready_store)).tables[-1].version == 3


@pytest.mark.parametrize(
    ("table_id", "chain", "why"),
    [
        (9, NewChain(("d0",), 1, 1), "for table 9"),
        (TABLE_ID, NewChain(("d9",), 1, 1), "drive d9 is not in this cluster"),
        (TABLE_ID, NewChain(("d0",), 2, 1), "of which 2 have to serve"),
        (TABLE_ID, NewChain(("d0",), 1, 0), "weight is out of range"),
    ],
)
async def test_expansions_that_cannot_be_meant(ready_store: Store, table_id: int, chain: NewChain, why: str) -> None:
    before = await routing_of(ready_store)
    with pytest.raises(RequestFailed, match=why):
        await expand(ready_store, Expand(before.version, table_id, (chain,)))
    assert await routing_of(ready_store) == before


async def test_a_table_that_no_record_holds_is_refused(ready_store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin_growth, "VALUE_BYTES_MAX", 60)
    ask = Expand((await routing_of(ready_store)).version, TABLE_ID, (NewChain(("d0",), 1, 1),) * 10)
    with pytest.raises(RequestFailed, match="table 1 would have 22 chains: more than its record can hold") as caught:
        await expand(ready_store, ask)
    assert caught.value.status is Status.BAD_REQUEST


async def test_more_versions_than_a_namespace_can_be_laid_out_over_are_refused(
    ready_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admin_growth, "VERSIONS_MAX", 2)
    ask = Expand((await routing_of(ready_store)).version, TABLE_ID, (NewChain(("d0", "d1"), 1, 1),))
    assert (await expand(ready_store, ask)).table_version == 2
    ask = Expand((await routing_of(ready_store)).version, TABLE_ID, (NewChain(("d0", "d2"), 1, 1),))
    with pytest.raises(RequestFailed, match="table 1 has been expanded 1 times, which is as often as it can be"):
        await expand(ready_store, ask)


async def test_only_empty_drives_are_forgotten(ready_store: Store) -> None:
    await join(ready_store, worker(4), dead)
    version = (await routing_of(ready_store)).version
    with pytest.raises(RequestFailed, match="drive d0 still holds replicas; drain it first"):
        await forget_drives(ready_store, ForgetDrives(version, ("d4", "d0")), 1)
    await forget_drives(ready_store, ForgetDrives(version, ("d4",)), 7)
    assert all(each.drive_id != "d4" for each in (await routing_of(ready_store)).workers)

    async def removed(transaction: Transaction) -> bytes | None:
        return await transaction.get(keys.removed_drive("d4"))

    assert await ready_store.run(removed, what="test") == pack(RemovedDrive("d4", 7))
    with pytest.raises(RequestFailed, match="it was removed by an operator"):
        await join(ready_store, worker(4), dead)


def test_reached_is_about_the_set_of_drives() -> None:
    chain = Chain(1, 1, (Replica("a"), Replica("b")), 1)
    assert reached(chain, ChainGoal(1, ("b", "a")))
    assert not reached(chain, ChainGoal(1, ("a",)))
    assert not reached(chain, ChainGoal(1, ("a", "b", "c")))
