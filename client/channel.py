"""One connection pair to one drive worker, over the best transport that works.

`bulk` carries reads, creates and removals; `fast` carries lookups, which so never queue behind payload. Over a Unix
socket of the same host the worker is told of the client's pools once per `bulk` connection, and watched by its pid:
memory that it may still touch is free once the process is gone.

Knows no policy beyond the choice of transport: when to connect again is for `workers.py`.
"""

import asyncio
import os
from collections.abc import Callable, Sequence
from enum import StrEnum

from esker.client.buffers import BufferPool
from esker.client.process_watch import ProcessWatch
from esker.runtime.hostid import boot_id
from esker.runtime.logging import get_logger
from esker.wire.errors import ConnectionFailed, EskerError, RequestFailed, UserError
from esker.wire.limits import CONNECT_TIMEOUT_S
from esker.wire.messages import MemoryRegistered, Method, RegisterMemory
from esker.wire.rpc_client import Address, Connection, TcpAddress, UnixAddress
from esker.wire.types import Worker

log = get_logger("client.channel")


class Transport(StrEnum):
    """How workers are reached: AUTO takes LOCAL where it works."""

    AUTO = "auto"
    TCP = "tcp"
    LOCAL = "local"


class LocalImpossible(EskerError):
    """The same-host transport cannot be used with this worker; the text says why."""


class WatchedConnection(Connection):
    """A connection that tells when it has ended."""

    on_closed: Callable[[], None] | None = None

    def stream_closed(self, error: EskerError | None) -> None:
        """See `FrameHandler`."""
        super().stream_closed(error)
        if self.on_closed is not None:
            self.on_closed()


class Channel:
    """The connections to one life of a worker. `memory_ids` maps pools to the ids that the worker gave them."""

    __slots__ = ("bulk", "fast", "local", "memory_ids", "watch")

    def __init__(self, bulk: WatchedConnection, fast: WatchedConnection, watch: ProcessWatch | None) -> None:
        self.bulk = bulk
        self.fast = fast
        self.watch = watch
        """Set where the worker has our memory."""
        self.local = bulk.local
        self.memory_ids: dict[BufferPool, int] = {}

    async def register(self, pool: BufferPool) -> None:
        """Hands `pool` to the worker. Raises `RequestFailed` (BAD_MEMORY) where it cannot use it."""
        body = RegisterMemory(pool.size_bytes)
        reply = await self.bulk.call(
            Method.REGISTER_MEMORY, body, MemoryRegistered, timeout_s=CONNECT_TIMEOUT_S, fds=[pool.fd]
        )
        self.memory_ids[pool] = reply.memory_id

    async def aclose(self) -> None:
        """Ends both connections. The watch stays for those who wait for the process's end."""
        self.bulk.on_closed = self.fast.on_closed = None
        await self.bulk.aclose()
        await self.fast.aclose()
        if self.watch is not None:
            self.watch.retire()

    def abandon_in_child(self) -> None:
        """See `Workers.abandon_in_child`."""
        self.bulk.stream.abandon_in_child()
        self.fast.stream.abandon_in_child()


async def open_channel(
    worker: Worker, cluster_id: str, transport: Transport, pools: Sequence[BufferPool], incarnation: str
) -> Channel:
    """Connects to `worker`. With AUTO a same-host transport that does not work is logged and TCP taken.

    Raises `ConnectionFailed` or `RequestFailed` where the worker is not to be reached; `UserError` where LOCAL is
    asked for but only TCP works.
    """
    tcp = TcpAddress(worker.host, worker.port)
    if transport is Transport.TCP:
        return await _connect(worker, cluster_id, tcp, incarnation)
    try:
        return await _open_local(worker, cluster_id, pools, incarnation)
    except (LocalImpossible, ConnectionFailed, RequestFailed) as error:
        channel = await _connect(worker, cluster_id, tcp, incarnation)
        if transport is Transport.AUTO:
            log.info("a worker is used over TCP", drive=worker.drive_id, address=str(tcp), reason=str(error))
            return channel
        await channel.aclose()
        raise UserError(
            f"the same-host transport does not work with the worker of drive {worker.drive_id}: {error}; "
            "take transport auto or tcp"
        ) from error


async def _open_local(worker: Worker, cluster_id: str, pools: Sequence[BufferPool], incarnation: str) -> Channel:
    if not worker.socket_path:
        raise LocalImpossible("it offers no Unix socket")
    if worker.boot_id != boot_id():
        raise LocalImpossible("it runs on another host")
    channel = await _connect(worker, cluster_id, UnixAddress(worker.socket_path), incarnation)
    try:
        user = channel.bulk.stream.peer_uid()
        if user not in (0, os.geteuid()):
            raise LocalImpossible(f"its socket belongs to user {user}")
        # Watched before its first answer to us after that, so that the pid cannot be a later process's.
        try:
            channel.watch = ProcessWatch(channel.bulk.stream.peer_pid())
        except OSError as error:
            raise LocalImpossible(f"its process cannot be watched: {error.strerror}") from error
        for pool in pools:
            await channel.register(pool)
    except BaseException:
        await channel.aclose()
        raise
    return channel


async def _connect(worker: Worker, cluster_id: str, address: Address, incarnation: str) -> Channel:
    """Both connections, to this very drive."""
    connections: list[WatchedConnection] = []

    async def connect() -> None:
        connections.append(
            await WatchedConnection.connect(
                address, role="client", cluster_id=cluster_id, incarnation=incarnation, timeout_s=CONNECT_TIMEOUT_S
            )
        )

    try:
        # Both to their end, also where one fails or this is cancelled: what is connected by then is closed below.
        for ended in await asyncio.gather(connect(), connect(), return_exceptions=True):
            if ended is not None:
                raise ended
        others = {each.peer.drive_id for each in connections} - {worker.drive_id}
        if others:
            raise ConnectionFailed(f"{address} serves drive {others.pop()}, not {worker.drive_id}")
    except BaseException:
        for connection in connections:
            await connection.aclose()
        raise
    return Channel(connections[0], connections[1], None)
