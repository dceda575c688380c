"""Waiting, with a deadline, until a condition that only the loop's own callbacks change holds."""

import asyncio
from collections.abc import Callable


class IdleWaiter:
    """Wakes those who wait when its owner says that the condition may hold now."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiters: list[asyncio.Future[None]] = []

    def notify(self) -> None:
        """Lets everyone look again."""
        if self._waiters:
            waiters, self._waiters = self._waiters, []
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_result(None)

    async def wait(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        """Whether `condition` came to hold within `timeout_s`."""
        deadline = self._loop.time() + timeout_s
        while not condition():
            waiter = self._loop.create_future()
            self._waiters.append(waiter)
            try:
                async with asyncio.timeout_at(deadline):
                    await waiter
            except TimeoutError:
                return condition()
        return True
