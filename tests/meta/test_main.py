"""The metadata server as clients and workers meet it: over the wire, through restarts and users' mistakes."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from esker.meta.chain_manager import ChainManager
from esker.meta.main import MetaConfig, ServerAddress, serve
from esker.wire.errors import RequestFailed, UserError
from esker.wire.messages import (
    CatalogEntry,
    CatalogList,
    CatalogListReply,
    CatalogReport,
    ClusterStatus,
    ClusterStatusReply,
    Empty,
    GetRouting,
    Heartbeat,
    HeartbeatReply,
    Join,
    JoinReply,
    Method,
    NamespaceList,
    NamespaceListReply,
    NamespaceOpen,
    NamespaceReply,
    RoutingReply,
    StatsReply,
)
from esker.wire.rpc_client import Connection, TcpAddress
from esker.wire.rpc_server import Identity, RpcServer
from esker.wire.status import Status
from esker.wire.types import Geometry

from .conftest import worker

Started = Callable[..., AbstractAsyncContextManager[tuple[ServerAddress, Connection]]]


@asynccontextmanager
async def serving(config: MetaConfig) -> AsyncIterator[ServerAddress]:
    """A server that is stopped, and must stop without an error, at the end."""
    stop = asyncio.Event()
    ready: asyncio.Future[ServerAddress] = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(serve(config, ready.set_result, stop))
    await asyncio.wait([task, ready], return_when=asyncio.FIRST_COMPLETED)
    try:
        if task.done():
            task.result()
        yield ready.result()
    finally:
        stop.set()
        await task


@pytest.fixture
def start(tmp_path: Path) -> Started:
    """Starts a server of two drives and two replicas in the test's directory, with a connection to it."""

    @asynccontextmanager
    async def started(**changes: object) -> AsyncIterator[tuple[ServerAddress, Connection]]:
        config = MetaConfig(store=f"embedded:{tmp_path}/meta", drives_expected=2, replicas=2)
        async with serving(msgspec.structs.replace(config, **changes)) as address:
            connection = await Connection.connect(TcpAddress(address.host, address.port), role="tool")
            try:
                yield address, connection
            finally:
                await connection.aclose()

    return started


async def join(connection: Connection, number: int, **changes: object) -> JoinReply:
    return await connection.call(Method.JOIN, Join(worker(number, **changes)), JoinReply, timeout_s=10)


async def open_namespace(connection: Connection) -> NamespaceReply:
    request = NamespaceOpen("kv", Geometry(block_bytes_max=65536))
    return await connection.call(Method.NAMESPACE_OPEN, request, NamespaceReply, timeout_s=10)


async def test_a_cluster_comes_up_and_outlives_a_restart(start: Started) -> None:
    async with start() as (address, connection):
        assert connection.peer.cluster_id == address.cluster_id
        assert connection.peer.drive_id == ""
        with pytest.raises(RequestFailed, match="0 of 2 drives have joined"):
            await open_namespace(connection)
        first = await join(connection, 0)
        assert first.routing.chains == ()
        second = await join(connection, 1)
        assert len(second.routing.chains) == 2

        heartbeat = Heartbeat("d0", "first", first.routing.version, 5, 100)
        reply = await connection.call(Method.HEARTBEAT, heartbeat, HeartbeatReply, timeout_s=10)
        assert reply == HeartbeatReply(second.routing, term=1)
        heartbeat = msgspec.structs.replace(heartbeat, routing_version=second.routing.version)
        reply = await connection.call(Method.HEARTBEAT, heartbeat, HeartbeatReply, timeout_s=10)
        assert reply.routing is None

        namespace = await open_namespace(connection)
        entries = tuple(CatalogEntry(1, bytes([n]) * 16, b"k%d" % n, 100, 1, 5) for n in range(20))
        await connection.call(Method.CATALOG_REPORT, CatalogReport(entries), Empty, timeout_s=10)

    async with start() as (again, connection):
        assert again.cluster_id == address.cluster_id
        routing = await connection.call(Method.ROUTING, GetRouting(0), RoutingReply, timeout_s=10)
        changes = {"version": 0, "meta_servers": (), "namespace_last": 0, "namespaces": ()}
        assert msgspec.structs.replace(routing.routing, **changes) == msgspec.structs.replace(second.routing, **changes)
        assert (routing.routing.namespace_last, routing.routing.namespaces) == (1, (1,))
        assert second.routing.meta_servers == (f"127.0.0.1:{address.port}",)
        assert routing.routing.meta_servers == (f"127.0.0.1:{again.port}",)
        known = GetRouting(routing.routing.version)
        assert (await connection.call(Method.ROUTING, known, RoutingReply, timeout_s=10)).routing is None
        assert await open_namespace(connection) == namespace
        listed = await connection.call(Method.NAMESPACE_LIST, NamespaceList(), NamespaceListReply, timeout_s=10)
        assert listed.namespaces == (namespace.namespace,)
        page = await connection.call(Method.CATALOG_LIST, CatalogList(1, b"", 100), CatalogListReply, timeout_s=10)
        assert page.entries == entries
        status = await connection.call(Method.CLUSTER_STATUS, ClusterStatus(), ClusterStatusReply, timeout_s=10)
        assert status.blocks == 20
        assert (status.manager, status.term) == (f"127.0.0.1:{again.port}", 2)
        assert status.engine.startswith("embedded LMDB ")
        assert status.note.startswith("2 of 2 chains have replicas that share a node")
        assert [seen.seconds_since_heartbeat for seen in status.workers] == [-1.0, -1.0]
        stats = await connection.call(Method.STATS, Empty(), StatsReply, timeout_s=10)
        assert stats.counters["blocks"] == 20
        assert stats.counters["block_bytes"] == 2000
        assert stats.counters["requests_routing"] == 2


