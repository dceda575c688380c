"""Keeps an open namespace's layouts up to date: read again when the cluster map has other versions of its chain table.

Owns when to ask, and for how long. What comes is taken over only if it is of the same namespace and a later epoch; a
namespace that was removed meanwhile stays as it is, and its workers refuse it.
"""

import asyncio

from esker.kvclient.keyspace import Keyspace
from esker.runtime.logging import get_logger
from esker.wire.errors import EskerError, RequestFailed
from esker.wire.messages import Method, NamespaceOpen, NamespaceReply
from esker.wire.meta_client import MetaClient
from esker.wire.status import Status
from esker.wire.types import Routing

log = get_logger("kvclient.layout")

ASK_TIMEOUT_S = 2.0
ASK_INTERVAL_S = 1.0
_FINAL = (Status.GEOMETRY, Status.NOT_FOUND, Status.BAD_REQUEST)


class LayoutFollower:
    """Of one keyspace. Tell it of each new cluster map, after the workers know it."""

    def __init__(self, meta: MetaClient, keyspace: Keyspace) -> None:
        self._meta = meta
        self._keyspace = keyspace
        self._versions = self._versions_in(keyspace.workers.routing)
        self._task: asyncio.Task[None] | None = None
        if max(self._versions, default=0) > keyspace.namespace.table_version:
            self._read_again()  # the table was extended after the namespace was opened

    def _versions_in(self, routing: Routing) -> frozenset[int]:
        table_id = self._keyspace.namespace.table_id
        return frozenset(table.version for table in routing.tables if table.table_id == table_id)

    def take(self, routing: Routing) -> None:
        """The cluster map is this one now."""
        versions = self._versions_in(routing)
        if versions != self._versions:
            self._versions = versions
            self._read_again()

    def _read_again(self) -> None:
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._read_until_taken())

    async def _read_until_taken(self) -> None:
        while True:
            versions = self._versions
            try:
                await self._read()
                if versions == self._versions:
                    return
            except EskerError as error:
                if isinstance(error, RequestFailed) and error.status in _FINAL:
                    log.warning("the namespace cannot be opened again", reason=str(error))
                    return
                log.debug("the namespace's layout could not be read", reason=str(error))
                await asyncio.sleep(ASK_INTERVAL_S)

    async def _read(self) -> None:
        """Asks, and takes over what is new. Raises `EskerError`, also where the cluster map is older than that."""
        keyspace = self._keyspace
        namespace = keyspace.namespace
        opening = NamespaceOpen(namespace.name, namespace.geometry, False, namespace.mode)
        reply = await self._meta.call(Method.NAMESPACE_OPEN, opening, NamespaceReply, timeout_s=ASK_TIMEOUT_S)
        if reply.namespace.namespace_id != namespace.namespace_id:
            log.warning("the namespace was removed and made again; open it anew", name=namespace.name)
        elif reply.namespace.layout_epoch > namespace.layout_epoch:
            keyspace.adopt(reply)
            log.info("the namespace has another layout", name=namespace.name, epoch=reply.namespace.layout_epoch)

    async def aclose(self) -> None:
        """Ends a question under way."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
