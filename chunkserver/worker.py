"""One drive's worker process: opens the drive, serves it, and tells its supervisor through stdout.

Started as `python -m esker.chunkserver.worker CONFIG` with a pipe as stdin, whose end stops it. Lines on stdout are
JSON objects: `ready` once it serves, then `alive` every second; or `failed` with the reason. Its exit code then says
whether the same start may succeed later (`EXIT_NOT_NOW`) or somebody has to change something (`EXIT_USER_ERROR`).
"""

import asyncio
import errno
import json
import os
import sys
import uuid

import msgspec

from esker.chunkserver.catalog_reports import CatalogReports
from esker.chunkserver.cluster_view import ClusterView
from esker.chunkserver.config import WorkerConfig
from esker.chunkserver.engine.errors import DriveOwned, NotNow
from esker.chunkserver.engine.io import IoEngine, open_engine
from esker.chunkserver.engine.store import DriveStore
from esker.chunkserver.joins import JoinHistory
from esker.chunkserver.lease import Lease
from esker.chunkserver.lookups import LookupService
from esker.chunkserver.memories import ClientMemories
from esker.chunkserver.meta_link import MetaLink
from esker.chunkserver.mutable_part import MutablePart
from esker.chunkserver.pool import WorkerPool
from esker.chunkserver.reads import ReadService
from esker.chunkserver.resync import ResyncService
from esker.chunkserver.runner import ReplicaRunner
from esker.chunkserver.scan import ScanService
from esker.chunkserver.upkeep import Upkeep
from esker.chunkserver.writes import WriteService
from esker.runtime import logging
from esker.runtime.counters import Counters
from esker.runtime.errors import SettingError
from esker.runtime.hostid import boot_id, socket_path
from esker.runtime.process import run
from esker.wire.errors import EskerError, RequestFailed, UserError
from esker.wire.messages import Method, StatsReply
from esker.wire.meta_client import MetaClient, parse_addresses
from esker.wire.rpc_server import Handler, Identity, Request, RpcServer
from esker.wire.status import Status
from esker.wire.types import Worker

log = logging.get_logger("chunkserver.worker")

ALIVE_INTERVAL_S = 1.0
DRAIN_TIMEOUT_S = 5.0
REPORTS_TIMEOUT_S = 2.0
OWNER_TIMEOUT_S = 3.0
OWNER_RETRY_S = 0.05
EXIT_OK, EXIT_INTERNAL, EXIT_USER_ERROR, EXIT_NOT_NOW = 0, 1, 2, os.EX_TEMPFAIL
_PASSING = frozenset(
    (errno.EADDRINUSE, errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN)
)
"""What the operating system refuses for want of something that others may give back."""


async def serve(config: WorkerConfig, stop: asyncio.Event) -> int:
    """Serves the drive until `stop`. Raises `UserError` when it cannot be served at all."""
    addresses = parse_addresses(config.cluster)
    engine = open_engine(config.engine)
    try:
        cluster_id = await _find_cluster(MetaClient(addresses), config)
        store = await _open_store(config, cluster_id, engine)
        try:
            meta = MetaClient(addresses, role="worker", cluster_id=store.cluster_id)
            reports = MetaClient(addresses, role="worker", cluster_id=store.cluster_id)
            drive = _Drive(config, store, engine, meta, reports)
            await drive.serve(stop)
        finally:
            await store.drain(DRAIN_TIMEOUT_S)
            store.close()
    finally:
        engine.close()
    return EXIT_OK


async def _open_store(config: WorkerConfig, cluster_id: str, engine: IoEngine) -> DriveStore:
    """Opens the drive. An earlier life of this worker, whose supervisor was killed, may take a moment to let it go."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + OWNER_TIMEOUT_S
    waiting = False
    while True:
        try:
            return DriveStore.open(
                config.directory, cluster_id=cluster_id, capacity_bytes=config.capacity_bytes, engine=engine
            )
        except DriveOwned:
            if loop.time() >= deadline:
                raise
            if not waiting:
                log.warning("waiting for the drive's present owner to let it go", directory=config.directory)
            waiting = True
            await asyncio.sleep(OWNER_RETRY_S)


async def _find_cluster(meta: MetaClient, config: WorkerConfig) -> str:
    """The cluster's id, as a metadata server tells it; empty when none answers (a drive of old knows its own)."""
    try:
        return (await meta.peer(timeout_s=config.join_timeout_s)).cluster_id
    except EskerError as error:
        if not _has_superblock(config.directory):
            kind = NotNow if _may_pass(error) else UserError
            raise kind(f"{config.directory} is a new drive, and {error}") from error
        log.warning("serving without a metadata server", directory=config.directory, reason=str(error))
        return ""
    finally:
        await meta.aclose()


