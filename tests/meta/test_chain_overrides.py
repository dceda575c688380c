"""What an operator may force, and what is refused because the manager can do better."""

from collections.abc import AsyncIterator

import msgspec
import pytest

from esker.craq.lease import DEATHS_FROM_S
from esker.meta import keys
from esker.meta.admin_growth import set_goals
from esker.meta.chain_manager import STEP_INTERVAL_S
from esker.meta.chain_overrides import ChainOverrides
from esker.meta.cluster import join
from esker.meta.records import pack
from esker.meta.sightings import DEAD_AFTER_S
from esker.meta.store.base import Transaction
from esker.meta.store.memory import MemoryStore
from esker.wire.admin_messages import SetGoals
from esker.wire.errors import RequestFailed
from esker.wire.override_messages import ForceChain, ForceChainReply, SetMinReplicas, SetMinReplicasReply
from esker.wire.status import Status
from esker.wire.types import Chain, ChainGoal, TargetState

from .conftest import dead, join_all, service_of, worker
from .test_chain_manager import Server, others


class Operated(Server):
    """The manager and its operator; all that is asked, is asked of `overrides`."""

    def __init__(self, store: MemoryStore) -> None:
        super().__init__(store)
        self.overrides = ChainOverrides(self.manager, self.routing, self.heartbeats)

    async def force(self, chain: Chain, drive: str, *, sure: bool = True, version: int = 0) -> ForceChainReply:
        ask = ForceChain(chain.chain_id, drive, version or chain.version, sure)
        return await self.overrides.force_chain(ask, self.now_s)

    async def lost(self) -> tuple[Chain, str, str]:
        """A chain whose last serving replica is dead: (chain, that drive, the other one, which is back)."""
        chain = await self.chain()
        last = others(chain, "d0")
        self.silent = {"d0"}
        await self.passes(DEAD_AFTER_S + STEP_INTERVAL_S)
        self.silent = {"d0", last}
        await self.passes(DEAD_AFTER_S + STEP_INTERVAL_S)
        assert await self.text(chain.chain_id) == f"{last}:L d0:O"
        self.silent = {last}
        await self.passes(STEP_INTERVAL_S)
        assert await self.text(chain.chain_id) == f"d0:W {last}:L"
        return await self.chain_by_id(chain.chain_id), last, "d0"

    async def chain_by_id(self, chain_id: int) -> Chain:
        return next(each for each in (await self.routing.newest()).chains if each.chain_id == chain_id)


@pytest.fixture
async def server() -> AsyncIterator[Operated]:
    store = MemoryStore()
    await join_all(store, 3)
    made = Operated(store)
    await made.manager.step()
    await made.step()
    await made.passes(DEATHS_FROM_S + 0.5)
    yield made
    await store.aclose()


async def test_a_lost_chain_is_shown_then_forced_and_the_others_are_resynced_from_there(server: Operated) -> None:
    chain, last, back = await server.lost()
    shown = await server.force(chain, back, sure=False)
    assert (shown.done, shown.chain) == (False, chain)
    assert [(each.drive_id, each.state, each.up) for each in shown.replicas] == [
        (back, TargetState.WAITING, True),
        (last, TargetState.LASTSRV, False),
    ]
    assert shown.replicas[1].heard_s_ago >= DEAD_AFTER_S
    assert await server.chain_by_id(chain.chain_id) == chain, "nothing was changed"
    forced = await server.force(chain, back)
    assert (forced.done, forced.chain.version) == (True, chain.version + 1)
    assert await server.text(chain.chain_id) == f"{back}:S {last}:O"
    assert (await server.force(chain, back)).done, "asked again, as the answer may have been lost"
    server.silent = set()
    await server.passes(2 * STEP_INTERVAL_S)
    assert await server.text(chain.chain_id) == f"{back}:S {last}:Y", "the candidate of old begins from what is served"


async def test_a_chain_that_has_changed_since_it_was_shown_is_not_forced(server: Operated) -> None:
    chain, _, back = await server.lost()
    with pytest.raises(RequestFailed, match="has changed meanwhile") as caught:
        await server.force(chain, back, version=chain.version - 1)
    assert caught.value.status is Status.CONFLICT


async def test_a_chain_that_changes_at_that_moment_is_not_forced(
    server: Operated, monkeypatch: pytest.MonkeyPatch
) -> None:
    chain, _, back = await server.lost()
    newest = server.routing.newest
    moved = msgspec.structs.replace(chain, version=chain.version + 5)

    async def change(transaction: Transaction) -> None:
        transaction.set(keys.chain(chain.chain_id), pack(moved))

    async def overtaken() -> object:
        found = await newest()
        monkeypatch.undo()
        await server.store.run(change, what="somebody else")
        return found

    monkeypatch.setattr(server.routing, "newest", overtaken)
    with pytest.raises(RequestFailed, match="has changed meanwhile"):
        await server.force(chain, back)


async def test_a_served_chain_is_not_forced(server: Operated) -> None:
    chain = await server.chain()
    with pytest.raises(RequestFailed, match=f"chain {chain.chain_id} is served by d") as caught:
        await server.force(chain, "d0")
    assert caught.value.status is Status.CONDITION


