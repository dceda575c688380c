"""The client's copy of the cluster map, refreshed when somebody finds it old.

Owns when to ask: one question at a time, at most one each `REFRESH_INTERVAL_S`, however many notice at once; and by
itself, now and then: more often while some replica does not serve, since nobody notices that one serves again, else
for what comes without any trouble, such as new drives. What follows from a new map is for `on_change`.
"""

import asyncio
from collections.abc import Callable

from esker.runtime.logging import get_logger
from esker.wire.errors import EskerError
from esker.wire.messages import GetRouting, Method, RoutingReply
from esker.wire.meta_client import MetaClient
from esker.wire.types import Routing, TargetState

log = get_logger("client.routing")

REFRESH_INTERVAL_S = 0.1
REFRESH_TIMEOUT_S = 2.0
UNSETTLED_INTERVAL_S = 1.0
"""How often a newer map is asked for while some replica does not serve."""
SETTLED_INTERVAL_S = 10.0
"""And while all do."""


class RoutingCache:
    """Holds the newest routing seen. `routing` is only there after `load`."""

    def __init__(self, meta: MetaClient, on_change: Callable[[Routing], None]) -> None:
        self._meta = meta
        self._on_change = on_change
        self._refreshing: asyncio.Task[None] | None = None
        self._asked_at = float("-inf")
        self._timer: asyncio.TimerHandle | None = None
        self._settled = True
        self._closed = False
        self.routing: Routing

    async def load(self, timeout_s: float) -> Routing:
        """The first routing. Raises what `MetaClient.call` raises."""
        reply = await self._meta.call(Method.ROUTING, GetRouting(0), RoutingReply, timeout_s=timeout_s)
        assert reply.routing is not None, "version 0 is never the newest"
        self._take(reply.routing)
        self._ask_again_later()
        return reply.routing

    def refresh(self) -> "asyncio.Task[None]":
        """Asks for a newer map in the background, soon. The task ends when the answer has been taken over, or at once
        where this is closed: calls that are under way then still end by themselves.
        """
        if self._refreshing is None or self._refreshing.done():
            self._refreshing = asyncio.get_running_loop().create_task(self._refresh())
        return self._refreshing

    def _take(self, routing: Routing) -> None:
        self.routing = routing
        self._settled = all(
            replica.state is TargetState.SERVING for chain in routing.chains for replica in chain.replicas
        )

    async def _refresh(self) -> None:
        try:
            await self._ask()
        finally:
            self._ask_again_later()

    async def _ask(self) -> None:
        if self._closed:
            return
        loop = asyncio.get_running_loop()
        await asyncio.sleep(max(0.0, self._asked_at + REFRESH_INTERVAL_S - loop.time()))
        self._asked_at = loop.time()
        try:
            reply = await self._meta.call(
                Method.ROUTING, GetRouting(self.routing.version), RoutingReply, timeout_s=REFRESH_TIMEOUT_S
            )
        except EskerError as error:
            log.debug("the cluster map could not be refreshed", reason=str(error))
            return
        if reply.routing is not None and reply.routing.version > self.routing.version:
            self._take(reply.routing)
            self._on_change(reply.routing)

    def _ask_again_later(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._closed:
            interval_s = SETTLED_INTERVAL_S if self._settled else UNSETTLED_INTERVAL_S
            self._timer = asyncio.get_running_loop().call_later(interval_s, self.refresh)

    async def aclose(self) -> None:
        """Ends a refresh under way."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        if self._refreshing is not None:
            self._refreshing.cancel()
            await asyncio.gather(self._refreshing, return_exceptions=True)
