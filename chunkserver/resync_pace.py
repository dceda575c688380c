"""How fast resyncs go: a rate in bytes per second, and how much is under way at once, less while clients write."""

import asyncio
from collections.abc import Callable

AT_ONCE = 32
AT_ONCE_BESIDE_CLIENTS = 8


class Pace:
    """Of one drive. Every `enter` is followed by one `leave`."""

    def __init__(self, bytes_per_s: int, in_flight_bytes_max: int, clients_write: Callable[[], bool]) -> None:
        """More than `in_flight_bytes_max` are under way at once only for a single chunk."""
        self._bytes_per_s = bytes_per_s
        self._bytes_max = in_flight_bytes_max
        self._clients_write = clients_write
        self._next_s = 0.0
        self._count = 0
        self._bytes = 0
        self._left = asyncio.Event()

    async def enter(self, size_bytes: int) -> None:
        """Waits until a chunk of that size may be sent."""
        loop = asyncio.get_running_loop()
        begin_s = max(self._next_s, loop.time())
        self._next_s = begin_s + size_bytes / self._bytes_per_s
        if begin_s > loop.time():
            await asyncio.sleep(begin_s - loop.time())
        while not self._has_room(size_bytes):
            self._left.clear()
            await self._left.wait()
        self._count += 1
        self._bytes += size_bytes

    def leave(self, size_bytes: int) -> None:
        """It is over."""
        self._count -= 1
        self._bytes -= size_bytes
        self._left.set()

    def _has_room(self, size_bytes: int) -> bool:
        if not self._count:
            return True
        limit = AT_ONCE_BESIDE_CLIENTS if self._clients_write() else AT_ONCE
        return self._count < limit and self._bytes + size_bytes <= self._bytes_max
