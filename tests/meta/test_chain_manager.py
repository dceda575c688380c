"""Chains change in the store: deaths, restarts, resyncs and stalls, on one server and in time that the test moves."""

import asyncio
from collections.abc import AsyncIterator, Callable

import msgspec
import pytest

from esker.craq.lease import DEATHS_FROM_S
from esker.meta import keys
from esker.meta.chain_manager import HELD_UP_S, STEP_INTERVAL_S, ChainManager
from esker.meta.cluster import join
from esker.meta.cuts import BELIEVED_AFTER_S
from esker.meta.fences import Fences
from esker.meta.heartbeats import Heartbeats
from esker.meta.holds import HOLD_MIN_S
from esker.meta.manager import Manager
from esker.meta.records import pack
from esker.meta.routing import RoutingCache, bump_version
from esker.meta.sightings import DEAD_AFTER_S
from esker.meta.store.base import Store, Transaction
from esker.meta.store.errors import NotCommitted, StoreFailed
from esker.meta.store.memory import MemoryStore
from esker.wire.messages import Heartbeat
from esker.wire.types import Chain, Replica, TargetState

from .conftest import dead, join_all, worker

LETTERS = {
    TargetState.SERVING: "S",
    TargetState.SYNCING: "Y",
    TargetState.WAITING: "W",
    TargetState.LASTSRV: "L",
    TargetState.OFFLINE: "O",
}


class Server:
    """A metadata server that is the manager of three drives with two replicas, all workers speaking."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.now_s = 1000.0
        self.manager = Manager(store, "i", lambda: self.now_s)
        self.routing = RoutingCache(store, lambda: self.now_s)
        self.heartbeats = Heartbeats()
        self.fences = Fences()
        self.lives = dict.fromkeys(("d0", "d1", "d2"), "first")
        self.silent: set[str] = set()
        self.synced: tuple[tuple[int, int], ...] = ()
        self.stalled: tuple[tuple[int, int], ...] = ()
        self.fields: dict[str, dict[str, object]] = {}
        """What else a drive's heartbeats say."""
        self.slept: list[float] = []
        self.chains = ChainManager(
            store, self.manager, self.routing, self.heartbeats, self.fences, clock=lambda: self.now_s, sleep=self._sleep
        )

    async def _sleep(self, pause_s: float) -> None:
        self.slept.append(pause_s)
        await asyncio.sleep(0)

    async def step(self, *, beats: bool = True) -> None:
        """A step of the manager, with everybody's heartbeat before it."""
        if beats:
            routing = await self.routing.newest()
            for drive, life in self.lives.items():
                if drive not in self.silent:
                    told = self.fields.get(drive, {})
                    beat = Heartbeat(drive, life, 1, 0, 1, synced=self.synced, stalled=self.stalled, **told)  # type: ignore[arg-type]
                    self.heartbeats.note(beat, routing, self.now_s)
        await self.chains.step()

    async def passes(self, seconds: float) -> None:
        """Time goes by in the manager's steps."""
        end_s = self.now_s + seconds
        while self.now_s < end_s:
            self.now_s += STEP_INTERVAL_S
            await self.manager.step()
            await self.step()

    async def restart(self, number: int) -> None:
        self.lives[f"d{number}"] += "+"
        await join(self.store, worker(number, incarnation=self.lives[f"d{number}"]), dead)

    async def chain(self, head: str = "d0") -> Chain:
        """The chain that has the drive, with the lowest number."""
        routing = await self.routing.newest()
        return next(chain for chain in routing.chains if head in {each.drive_id for each in chain.replicas})

    async def text(self, chain_id: int) -> str:
        chain = next(each for each in (await self.routing.newest()).chains if each.chain_id == chain_id)
        return " ".join(f"{each.drive_id}:{LETTERS[each.state]}" for each in chain.replicas)


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    store = MemoryStore()
    await join_all(store, 3)
    made = Server(store)
    await made.manager.step()
    await made.step()
    await made.passes(DEATHS_FROM_S + 0.5)
    yield made
    await store.aclose()


def others(chain: Chain, drive: str) -> str:
    (other,) = [each.drive_id for each in chain.replicas if each.drive_id != drive]
    return other


async def test_chains_are_made_with_their_workers_lives(server: Server) -> None:
    routing = await server.routing.newest()
    assert {each.incarnation for chain in routing.chains for each in chain.replicas} == {"first"}
    assert {chain.version for chain in routing.chains} == {1}, "a calm cluster stays as it is"


