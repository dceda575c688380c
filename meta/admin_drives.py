"""What the removal of a namespace asks of drive workers: scans, and removals through the heads of chains.

Owns one connection per worker, made at its first use and again after it broke. Every call has a deadline and raises
`EskerError` where it got no answer; nothing is tried twice here.
"""

import asyncio
from collections.abc import Sequence
from typing import Protocol

from esker.wire.admin_messages import SCAN_ROW, Scan, ScanReply
from esker.wire.codec import decode_body
from esker.wire.errors import ConnectionFailed, DeadlineExceeded, EskerError, ProtocolError
from esker.wire.messages import REMOVE_RESULT, Method, Remove, RemoveReply
from esker.wire.rpc_client import Connection, TcpAddress
from esker.wire.status import Status
from esker.wire.types import Worker

CALL_TIMEOUT_S = 10.0


class Drives(Protocol):
    """How the workers are reached."""

    async def scan(self, worker: Worker, scan: Scan) -> ScanReply:
        """A page of the drive's records. Raises `EskerError`."""

    async def remove(self, worker: Worker, space: int, extents: Sequence[bytes]) -> list[Status]:
        """Remove chunks (rows of REMOVE_EXTENT) through this head; how each ended. Raises `EskerError`."""

    async def aclose(self) -> None:
        """End all connections."""


class TcpDrives:
    """`Drives` of a real cluster."""

    def __init__(self, cluster_id: str) -> None:
        self._cluster_id = cluster_id
        self._connections: dict[str, Connection] = {}
        self._connecting: dict[str, asyncio.Lock] = {}

    async def scan(self, worker: Worker, scan: Scan) -> ScanReply:
        connection = await self._connected(worker)
        reply = await connection.call(Method.SCAN, scan, ScanReply, timeout_s=CALL_TIMEOUT_S)
        if len(reply.rows) % SCAN_ROW.size:
            raise ProtocolError(f"{connection.address} sent {len(reply.rows)} bytes of rows of {SCAN_ROW.size}")
        return reply

    async def remove(self, worker: Worker, space: int, extents: Sequence[bytes]) -> list[Status]:
        connection = await self._connected(worker)
        results = _Results(len(extents))
        budget_ms = int(CALL_TIMEOUT_S * 1000)
        request = connection.start(Method.REMOVE, Remove(space, b"".join(extents), budget_ms), results)
        try:
            async with asyncio.timeout(CALL_TIMEOUT_S + 1.0):
                await results.over
        except TimeoutError:
            raise DeadlineExceeded(f"{connection.address} did not end a removal within {CALL_TIMEOUT_S:g} s") from None
        finally:
            connection.forget(request)
        return results.statuses

    async def aclose(self) -> None:
        connections, self._connections = self._connections, {}
        for connection in connections.values():
            await connection.aclose()

    async def _connected(self, worker: Worker) -> Connection:
        async with self._connecting.setdefault(worker.drive_id, asyncio.Lock()):
            connection = self._connections.get(worker.drive_id)
            if connection is not None and not connection.closed and connection.peer.incarnation == worker.incarnation:
                return connection
            if connection is not None:
                await connection.aclose()
            connection = await Connection.connect(
                TcpAddress(worker.host, worker.port), role="tool", cluster_id=self._cluster_id
            )
            if connection.peer.incarnation != worker.incarnation:
                # Another drive's worker would say that it has nothing, which is no news of this drive.
                await connection.aclose()
                raise ConnectionFailed(f"{connection.address} is not the worker of drive {worker.drive_id} any more")
            self._connections[worker.drive_id] = connection
            return connection


class _Results:
    """Collects the replies to a REMOVE."""

    def __init__(self, count: int) -> None:
        self.statuses = [Status.INTERNAL] * count
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def on_reply(self, body: bytes | bytearray, payload_bytes: int) -> None:
        for number, status in REMOVE_RESULT.iter_unpack(decode_body(RemoveReply, body).results):
            if number < len(self.statuses):
                self.statuses[number] = Status(status)

    def on_payload(self) -> None:
        raise AssertionError("no memory was named")

    def on_done(self, error: EskerError | None) -> None:
        if self.over.done():
            return
        if error is None:
            self.over.set_result(None)
        else:
            self.over.set_exception(error)
