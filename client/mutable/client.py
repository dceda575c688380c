"""The client of mutable chunks: changes, ranges and lengths of chunks, over the chains of one chain-table version.

Owns the life of a connection to a cluster and the calls' checks. Every call ends within its deadline with an answer
per chunk, never an exception; exceptions are for the caller's mistakes (`UserError`), raised before anything is sent.

What a caller may count on: a change that ended OK is on every serving replica, durable, and a read that is called after
that sees it, or a later one. Operations on one chunk are linearizable. Nothing is promised between chunks, and of calls
under way at the same time nobody says which comes first.
"""

import asyncio
import os
from collections import Counter
from collections.abc import Sequence
from types import TracebackType

from esker.client.arguments import check_pool, checked_choice, checked_integer, checked_text, checked_timeout_s
from esker.client.buffers import BufferPool, Slot, begin_all, end_all
from esker.client.chains import ChainRoutes
from esker.client.channel import Transport
from esker.client.link import ClusterLink
from esker.client.mutable.changes import ChangeBatch
from esker.client.mutable.channels import Channels
from esker.client.mutable.placement import chain_number
from esker.client.mutable.range_reads import RangeBatch, room
from esker.client.mutable.stats import StatBatch
from esker.client.mutable.types import (
    CHUNK_BYTES_DEFAULT,
    Change,
    ChangeResult,
    ChunkRead,
    ChunkReadResult,
    ChunkStatistics,
    ChunkStatus,
    checked_changes,
    checked_chunks,
    checked_reads,
)
from esker.client.routing import RoutingCache
from esker.runtime.counters import Counters
from esker.wire.errors import RequestFailed, UserError
from esker.wire.limits import CHECKSUM_BLOCK_BYTES
from esker.wire.meta_client import parse_addresses
from esker.wire.mutable_messages import CLIENT_ID_BYTES
from esker.wire.status import Status
from esker.wire.types import Routing

TABLE_ID = 1
"""The chain table whose chains have the cluster's replicas."""
CONNECT_TIMEOUT_S = 5.0
CALL_TIMEOUT_S = 10.0
"""Longer than a failover takes, also one in which the manager dies together with a replica."""
NOT_YET_DELAY_S = 0.1
STAGING_SLOTS_BYTES = (2 * CHECKSUM_BLOCK_BYTES, room(CHECKSUM_BLOCK_BYTES - 1, CHUNK_BYTES_DEFAULT))
"""Small reads, and reads of a whole default chunk at any offset."""