async def test_a_dead_worker_is_taken_out_of_all_its_chains_and_comes_back_by_resync(server: Server) -> None:
    before = await server.routing.newest()
    server.silent = {"d0"}
    await server.passes(DEAD_AFTER_S + STEP_INTERVAL_S)
    after = await server.routing.newest()
    assert after.version == before.version + 1, "one transaction for all chains"
    for chain in after.chains:
        states = {each.drive_id: each.state for each in chain.replicas}
        assert states.get("d0", TargetState.OFFLINE) is TargetState.OFFLINE
        assert chain.replicas[0].drive_id != "d0"
    chain = await server.chain()
    other = others(chain, "d0")
    server.silent = set()
    await server.passes(STEP_INTERVAL_S)
    assert await server.text(chain.chain_id) == f"{other}:S d0:Y"
    syncing = await server.chain()
    assert syncing.replicas[1].incarnation == "first"
    server.synced = ((chain.chain_id, syncing.version - 1),)
    await server.passes(1.0)
    assert await server.text(chain.chain_id) == f"{other}:S d0:Y", "that was said of another version"
    server.synced = ((chain.chain_id, syncing.version),)
    await server.passes(STEP_INTERVAL_S)
    assert await server.text(chain.chain_id) == f"{other}:S d0:S"


async def test_a_restart_is_a_death_at_once(server: Server) -> None:
    chain = await server.chain()
    other = others(chain, "d0")
    await server.restart(0)
    await server.passes(2 * STEP_INTERVAL_S)
    assert await server.text(chain.chain_id) == f"{other}:S d0:Y"
    assert (await server.chain()).replicas[1].incarnation == "first+"


async def test_only_the_replica_before_is_believed(server: Server) -> None:
    chain = await server.chain()
    await server.restart(0)
    await server.passes(2 * STEP_INTERVAL_S)
    syncing = await server.chain()
    server.silent = {others(chain, "d0")}
    server.synced = ((chain.chain_id, syncing.version),)
    await server.passes(STEP_INTERVAL_S)
    assert (await server.chain()).version == syncing.version


async def test_all_workers_that_go_together_stay_candidates(server: Server) -> None:
    chain = await server.chain()
    server.silent = {"d0", "d1", "d2"}
    await server.passes(DEAD_AFTER_S + 2 * STEP_INTERVAL_S)
    assert await server.text(chain.chain_id) == " ".join(f"{each.drive_id}:L" for each in chain.replicas)
    last = chain.replicas[1].drive_id
    server.silent -= {last}
    await server.passes(STEP_INTERVAL_S)
    assert await server.text(chain.chain_id) == f"{last}:S {chain.replicas[0].drive_id}:O"


async def test_a_stalled_replica_is_dropped_and_tried_again_later_and_later(server: Server) -> None:
    chain = await server.chain()
    other = others(chain, "d0")
    await server.restart(0)
    await server.passes(2 * STEP_INTERVAL_S)
    for times in (1, 2):
        server.stalled = ((chain.chain_id, (await server.chain()).version),)
        await server.passes(STEP_INTERVAL_S)
        server.stalled = ()
        await server.passes(times * HOLD_MIN_S - 3 * STEP_INTERVAL_S)
        assert await server.text(chain.chain_id) == f"{other}:S d0:O"
        await server.passes(4 * STEP_INTERVAL_S)
        assert await server.text(chain.chain_id) == f"{other}:S d0:Y"
    await server.restart(0)
    server.stalled = ((chain.chain_id, (await server.chain()).version),)
    await server.passes(2 * STEP_INTERVAL_S)
    server.stalled = ()
    await server.passes(STEP_INTERVAL_S)
    assert await server.text(chain.chain_id) == f"{other}:S d0:Y", "another life is tried at once"


async def test_a_server_that_is_not_the_manager_changes_nothing(server: Server) -> None:
    before = (await server.routing.newest()).chains
    await server.manager.give_up()
    server.silent = {"d0"}
    for _ in range(20):
        server.now_s += STEP_INTERVAL_S
        await server.step()
    assert (await server.routing.newest()).chains == before
    await server.manager.step()
    await server.passes(DEATHS_FROM_S - 2 * STEP_INTERVAL_S)
    assert (await server.routing.newest()).chains == before, "a new manager waits until everybody could speak"
    await server.passes(1.0)
    assert (await server.routing.newest()).chains != before


async def test_a_server_that_was_held_up_takes_nobody_for_dead(server: Server) -> None:
    before = (await server.routing.newest()).chains
    server.now_s += HELD_UP_S + DEAD_AFTER_S
    await server.manager.step()
    await server.step(beats=False)
    assert (await server.routing.newest()).chains == before
    await server.passes(10.0)
    assert (await server.routing.newest()).chains == before


