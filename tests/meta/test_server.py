"""How the store's errors travel to clients."""

import pytest

from esker.meta import keys
from esker.meta.cluster import found_cluster
from esker.meta.server import MetaService
from esker.meta.store.base import Retry, Store, Transaction
from esker.meta.store.memory import MemoryStore
from esker.wire.errors import RequestFailed
from esker.wire.messages import Empty, Join, JoinReply, Method
from esker.wire.rpc_client import Connection, TcpAddress
from esker.wire.rpc_server import Identity, RpcServer
from esker.wire.status import Status

from .conftest import cluster_record, dead, worker


async def call_join(store: Store) -> JoinReply:
    """One JOIN request over the wire."""
    server = RpcServer(MetaService(store, probe=dead).handlers(), Identity("c1", "", "i"))
    port = await server.listen_tcp("127.0.0.1", 0)
    connection = await Connection.connect(TcpAddress("127.0.0.1", port), role="tool")
    try:
        return await connection.call(Method.JOIN, Join(worker(1)), JoinReply, timeout_s=10)
    finally:
        await connection.aclose()
        await server.aclose()


async def test_a_damaged_store_is_unavailable_and_says_why(store: Store) -> None:
    await found_cluster(store, cluster_record(), any_id=True)

    async def damage(transaction: Transaction) -> None:
        transaction.set(keys.CLUSTER, b"\x63garbage")

    await store.run(damage, what="test")
    with pytest.raises(RequestFailed, match="has format 63, this esker reads 1") as caught:
        await call_join(store)
    assert caught.value.status == Status.UNAVAILABLE


async def test_contention_until_the_deadline_is_a_conflict() -> None:
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
    assert caught.value.status == Status.CONFLICT
    lost = False
    assert (await call_join(store)).routing.workers == (worker(1),)
    await store.aclose()


async def test_statistics_hold_the_stores_own(store: Store) -> None:
    await found_cluster(store, cluster_record(), any_id=True)
    service = MetaService(store, probe=dead, store_statistics=lambda: {"store_commits": 3})
    reply = await service.stats(Empty())
    assert reply.counters == {"blocks": 0, "block_bytes": 0, "store_commits": 3}
