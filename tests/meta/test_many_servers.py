"""Several metadata servers over FoundationDB's engine (on a stand-in for its package), over real sockets."""

import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from pathlib import Path

import pytest

from esker.meta import keys
from esker.meta.main import MetaConfig, ServerAddress
from esker.meta.manager import read_manager
from esker.meta.store.base import Retry
from esker.meta.store.opening import open_store
from esker.wire.errors import RequestFailed, UserError
from esker.wire.messages import (
    ClusterStatus,
    ClusterStatusReply,
    Heartbeat,
    HeartbeatReply,
    Join,
    JoinReply,
    Message,
    Method,
)
from esker.wire.meta_client import MetaClient
from esker.wire.rpc_client import Connection, TcpAddress
from esker.wire.status import Status

from ..conformance.fake_fdb import FakeFdb
from .conftest import worker
from .test_main import serving

SERVERS = 3


@pytest.fixture
def fdb(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeFdb]:
    fake = FakeFdb(Retry())
    monkeypatch.setitem(sys.modules, "fdb", fake)
    yield fake
    fake.stop()


@pytest.fixture
def config(fdb: FakeFdb, tmp_path: Path) -> MetaConfig:
    cluster_file = tmp_path / "fdb.cluster"
    cluster_file.write_text("test:id@127.0.0.1:4500\n")
    return MetaConfig(store=f"fdb:{cluster_file}", drives_expected=2, replicas=2)


class Servers:
    """Started ones in order; each can be stopped by itself."""

    def __init__(self) -> None:
        self.addresses: list[ServerAddress] = []
        self._running: list[AsyncExitStack] = []

    async def start(self, serving_one: AbstractAsyncContextManager[ServerAddress]) -> None:
        stack = AsyncExitStack()
        self.addresses.append(await stack.enter_async_context(serving_one))
        self._running.append(stack)

    async def stop(self, number: int) -> None:
        await self._running[number].aclose()

    async def stop_all(self) -> None:
        for stack in self._running:
            await stack.aclose()

    def named(self, number: int) -> str:
        return f"{self.addresses[number].host}:{self.addresses[number].port}"


@pytest.fixture
async def servers(config: MetaConfig) -> AsyncIterator[Servers]:
    made = Servers()
    try:
        for _ in range(SERVERS):
            await made.start(serving(config))
        yield made
    finally:
        await made.stop_all()


async def ask(servers: Servers, number: int, method: Method, body: Message, reply_type: type) -> Message:
    """One request to one server."""
    address = servers.addresses[number]
    connection = await Connection.connect(TcpAddress(address.host, address.port), role="tool")
    try:
        return await connection.call(method, body, reply_type, timeout_s=10)
    finally:
        await connection.aclose()


async def test_whichever_server_is_asked_the_manager_answers(servers: Servers) -> None:
    assert len({address.cluster_id for address in servers.addresses}) == 1
    first = await ask(servers, 1, Method.JOIN, Join(worker(0)), JoinReply)
    second = await ask(servers, 2, Method.JOIN, Join(worker(1)), JoinReply)
    assert len(second.routing.chains) == 2
    assert first.routing.meta_servers == tuple(sorted(servers.named(number) for number in range(SERVERS)))
    for number in range(SERVERS):
        beat = Heartbeat("d0", "first", second.routing.version, 7, 100)
        reply = await ask(servers, number, Method.HEARTBEAT, beat, HeartbeatReply)
        assert reply == HeartbeatReply(None, term=1)
        status = await ask(servers, number, Method.CLUSTER_STATUS, ClusterStatus(), ClusterStatusReply)
        assert (status.manager, status.term) == (servers.named(0), 1)
        assert status.engine == "foundationdb client 7.3.0, API 730"
        assert status.workers[0].used_bytes == 7
        assert status.workers[0].seconds_since_heartbeat >= 0


async def test_a_refusal_of_the_manager_is_passed_on(servers: Servers) -> None:
    await ask(servers, 0, Method.JOIN, Join(worker(0)), JoinReply)
    for number in range(SERVERS):
        with pytest.raises(RequestFailed, match="drive d0 is served by another worker now") as caught:
            await ask(servers, number, Method.HEARTBEAT, Heartbeat("d0", "older", 1, 0, 1), HeartbeatReply)
        assert caught.value.status is Status.FORBIDDEN


async def test_a_worker_that_came_back_through_another_server_is_known_at_once(servers: Servers) -> None:
    for incarnation in ("first", "second", "third"):
        for number in range(SERVERS):
            reply = await ask(servers, number, Method.JOIN, Join(worker(0, incarnation=incarnation)), JoinReply)
            beat = Heartbeat("d0", incarnation, reply.routing.version, 0, 1)
            assert (await ask(servers, (number + 1) % SERVERS, Method.HEARTBEAT, beat, HeartbeatReply)).term == 1


async def test_the_lease_moves_and_clients_go_on(servers: Servers, config: MetaConfig) -> None:
    client = MetaClient([TcpAddress(servers.addresses[0].host, servers.addresses[0].port)])
    routing = (await client.call(Method.JOIN, Join(worker(0)), JoinReply, timeout_s=10)).routing
    assert len(client.addresses) == SERVERS
    store = await open_store(config.store, fdb_prefix=config.fdb_prefix)
    await servers.stop(0)
    term = await read_manager(store)
    while not term.holder:
        assert await (await store.run(lambda transaction: transaction.watch(keys.MANAGER), what="watch")).wait(30)
        term = await read_manager(store)
    assert term.address in (servers.named(1), servers.named(2))

    status = await client.call(Method.CLUSTER_STATUS, ClusterStatus(), ClusterStatusReply, timeout_s=10)
    assert (status.manager, status.term) == (term.address, 2)
    assert status.routing.version > routing.version
    assert set(status.routing.meta_servers) == {servers.named(1), servers.named(2)}
    await client.aclose()
    await store.aclose()


async def test_servers_must_agree_on_the_clusters_figures(servers: Servers, config: MetaConfig) -> None:
    other = MetaConfig(store=config.store, drives_expected=3, replicas=2)
    with pytest.raises(UserError, match="made with drives 2, but drives 3 was asked"):
        async with serving(other):
            pass


async def test_two_clusters_share_a_database_under_their_prefixes(servers: Servers, config: MetaConfig) -> None:
    other = MetaConfig(store=config.store, drives_expected=3, replicas=1, fdb_prefix="other/")
    async with serving(other) as address:
        assert address.cluster_id != servers.addresses[0].cluster_id


async def test_an_address_that_reaches_nobody_is_refused(config: MetaConfig) -> None:
    everywhere = MetaConfig(store=config.store, drives_expected=2, replicas=2, host="0.0.0.0", insecure=True)
    with pytest.raises(UserError, match=r"0.0.0.0 is no address that others can reach; .*--advertise"):
        async with serving(everywhere):
            pass
