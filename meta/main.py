"""The metadata server as a whole: configuration, start in an order that fails early, stop in the reverse order."""

import asyncio
import ipaddress
import time
import uuid
from collections.abc import Callable, Sequence

import msgspec

from esker.meta.admin_drives import TcpDrives
from esker.meta.admin_removal import RemovalJob
from esker.meta.chain_manager import ChainManager
from esker.meta.cluster import check_sizes, found_cluster
from esker.meta.manager_link import TcpManagerLink
from esker.meta.presence import Presence
from esker.meta.records import ClusterRecord
from esker.meta.server import MetaService, answers
from esker.meta.store.base import Store
from esker.meta.store.opening import open_store
from esker.runtime.logging import get_logger
from esker.wire.errors import UserError
from esker.wire.listen import check_listen_address
from esker.wire.rpc_server import Identity, RpcServer

log = get_logger("meta")


class MetaConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything a metadata server is told at its start."""

    store: str
    """`embedded:DIRECTORY` (made if absent) or `fdb:CLUSTER_FILE`."""
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
    advertise: str = ""
    """Host under which clients, workers and other metadata servers reach this one; empty: `host`."""
    fdb_prefix: str = "esker/"
    """Of every key in FoundationDB, as others may use the same database."""


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
    store = await open_store(config.store, fdb_prefix=config.fdb_prefix)
    try:
        reached_at = _reached_at(config, alone=store.exclusive)
        fresh = ClusterRecord(
            cluster_id=config.cluster_id or uuid.uuid4().hex,
            drives_expected=config.drives_expected,
            replicas=config.replicas,
            created_ms=time.time_ns() // 1_000_000,
        )
        cluster = await found_cluster(store, fresh, any_id=not config.cluster_id)
        await _serve_cluster(config, store, cluster.cluster_id, reached_at, ready, stop)
    finally:
        await store.aclose()
    log.info("stopped")


async def _serve_cluster(
    config: MetaConfig,
    store: Store,
    cluster_id: str,
    reached_at: str,
    ready: Callable[[ServerAddress], None],
    stop: asyncio.Event,
) -> None:
    incarnation = uuid.uuid4().hex
    presence = Presence(store, incarnation, clock=boot_clock)
    link = TcpManagerLink(cluster_id)
    service = MetaService(store, presence, link, probe=answers, clock=boot_clock)
    removals = RemovalJob(store, presence.manager, presence.routing, TcpDrives(cluster_id))
    chains = ChainManager(
        store, presence.manager, presence.routing, service.heartbeats, service.fences, clock=boot_clock
    )
    server = RpcServer(service.handlers(), Identity(cluster_id, "", incarnation))
    try:
        port = await server.listen_tcp(config.host, config.port)
        await presence.start(reached_at and f"{reached_at}:{port}")
        removals.start()
        chains.start()
        log.info("serving metadata", address=f"{config.host}:{port}", cluster=cluster_id, store=store.engine)
        ready(ServerAddress(config.host, port, cluster_id))
        await _until(stop, (*presence.tasks, *removals.tasks, *chains.tasks))
    finally:
        await chains.aclose()
        await removals.aclose()
        await presence.aclose()
        await server.aclose()
        await link.aclose()


async def _until(stop: asyncio.Event, background: Sequence[asyncio.Task[None]]) -> None:
    """Until `stop` is set. Raises what ended one of the tasks: no server may hold the manager lease and not do the
    manager's work.
    """
    stopping = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait((stopping, *background), return_when=asyncio.FIRST_COMPLETED)
        for task in background:
            if task.done():
                task.result()
    finally:
        stopping.cancel()


def _reached_at(config: MetaConfig, *, alone: bool) -> str:
    """The host that others are told, in brackets if it is an IPv6 address; empty: they are not told."""
    host = config.advertise or config.host
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    if not address.is_unspecified:
        return f"[{address}]" if address.version == 6 else host
    if config.advertise or not alone:
        raise UserError(f"{host} is no address that others can reach; give one of this machine's with --advertise")
    return ""  # Whoever found this only server needs not be told.


def boot_clock() -> float:
    """Seconds since the machine started, those of its suspension included."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
