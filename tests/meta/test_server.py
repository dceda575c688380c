"""How the store's errors travel to clients."""

from typing import TypeVar

import pytest

from esker.meta import keys, routing
from esker.meta.cluster import found_cluster
from esker.meta.records import ClusterRecord
from esker.meta.store.base import Retry, Store, Transaction
from esker.meta.store.memory import MemoryStore
from esker.wire.errors import RequestFailed
from esker.wire.messages import Empty, GetRouting, Join, JoinReply, Message, Method, RoutingReply
from esker.wire.rpc_client import Connection, TcpAddress
from esker.wire.rpc_server import Handler, Identity, RpcServer
from esker.wire.status import Status

from .conftest import cluster_record, service_of, worker

R = TypeVar("R", bound=Message)


async def call(handlers: dict[Method, Handler], method: Method, body: Message, reply_type: type[R]) -> R:
    """One request over the wire."""
    server = RpcServer(handlers, Identity("c1", "", "i"))
    port = await server.listen_tcp("127.0.0.1", 0)
    connection = await Connection.connect(TcpAddress("127.0.0.1", port), role="tool")
    try:
        return await connection.call(method, body, reply_type, timeout_s=10)
    finally:
        await connection.aclose()
        await server.aclose()


async def call_join(store: Store) -> JoinReply:
    return await call(service_of(store).handlers(), Method.JOIN, Join(worker(1)), JoinReply)


async def test_a_damaged_store_is_unavailable_and_says_why(store: Store) -> None:
    await found_cluster(store, cluster_record(), any_id=True)

    async def damage(transaction: Transaction) -> None:
        transaction.set(keys.CLUSTER, b"\x63garbage")

    await store.run(damage, what="test")
    with pytest.raises(RequestFailed, match="has format 63, this esker reads 1") as caught:
        await call_join(store)
    assert caught.value.status == Status.UNAVAILABLE


async def test_contention_until_the_deadline_is_a_conflict(monkeypatch: pytest.MonkeyPatch, store: Store) -> None:
    """Somebody else changes what was read, each time."""
    await found_cluster(store, cluster_record(), any_id=True)
    now_s = 0.0

    async def sleep(pause_s: float) -> None:
        nonlocal now_s
        now_s += pause_s

    store.retry = Retry(clock=lambda: now_s, sleep=sleep)
    reads = 0

    async def read_cluster(transaction: Transaction) -> ClusterRecord:
        nonlocal reads
        reads += 1
        await transaction.read_version()
        transaction.set(b"mine", b"")
        other = store.transaction()
        other.set(keys.ROUTING_VERSION, reads.to_bytes(8, "little"))
        await other.commit()
        return cluster_record()

    monkeypatch.setattr(routing, "read_cluster", read_cluster)
    with pytest.raises(RequestFailed, match=r"cluster map: not done within 5 s, .* contended: \\x02") as caught:
        await call(service_of(store).handlers(), Method.ROUTING, GetRouting(0), RoutingReply)
    assert caught.value.status == Status.CONFLICT
    assert reads > 3


async def test_a_store_that_never_tells_is_unavailable() -> None:
    now_s = 0.0

    async def sleep(pause_s: float) -> None:
        nonlocal now_s
        now_s += pause_s

    lost = False
    store = MemoryStore(Retry(clock=lambda: now_s, sleep=sleep), fault=lambda: "before" if lost else None)
    await found_cluster(store, cluster_record(), any_id=True)
    lost = True
    with pytest.raises(RequestFailed, match="join of drive d1: not done within 5 s") as caught:
        await call_join(store)
    assert caught.value.status == Status.UNAVAILABLE
    lost = False
    assert (await call_join(store)).routing.workers == (worker(1),)
    await store.aclose()


async def test_statistics_hold_the_stores_own(store: Store) -> None:
    await found_cluster(store, cluster_record(), any_id=True)
    reply = await service_of(store).stats(Empty())
    assert reply.counters == {"blocks": 0, "block_bytes": 0, "store_commits": 1}
