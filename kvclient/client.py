"""The KV-cache client: blocks of a namespace, by key.

Owns the life of a connection to a cluster and the calls' checks; how blocks lie over chunks is for `get.py`, `put.py`
and `remove.py`. `get`, `exists` and `match_prefix` are one parallel round trip to the drive workers and need no
metadata server. Every call ends within its deadline with an answer per key: what cannot be reached is a status, never
an exception. Exceptions are for the caller's mistakes (`UserError`), raised before anything is sent.
"""

import asyncio
from collections import Counter
from collections.abc import Sequence
from types import TracebackType
from typing import Any

from esker.client.arguments import check_pool, checked_choice, checked_integer, checked_text, checked_timeout_s
from esker.client.buffers import BufferPool, begin_all, end_all
from esker.client.channel import Transport
from esker.client.link import ClusterLink
from esker.client.routing import RoutingCache
from esker.kvclient.arguments import check_same_length, checked_geometry
from esker.kvclient.follow import LayoutFollower
from esker.kvclient.keyspace import Keyspace
from esker.kvclient.memory import destinations, sources
from esker.kvclient.remove import remove_blocks
from esker.kvclient.results import ClientStatistics, GetResult, PutResult
from esker.kvclient.search import find_blocks, read_blocks
from esker.kvclient.store import put_blocks
from esker.runtime.counters import Counters
from esker.wire.errors import RequestFailed, UserError
from esker.wire.messages import Method, NamespaceOpen, NamespaceReply
from esker.wire.meta_client import MetaClient, parse_addresses
from esker.wire.status import STATUS_OF, Status
from esker.wire.types import Geometry, Namespace, NamespaceMode, Routing

CONNECT_TIMEOUT_S = 5.0
GET_TIMEOUT_S = 5.0
PUT_TIMEOUT_S = 10.0
LOOKUP_TIMEOUT_S = 1.0
POOL_BYTES = 64 << 20
CLOSED = "this client is closed; make another one"
NOT_YET_DELAY_S = 0.1
_NOT_YET = (Status.NOT_READY, Status.UNAVAILABLE, Status.CONFLICT, Status.BUSY)
"""Answers of a metadata server that may be others a moment later."""