def _may_pass(error: EskerError) -> bool:
    """Whether the metadata server is silent, or busy with itself; it refused this worker otherwise."""
    if isinstance(error, RequestFailed):
        return error.status is Status.UNAVAILABLE
    return not isinstance(error, UserError)


def _has_superblock(directory: str) -> bool:
    return os.path.exists(os.path.join(directory, "superblock"))


class _Drive:
    """The parts of a worker, put together."""

    def __init__(
        self, config: WorkerConfig, store: DriveStore, engine: IoEngine, meta: MetaClient, reports: MetaClient
    ) -> None:
        self._config = config
        self._store = store
        self._engine = engine
        self._meta = meta
        self._reports_meta = reports
        self._counters = Counters()
        self._pool = WorkerPool(config.pool_bytes)
        self._memories = ClientMemories(self._counters)
        self._incarnation = uuid.uuid4().hex
        self._lease = Lease()

    async def serve(self, stop: asyncio.Event) -> None:
        store, counters, pool = self._store, self._counters, self._pool
        path = socket_path(f"{store.drive_id[:16]}.sock")
        own = self._own(0, path, 0)
        view = ClusterView(
            store,
            pool,
            own,
            lambda op, status: runner.forwarded(op, status),
            lambda replica, event: runner.dispatch(replica, event),
        )
        joins = JoinHistory(store, self._incarnation, view.fail_drive)
        reports = CatalogReports(store, self._reports_meta, counters, view.life)
        meta_link = MetaLink(
            self._meta,
            reports,
            view,
            lambda: store.used_bytes,
            lambda: (resyncs.synced, resyncs.stalled),
            self._lease,
            view.unreachable,
            joins=joins,
        )
        runner = ReplicaRunner(store, self._engine, pool, counters, view.link, reports.add, view.fail_drive)
        lease_live, refresh = self._lease.live, meta_link.refresh
        mutable = MutablePart(store, self._engine, pool, self._memories, counters, runner, view, lease_live, refresh)
        resyncs = ResyncService(
            store,
            runner,
            mutable.runner,
            view.replicas,
            view.link,
            counters,
            self._config.resync_bytes_per_s,
            pool.arena.size_bytes // 4,
            meta_link.refresh,
        )
        scrub_bytes_per_s = self._config.scrub_bytes_per_s
        upkeep = Upkeep(store, self._engine, runner, view.replicas, counters, mutable.runner, scrub_bytes_per_s)
        resyncs.suspect = upkeep.repairs.suspect
        view.on_chains = [mutable.look, resyncs.look]
        check_space = view.spaces.check
        reads = ReadService(
            store, self._engine, pool, self._memories, counters, view.offline_chains, check_space, view.unsure_chains
        )
        reads.suspect = upkeep.repairs.suspect
        resyncs.clients_read = lambda: reads.busy
        lookups = LookupService(store, counters, check_space, view.unsure_chains)
        writes = WriteService(runner, pool, self._memories, counters, view.replicas, meta_link.refresh, check_space)
        scans = ScanService(store, runner, reports, lambda: view.routing_version, meta_link.refresh, view.ready)
        store.on_failed(view.fail_drive)
        had_routing = view.load()
        if not await store.drain(DRAIN_TIMEOUT_S):  # this life's number and name are kept before they are used
            raise EskerError(f"{self._config.directory} took no write within {DRAIN_TIMEOUT_S:g} s")
        if view.lacks_room or joins.lacks_room:
            raise NotNow(f"no space left for drive {self._config.directory}; free some space on its file system")
        handlers: dict[Method, Handler] = {
            Method.READ: reads.read,
            Method.LOOKUP: lookups.lookup,
            Method.CREATE: writes.create,
            Method.REPLACE: writes.create,
            Method.CONFIRM: writes.confirm,
            Method.REMOVE: writes.remove,
            Method.REGISTER_MEMORY: self._memories.register,
            Method.RELEASE_MEMORY: self._memories.release,
            Method.SCAN: scans.scan,
            Method.REPORT_BLOCKS: scans.report_blocks,
            Method.CATALOG_CHECKED: scans.checked,
            Method.STATS: lambda request: self._stats(request, reports, resyncs, upkeep, mutable),
            **mutable.handlers(),
            **upkeep.handlers,
        }
        server = RpcServer(handlers, Identity(store.cluster_id, store.drive_id, self._incarnation))

        async def end() -> None:
            """Serves nobody any more; may be called again."""
            await upkeep.aclose()
            await resyncs.aclose()
            await mutable.aclose()
            for link in view.used_links():
                await link.aclose()
            await server.aclose()

        try:
            own = self._own(await self._listen(server), path, joins.join)
            await server.listen_unix(path)
            try:
                await meta_link.join(own, self._config.join_timeout_s)
            except EskerError as error:
                refused = isinstance(error, RequestFailed) and error.status is not Status.UNAVAILABLE
                if refused or not had_routing:
                    kind = NotNow if _may_pass(error) else UserError
                    raise kind(f"{self._config.directory} cannot join the cluster: {error}") from error
            upkeep.start()
            await self._run(stop, own, meta_link)
            await meta_link.leave()
            await end()
            if await store.drain(DRAIN_TIMEOUT_S):
                await reports.finish(REPORTS_TIMEOUT_S)
        finally:
            await end()
            await meta_link.aclose()
            await self._reports_meta.aclose()

    async def _listen(self, server: RpcServer) -> int:
        config = self._config
        try:
            return await server.listen_tcp(config.host, config.port)
        except UserError:
            if config.keep_port or config.port == 0:
                raise
            return await server.listen_tcp(config.host, 0)

    def _own(self, port: int, path: str, join: int) -> Worker:
        return Worker(
            drive_id=self._store.drive_id,
            node_id=self._config.node_id,
            host=self._config.host,
            port=port,
            socket_path=path,
            boot_id=boot_id(),
            incarnation=self._incarnation,
            capacity_bytes=self._store.capacity_bytes,
            join=join,
        )

    def _stats(
        self,
        request: Request,
        reports: CatalogReports,
        resyncs: ResyncService,
        upkeep: Upkeep,
        mutable: MutablePart,
    ) -> None:
        now = {
            "memories": self._memories.count,
            "pool_free_bytes": self._pool.free_bytes,
            "io_in_flight": self._engine.in_flight,
            "catalog_reports_added": reports.added,
            "catalog_reports_waiting": reports.waiting,
            "resyncs_under_way": resyncs.under_way,
            **upkeep.counters(),
            **mutable.counters(),
            "lease_left_ms": self._lease.left_ms,
            "lease_lapses": self._lease.lapses,
        }
        request.reply(StatsReply({**self._counters.snapshot(), **self._store.counters(), **now}))

    async def _run(self, stop: asyncio.Event, own: Worker, meta_link: MetaLink) -> None:
        _tell(
            {
                "event": "ready",
                "drive_id": own.drive_id,
                "pid": os.getpid(),
                "host": own.host,
                "port": own.port,
                "socket": own.socket_path,
                "engine": self._engine.name,
            }
        )
        background = asyncio.ensure_future(meta_link.run())
        stopping = asyncio.ensure_future(stop.wait())
        try:
            while not stopping.done():
                await asyncio.wait((stopping, background), timeout=ALIVE_INTERVAL_S, return_when="FIRST_COMPLETED")
                if background.done():
                    background.result()
                self._store.check_place()
                _tell({"event": "alive"})
        finally:
            stopping.cancel()
            background.cancel()
            await asyncio.gather(background, return_exceptions=True)


