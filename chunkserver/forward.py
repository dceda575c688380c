"""Links to successors: operations are sent on in batches, and each gets exactly one answer.

The worker is its successor's client. On the same host the successor copies from this worker's pool by descriptor;
otherwise the payload goes over TCP. One connection to a successor at a time, so that what is sent on arrives in
order; a newer connection of this worker makes the successor drop the older one. A link that fails answers
UNAVAILABLE at once until its next attempt is due.

While somebody uses it, a link also finds out whether the successor can be reached at all (`reachability.py`): it goes
on to connect, and where requests stay unanswered on a connection that is up, it tries whether another one comes about.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from esker.chunkserver.pool import Region, WorkerPool
from esker.chunkserver.reachability import Reachability
from esker.chunkserver.replies import ItemReplies
from esker.runtime.logging import get_logger
from esker.wire.codec import decode_body
from esker.wire.errors import EskerError
from esker.wire.limits import REQUEST_EXTENTS_MAX, REQUEST_PAYLOAD_BYTES_AIM
from esker.wire.messages import (
    CREATE_EXTENT,
    CREATE_RESULT,
    REMOVE_EXTENT,
    REMOVE_RESULT,
    Create,
    CreateReply,
    MemoryRegistered,
    Method,
    RegisterMemory,
    Remove,
    RemoveReply,
)
from esker.wire.rpc_client import Connection, TcpAddress, UnixAddress
from esker.wire.status import Status
from esker.wire.types import Worker

log = get_logger("chunkserver.forward")

BACKOFF_MIN_S = 0.05
BACKOFF_MAX_S = 1.0
CONNECT_TIMEOUT_S = 1.0
UNANSWERED_S = 1.0
"""A request that is unanswered for so long makes the link find out whether the successor can be reached."""
CARED_FOR_S = 5.0
"""A link that nobody has used for so long lets it be."""

PAYLOAD_METHODS = (Method.CREATE, Method.REPLACE)

Answered = Callable[[int, Status], None]


class Item(msgspec.Struct, frozen=True, gc=False):
    """One operation to send on. `extent` is a row of the method's column; its memory offset is filled in here."""

    op: int
    method: Method
    space: int
    slot_bytes: int
    extent: tuple[object, ...]
    checksums: bytes
    key: bytes
    region: Region | None
    """Where the payload is: `length` bytes (extent column 4) at `at` in the region."""
    at: int
    deadline: float


