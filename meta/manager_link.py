"""Passes a request on to the manager, for servers that are not: one connection to whoever it is at present.

Knows nothing of what the requests mean. A manager that does not answer in time is no failure of the request: the
caller then answers as far as it can.
"""

from typing import Protocol, TypeVar

from esker.wire.errors import ConnectionFailed, UserError
from esker.wire.messages import Message, Method
from esker.wire.meta_client import MetaClient, parse_addresses

R = TypeVar("R", bound=Message)

FORWARD_TIMEOUT_S = 0.5


class ManagerLink(Protocol):
    """How a server reaches the manager."""

    async def forward(
        self, address: str, method: Method, body: Message, reply_type: type[R], timeout_s: float = FORWARD_TIMEOUT_S
    ) -> R | None:
        """The manager's reply, or None where none came in time. Raises `RequestFailed` where it refused."""

    async def aclose(self) -> None:
        """End it."""


class TcpManagerLink:
    """`ManagerLink` of a real cluster."""

    def __init__(self, cluster_id: str) -> None:
        self._cluster_id = cluster_id
        self._address = ""
        self._client: MetaClient | None = None

    async def forward(
        self, address: str, method: Method, body: Message, reply_type: type[R], timeout_s: float = FORWARD_TIMEOUT_S
    ) -> R | None:
        try:
            client = await self._client_of(address)
            return await client.call(method, body, reply_type, timeout_s=timeout_s)
        except (ConnectionFailed, UserError):
            return None

    async def aclose(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    async def _client_of(self, address: str) -> MetaClient:
        if self._client is None or address != self._address:
            old, self._client = (
                self._client,
                MetaClient(parse_addresses(address), role="tool", cluster_id=self._cluster_id, learns=False),
            )
            self._address = address
            if old is not None:
                await old.aclose()
        return self._client