async def test_a_chain_that_somebody_else_changed_is_left_and_looked_at_again(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    chain = await server.chain()
    transact = server.manager.transact

    async def change(transaction: Transaction) -> None:
        transaction.set(keys.chain(chain.chain_id), pack(msgspec.structs.replace(chain, version=chain.version + 5)))
        bump_version(transaction)

    async def hasty(function: Callable[[Transaction], object], **others: object) -> object:
        monkeypatch.undo()
        await server.store.run(change, what="somebody else")
        return await transact(function, **others)  # type: ignore[arg-type]

    server.silent = {"d0"}
    await server.passes(DEAD_AFTER_S - STEP_INTERVAL_S)
    monkeypatch.setattr(server.manager, "transact", hasty)
    await server.passes(STEP_INTERVAL_S)
    assert (await server.chain()).version == chain.version + 5
    await server.passes(STEP_INTERVAL_S)
    assert (await server.chain()).version == chain.version + 6


async def test_lives_that_were_not_told_are_filled_in(server: Server) -> None:
    chain = await server.chain()

    async def as_before(transaction: Transaction) -> None:
        replicas = tuple(Replica(each.drive_id) for each in chain.replicas)
        transaction.set(keys.chain(chain.chain_id), pack(msgspec.structs.replace(chain, replicas=replicas)))
        bump_version(transaction)

    await server.store.run(as_before, what="test")
    await server.passes(STEP_INTERVAL_S)
    after = await server.chain()
    assert (after.replicas, after.version) == (chain.replicas, chain.version + 1)


async def test_it_goes_on_by_itself_until_it_is_closed(server: Server) -> None:
    server.chains.start()
    async with asyncio.timeout(10):
        while len(server.slept) < 6:  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(0)
    await server.chains.aclose()
    assert set(server.slept) == {STEP_INTERVAL_S}


# Fencing


async def test_a_live_replica_loses_serving_only_after_it_said_that_it_stopped(server: Server) -> None:
    chain = await server.chain()
    head, behind = (each.drive_id for each in chain.replicas)
    await server.passes(BELIEVED_AFTER_S)
    server.fields = {head: {"unreachable": (behind,)}}
    await server.passes(2 * STEP_INTERVAL_S)
    assert await server.text(chain.chain_id) == f"{head}:S {behind}:S"
    withheld = server.fences.withheld(behind)
    assert (chain.chain_id, chain.version) in withheld
    server.fields[behind] = {"stopped": withheld, "term": server.manager.term}
    await server.passes(STEP_INTERVAL_S)
    assert await server.text(chain.chain_id) == f"{head}:S {behind}:O"
    await server.passes(STEP_INTERVAL_S)
    assert server.fences.withheld(behind) == ()


async def test_a_replica_that_does_not_listen_keeps_serving_until_its_lease_has_ended(server: Server) -> None:
    chain = await server.chain()
    head, behind = (each.drive_id for each in chain.replicas)
    await server.passes(BELIEVED_AFTER_S)
    server.fields = {head: {"unreachable": (behind,)}}
    await server.passes(DEAD_AFTER_S)
    assert await server.text(chain.chain_id) == f"{head}:S {behind}:S"
    await server.passes(2 * STEP_INTERVAL_S)
    assert await server.text(chain.chain_id) == f"{head}:S {behind}:O"


async def test_whoever_leaves_is_taken_out_at_once(server: Server) -> None:
    chain = await server.chain()
    head, behind = (each.drive_id for each in chain.replicas)
    server.fields = {head: {"leaving": True}}
    await server.step()
    server.silent = {head}
    await server.passes(3 * STEP_INTERVAL_S)
    assert await server.text(chain.chain_id) == f"{behind}:S {head}:O"


@pytest.mark.parametrize("took_effect", [False, True])
async def test_a_commit_without_an_answer_stays_fenced_until_it_is_known(
    server: Server, monkeypatch: pytest.MonkeyPatch, took_effect: bool
) -> None:
    chain = await server.chain()
    head, behind = (each.drive_id for each in chain.replicas)
    transact = server.manager.transact
    late: list[Transaction] = []

    async def unanswered(function: Callable[[Transaction], object], **others: object) -> object:
        """The commit is on its way, and nobody hears of it any more."""
        monkeypatch.undo()
        late.append(server.store.transaction())
        await function(late[0])  # type: ignore[misc]
        raise StoreFailed("no answer")

    server.silent = {behind}
    await server.passes(DEAD_AFTER_S - STEP_INTERVAL_S)
    monkeypatch.setattr(server.manager, "transact", unanswered)
    with pytest.raises(StoreFailed, match="no answer"):
        await server.passes(STEP_INTERVAL_S)
    assert (chain.chain_id, chain.version) in server.fences.withheld(behind)
    if took_effect:
        await late[0].commit()
    server.silent = set()
    kept: list[object] = []

    async def noted(function: Callable[[Transaction], object], **others: object) -> object:
        kept.append((chain.chain_id, chain.version) in server.fences.withheld(behind))
        return await transact(function, **others)  # type: ignore[arg-type]

    monkeypatch.setattr(server.manager, "transact", noted)
    await server.passes(STEP_INTERVAL_S)
    assert kept[0], "withheld while it was made sure of"
    if took_effect:
        assert await server.text(chain.chain_id) == f"{head}:S {behind}:Y"
    else:
        with pytest.raises(NotCommitted):
            await late[0].commit()
        assert await server.text(chain.chain_id) == f"{head}:S {behind}:S"
        assert server.fences.withheld(behind) == ()
