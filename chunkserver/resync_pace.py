"""How fast resyncs go: a rate in bytes per second, and how much is under way at once.

Beside clients a few chunks go at a time, no more than become durable together, with rests of a multiple of what they
took: so resyncs get the same part of what a drive, its network and its processor can do, whatever that is. Clients that
read or write one thing after the other wait only some of the time, so whoever was busy for them lately counts as beside
clients.
"""

import asyncio
from collections.abc import Callable

AT_ONCE = 32
AT_ONCE_BESIDE_CLIENTS = 16
BYTES_BESIDE_CLIENTS = 1 << 20
REST_FACTOR = 2
REST_S_MAX = 1.0
LATELY_S = 0.5


class Pace:
    """Of one drive. Every `enter` is followed by one `leave`."""

    def __init__(self, bytes_per_s: int, in_flight_bytes_max: int, clients_wait: Callable[[], bool]) -> None:
        """More than `in_flight_bytes_max` are under way at once only for a single chunk. `clients_wait`: whether any
        does so at this moment.
        """
        self._bytes_per_s = bytes_per_s
        self._bytes_max = in_flight_bytes_max
        self._clients_wait = clients_wait
        self._clients_until_s = float("-inf")
        self._next_s = self._entered_s = self._rest_until_s = 0.0
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
        while True:
            if not self._has_room(size_bytes):
                self._left.clear()
                await self._left.wait()
            elif self._beside_clients() and loop.time() < self._rest_until_s:
                await asyncio.sleep(self._rest_until_s - loop.time())
            else:
                break
        if not self._count:
            self._entered_s = loop.time()
        self._count += 1
        self._bytes += size_bytes

    def leave(self, size_bytes: int) -> None:
        """It is over."""
        now_s = asyncio.get_running_loop().time()
        self._rest_until_s = now_s + min(REST_S_MAX, REST_FACTOR * (now_s - self._entered_s))
        self._count -= 1
        self._bytes -= size_bytes
        self._left.set()

    def _has_room(self, size_bytes: int) -> bool:
        if not self._count:
            return True
        at_once, bytes_max = AT_ONCE, self._bytes_max
        if self._beside_clients():
            at_once, bytes_max = AT_ONCE_BESIDE_CLIENTS, min(bytes_max, BYTES_BESIDE_CLIENTS)
        return self._count < at_once and self._bytes + size_bytes <= bytes_max

    def _beside_clients(self) -> bool:
        now_s = asyncio.get_running_loop().time()
        if self._clients_wait():
            self._clients_until_s = now_s + LATELY_S
        return now_s < self._clients_until_s
