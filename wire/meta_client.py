"""Calls to the metadata servers: whichever of them answers, within the caller's deadline.

Owns one connection at a time and which address to try next: the given addresses, and those that replies with a cluster
map tell. The first is chosen by chance, also once more when the others become known, so that callers spread over the
servers. Knows nothing else of what the calls mean.
"""

import asyncio
import contextlib
from collections.abc import Iterator, Sequence
from random import Random
from typing import TypeVar

from esker.wire.errors import ConnectionFailed, DeadlineExceeded, RequestFailed, UserError
from esker.wire.limits import CONNECT_TIMEOUT_S
from esker.wire.messages import GetRouting, HelloReply, Message, Method, RoutingReply
from esker.wire.rpc_client import Connection, TcpAddress
from esker.wire.status import Status
from esker.wire.types import Routing

R = TypeVar("R", bound=Message)

RETRY_DELAY_S = 0.1
"""Between rounds over all addresses while none answers."""
ATTEMPT_S_MIN = 0.25
"""A server gets half of the time that is left, so that another can still answer, but not less than this."""
ATTEMPT_S_LEAST = 0.001
"""With less time than this left nothing is tried again: it would only hide why the earlier attempts failed."""


def parse_addresses(text: str) -> list[TcpAddress]:
    """The addresses in `host:port[,host:port]`. Raises `UserError` for anything else."""
    addresses = []
    for part in text.split(","):
        host, colon, port = part.strip().rpartition(":")
        if (
            not colon
            or not host
            or not port.isascii()
            or not port.isdigit()
            or len(port) > 5
            or not 1 <= int(port) <= 65535
        ):
            raise UserError(f"cluster address {part.strip()!r}; write host:port, several separated by commas")
        addresses.append(TcpAddress(host.removeprefix("[").removesuffix("]"), int(port)))
    return addresses


