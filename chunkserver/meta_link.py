"""The worker's line to the metadata servers: join, heartbeats and new routing; beside it the catalog's reports go out.

A heartbeat that the manager acknowledges renews the worker's lease, from when it was sent, after the cluster map that
came with it was taken over. Nothing on the data path waits for it.
"""

import asyncio
import contextlib
from collections.abc import Callable

from esker.chunkserver.catalog_reports import CatalogReports
from esker.chunkserver.cluster_view import ClusterView
from esker.chunkserver.joins import JoinHistory
from esker.chunkserver.lease import Chains, Lease
from esker.runtime.logging import get_logger
from esker.wire.errors import EskerError, RequestFailed, UserError
from esker.wire.limits import HEARTBEAT_INTERVAL_S
from esker.wire.messages import (
    Heartbeat,
    HeartbeatReply,
    Join,
    JoinReply,
    Method,
)
from esker.wire.meta_client import MetaClient
from esker.wire.status import Status
from esker.wire.types import Routing, Worker

log = get_logger("chunkserver.meta")

JOIN_TIMEOUT_S = 2.0
HEARTBEAT_TIMEOUT_S = 1.4
"""A server that is silent gets half of it: another one can still renew a lease that the last heartbeat began."""
LEAVE_TIMEOUT_S = 0.5
BEAT_PAUSE_S = 0.02
"""At least between two heartbeats, however many ask for one."""


class MetaLink:
    """Keeps `view` up to date for the worker that joined.

    `used_bytes`, `resynced` (chains whose syncing replica is up to date, and those where it does not get on) and
    `unreachable` (drives to which this worker sends on and cannot) are asked at each heartbeat.
    """

    def __init__(
        self,
        meta: MetaClient,
        reports: CatalogReports,
        view: ClusterView,
        used_bytes: Callable[[], int],
        resynced: Callable[[], tuple[Chains, Chains]],
        lease: Lease,
        unreachable: Callable[[], tuple[str, ...]] = tuple,
        *,
        joins: JoinHistory,
    ) -> None:
        self._meta = meta
        self._reports = reports
        self._own: Worker | None = None
        self._view = view
        self._used_bytes = used_bytes
        self._resynced = resynced
        self._lease = lease
        self._unreachable = unreachable
        self._joins = joins
        self._number = 0
        self._joined = False
        self._beat_now = asyncio.Event()

    def refresh(self) -> None:
        """Somebody knows a newer routing than this worker: ask now, not at the next heartbeat."""
        self._beat_now.set()

    async def join(self, own: Worker, timeout_s: float) -> None:
        """Makes `own` known. Raises `EskerError` when no metadata server takes it within `timeout_s`."""
        self._own = own
        request = Join(own, self._joins.lives)
        reply = await self._meta.call(Method.JOIN, request, JoinReply, timeout_s=timeout_s)
        self._joins.joined()
        self._take(reply.routing)
        self._joined = True

    async def run(self) -> None:
        """Heartbeats and reports, until cancelled. Raises `UserError` when another worker serves this drive."""
        reports = asyncio.ensure_future(self._reports.run())
        try:
            await self._heartbeats()
        finally:
            reports.cancel()
            await asyncio.gather(reports, return_exceptions=True)

    async def _heartbeats(self) -> None:
        silent = False
        own = self._own
        assert own is not None, "join comes first"
        while True:
            try:
                if not self._joined:
                    await self.join(own, JOIN_TIMEOUT_S)
                await self._heartbeat(own)
                if silent:
                    log.info("a metadata server answers again")
                silent = False
            except EskerError as error:
                if isinstance(error, RequestFailed):
                    if error.status is Status.FORBIDDEN:
                        # Another worker serves the drive, or it was removed, or this is an earlier copy of it.
                        raise UserError(error.message) from error
                    self._joined = False  # a server that does not know this worker (any more)
                if not silent:
                    log.warning("no heartbeat got through; serving goes on", reason=str(error))
                silent = True
            await asyncio.sleep(BEAT_PAUSE_S)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(HEARTBEAT_INTERVAL_S - BEAT_PAUSE_S):
                    await self._beat_now.wait()
            self._beat_now.clear()

    async def leave(self) -> None:
        """Serves no more: tells the manager, if it listens, so that the chains go on without this worker at once."""
        self._lease.end()
        if self._own is not None and self._joined:
            with contextlib.suppress(EskerError):
                await self._heartbeat(self._own, leaving=True, timeout_s=LEAVE_TIMEOUT_S)

    async def _heartbeat(self, own: Worker, *, leaving: bool = False, timeout_s: float = HEARTBEAT_TIMEOUT_S) -> None:
        routing = self._view.routing
        synced, stalled = self._resynced()
        stopped = self._lease.stopped
        self._number += 1
        sent_s = self._lease.now_s()
        beat = Heartbeat(
            own.drive_id,
            own.incarnation,
            routing.version if routing is not None else 0,
            self._used_bytes(),
            own.capacity_bytes,
            tuple(sorted(self._view.offline_chains)),
            catalog=self._reports.lag(),
            synced=synced,
            stalled=stalled,
            number=self._number,
            term=self._lease.term,
            stopped=stopped,
            unreachable=self._unreachable(),
            leaving=leaving,
        )
        reply = await self._meta.call(Method.HEARTBEAT, beat, HeartbeatReply, timeout_s=timeout_s)
        if reply.routing is not None:
            self._take(reply.routing)
        if reply.term:
            self._lease.renew(sent_s, reply.term, reply.withheld)
            if set(self._lease.stopped) - set(stopped):
                self.refresh()  # The manager waits to hear that this worker has stopped.

    def _take(self, routing: Routing) -> None:
        self._view.take(routing)
        self._reports.learn(routing.meta_servers)

    async def aclose(self) -> None:
        """Ends the connection."""
        await self._meta.aclose()