def _tell(event: dict[str, object]) -> None:
    """A line for the supervisor; it may be gone already."""
    try:
        print(json.dumps(event), flush=True)
    except BrokenPipeError:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - stays for the rest of the process's life


def _exit_code(error: EskerError | SettingError | OSError) -> int:
    reason = error if isinstance(error, OSError) else error.__cause__
    if isinstance(reason, OSError) and reason.errno in _PASSING:
        return EXIT_NOT_NOW
    if isinstance(error, OSError):
        return EXIT_INTERNAL
    final = isinstance(error, UserError | SettingError) and not isinstance(error, NotNow)
    return EXIT_USER_ERROR if final else EXIT_NOT_NOW


def main() -> int:
    """Entry point; returns the exit code."""
    config = msgspec.json.decode(sys.argv[1], type=WorkerConfig)
    logging.configure(f"worker:{os.path.basename(config.directory.rstrip('/')) or config.directory}")
    try:
        return run(lambda stop: serve(config, stop), watch_stdin=True)
    except (EskerError, SettingError, OSError) as error:
        code = _exit_code(error)
        if code == EXIT_INTERNAL:
            raise
        _tell({"event": "failed", "reason": " ".join(str(error).split())})
        return code


if __name__ == "__main__":
    sys.exit(main())
