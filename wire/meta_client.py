"""Calls to the metadata servers: whichever of them answers, within the caller's deadline.

Owns one connection at a time and which address to try next. Knows nothing of what the calls mean.
"""

import asyncio
from collections.abc import Sequence
from typing import TypeVar

from esker.wire.errors import ConnectionFailed, DeadlineExceeded, UserError
from esker.wire.limits import CONNECT_TIMEOUT_S
from esker.wire.messages import GetRouting, HelloReply, Message, Method, RoutingReply
from esker.wire.rpc_client import Connection, TcpAddress

R = TypeVar("R", bound=Message)

RETRY_DELAY_S = 0.1
"""Between rounds over all addresses while none answers."""


def parse_addresses(text: str) -> list[TcpAddress]:
    """The addresses in `host:port[,host:port]`. Raises `UserError` for anything else."""
    addresses = []
    for part in text.split(","):
        host, colon, port = part.strip().rpartition(":")
        if not colon or not host or not port.isascii() or not port.isdigit() or not 1 <= int(port) <= 65535:
            raise UserError(f"cluster address {part.strip()!r}; write host:port, several separated by commas")
        addresses.append(TcpAddress(host.removeprefix("[").removesuffix("]"), int(port)))
    return addresses


class MetaClient:
    """Makes calls to the first of `addresses` that answers, and stays with it."""

    def __init__(
        self, addresses: Sequence[TcpAddress], *, role: str = "client", cluster_id: str = "", peer_id: str = ""
    ) -> None:
        self._addresses = list(addresses)
        self._role = role
        self._cluster_id = cluster_id
        self._peer_id = peer_id
        self._connection: Connection | None = None
        self._connecting = asyncio.Lock()

    async def peer(self, *, timeout_s: float) -> HelloReply:
        """How the server that answers introduced itself. Raises like `call`."""
        await self.call(Method.ROUTING, GetRouting(0), RoutingReply, timeout_s=timeout_s)
        assert self._connection is not None
        return self._connection.peer

    async def call(self, method: Method, body: Message, reply_type: type[R], *, timeout_s: float) -> R:
        """One request, tried at one server after the other: so it must be safe to carry out twice.

        Raises `ConnectionFailed`, naming where it looked, when none answered within `timeout_s`; `RequestFailed`
        when one refused.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        reason: Exception | None = None
        while (left_s := deadline - loop.time()) > 0:
            try:
                connection = await self._connect(left_s)
                return await connection.call(method, body, reply_type, timeout_s=max(0.001, deadline - loop.time()))
            except (ConnectionFailed, DeadlineExceeded) as error:
                reason = error
                await self._drop()
            await asyncio.sleep(min(RETRY_DELAY_S, max(0.0, deadline - loop.time())))
        looked = ", ".join(map(str, self._addresses))
        raise ConnectionFailed(f"no metadata server answered within {timeout_s:.3g} s; looked at {looked} ({reason})")

    async def _connect(self, timeout_s: float) -> Connection:
        """The present connection, or a new one to the first address that accepts."""
        async with self._connecting:
            if self._connection is not None and not self._connection.closed:
                return self._connection
            loop = asyncio.get_running_loop()
            deadline = loop.time() + timeout_s
            reason = ConnectionFailed("no time left")
            for address in list(self._addresses):
                left_s = deadline - loop.time()
                if left_s <= 0:
                    break
                try:
                    self._connection = await Connection.connect(
                        address,
                        role=self._role,
                        cluster_id=self._cluster_id,
                        peer_id=self._peer_id,
                        timeout_s=min(CONNECT_TIMEOUT_S, left_s),
                    )
                except ConnectionFailed as error:
                    reason = error
                    self._addresses.append(self._addresses.pop(0))
                else:
                    return self._connection
            raise reason

    async def _drop(self) -> None:
        """The present server did not answer: the next call starts with another."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.aclose()
            self._addresses.append(self._addresses.pop(0))

    async def aclose(self) -> None:
        """Ends the connection."""
        if self._connection is not None:
            await self._connection.aclose()
            self._connection = None

    def abandon_in_child(self) -> None:
        """In a forked child: closes its copy of the connection."""
        if self._connection is not None:
            self._connection.stream.abandon_in_child()
