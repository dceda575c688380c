"""Which heartbeats the manager acknowledges, by which it renews leases."""

from collections.abc import AsyncIterator

import msgspec
import pytest

from esker.meta import keys
from esker.meta.fences import Term
from esker.meta.presence import Presence
from esker.meta.records import pack
from esker.meta.routing import bump_version
from esker.meta.server import MetaService
from esker.meta.store.base import Transaction
from esker.meta.store.memory import MemoryStore
from esker.wire.limits import MANAGER_LEASE_S
from esker.wire.messages import Heartbeat, HeartbeatReply
from esker.wire.types import Chain, Replica, TargetState

from .conftest import NoLink, dead, join_all


class Server:
    """A metadata server among others, which may become the manager when it takes a step."""

    def __init__(self, store: MemoryStore) -> None:
        self.now_s = 100.0
        self.store = store
        self.presence = Presence(store, "i", clock=lambda: self.now_s)
        self.service = MetaService(store, self.presence, NoLink(), probe=dead, clock=lambda: self.now_s)

    async def beat(self, drive: str = "d0", number: int = 0, **fields: object) -> HeartbeatReply:
        return await self.service.heartbeat(Heartbeat(drive, "first", 0, 0, 1, number=number, **fields))  # type: ignore[arg-type]

    async def change(self, chain: Chain) -> None:
        """Somebody else writes the chain."""

        async def body(transaction: Transaction) -> None:
            transaction.set(keys.chain(chain.chain_id), pack(chain))
            bump_version(transaction)

        await self.store.run(body, what="test")


class SharedStore(MemoryStore):
    exclusive = False


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    store = SharedStore()
    await join_all(store, 3)
    yield Server(store)
    await store.aclose()


async def test_only_the_manager_acknowledges_and_only_while_its_own_lease_runs(server: Server) -> None:
    assert (await server.beat()).term == 0
    await server.presence.manager.step()
    assert (await server.beat()).term == 1
    server.now_s += MANAGER_LEASE_S
    assert (await server.beat()).term == 0


async def test_a_new_manager_first_reads_what_its_predecessors_committed(server: Server) -> None:
    reply = await server.beat()
    assert reply.routing is not None
    chain = reply.routing.chains[0]
    lost = msgspec.structs.replace(
        chain,
        version=chain.version + 1,
        replicas=(chain.replicas[0], Replica(chain.replicas[1].drive_id, TargetState.OFFLINE)),
    )
    await server.change(lost)
    assert (await server.beat()).routing == reply.routing, "what is kept is good enough for clients"
    await server.presence.manager.step()
    acknowledged = await server.beat()
    assert (acknowledged.term, acknowledged.routing.chains[0]) == (1, lost)  # type: ignore[union-attr]


async def test_what_is_about_to_change_is_withheld_from_whoever_loses_it(server: Server) -> None:
    await server.presence.manager.step()
    reply = await server.beat()
    assert reply.routing is not None
    assert reply.withheld == ()
    chain = reply.routing.chains[0]
    stays, goes = chain.replicas
    following = Chain(
        chain.chain_id, chain.version + 1, (stays, Replica(goes.drive_id, TargetState.OFFLINE)), chain.min_replicas
    )
    term = Term(1, 0.0, server.now_s)
    server.service.fences.put_up([(chain, following)], reply.routing, server.service.heartbeats, term)
    assert (await server.beat(stays.drive_id)).withheld == ()
    assert (await server.beat(goes.drive_id)).withheld == ((chain.chain_id, chain.version),)


async def test_a_reply_is_made_from_the_newest_map_that_was_read(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A change that is committed while a heartbeat is looked at."""
    await server.presence.manager.step()
    reply = await server.beat()
    assert reply.routing is not None
    chain = reply.routing.chains[0]
    newer = msgspec.structs.replace(chain, version=chain.version + 1)
    recent = server.presence.routing.recent

    async def overtaken(at_least: int = 0) -> object:
        found = await recent(at_least)
        await server.change(newer)
        await server.presence.routing.newest()
        return found

    monkeypatch.setattr(server.presence.routing, "recent", overtaken)
    reply = await server.beat()
    assert reply.routing is not None
    assert reply.routing.chains[0] == newer


async def test_a_heartbeat_that_was_overtaken_is_not_noted(server: Server) -> None:
    await server.presence.manager.step()
    await server.beat(number=2)
    server.now_s += 0.5
    await server.beat(number=1, stopped=((1, 1),))
    await server.beat(number=2, stopped=((1, 1),))
    seen = server.service.heartbeats.last("d0", "first")
    assert seen is not None
    assert (seen.at_s, seen.heartbeat.stopped) == (100.0, ())
    await server.beat(number=3)
    seen = server.service.heartbeats.last("d0", "first")
    assert seen is not None
    assert seen.at_s == 100.5
