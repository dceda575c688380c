"""How fast a scrub reads: a rate in bytes per second while the drive is idle, down to a quarter of it beside clients.

A quarter, not nothing: a drive that is never idle is scrubbed all the same.
"""

import asyncio
from collections.abc import Callable

COST_BYTES_MIN = 64 << 10
"""A chunk costs at least this much of the rate, however small it is: looking at it takes time of the loop."""
BUSY_FACTOR = 3
"""How many times longer a reading may take beside clients."""
LOOK_INTERVAL_S = 0.005


class ScrubPace:
    """Of one drive. `quiet`: whether no client waits for it."""

    def __init__(self, bytes_per_s: int, quiet: Callable[[], bool]) -> None:
        self.bytes_per_s = bytes_per_s
        self._quiet = quiet
        self._next_s = 0.0

    async def enter(self, size_bytes: int) -> None:
        """Accounts for a reading of that size, and waits until the next one may begin."""
        loop = asyncio.get_running_loop()
        cost_s = max(size_bytes, COST_BYTES_MIN if size_bytes else 0) / self.bytes_per_s
        self._next_s = max(self._next_s, loop.time()) + cost_s
        await asyncio.sleep(max(0.0, self._next_s - loop.time()))
        end_s = self._next_s + BUSY_FACTOR * cost_s
        while loop.time() < end_s:
            if self._quiet():
                return
            await asyncio.sleep(min(LOOK_INTERVAL_S, max(0.0, end_s - loop.time())))