async def test_a_candidate_that_is_back_is_preferred(server: Operated) -> None:
    chain, last, back = await server.lost()
    server.silent = set()
    routing = await server.routing.newest()
    beats = server.heartbeats
    seen = beats.last(back, "first")
    assert seen is not None
    beats.note(msgspec.structs.replace(seen.heartbeat, drive_id=last), routing, server.now_s)
    with pytest.raises(RequestFailed, match=f"{last} is back, has everything"):
        await server.force(chain, back)


async def test_only_a_drive_of_the_chain_that_is_up_can_be_forced(server: Operated) -> None:
    chain, _, back = await server.lost()
    outside = next(name for name in ("d0", "d1", "d2") if name not in {each.drive_id for each in chain.replicas})
    with pytest.raises(RequestFailed, match=f"drive {outside} has no replica of chain") as caught:
        await server.force(chain, outside)
    assert caught.value.status is Status.BAD_REQUEST
    for fields in ({"offline_chains": (chain.chain_id,)}, {"leaving": True}):
        server.fields = {back: fields}
        await server.step()
        with pytest.raises(RequestFailed, match=f"the worker of drive {back} is silent, or its drive fails"):
            await server.force(await server.chain_by_id(chain.chain_id), back)
    with pytest.raises(RequestFailed, match="there is no chain 99"):
        await server.overrides.force_chain(ForceChain(99, "d0"), server.now_s)


async def test_a_drive_that_was_formatted_anew_is_no_candidate(server: Operated) -> None:
    """It has another id, whatever place its directory is in."""
    chain, last, back = await server.lost()
    await join(server.store, worker(7), dead)
    server.lives["d7"] = "first"
    await server.passes(5.0)
    assert await server.text(chain.chain_id) == f"{back}:W {last}:L"
    with pytest.raises(RequestFailed, match="drive d7 has no replica"):
        await server.force(chain, "d7")


# How many must serve


async def test_min_replicas_is_set_for_all_or_for_some(server: Operated) -> None:
    set_to = server.overrides.set_min_replicas
    before = await server.routing.newest()
    assert await set_to(SetMinReplicas(2)) == SetMinReplicasReply(len(before.chains), len(before.chains), 0, ())
    after = await server.routing.newest()
    assert after.version == before.version + 1
    for old, new in zip(before.chains, after.chains, strict=True):
        assert new == msgspec.structs.replace(old, version=old.version + 1, min_replicas=2)
    assert (await set_to(SetMinReplicas(2))).changed == 0
    assert (await server.routing.newest()).version == after.version, "nothing to be told"
    chain_id = after.chains[0].chain_id
    assert await set_to(SetMinReplicas(1, chain_id=chain_id)) == SetMinReplicasReply(1, 1, 0, ())
    assert (await set_to(SetMinReplicas(1, table_id=1))).changed == len(before.chains) - 1


async def test_a_chain_needs_no_more_replicas_than_its_goal_leaves_it(server: Operated) -> None:
    routing = await server.routing.newest()
    chain = routing.chains[0]
    goal = ChainGoal(chain.chain_id, (chain.replicas[0].drive_id,))
    await set_goals(server.store, SetGoals(routing.version, (goal,)), 0)
    assert len(chain.replicas) == 2
    with pytest.raises(RequestFailed, match="chains have 1 replicas"):
        await server.overrides.set_min_replicas(SetMinReplicas(2, chain_id=chain.chain_id))
    reply = await server.overrides.set_min_replicas(SetMinReplicas(2))
    assert (reply.chains, reply.smaller) == (len(routing.chains) - 1, 1)


async def test_chains_that_take_no_writes_then_are_named(server: Operated) -> None:
    server.silent = {"d0"}
    await server.passes(DEAD_AFTER_S + STEP_INTERVAL_S)
    reply = await server.overrides.set_min_replicas(SetMinReplicas(2))
    short = {chain.chain_id for chain in (await server.routing.newest()).chains if "d0" in str(chain.replicas)}
    assert set(reply.short) == short
    assert reply.changed == reply.chains


@pytest.mark.parametrize(("request_", "status", "why"), [
    (SetMinReplicas(0), Status.BAD_REQUEST, "allowed: 1 to 8"),
    (SetMinReplicas(9), Status.BAD_REQUEST, "allowed: 1 to 8"),
    (SetMinReplicas(3), Status.BAD_REQUEST, "chains have 2 replicas; allowed: 1 to 2"),
    (SetMinReplicas(3, chain_id=1), Status.BAD_REQUEST, "chains have 2 replicas"),
    (SetMinReplicas(1, chain_id=99), Status.NOT_FOUND, "there is no chain 99"),
    (SetMinReplicas(1, table_id=9), Status.NOT_FOUND, "there is no chain table 9; there are: 1"),
])  # fmt: skip
async def test_what_cannot_be_set(server: Operated, request_: SetMinReplicas, status: Status, why: str) -> None:
    with pytest.raises(RequestFailed, match=why) as caught:
        await server.overrides.set_min_replicas(request_)
    assert caught.value.status is status


async def test_a_server_that_is_not_the_manager_refuses_where_it_finds_none() -> None:
    store = MemoryStore()
    await join_all(store, 2)
    service = service_of(store)
    for asked in (service.force_chain(ForceChain(1, "d0")), service.set_min_replicas(SetMinReplicas(1))):
        with pytest.raises(RequestFailed, match="no metadata server acts as the manager") as caught:
            await asked
        assert caught.value.status is Status.UNAVAILABLE
    await store.aclose()