async def test_a_drive_is_not_taken_from_a_worker_that_answers(start: Started) -> None:
    serves_d0 = RpcServer({}, Identity("c1", "d0", "first"))
    port = await serves_d0.listen_tcp("127.0.0.1", 0)
    async with start() as (_, connection):
        await join(connection, 0, port=port)
        with pytest.raises(RequestFailed, match="drive d0 is served by a live worker") as caught:
            await join(connection, 0, incarnation="copy")
        assert caught.value.status == Status.FORBIDDEN
        await serves_d0.aclose()
        reply = await join(connection, 0, incarnation="second", port=port)
        assert [known.incarnation for known in reply.routing.workers] == ["second"]
        heartbeat = Heartbeat("d0", "first", 1, 0, 1)
        with pytest.raises(RequestFailed, match="served by another worker now") as caught:
            await connection.call(Method.HEARTBEAT, heartbeat, HeartbeatReply, timeout_s=10)
        assert caught.value.status == Status.FORBIDDEN


async def test_a_restarted_worker_on_the_same_port_is_taken(start: Started) -> None:
    restarted = RpcServer({}, Identity("c1", "d0", "second"))
    port = await restarted.listen_tcp("127.0.0.1", 0)
    async with start() as (_, connection):
        await join(connection, 0, port=port)
        reply = await join(connection, 0, port=port, incarnation="second")
        assert [known.incarnation for known in reply.routing.workers] == ["second"]
    await restarted.aclose()


async def test_a_drive_of_another_cluster_is_refused_at_the_handshake(start: Started) -> None:
    async with start() as (address, _):
        with pytest.raises(RequestFailed, match=f"this is cluster {address.cluster_id}") as caught:
            await Connection.connect(TcpAddress(address.host, address.port), role="worker", cluster_id="another")
        assert caught.value.status == Status.WRONG_CLUSTER


async def test_a_malformed_body_and_an_unknown_method(start: Started) -> None:
    async with start() as (_, connection):
        with pytest.raises(RequestFailed) as caught:
            await connection.call(Method.JOIN, Empty(), JoinReply, timeout_s=10)
        assert caught.value.status == Status.BAD_REQUEST
        with pytest.raises(RequestFailed) as caught:
            await connection.call(Method.READ, Empty(), Empty, timeout_s=10)
        assert caught.value.status == Status.BAD_REQUEST


@pytest.mark.parametrize(("changes", "message"), [
    ({"drives_expected": 3}, "made with drives 2, but drives 3 was asked"),
    ({"replicas": 1}, "made with replicas 2, but replicas 1 was asked"),
    ({"cluster_id": "mine"}, "but cluster id mine was asked"),
    ({"replicas": 3}, "replicas is 3; allowed with 2 drives: 1 to 2"),
    ({"host": "0.0.0.0"}, "can be reached from other machines.*--insecure"),
    ({"host": "::"}, "can be reached from other machines"),
    ({"host": "no such host"}, "cannot listen on 'no such host'"),
    ({"port": 70000}, "port is 70000; allowed: 0"),
    ({"advertise": "0.0.0.0"}, "0.0.0.0 is no address that others can reach"),
    ({"store": "elsewhere"}, "metadata store 'elsewhere'; write embedded:DIRECTORY or fdb:CLUSTER_FILE"),
    ({"store": "fdb:"}, "metadata store 'fdb:'; write"),
    ({"store": "fdb:/no/such/file"}, "cannot read the cluster file /no/such/file: no such file"),
])  # fmt: skip
async def test_mistakes_at_the_second_start(start: Started, changes: dict, message: str) -> None:
    async with start():
        pass
    with pytest.raises(UserError, match=message):
        async with start(**changes):
            pass
    async with start():
        pass


async def test_an_outside_address_when_it_was_asked_for(start: Started) -> None:
    async with start(host="0.0.0.0", insecure=True) as (address, _):
        assert address.host == "0.0.0.0"


@pytest.mark.parametrize(("changes", "told"), [
    ({}, ("127.0.0.1:",)),
    ({"host": "::1"}, ("[::1]:",)),
    ({"host": "0.0.0.0", "insecure": True}, ()),
    ({"host": "0.0.0.0", "insecure": True, "advertise": "meta-1.local"}, ("meta-1.local:",)),
])  # fmt: skip
async def test_the_address_that_others_are_told(start: Started, changes: dict, told: tuple[str, ...]) -> None:
    async with start(**changes) as (address, connection):
        reply = await connection.call(Method.ROUTING, GetRouting(0), RoutingReply, timeout_s=10)
        assert reply.routing.meta_servers == tuple(host + str(address.port) for host in told)


async def test_a_port_in_use(start: Started) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        with pytest.raises(UserError, match=r"cannot listen on 127\.0\.0\.1:.*choose another port"):
            async with start(port=other.getsockname()[1]):
                pass


async def test_a_directory_in_use(start: Started) -> None:
    async with start():
        with pytest.raises(UserError, match="in use by another metadata server"):
            async with start():
                pass


async def test_a_bug_in_the_background_ends_the_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def step(manager: ChainManager) -> None:
        raise AssertionError("a bug")

    monkeypatch.setattr(ChainManager, "step", step)
    config = MetaConfig(store=f"embedded:{tmp_path}/meta", drives_expected=2, replicas=2)
    async with asyncio.timeout(20):
        with pytest.raises(AssertionError, match="a bug"):
            await serve(config, lambda _: None, asyncio.Event())


def test_unknown_settings_are_refused() -> None:
    with pytest.raises(msgspec.ValidationError, match="unknown field `drives`"):
        msgspec.convert({"store": "embedded:d", "drives": 2, "drives_expected": 2, "replicas": 1}, MetaConfig)
