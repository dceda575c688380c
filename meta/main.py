"""The metadata server as a whole: configuration, start in an order that fails early, stop in the reverse order."""

import asyncio
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import msgspec

from esker.meta.cluster import check_sizes, found_cluster
from esker.meta.records import ClusterRecord
from esker.meta.server import MetaService, answers
from esker.meta.store.embedded import open_embedded
from esker.runtime.logging import get_logger
from esker.wire.listen import check_listen_address
from esker.wire.rpc_server import Identity, RpcServer

log = get_logger("meta")


class MetaConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything a metadata server is told at its start."""

    directory: str
    """Of its store; made if absent."""
    drives_expected: int
    """How many drives must have joined before the chains are made."""
    replicas: int
    host: str = "127.0.0.1"
    port: int = 0
    """0: any free one."""
    cluster_id: str = ""
    """Empty: what the store has, a new one at the first start."""
    insecure: bool = False
    """Listen on an address that other machines reach, without authentication."""


class ServerAddress(msgspec.Struct, frozen=True):
    """Where a started metadata server listens, and what it serves."""

    host: str
    port: int
    cluster_id: str


async def serve(config: MetaConfig, ready: Callable[[ServerAddress], None], stop: asyncio.Event) -> None:
    """Serve until `stop` is set. `ready` is called once requests are answered.

    Raises `UserError` for every mistake of the user: sizes, address, port in use, directory.
    """
    check_sizes(config.drives_expected, config.replicas)
    await check_listen_address(config.host, config.port, config.insecure)
    store = await open_embedded(Path(config.directory))
    try:
        fresh = ClusterRecord(
            cluster_id=config.cluster_id or uuid.uuid4().hex,
            drives_expected=config.drives_expected,
            replicas=config.replicas,
            created_ms=time.time_ns() // 1_000_000,
        )
        cluster = await found_cluster(store, fresh, any_id=not config.cluster_id)
        service = MetaService(store, probe=answers, store_statistics=store.statistics)
        server = RpcServer(service.handlers(), Identity(cluster.cluster_id, "", uuid.uuid4().hex))
        try:
            port = await server.listen_tcp(config.host, config.port)
            log.info("serving metadata", address=f"{config.host}:{port}", cluster=cluster.cluster_id)
            ready(ServerAddress(config.host, port, cluster.cluster_id))
            await stop.wait()
        finally:
            await server.aclose()
    finally:
        await store.aclose()
    log.info("stopped")