class KVCacheClient:
    """An open namespace. Make it with `connect`; use it on one event loop.

    Keys are bytes (1 to 256). `start` is the position of a call's first key in its prefix, and `anchor` the key of the
    first block of its run where it lies inside one; both only matter in namespaces with `run_blocks` above 1.
    """

    def __init__(
        self,
        link: ClusterLink,
        keyspace: Keyspace,
        follower: LayoutFollower,
        pool: BufferPool,
        *,
        owns_pool: bool,
    ) -> None:
        self.pool = pool
        """Slots for values and buffers, read and written by workers of this host without a copy."""
        self._link = link
        self._keyspace = keyspace
        self._follower = follower
        self._owns_pool = owns_pool
        self._counters = Counters()
        self._closed = False

    @classmethod
    async def connect(
        cls,
        cluster: str,
        namespace: str,
        geometry: Geometry,
        *,
        mode: str = NamespaceMode.REPLICATED,
        transport: str = Transport.AUTO,
        pool: BufferPool | None = None,
        pool_bytes: int = POOL_BYTES,
        create: bool = True,
        timeout_s: float = CONNECT_TIMEOUT_S,
    ) -> "KVCacheClient":
        """Opens `namespace` (made if absent, unless `create` is False) of the cluster at `host:port[,host:port]`.

        `mode` is `replicated`, or `cache`: one copy of each block, and other drives stand in for a dead one.
        `transport` is `auto`, `tcp` or `local`. `pool` may be shared by clients; without one a pool of `pool_bytes`
        in slots of the longest block is made, and closed with the client. Raises `UserError` for bad addresses or
        figures, a transport that cannot be had, and a geometry or mode other than the namespace's; `ConnectionFailed`,
        saying where it looked, when no metadata server answered in time; `RequestFailed` where the cluster is not
        ready.
        """
        chosen = checked_choice(Transport, transport, "transport")
        opening = NamespaceOpen(
            checked_text(namespace, "namespace"),
            checked_geometry(geometry),
            bool(create),
            checked_choice(NamespaceMode, mode, "mode"),
        )
        check_pool(pool)
        slots = _slots(checked_integer(pool_bytes, "pool_bytes"), opening.geometry) if pool is None else 0
        link = ClusterLink(parse_addresses(checked_text(cluster, "cluster")))
        loop = asyncio.get_running_loop()
        deadline = loop.time() + checked_timeout_s(timeout_s, CONNECT_TIMEOUT_S)
        made = None
        try:
            reply = await _open_namespace(link.meta, opening, deadline)
            opened = reply.namespace
            if pool is None:
                pool = made = BufferPool(opened.geometry.block_bytes_max, slots)
            first_map = await _load_map(link.routing, opened, deadline)
            left_s = max(0.001, deadline - loop.time())
            workers = await link.connect_workers(first_map, chosen, [pool], left_s)
            keyspace = Keyspace(reply, workers, link.staging(opened.geometry.stripe_unit_bytes))
            follower = LayoutFollower(link.meta, keyspace)
            link.on_map = follower.take
            return cls(link, keyspace, follower, pool, owns_pool=made is not None)
        except BaseException:
            await link.aclose()
            if made is not None:
                made.close()
            raise

    @property
    def geometry(self) -> Geometry:
        """The namespace's geometry, with everything filled in."""
        return self._keyspace.namespace.geometry

    @property
    def salt(self) -> bytes:
        """The namespace's secret salt, for `prefix_keys`."""
        return self._keyspace.namespace.salt

    async def put(
        self,
        keys: Sequence[bytes],
        values: Sequence[Any],
        start: int = 0,
        anchor: bytes | None = None,
        timeout_s: float | None = None,
    ) -> list[PutResult]:
        """Stores each value under its key, write-once; one result per key, within 10 s by default.

        Values are slots of the pool, parts of them (`slot.first(n)`) or contiguous memory of 1 byte to
        `block_bytes_max`; a bare slot stands for `block_bytes_max` bytes. They must not change before the end.
        """
        self._check_open()
        check_same_length(keys, values, "values")
        objects, anchors = self._keyspace.locate(keys, start, anchor)
        memory = sources(values, self._keyspace.block_bytes_max)
        deadline_s = checked_timeout_s(timeout_s, PUT_TIMEOUT_S)
        begin_all(memory.leases, writes=False)
        try:
            results = await put_blocks(self._keyspace, keys, objects, anchors, memory, deadline_s)
        finally:
            end_all(memory.leases)
        self._count("put", results)
        return results

    async def get(
        self,
        keys: Sequence[bytes],
        buffers: Sequence[Any],
        start: int = 0,
        anchor: bytes | None = None,
        timeout_s: float | None = None,
    ) -> list[GetResult]:
        """Reads each key's block into its buffer; one result per key, within 5 s by default.

        Buffers are slots of the pool or writable contiguous memory. Only with status OK, and only up to the result's
        length, does a buffer hold the block; elsewhere its content is undefined. Every returned block was verified.
        """
        self._check_open()
        check_same_length(keys, buffers, "buffers")
        objects, anchors = self._keyspace.locate(keys, start, anchor)
        memory = destinations(buffers)
        deadline_s = checked_timeout_s(timeout_s, GET_TIMEOUT_S)
        begin_all(memory.leases, writes=True)
        try:
            results = await read_blocks(self._keyspace, objects, anchors, memory, deadline_s)
        finally:
            end_all(memory.leases)
        self._count("get", results)
        return results

    async def exists(
        self, keys: Sequence[bytes], start: int = 0, anchor: bytes | None = None, timeout_s: float | None = None
    ) -> list[bool]:
        """Whether each block is there, within 1 s by default; what is not answered by then counts as absent."""
        self._check_open()
        objects, anchors = self._keyspace.locate(keys, start, anchor)
        deadline_s = checked_timeout_s(timeout_s, LOOKUP_TIMEOUT_S)
        present = await find_blocks(self._keyspace, objects, anchors, deadline_s)
        self._counters.add("lookup_keys", len(keys))
        self._counters.add("lookup_hits", int(present.sum()))
        flags: list[bool] = present.view(bool).tolist()
        return flags

    async def match_prefix(
        self, keys: Sequence[bytes], start: int = 0, anchor: bytes | None = None, timeout_s: float | None = None
    ) -> int:
        """How many of the first keys are there without a gap; one round trip, within 1 s by default."""
        present = await self.exists(keys, start, anchor, timeout_s)
        return present.index(False) if False in present else len(present)

    async def remove(
        self, keys: Sequence[bytes], start: int = 0, anchor: bytes | None = None, timeout_s: float | None = None
    ) -> list[Status]:
        """Removes blocks; OK or NOT_FOUND per key, or why it could not (TIMEOUT: unknown), within 10 s by default."""
        self._check_open()
        objects, anchors = self._keyspace.locate(keys, start, anchor)
        deadline_s = checked_timeout_s(timeout_s, PUT_TIMEOUT_S)
        statuses = await remove_blocks(self._keyspace, objects, anchors, deadline_s)
        for status, count in Counter(statuses).items():
            self._counters.add(f"remove_{status.name.lower()}", count)
        return statuses

    def statistics(self) -> ClientStatistics:
        """Totals since `connect`."""
        figures = self._link.figures()
        return ClientStatistics(
            counters=self._counters.snapshot(),
            per_drive_read_bytes=figures.read_bytes,
            per_drive_written_bytes=figures.written_bytes,
            transports=figures.transports,
            pool=self.pool.statistics(),
        )

    async def aclose(self) -> None:
        """Ends all connections, and the pool where the client made it. Safe to call again."""
        if self._closed:
            return
        self._closed = True
        await self._follower.aclose()
        await self._link.aclose()
        if self._owns_pool:
            self.pool.close()

    def abandon_in_child(self) -> None:
        """In a forked child: closes its copies of the connections. The client cannot be used there any more."""
        self._closed = True
        self._link.abandon_in_child()

    async def __aenter__(self) -> "KVCacheClient":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def _check_open(self) -> None:
        if self._closed:
            raise UserError(CLOSED)

    def _count(self, operation: str, results: Sequence[GetResult] | Sequence[PutResult]) -> None:
        # As plain integers: an enumeration's hash is a Python function.
        for status, count in Counter([int(result.status) for result in results]).items():
            self._counters.add(f"{operation}_{STATUS_OF[status].name.lower()}", count)


