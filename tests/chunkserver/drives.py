"""Drives served within this process: the real store, services and sockets, and a cluster map that the test makes.

What the worker process adds to them (the metadata server, its supervisor) is left out.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from esker.chunkserver.cluster_view import ClusterView
from esker.chunkserver.engine.io import open_engine
from esker.chunkserver.engine.store import DriveStore
from esker.chunkserver.lookups import LookupService
from esker.chunkserver.memories import ClientMemories
from esker.chunkserver.mutable_part import MutablePart
from esker.chunkserver.pool import WorkerPool
from esker.chunkserver.reads import ReadService
from esker.chunkserver.runner import ReplicaRunner
from esker.chunkserver.writes import WriteService
from esker.runtime.counters import Counters
from esker.runtime.hostid import boot_id, socket_path
from esker.wire.limits import MIB
from esker.wire.messages import CatalogEntry, Method
from esker.wire.rpc_client import TcpAddress, UnixAddress
from esker.wire.rpc_server import Handler, Identity, RpcServer
from esker.wire.types import Chain, ChainTable, Replica, Routing, Worker

from .raw_client import RawClient

CLUSTER = "cluster-1"
HEAD, TAIL = 1, 2
"""Chain 1 goes from drive 0 to drive 1, chain 2 the other way."""


class ServedDrive:
    """One drive with its services and sockets."""

    def __init__(self, directory: Path, name: str, capacity_bytes: int, pool_bytes: int) -> None:
        self.name = name
        self.engine = open_engine()
        self.store = DriveStore.open(
            directory, cluster_id=CLUSTER, capacity_bytes=capacity_bytes, engine=self.engine, drive_id=name
        )
        self.pool = WorkerPool(pool_bytes)
        self.counters = Counters()
        self.memories = ClientMemories(self.counters)
        self.path = socket_path(f"{name}.sock")
        self.reports: list[CatalogEntry] = []
        self.refreshes = 0
        self.expected_bugs: list[str] = []
        """Beginnings of what may be logged with a traceback."""
        own = self.worker(0)
        self.view = ClusterView(
            self.store,
            self.pool,
            own,
            lambda op, status: self.runner.forwarded(op, status),
            lambda replica, event: self.runner.dispatch(replica, event),
        )
        self.runner = ReplicaRunner(
            self.store,
            self.engine,
            self.pool,
            self.counters,
            self.view.link,
            self.reports.append,
            self.view.fail_drive,
        )
        self.reads = ReadService(
            self.store,
            self.engine,
            self.pool,
            self.memories,
            self.counters,
            self.view.offline_chains,
            unsure_chains=self.view.unsure_chains,
        )
        self.lookups = LookupService(self.store, self.counters, unsure_chains=self.view.unsure_chains)
        self.writes = WriteService(
            self.runner, self.pool, self.memories, self.counters, self.view.replicas, self._refresh
        )
        self.lease_live = True
        self.mutable = MutablePart(
            self.store,
            self.engine,
            self.pool,
            self.memories,
            self.counters,
            self.runner,
            self.view,
            lambda chain_id, chain_version: self.lease_live,
            self._refresh,
        )
        self.view.on_chains = [self.mutable.look]
        self.store.on_failed(self.view.fail_drive)
        self.server: RpcServer | None = None
        self.port = 0

    def _refresh(self) -> None:
        self.refreshes += 1

    def worker(self, port: int, *, socket: bool = True) -> Worker:
        """How it is known to others."""
        return Worker(
            drive_id=self.name,
            node_id="here",
            host="127.0.0.1",
            port=port,
            socket_path=self.path if socket else "",
            boot_id=boot_id(),
            incarnation="first",
            capacity_bytes=self.store.capacity_bytes,
        )

    async def listen(self) -> None:
        """Starts to serve, on the port it had."""
        handlers: dict[Method, Handler] = {
            Method.READ: self.reads.read,
            Method.LOOKUP: self.lookups.lookup,
            Method.CREATE: self.writes.create,
            Method.REPLACE: self.writes.create,
            Method.CONFIRM: self.writes.confirm,
            Method.REMOVE: self.writes.remove,
            Method.REGISTER_MEMORY: self.memories.register,
            Method.RELEASE_MEMORY: self.memories.release,
            **self.mutable.handlers(),
        }
        self.server = RpcServer(handlers, Identity(CLUSTER, self.name, "first"))
        self.port = await self.server.listen_tcp("127.0.0.1", self.port)
        await self.server.listen_unix(self.path)

    async def silence(self) -> None:
        """Ends its connections and stops listening: a worker that died, but for its store."""
        if self.server is not None:
            await self.server.aclose()
            self.server = None

    async def client(self, *, tcp: bool = False, role: str = "client", peer_id: str = "") -> RawClient:
        address = TcpAddress("127.0.0.1", self.port) if tcp else UnixAddress(self.path)
        return await RawClient.connect(address, role=role, peer_id=peer_id)

    @property
    def idle(self) -> bool:
        """Nothing is under way, and everything that operations took is back."""
        return (
            self.runner.busy == 0 and self.engine.in_flight == 0 and self.pool.free_bytes == self.pool.arena.size_bytes
        )

    async def aclose(self) -> None:
        await self.mutable.aclose()
        for link in self.view.used_links():
            await link.aclose()
        await self.silence()
        assert await self.store.drain(10.0), "I/O or commits did not end"
        self.store.close()
        self.engine.close()
        assert self.runner.busy == 0, "operations without an answer are left"
        assert self.pool.free_bytes == self.pool.arena.size_bytes, "memory of the worker's pool is still held"
        self.pool.close()


def routing_of(drives: Sequence[ServedDrive], version: int = 1, *, sockets: bool = True) -> Routing:
    """Two chains over two drives, or one chain on one drive; all at this version."""
    names = [drive.name for drive in drives]
    chains = tuple(
        Chain(chain_id, version, tuple(Replica(name, incarnation="first") for name in order))
        for chain_id, order in ((HEAD, names), (TAIL, names[::-1]))
    )[: len(drives)]
    return Routing(
        CLUSTER,
        version,
        tuple(drive.worker(drive.port, socket=sockets) for drive in drives),
        chains,
        (ChainTable(1, 1, tuple(chain.chain_id for chain in chains), (1,) * len(chains)),),
        len(drives),
        len(drives),
    )


@asynccontextmanager
async def served(
    directory: Path,
    count: int = 1,
    *,
    capacity_bytes: int = 64 * MIB,
    pool_bytes: int = 8 * MIB,
    sockets: bool = True,
) -> AsyncIterator[list[ServedDrive]]:
    """Drives that know each other; afterwards nothing of theirs may be left under way, nor any error unhandled."""
    drives: list[ServedDrive] = []
    with _bugs_seen() as bugs:
        async with _all_closed(drives):
            for number in range(count):
                drive = ServedDrive(directory / f"drive-{number}", f"d{number}", capacity_bytes, pool_bytes)
                drives.append(drive)
                await drive.listen()
            routing = routing_of(drives, sockets=sockets)
            for drive in drives:
                drive.view.take(routing)
            yield drives
    expected = tuple(text for drive in drives for text in drive.expected_bugs)
    assert not [bug for bug in bugs if not (expected and bug.startswith(expected))], bugs


@asynccontextmanager
async def _all_closed(drives: list[ServedDrive]) -> AsyncIterator[None]:
    try:
        yield
    finally:
        for drive in drives:
            await drive.aclose()


@contextmanager
def _bugs_seen() -> Iterator[list[str]]:
    """What callbacks of the loop raised, and what was caught as a bug and logged with its traceback."""
    bugs: list[str] = []

    class Tracebacks(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.exc_info:
                bugs.append(f"{record.getMessage()}: {record.exc_info[1]!r}")

    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: bugs.append(str(context)))
    handler = Tracebacks()
    logging.getLogger("esker").addHandler(handler)
    try:
        yield bugs
    finally:
        logging.getLogger("esker").removeHandler(handler)
        loop.set_exception_handler(None)
