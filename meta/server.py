"""The metadata server's methods: what each request does, and how the store's errors travel.

Everything that must survive is in the store; heartbeats, caches and counters are not. Heartbeats and what they tell
are the manager's: a server that is not the manager passes such requests on, and where no manager answers serves them
as far as it can. A request that met contention until its deadline fails as CONFLICT, one that the store cannot serve
as UNAVAILABLE, both with the reason.
"""

import os
from collections.abc import Awaitable, Callable
from typing import TypeVar

import msgspec

from esker.meta.admin import AdminService
from esker.meta.cache_table import CacheTable
from esker.meta.catalog import Catalog
from esker.meta.chain_overrides import ChainOverrides
from esker.meta.chain_setup import ChainSetup
from esker.meta.cluster import Probe, join
from esker.meta.fences import Fences
from esker.meta.heartbeats import Heartbeats, catalog_note, cluster_note
from esker.meta.manager import NotManager, read_manager
from esker.meta.manager_link import FORWARD_TIMEOUT_S, ManagerLink
from esker.meta.namespaces import list_namespaces, open_namespace
from esker.meta.presence import Presence
from esker.meta.store.base import Store
from esker.meta.store.errors import RetriesExhausted, StoreError
from esker.runtime.counters import Counters
from esker.runtime.logging import get_logger
from esker.wire.admin_messages import (
    CatalogGet,
    Expand,
    ForgetDrives,
    MetaChange,
    MetaPage,
    NamespaceFiguresGet,
    NamespaceRemove,
    SetGoals,
)
from esker.wire.errors import ConnectionFailed, DeadlineExceeded, RequestFailed
from esker.wire.limits import HEARTBEAT_INTERVAL_S
from esker.wire.messages import (
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
    Message,
    Method,
    NamespaceList,
    NamespaceListReply,
    NamespaceOpen,
    NamespaceReply,
    RoutingReply,
    StatsReply,
)
from esker.wire.override_messages import ForceChain, ForceChainReply, SetMinReplicas, SetMinReplicasReply
from esker.wire.rpc_client import Connection, TcpAddress
from esker.wire.rpc_server import Handler, unary
from esker.wire.status import Status
from esker.wire.types import Routing, Worker

log = get_logger("meta")

M = TypeVar("M", bound=Message)
R = TypeVar("R", bound=Message)

PROBE_TIMEOUT_S = HEARTBEAT_INTERVAL_S
OVERRIDE_TIMEOUT_S = 3.0
"""How long the manager is waited for with what only it may do."""