class ChunkClient:
    """Mutable chunks of a cluster. Make it with `connect`; use it on one event loop.

    Its id is fresh and random, so that chains know its changes from those of every other client, and of every other
    life of this one.
    """

    def __init__(self, link: ClusterLink, routes: ChainRoutes, pool: BufferPool | None) -> None:
        self.pool = pool
        """Slots for data to write, taken by workers of this host without a copy through a socket; None: none."""
        self._link = link
        self._workers = link.workers
        self._routes = routes
        self._channels = Channels(os.urandom(CLIENT_ID_BYTES))
        self._stagings = [link.staging(slot_bytes) for slot_bytes in STAGING_SLOTS_BYTES]
        self._counters = Counters()
        self._closed = False

    @classmethod
    async def connect(
        cls,
        cluster: str,
        *,
        table_version: int | None = None,
        transport: str = Transport.AUTO,
        pool: BufferPool | None = None,
        timeout_s: float = CONNECT_TIMEOUT_S,
    ) -> "ChunkClient":
        """Connects to the cluster at `host:port[,host:port]`.

        Chunks lie where the chain table's version says that they do: None is the newest one now; whoever wants to find
        them again after an expansion names the version they were written with (`table_version`). `transport` is
        `auto`, `tcp` or `local`; the pool is the caller's and stays open.

        Raises `UserError` for a bad address or transport, `ConnectionFailed` when no metadata server answered in time,
        `RequestFailed` where the cluster has no chains yet or not that version of the table.
        """
        chosen = checked_choice(Transport, transport, "transport")
        if table_version is not None:
            table_version = checked_integer(table_version, "table_version")
        check_pool(pool)
        link = ClusterLink(parse_addresses(checked_text(cluster, "cluster")))
        loop = asyncio.get_running_loop()
        deadline = loop.time() + checked_timeout_s(timeout_s, CONNECT_TIMEOUT_S)
        try:
            first = await _routing_with_chains(link.routing, deadline)
            version = _table_version(first, table_version)
            left_s = max(0.001, deadline - loop.time())
            workers = await link.connect_workers(first, chosen, [] if pool is None else [pool], left_s)
            return cls(link, ChainRoutes(workers, TABLE_ID, version), pool)
        except BaseException:
            await link.aclose()
            raise

    async def write(self, changes: Sequence[Change], timeout_s: float | None = None) -> list[ChangeResult]:
        """Writes, truncates or removes chunks; one result per change, within 10 s by default."""
        self._check_open()
        patches = checked_changes(changes)
        deadline_s = checked_timeout_s(timeout_s, CALL_TIMEOUT_S)
        leases = _distinct([patch.slot for patch in patches])
        begin_all(leases, writes=False)
        try:
            chains = self._chains([(patch.object_id, patch.chunk_index) for patch in patches])
            batch = ChangeBatch(self._workers, self._routes, self._channels, patches, chains)
            rows = await batch.run(deadline_s)
        finally:
            end_all(leases)
        results = [ChangeResult(Status(row[1]), row[2], row[3]) for row in rows]
        self._count("change", [result.status for result in results])
        return results

    async def read(self, reads: Sequence[ChunkRead], timeout_s: float | None = None) -> list[ChunkReadResult]:
        """Reads parts of chunks; one result per read, within 10 s by default."""
        self._check_open()
        ranges = checked_reads(reads)
        deadline_s = checked_timeout_s(timeout_s, CALL_TIMEOUT_S)
        leases = [each.slot for each in ranges if each.slot is not None]
        begin_all(leases, writes=True)
        try:
            chains = self._chains([(each.object_id, each.chunk_index) for each in ranges])
            rows = await RangeBatch(self._workers, self._routes, self._stagings, ranges, chains).run(deadline_s)
        finally:
            end_all(leases)
        results = []
        for asked, (_, status, version, chunk_bytes, _, _) in zip(ranges, rows, strict=True):
            length = max(0, min(asked.length, chunk_bytes - asked.offset)) if status == Status.OK else 0
            results.append(ChunkReadResult(Status(status), asked.view[:length], version, chunk_bytes))
        self._count("read", [result.status for result in results])
        return results

    async def stat(self, chunks: Sequence[tuple[bytes, int]], timeout_s: float | None = None) -> list[ChunkStatus]:
        """Versions and lengths of chunks (object, index), as committed; one result each, within 10 s by default."""
        self._check_open()
        asked = checked_chunks(chunks)
        deadline_s = checked_timeout_s(timeout_s, CALL_TIMEOUT_S)
        rows = await StatBatch(self._workers, self._routes, asked, self._chains(asked)).run(deadline_s)
        results = [ChunkStatus(Status(row[1]), *row[2:]) for row in rows]
        self._count("stat", [result.status for result in results])
        return results

    def statistics(self) -> ChunkStatistics:
        """Totals since `connect`."""
        figures = self._link.figures()
        return ChunkStatistics(
            counters=self._counters.snapshot(),
            per_drive_read_bytes=figures.read_bytes,
            per_drive_written_bytes=figures.written_bytes,
            transports=figures.transports,
        )

    async def aclose(self) -> None:
        """Ends all connections. Safe to call again."""
        if self._closed:
            return
        self._closed = True
        await self._link.aclose()

    async def __aenter__(self) -> "ChunkClient":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def _chains(self, chunks: Sequence[tuple[bytes, int]]) -> list[int]:
        count = self._routes.chain_count
        return [chain_number(object_id, index, count) for object_id, index in chunks]

    def _check_open(self) -> None:
        if self._closed:
            raise UserError("this client is closed; make another one")

    def _count(self, operation: str, statuses: Sequence[Status]) -> None:
        for status, count in Counter(statuses).items():
            self._counters.add(f"{operation}_{status.name.lower()}", count)


async def _routing_with_chains(routing: RoutingCache, deadline: float) -> Routing:
    """Waits, within the deadline, for a cluster whose drives are still joining."""
    loop = asyncio.get_running_loop()
    while True:
        left_s = deadline - loop.time()
        first = await routing.load(max(0.001, left_s))
        if any(table.table_id == TABLE_ID for table in first.tables):
            return first
        if left_s <= NOT_YET_DELAY_S:
            missing = f"{len(first.workers)} of {first.drives_expected} drives have joined"
            raise RequestFailed(Status.NOT_READY, f"the cluster has no chains yet: {missing}")
        await asyncio.sleep(NOT_YET_DELAY_S)


def _table_version(routing: Routing, wanted: int | None) -> int:
    versions = [table.version for table in routing.tables if table.table_id == TABLE_ID]
    if wanted is None:
        return max(versions)
    if wanted not in versions:
        there = ", ".join(map(str, versions))
        raise RequestFailed(Status.NOT_FOUND, f"the cluster has no version {wanted} of the chain table; only {there}")
    return wanted


def _distinct(slots: Sequence[Slot | None]) -> list[Slot]:
    return list({id(slot): slot for slot in slots if slot is not None}.values())
