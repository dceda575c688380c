"""An operator's connections to a cluster: its metadata servers and its drive workers.

Owns the connections and the deadline of each question: `QUESTION_TIMEOUT_S`, unless told otherwise. Knows nothing of
what is asked.
"""

import asyncio
from collections.abc import Sequence
from types import TracebackType
from typing import TypeVar

from esker.wire.admin_messages import NamespaceFigures, NamespaceFiguresGet, NamespaceFiguresReply
from esker.wire.errors import ConnectionFailed, RequestFailed, UserError
from esker.wire.messages import GetRouting, Message, Method, RoutingReply
from esker.wire.meta_client import MetaClient, parse_addresses
from esker.wire.rpc_client import Connection, TcpAddress
from esker.wire.status import Status
from esker.wire.types import Chain, Routing, TargetState, Worker

QUESTION_TIMEOUT_S = 5.0
FIGURES_PAGE = 500

R = TypeVar("R", bound=Message)


class ClusterLink:
    """A cluster by its address, within an `async with` block. Raises `UserError` for an address that is none."""

    def __init__(self, cluster: str) -> None:
        self._meta = MetaClient(parse_addresses(cluster), role="tool")
        self._workers: dict[str, Connection] = {}
        self._connecting: dict[str, asyncio.Lock] = {}

    async def __aenter__(self) -> "ClusterLink":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for connection in self._workers.values():
            await connection.aclose()
        await self._meta.aclose()

    @property
    def meta_addresses(self) -> Sequence[TcpAddress]:
        """The metadata servers that are known."""
        return self._meta.addresses

    async def meta(
        self, method: Method, body: Message, reply_type: type[R], *, timeout_s: float = QUESTION_TIMEOUT_S
    ) -> R:
        """Asks a metadata server. Raises like `MetaClient.call`."""
        return await self._meta.call(method, body, reply_type, timeout_s=timeout_s)

    async def order(
        self, method: Method, body: Message, reply_type: type[R], *, timeout_s: float = QUESTION_TIMEOUT_S
    ) -> R:
        """Like `meta`. What the operator named wrongly is a `UserError`; other refusals stay `RequestFailed`."""
        try:
            return await self.meta(method, body, reply_type, timeout_s=timeout_s)
        except RequestFailed as error:
            if error.status in (Status.BAD_REQUEST, Status.NOT_FOUND):
                raise UserError(error.message) from error
            raise

    async def worker(self, worker: Worker, method: Method, body: Message, reply_type: type[R]) -> R:
        """Asks a drive's worker. Raises `ConnectionFailed`, `DeadlineExceeded` or `RequestFailed`."""
        connection = await self._connected(worker)
        return await connection.call(method, body, reply_type, timeout_s=QUESTION_TIMEOUT_S)

    async def routing(self) -> Routing:
        """The cluster map."""
        reply = await self.meta(Method.ROUTING, GetRouting(0), RoutingReply)
        assert reply.routing is not None, "version 0 is never the newest"
        return reply.routing

    async def namespaces(self) -> list[NamespaceFigures]:
        """All namespaces, those that are being removed included."""
        found: list[NamespaceFigures] = []
        while True:
            after_id = found[-1].namespace.namespace_id if found else 0
            ask = NamespaceFiguresGet(after_id, FIGURES_PAGE)
            page = (await self.meta(Method.NAMESPACE_FIGURES, ask, NamespaceFiguresReply)).namespaces
            found += page
            if len(page) < FIGURES_PAGE:
                return found

    async def _connected(self, worker: Worker) -> Connection:
        async with self._connecting.setdefault(worker.drive_id, asyncio.Lock()):
            connection = self._workers.get(worker.drive_id)
            if connection is None or connection.closed:
                try:
                    connection = await Connection.connect(TcpAddress(worker.host, worker.port), role="tool")
                except RequestFailed as error:
                    raise ConnectionFailed(f"the worker of drive {worker.drive_id} refuses: {error}") from error
                self._workers[worker.drive_id] = connection
            if connection.peer.drive_id != worker.drive_id:
                raise ConnectionFailed(f"{connection.address} serves drive {connection.peer.drive_id}")
            return connection


def head_of(chain: Chain, workers: dict[str, Worker]) -> Worker | None:
    """The worker that leads the chain; None where there is none."""
    for replica in chain.replicas:
        if replica.state is TargetState.SERVING:
            return workers.get(replica.drive_id)
    return None