class _Link:
    """A connection and the calls under way on it."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.calls = 0
        self.retired = False

    @contextlib.contextmanager
    def used(self) -> Iterator[Connection]:
        self.calls += 1
        try:
            yield self.connection
        finally:
            self.calls -= 1
            self._close_if_unused()

    def retire(self) -> None:
        """No new calls; closes after those under way."""
        self.retired = True
        self._close_if_unused()

    def _close_if_unused(self) -> None:
        if self.retired and not self.calls:
            self.connection.stream.close()


class MetaClient:
    """Makes calls to one of the servers that answer, and stays with it while it does."""

    def __init__(
        self,
        addresses: Sequence[TcpAddress],
        *,
        role: str = "client",
        cluster_id: str = "",
        peer_id: str = "",
        learns: bool = True,
        chance: Random | None = None,
    ) -> None:
        """`learns=False`: only `addresses`, whatever replies tell."""
        self._given = list(dict.fromkeys(addresses))
        self._role = role
        self._cluster_id = cluster_id
        self._peer_id = peer_id
        self._chance = chance or Random()
        self._learns = learns
        self._spread = False
        self._order = list(self._given)
        self._chance.shuffle(self._order)
        self._link: _Link | None = None
        self._answered_by = HelloReply(0, "", "", "")
        self._connecting = asyncio.Lock()
        self._closed = False

    @property
    def addresses(self) -> tuple[TcpAddress, ...]:
        """All that are known, the next to be tried first."""
        return tuple(self._order)

    async def peer(self, *, timeout_s: float) -> HelloReply:
        """How the server that answers introduced itself. Raises like `call`."""
        await self.call(Method.ROUTING, GetRouting(0), RoutingReply, timeout_s=timeout_s)
        return self._answered_by

    async def call(self, method: Method, body: Message, reply_type: type[R], *, timeout_s: float) -> R:
        """One request, tried at one server after the other: so it must be safe to carry out twice.

        Raises `ConnectionFailed`, naming where it looked, when none answered within `timeout_s`; `RequestFailed`
        when one refused, UNAVAILABLE only if each did.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        reason: Exception | None = None
        failures = unavailable = 0
        while (left_s := deadline - loop.time()) > ATTEMPT_S_LEAST or reason is None:
            link: _Link | None = None
            if self._closed:
                raise ConnectionFailed("this client of the metadata servers was closed")
            try:
                link = await self._connected(max(ATTEMPT_S_LEAST, left_s))
                with link.used() as connection:
                    attempt_s = self._attempt_s(max(0.001, deadline - loop.time()))
                    reply = await connection.call(method, body, reply_type, timeout_s=attempt_s)
            except RequestFailed as error:
                unavailable += 1
                if error.status is not Status.UNAVAILABLE or unavailable >= len(self._order):
                    raise
                reason = error
            except (ConnectionFailed, DeadlineExceeded) as error:
                reason = error
            else:
                self._answered_by = link.connection.peer
                self._learn_from(reply)
                return reply
            self._drop(link)
            failures += 1
            if failures % len(self._order) == 0:
                await asyncio.sleep(min(RETRY_DELAY_S, max(0.0, deadline - loop.time())))
        looked = ", ".join(map(str, self._order))
        raise ConnectionFailed(f"no metadata server answered within {timeout_s:.3g} s; looked at {looked} ({reason})")

    def learn(self, addresses: Sequence[str]) -> None:
        """Take over the servers' addresses, host:port, as a cluster map has them. What was given stays."""
        found = list(self._given)
        for text in addresses:
            with contextlib.suppress(UserError):
                found += parse_addresses(text)
        known = dict.fromkeys(found)
        fresh = [address for address in known if address not in self._order]
        self._order = [address for address in self._order if address in known]
        for address in fresh:
            self._order.insert(self._chance.randint(min(1, len(self._order)), len(self._order)), address)
        if fresh and not self._spread:
            self._spread = True
            self._chance.shuffle(self._order)
            if self._link is not None and self._link.connection.address != self._order[0]:
                self._retire()

    async def aclose(self) -> None:
        """Ends the connection; later calls fail at once."""
        self._closed = True
        if self._link is not None:
            await self._link.connection.aclose()
            self._link = None

    def abandon_in_child(self) -> None:
        """In a forked child: closes its copy of the connection."""
        if self._link is not None:
            self._link.connection.stream.abandon_in_child()

    def _attempt_s(self, left_s: float) -> float:
        return min(left_s, max(ATTEMPT_S_MIN, left_s / 2)) if len(self._order) > 1 else left_s

    async def _connected(self, timeout_s: float) -> _Link:
        """The present connection, or a new one to the first address that accepts.

        Raises `ConnectionFailed` where there is none within `timeout_s`, also where another call, with more time, is
        still connecting.
        """
        deadline = asyncio.get_running_loop().time() + timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                await self._connecting.acquire()
        except TimeoutError:
            raise ConnectionFailed("no time left") from None
        try:
            if self._link is None or self._link.connection.closed:
                self._link = _Link(await self._connect(deadline))
            return self._link
        finally:
            self._connecting.release()

    async def _connect(self, deadline: float) -> Connection:
        loop = asyncio.get_running_loop()
        reason = ConnectionFailed("no time left")
        for address in list(self._order):
            left_s = deadline - loop.time()
            if left_s <= 0:
                break
            try:
                connection = await Connection.connect(
                    address,
                    role=self._role,
                    cluster_id=self._cluster_id,
                    peer_id=self._peer_id,
                    timeout_s=min(CONNECT_TIMEOUT_S, self._attempt_s(left_s)),
                )
            except ConnectionFailed as error:
                reason = error
                self._put_last(address)
                continue
            if self._closed:
                await connection.aclose()
                break
            return connection
        raise reason

    def _learn_from(self, reply: Message) -> None:
        routing = getattr(reply, "routing", None)
        if self._learns and isinstance(routing, Routing) and routing.meta_servers:
            self.learn(routing.meta_servers)

    def _drop(self, link: _Link | None) -> None:
        """The server of `link` did not answer: the next call starts with another."""
        if link is None or link is not self._link:
            return
        address = link.connection.address
        assert isinstance(address, TcpAddress)
        self._put_last(address)
        self._retire()

    def _retire(self) -> None:
        if self._link is not None:
            self._link.retire()
            self._link = None

    def _put_last(self, address: TcpAddress) -> None:
        if address in self._order:
            self._order.remove(address)
            self._order.append(address)
