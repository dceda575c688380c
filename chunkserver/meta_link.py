"""The worker's line to the metadata servers: join, heartbeats, new routing, and catalog reports in the background.

Nothing on the data path waits for it. Catalog reports are bounded: when no metadata server takes them for long, the
oldest are dropped and counted (the catalog is reconciled against the drives, which are the truth).
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable

from esker.chunkserver.cluster_view import ClusterView
from esker.runtime.counters import Counters
from esker.runtime.logging import get_logger
from esker.wire.errors import EskerError, RequestFailed, UserError
from esker.wire.limits import HEARTBEAT_INTERVAL_S
from esker.wire.messages import (
    CatalogEntry,
    CatalogReport,
    Empty,
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

CALL_TIMEOUT_S = 2.0
REPORT_INTERVAL_S = 0.5
REPORT_ENTRIES = 500
REPORTS_WAITING_MAX = 200_000
REJOIN_DELAY_S = 0.5


class MetaLink:
    """Keeps `view` up to date and reports for the worker that joined. `used_bytes` is asked at each heartbeat."""

    def __init__(
        self,
        meta: MetaClient,
        reports: MetaClient,
        view: ClusterView,
        counters: Counters,
        used_bytes: Callable[[], int],
    ) -> None:
        self._meta = meta
        self._reports_meta = reports
        self._own: Worker | None = None
        self._view = view
        self._counters = counters
        self._used_bytes = used_bytes
        self._reports: deque[CatalogEntry] = deque()
        self._joined = False
        self._beat_now = asyncio.Event()

    def refresh(self) -> None:
        """Somebody knows a newer routing than this worker: ask now, not at the next heartbeat."""
        self._beat_now.set()

    async def join(self, own: Worker, timeout_s: float) -> None:
        """Makes `own` known. Raises `EskerError` when no metadata server takes it within `timeout_s`."""
        self._own = own
        reply = await self._meta.call(Method.JOIN, Join(own), JoinReply, timeout_s=timeout_s)
        self._take(reply.routing)
        self._joined = True

    async def run(self) -> None:
        """Heartbeats and reports, until cancelled. Raises `UserError` when another worker serves this drive."""
        reports = asyncio.ensure_future(self._report_loop())
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
                    await self.join(own, CALL_TIMEOUT_S)
                await self._heartbeat(own)
                if silent:
                    log.info("a metadata server answers again")
                silent = False
            except EskerError as error:
                if isinstance(error, RequestFailed):
                    if error.status is Status.FORBIDDEN:
                        raise UserError(f"another worker serves drive {own.drive_id}: {error.message}") from error
                    self._joined = False  # a server that does not know this worker (any more)
                if not silent:
                    log.warning("no heartbeat got through; serving goes on", reason=str(error))
                silent = True
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(HEARTBEAT_INTERVAL_S):
                    await self._beat_now.wait()
            self._beat_now.clear()

    async def _heartbeat(self, own: Worker) -> None:
        routing = self._view.routing
        beat = Heartbeat(
            own.drive_id,
            own.incarnation,
            routing.version if routing is not None else 0,
            self._used_bytes(),
            own.capacity_bytes,
            tuple(sorted(self._view.offline_chains)),
        )
        reply = await self._meta.call(Method.HEARTBEAT, beat, HeartbeatReply, timeout_s=CALL_TIMEOUT_S)
        if reply.routing is not None:
            self._take(reply.routing)

    def _take(self, routing: Routing) -> None:
        self._view.take(routing)
        self._reports_meta.learn(routing.meta_servers)

    def report(self, entry: CatalogEntry) -> None:
        """Has the catalog told, soon."""
        if len(self._reports) >= REPORTS_WAITING_MAX:
            self._reports.popleft()
            self._counters.add("catalog_reports_dropped")
        self._reports.append(entry)

    async def _report_loop(self) -> None:
        while True:
            await asyncio.sleep(REPORT_INTERVAL_S)
            while self._reports:
                if not await self.flush_reports(CALL_TIMEOUT_S):
                    break

    async def flush_reports(self, timeout_s: float) -> bool:
        """Sends one batch of what waits. False: it was not taken and waits on."""
        batch = [self._reports.popleft() for _ in range(min(REPORT_ENTRIES, len(self._reports)))]
        if not batch:
            return True
        try:
            await self._reports_meta.call(
                Method.CATALOG_REPORT, CatalogReport(tuple(batch)), Empty, timeout_s=timeout_s
            )
        except RequestFailed as error:
            if error.status is Status.BAD_REQUEST:
                self._counters.add("catalog_reports_dropped", len(batch))
                log.warning("the catalog refused a report", reason=str(error))
                return True
            self._reports.extendleft(reversed(batch))
            return False
        except EskerError:
            self._reports.extendleft(reversed(batch))
            return False
        except asyncio.CancelledError:
            self._reports.extendleft(reversed(batch))
            raise
        return True

    async def aclose(self) -> None:
        """Ends the connections."""
        await self._meta.aclose()
        await self._reports_meta.aclose()
