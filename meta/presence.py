"""A metadata server's place among the others: its record, its part in the manager lease, its view of the cluster map.

Owns the background work and its order at start and stop: first known to others and perhaps the manager, then served;
at the end first no manager any more, then unknown. What fails in the background is tried again until `aclose`.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine

from esker.meta.manager import STEP_INTERVAL_S, Manager
from esker.meta.registry import BEAT_INTERVAL_S, Registry
from esker.meta.routing import RoutingCache
from esker.meta.store.base import Store
from esker.meta.store.errors import StoreError
from esker.runtime.logging import get_logger

log = get_logger("meta.presence")


class Presence:
    """Of one server."""

    def __init__(
        self,
        store: Store,
        incarnation: str,
        *,
        clock: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """`clock` must run on while the machine is suspended; `sleep` must be in its seconds."""
        self.manager = Manager(store, incarnation, clock)
        self.routing = RoutingCache(store, clock)
        self._registry = Registry(store, incarnation, clock)
        self._sleep = sleep
        self.tasks: list[asyncio.Task[None]] = []
        """The background work; they end only by `aclose`, or by a bug."""

    async def start(self, address: str) -> None:
        """Join the others, who reach this server at `address`; empty: they are not told. Raises `StoreError`."""
        self.manager.address = address
        await self._registry.register(address)
        await self.manager.step()
        loops: list[Coroutine[None, None, None]] = [
            self._hold_lease(),
            self._beat(),
            self.routing.follow(self._sleep),
        ]
        self.tasks = [asyncio.ensure_future(loop) for loop in loops]

    async def aclose(self) -> None:
        """Leave the others, in bounded time."""
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        if self.tasks:
            self.tasks.clear()
            await self.manager.give_up()
            await self._registry.withdraw()

    async def _hold_lease(self) -> None:
        while True:
            await self._sleep(STEP_INTERVAL_S)
            await self.manager.step()

    async def _beat(self) -> None:
        silent = False
        while True:
            await self._sleep(BEAT_INTERVAL_S)
            try:
                await self._registry.beat()
                if self.manager.term:
                    await self._registry.remove_silent(self.manager)
                silent = False
            except StoreError as error:
                if not silent:
                    log.warning("the metadata store does not take this server's beat", reason=str(error))
                silent = True