class Link:
    """The way to one successor."""

    def __init__(
        self,
        drive_id: str,
        find: Callable[[str], Worker | None],
        own: Worker,
        cluster_id: str,
        pool: WorkerPool,
        answered: Answered,
    ) -> None:
        self._drive_id = drive_id
        self._find = find
        self._own = own
        self._cluster_id = cluster_id
        self._pool = pool
        self._answered = answered
        self._loop = asyncio.get_running_loop()
        self._queue: list[Item] = []
        self._flush_soon = False
        self._connection: Connection | None = None
        self._memory_id = 0
        self._connecting: asyncio.Task[None] | None = None
        self._retry_at = 0.0
        self._backoff_s = BACKOFF_MIN_S
        self._reachability = Reachability()
        self._waiting: dict[object, float] = {}
        """Requests without a last answer, oldest first, and when they were sent."""
        self._probing: asyncio.Task[None] | None = None
        self._used_at = 0.0

    @property
    def connection(self) -> Connection | None:
        """The live connection, if there is one."""
        if self._connection is not None and self._connection.closed:
            self._connection = None
        return self._connection

    async def connected(self, timeout_s: float) -> Connection:
        """The connection on which operations are sent on. Raises `EskerError` where there is none within `timeout_s`.

        What is asked of the successor by it comes after the operations that were sent on before.
        """
        self._used_at = self._loop.time()
        if self.connection is None and self._connecting is None and self._loop.time() >= self._retry_at:
            self._connecting = asyncio.ensure_future(self._connect())
        if self._connecting is not None:
            await asyncio.wait((self._connecting,), timeout=timeout_s)
        if self.connection is None:
            raise EskerError(f"the successor, drive {self._drive_id}, cannot be reached")
        return self.connection

    @property
    def memory_id(self) -> int:
        """Of this worker's pool at the successor, while there is a connection; 0: payload goes along."""
        return self._memory_id

    def expect(self, request: object) -> None:
        """A request was sent on the connection, and its last answer is awaited until `heard`."""
        self._used_at = self._loop.time()
        self._waiting[request] = self._used_at

    def heard(self, request: object) -> None:
        """Its last answer is here, or never will be."""
        self._waiting.pop(request, None)

    def try_at_once(self) -> None:
        """The successor has a new life, or another address: earlier failures say nothing of it."""
        self._retry_at = 0.0
        self._backoff_s = BACKOFF_MIN_S
        self._reachability.answered()

    def unreachable(self) -> bool:
        """Whether the successor could not be reached for a while, up to now. Ask at each heartbeat: it is found out
        only between two of these questions.
        """
        now = self._loop.time()
        if now - self._used_at > CARED_FOR_S and not self._waiting:
            return False
        oldest = next(iter(self._waiting.values()), now)
        unanswered = self.connection is not None and now - oldest >= UNANSWERED_S
        if self._connecting is None and (self._probing is None or self._probing.done()):
            if unanswered:
                self._probing = asyncio.ensure_future(self._probe(oldest))
            elif self.connection is None and now >= self._retry_at and self._backoff_s > BACKOFF_MIN_S:
                self._connecting = asyncio.ensure_future(self._connect())
        return self._reachability.unreachable(now)

    async def _probe(self, unanswered_since: float) -> None:
        try:
            await (await self._reach("tool")).aclose()
        except EskerError:
            self._reachability.failed(self._loop.time(), unanswered_since)
            if self._reachability.unreachable(self._loop.time()) and self._connection is not None:
                self._connection.stream.close()  # What waits on it would never be answered.
        else:
            self._reachability.answered()

    def send(self, item: Item) -> None:
        """Queues an operation; what one turn of the loop queues goes out together."""
        self._used_at = self._loop.time()
        self._queue.append(item)
        if not self._flush_soon:
            self._flush_soon = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_soon = False
        if not self._queue:
            return
        if self.connection is not None:
            queue, self._queue = self._queue, []
            for batch in _batches(queue):
                self._send(self.connection, batch)
        elif self._connecting is None:
            if self._loop.time() < self._retry_at:
                self._fail_queue()
            else:
                self._connecting = asyncio.ensure_future(self._connect())

    async def _connect(self) -> None:
        try:
            connection = await self._dial()
            self._connection = connection
            self._backoff_s = BACKOFF_MIN_S
            self._reachability.answered()
        except EskerError as error:
            tell = log.warning if self._backoff_s == BACKOFF_MIN_S else log.debug  # once until it can be reached again
            tell("a successor cannot be reached", successor=self._drive_id, reason=str(error))
            self._reachability.failed(self._loop.time())
            self._retry_at = self._loop.time() + self._backoff_s
            self._backoff_s = min(BACKOFF_MAX_S, 2 * self._backoff_s)
            self._fail_queue()
        finally:
            self._connecting = None
        self._flush()

    async def _dial(self) -> Connection:
        self._memory_id = 0
        connection = await self._reach("worker")
        if not connection.local:
            return connection
        try:
            arena = self._pool.arena
            registered = await connection.call(
                Method.REGISTER_MEMORY,
                RegisterMemory(arena.size_bytes),
                MemoryRegistered,
                timeout_s=CONNECT_TIMEOUT_S,
                fds=(arena.fd,),
            )
            self._memory_id = registered.memory_id
        except BaseException:
            await connection.aclose()
            raise
        return connection

    async def _reach(self, role: str) -> Connection:
        """A new connection, over a Unix socket where the successor is on the same host and answers there."""
        worker = self._find(self._drive_id)
        if worker is None:
            raise EskerError("it has not joined the cluster")
        if worker.socket_path and worker.boot_id == self._own.boot_id:
            try:
                return await self._handshake(UnixAddress(worker.socket_path), role)
            except EskerError as error:
                log.info("no same-host connection, using TCP", successor=self._drive_id, reason=str(error))
        return await self._handshake(TcpAddress(worker.host, worker.port), role)

    async def _handshake(self, address: TcpAddress | UnixAddress, role: str) -> Connection:
        own = self._own
        connection = await Connection.connect(
            address,
            role=role,
            cluster_id=self._cluster_id,
            peer_id=own.drive_id if role == "worker" else "",
            incarnation=own.incarnation,
            timeout_s=CONNECT_TIMEOUT_S,
        )
        if connection.peer.drive_id != self._drive_id:
            await connection.aclose()
            raise EskerError(f"{address} serves drive {connection.peer.drive_id or '(none)'}, not {self._drive_id}")
        return connection

    def _fail_queue(self) -> None:
        queue, self._queue = self._queue, []
        for item in queue:
            self._answered(item.op, Status.UNAVAILABLE)

    def _send(self, connection: Connection, batch: Sequence[Item]) -> None:
        first = batch[0]
        left_s = max(item.deadline for item in batch) - self._loop.time()
        budget_ms = max(1, int(left_s * 1000))
        removes = first.method is Method.REMOVE
        reply = ItemReplies(
            len(batch),
            _removed if removes else _created,
            lambda number, status: self._answered(batch[number].op, status),
            self.heard,
        )
        self._waiting[reply] = self._loop.time()
        if removes:
            extents = b"".join(REMOVE_EXTENT.pack(*item.extent) for item in batch)
            connection.start(Method.REMOVE, Remove(first.space, extents, budget_ms), reply)
            return
        memory_id = self._memory_id if first.method in PAYLOAD_METHODS else 0
        payload: list[memoryview] = []
        rows = []
        holds = []
        for item in batch:
            row = list(item.extent)
            if item.region is not None and first.method in PAYLOAD_METHODS:
                if memory_id:
                    row[5] = (item.region.offset + item.at) // 4096
                else:
                    length = row[4]
                    assert isinstance(length, int)
                    payload.append(item.region.view[item.at : item.at + length])
                    item.region.hold()
                    holds.append(item.region)
            rows.append(CREATE_EXTENT.pack(*row))
        body = Create(
            first.space,
            first.slot_bytes,
            b"".join(rows),
            b"".join(item.checksums for item in batch),
            b"".join(item.key for item in batch),
            memory_id,
            budget_ms,
        )

        def released() -> None:
            for region in holds:
                region.drop()

        connection.start(first.method, body, reply, payload=payload, released=released if holds else None)

    async def aclose(self) -> None:
        """Ends the link; what is under way is answered UNAVAILABLE."""
        for task in (self._connecting, self._probing):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        self._fail_queue()
        if self._connection is not None:
            await self._connection.aclose()


def _created(body: bytes | bytearray) -> Iterable[tuple[Any, ...]]:
    return CREATE_RESULT.iter_unpack(decode_body(CreateReply, body).results)


def _removed(body: bytes | bytearray) -> Iterable[tuple[Any, ...]]:
    return REMOVE_RESULT.iter_unpack(decode_body(RemoveReply, body).results)


def _batches(queue: list[Item]) -> list[list[Item]]:
    """Consecutive items that one request can carry; their order is kept."""
    batches: list[list[Item]] = []
    size = 0
    for item in queue:
        length = 0 if item.method is Method.REMOVE else item.extent[4]
        assert isinstance(length, int)
        last = batches[-1] if batches else None
        same = last is not None and (last[0].method, last[0].space, last[0].slot_bytes) == (
            item.method,
            item.space,
            item.slot_bytes,
        )
        if last is None or not same or len(last) >= REQUEST_EXTENTS_MAX or size + length > REQUEST_PAYLOAD_BYTES_AIM:
            batches.append([item])
            size = length
        else:
            last.append(item)
            size += length
    return batches
