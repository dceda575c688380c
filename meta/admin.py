"""The metadata server's methods for operators' tools; none of them is needed to store or read a block."""

import time
from collections.abc import Callable

from esker.meta.admin_growth import expand, forget_drives, set_goals
from esker.meta.admin_namespaces import begin_removal, namespace_figures
from esker.meta.admin_raw import meta_change, meta_page, meta_snapshot
from esker.meta.catalog import Catalog
from esker.meta.store.base import Store
from esker.meta.store.errors import StoreError
from esker.runtime.logging import get_logger
from esker.wire.admin_messages import (
    CatalogGet,
    Expand,
    ExpandReply,
    ForgetDrives,
    GrowthReply,
    MetaChange,
    MetaChangeReply,
    MetaPage,
    MetaPageReply,
    NamespaceFiguresGet,
    NamespaceFiguresReply,
    NamespaceRemove,
    NamespaceRemoveReply,
    SetGoals,
)
from esker.wire.messages import CatalogListReply
from esker.wire.rpc_server import Handler, Request
from esker.wire.status import Status

log = get_logger("meta.admin")


def now_ms() -> int:
    """Milliseconds since 1970, for people; nothing is decided by it."""
    return time.time_ns() // 1_000_000


class AdminService:
    """Serves one store."""

    def __init__(self, store: Store, catalog: Catalog, wall_ms: Callable[[], int] = now_ms) -> None:
        self._store = store
        self._catalog = catalog
        self._wall_ms = wall_ms

    async def catalog_get(self, request: CatalogGet) -> CatalogListReply:
        """See `Catalog.some`."""
        return await self._catalog.some(request)

    async def namespace_figures(self, request: NamespaceFiguresGet) -> NamespaceFiguresReply:
        """See `admin_namespaces.namespace_figures`."""
        return await namespace_figures(self._store, request)

    async def namespace_remove(self, request: NamespaceRemove) -> NamespaceRemoveReply:
        """See `admin_namespaces.begin_removal`."""
        reply = await begin_removal(self._store, request, self._wall_ms())
        for namespace in reply.removed:
            log.info("a namespace is being removed", name=namespace.name, id=namespace.namespace_id)
        return reply

    async def set_goals(self, request: SetGoals) -> GrowthReply:
        """See `admin_growth.set_goals`."""
        reply = await set_goals(self._store, request, self._wall_ms())
        leaving = ", ".join(each.drive_id for each in request.leaving)
        log.info("chains get other drives", chains=len(request.goals), leaving=leaving)
        return reply

    async def expand(self, request: Expand) -> ExpandReply:
        """See `admin_growth.expand`."""
        reply = await expand(self._store, request)
        log.info("a chain table has grown", table=request.table_id, version=reply.table_version, chains=reply.chain_ids)
        return reply

    async def forget_drives(self, request: ForgetDrives) -> GrowthReply:
        """See `admin_growth.forget_drives`."""
        reply = await forget_drives(self._store, request, self._wall_ms())
        log.info("drives were removed from the cluster", drives=", ".join(request.drives))
        return reply

    async def meta_page(self, request: MetaPage) -> MetaPageReply:
        """See `admin_raw.meta_page`."""
        return await meta_page(self._store, request)

    async def meta_change(self, request: MetaChange) -> MetaChangeReply:
        """See `admin_raw.meta_change`."""
        reply = await meta_change(self._store, request)
        log.warning("metadata was changed by an operator's tool", why=request.why, rows=len(request.rows))
        return reply

    def snapshot_handler(self) -> Handler:
        """META_SNAPSHOT: many replies to one request."""

        def handle(request: Request) -> None:
            request.connection.server.spawn(self._send_snapshot(request))

        return handle

    async def _send_snapshot(self, request: Request) -> None:
        try:
            pages = await meta_snapshot(self._store)
        except StoreError as error:
            request.fail(Status.UNAVAILABLE, str(error))
            return
        for page in pages:
            request.reply(page, more=not page.over)