class MetaService:
    """Serves one store. `handlers` are for an `RpcServer`."""

    def __init__(
        self,
        store: Store,
        presence: Presence,
        link: ManagerLink,
        *,
        probe: Probe,
        clock: Callable[[], float],
        random_bytes: Callable[[int], bytes] = os.urandom,
    ) -> None:
        self._store = store
        self._manager = presence.manager
        self._link = link
        self._probe = probe
        self._clock = clock
        self._random_bytes = random_bytes
        self._routing = presence.routing
        self._chain_setup = ChainSetup(store)
        self._cache_table = CacheTable()
        self.heartbeats = Heartbeats()
        """What the workers last said of themselves, to this server."""
        self.fences = Fences()
        """What replies to heartbeats withhold while this server is the manager."""
        self._read_in_term = 0
        self._overrides = ChainOverrides(presence.manager, presence.routing, self.heartbeats)
        self._catalog = Catalog(store)
        self._admin = AdminService(store, self._catalog)
        self._counters = Counters()

    def handlers(self) -> dict[Method, Handler]:
        """One per method that a metadata server answers."""
        return {
            Method.JOIN: self._unary(Join, self.join),
            Method.HEARTBEAT: self._unary(Heartbeat, self.heartbeat),
            Method.ROUTING: self._unary(GetRouting, self.routing),
            Method.NAMESPACE_OPEN: self._unary(NamespaceOpen, self.namespace_open),
            Method.NAMESPACE_LIST: self._unary(NamespaceList, self.namespace_list),
            Method.CATALOG_REPORT: self._unary(CatalogReport, self.catalog_report),
            Method.CATALOG_LIST: self._unary(CatalogList, self.catalog_list),
            Method.CLUSTER_STATUS: self._unary(ClusterStatus, self.cluster_status),
            Method.STATS: self._unary(Empty, self.stats),
            Method.FORCE_CHAIN: self._unary(ForceChain, self.force_chain),
            Method.SET_MIN_REPLICAS: self._unary(SetMinReplicas, self.set_min_replicas),
            Method.CATALOG_GET: self._unary(CatalogGet, self._admin.catalog_get),
            Method.NAMESPACE_FIGURES: self._unary(NamespaceFiguresGet, self._admin.namespace_figures),
            Method.NAMESPACE_REMOVE: self._unary(NamespaceRemove, self._admin.namespace_remove),
            Method.SET_GOALS: self._unary(SetGoals, self._admin.set_goals),
            Method.EXPAND: self._unary(Expand, self._admin.expand),
            Method.FORGET_DRIVES: self._unary(ForgetDrives, self._admin.forget_drives),
            Method.META_PAGE: self._unary(MetaPage, self._admin.meta_page),
            Method.META_SNAPSHOT: self._admin.snapshot_handler(),
            Method.META_CHANGE: self._unary(MetaChange, self._admin.meta_change),
        }

    async def join(self, request: Join) -> JoinReply:
        """Record the worker; make the chains if it was the last drive that was missing."""
        worker = request.worker
        await join(self._store, worker, self._probe, request.lives)
        made = await self._chain_setup.ensure()
        routing = await self._routing.newest()
        log.info("a worker joined", drive=worker.drive_id, node=worker.node_id, address=f"{worker.host}:{worker.port}")
        if made:
            log.info("made the chains", chains=len(routing.chains), drives=len(routing.workers), note=_note(routing))
        return JoinReply(routing)

    async def heartbeat(self, request: Heartbeat) -> HeartbeatReply:
        """Note the heartbeat; hand out the routing where the worker's is old.

        The manager's reply has its term, which renews the worker's lease: only while the manager's own lease runs, and
        only for what the cluster map that it read in this term says.
        """
        if not request.forwarded:
            passed_on = await self._from_manager(Method.HEARTBEAT, request, HeartbeatReply)
            if passed_on is not None:
                return passed_on
        term = await self._ready_term()
        await self._routing.recent(at_least=request.routing_version)
        try:
            return self._noted(request, term)
        except RequestFailed:
            # A join through another server a moment ago may not have been noticed here yet.
            await self._routing.newest()
            return self._noted(request, term)

    def _noted(self, request: Heartbeat, term: int) -> HeartbeatReply:
        """The reply, which tells what holds at one moment: nothing may be awaited in here."""
        routing = self._routing.known
        assert routing is not None, "the caller has read it"
        self.heartbeats.note(request, routing, self._clock())
        newer = routing if routing.version != request.routing_version else None
        if not term or self._manager.term != term:
            return HeartbeatReply(newer)
        return HeartbeatReply(newer, term, self.fences.withheld(request.drive_id))

    async def _ready_term(self) -> int:
        """The term in which this server may acknowledge heartbeats; 0: in none.

        A new manager must first read what its predecessors committed.
        """
        term = self._manager.term
        if term and term != self._read_in_term:
            await self._routing.newest()
            self._read_in_term = term
        return term

    async def routing(self, request: GetRouting) -> RoutingReply:
        """The routing, unless the caller has it."""
        routing = await self._routing.recent(at_least=request.known_version)
        return RoutingReply(routing if routing.version != request.known_version else None)

    async def namespace_open(self, request: NamespaceOpen) -> NamespaceReply:
        """See `namespaces.open_namespace`."""
        reply, made = await open_namespace(self._store, request, self._random_bytes, self._cache_table)
        if made:
            await self._routing.newest()  # it may have been the first of its mode, with chains made for it
            log.info("made a namespace", name=request.name, id=reply.namespace.namespace_id)
        return reply

    async def namespace_list(self, request: NamespaceList) -> NamespaceListReply:
        """See `namespaces.list_namespaces`."""
        return await list_namespaces(self._store)

    async def catalog_report(self, request: CatalogReport) -> Empty:
        """See `Catalog.report`."""
        passed_over = await self._catalog.report(request)
        self._counters.add("catalog_entries", len(request.entries))
        if passed_over:
            self._counters.add("catalog_entries_of_no_namespace", passed_over)
        return Empty()

    async def catalog_list(self, request: CatalogList) -> CatalogListReply:
        """See `Catalog.page`."""
        return await self._catalog.page(request)

    async def cluster_status(self, request: ClusterStatus) -> ClusterStatusReply:
        """The cluster as an operator sees it."""
        if not request.forwarded:
            passed_on = await self._from_manager(Method.CLUSTER_STATUS, request, ClusterStatusReply)
            if passed_on is not None:
                return passed_on
        routing = await self._routing.newest()
        totals = await self._catalog.totals()
        blocks = sum(count for count, _ in totals.values())
        workers = self.heartbeats.statuses(routing, self._clock())
        recorded = await read_manager(self._store)
        engine = f"{self._store.engine} {await self._store.version()}".strip()
        note = "; ".join(
            filter(None, (cluster_note(routing), self.heartbeats.network_note(routing), catalog_note(workers)))
        )
        return ClusterStatusReply(routing, workers, blocks, note, recorded.address, recorded.term, engine)

    async def force_chain(self, request: ForceChain) -> ForceChainReply:
        """See `ChainOverrides.force_chain`."""
        return await self._by_manager(
            Method.FORCE_CHAIN, request, ForceChainReply, lambda: self._overrides.force_chain(request, self._clock())
        )

    async def set_min_replicas(self, request: SetMinReplicas) -> SetMinReplicasReply:
        """See `ChainOverrides.set_min_replicas`."""
        return await self._by_manager(
            Method.SET_MIN_REPLICAS,
            request,
            SetMinReplicasReply,
            lambda: self._overrides.set_min_replicas(request),
        )

    async def stats(self, request: Empty) -> StatsReply:
        """Counters since the start, and the catalog's totals."""
        totals = await self._catalog.totals()
        figures = {
            "blocks": sum(blocks for blocks, _ in totals.values()),
            "block_bytes": sum(size for _, size in totals.values()),
        }
        return StatsReply(self._counters.snapshot() | self._store.statistics() | figures)

    async def _by_manager(
        self,
        method: Method,
        request: ForceChain | SetMinReplicas,
        reply_type: type[R],
        carry_out: Callable[[], Awaitable[R]],
    ) -> R:
        """What only the manager may do, by whichever server is it. Raises `RequestFailed` (UNAVAILABLE) without one."""
        if not request.forwarded:
            passed_on = await self._from_manager(method, request, reply_type, OVERRIDE_TIMEOUT_S)
            if passed_on is not None:
                return passed_on
        try:
            if not self._manager.term:
                raise NotManager(method.name)
            return await carry_out()
        except NotManager as error:
            raise RequestFailed(
                Status.UNAVAILABLE, "no metadata server acts as the manager at the moment; try again in a few seconds"
            ) from error

    async def _from_manager(
        self,
        method: Method,
        request: Heartbeat | ClusterStatus | ForceChain | SetMinReplicas,
        reply_type: type[R],
        timeout_s: float = FORWARD_TIMEOUT_S,
    ) -> R | None:
        """The reply of the manager, if that is another server and answers."""
        address = self._manager.recorded.address
        if self._manager.term or address in ("", self._manager.address):
            return None
        passed_on = msgspec.structs.replace(request, forwarded=True)
        return await self._link.forward(address, method, passed_on, reply_type, timeout_s)

    def _unary(self, request_type: type[M], function: Callable[[M], Awaitable[R]]) -> Handler:
        """`function` as a handler: counted, with the store's errors as statuses."""
        name = function.__name__

        async def served(request: M) -> R:
            self._counters.add(f"requests_{name}")
            try:
                return await function(request)
            except StoreError as error:
                if isinstance(error, RetriesExhausted) and error.contended:
                    self._counters.add(f"conflicts_{name}")
                    raise RequestFailed(Status.CONFLICT, str(error)) from error
                self._counters.add("store_errors")
                log.error("the metadata store failed a request", method=name, reason=str(error))
                raise RequestFailed(Status.UNAVAILABLE, str(error)) from error

        return unary(request_type, served)


def _note(routing: Routing) -> str:
    return cluster_note(routing) or "none"


async def answers(worker: Worker) -> bool:
    """Whether the worker's very incarnation answers at its address: the `Probe` of a real cluster."""
    address = TcpAddress(worker.host, worker.port)
    try:
        connection = await Connection.connect(address, role="tool", timeout_s=PROBE_TIMEOUT_S)
    except (ConnectionFailed, RequestFailed, DeadlineExceeded):
        return False
    await connection.aclose()
    return connection.peer.incarnation == worker.incarnation