async def _open_namespace(meta: MetaClient, body: NamespaceOpen, deadline: float) -> NamespaceReply:
    """Waits, within the deadline, for a cluster whose drives are still joining or whose metadata store is busy."""
    loop = asyncio.get_running_loop()
    while True:
        left_s = deadline - loop.time()
        try:
            return await meta.call(Method.NAMESPACE_OPEN, body, NamespaceReply, timeout_s=max(0.001, left_s))
        except RequestFailed as failure:
            if failure.status in (Status.GEOMETRY, Status.BAD_REQUEST, Status.NOT_FOUND):
                raise UserError(failure.message) from failure
            if failure.status not in _NOT_YET or left_s <= NOT_YET_DELAY_S:
                raise
        await asyncio.sleep(NOT_YET_DELAY_S)


async def _load_map(routing: RoutingCache, namespace: Namespace, deadline: float) -> Routing:
    """The cluster map, once it has the namespace's tables: a metadata server may learn of new ones a moment later."""
    loop = asyncio.get_running_loop()
    wanted = {(namespace.table_id, version) for version in (namespace.table_version, *namespace.older_versions)}
    while True:
        left_s = deadline - loop.time()
        found = await routing.load(max(0.001, left_s))
        if wanted <= {(table.table_id, table.version) for table in found.tables} or left_s <= NOT_YET_DELAY_S:
            return found
        await asyncio.sleep(NOT_YET_DELAY_S)


def _slots(pool_bytes: int, geometry: Geometry) -> int:
    slots = pool_bytes // geometry.block_bytes_max
    if slots < 1:
        raise UserError(f"a pool of {pool_bytes} bytes has no room for a block of {geometry.block_bytes_max} bytes")
    return slots
