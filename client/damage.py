"""Tells a worker of chunks whose bytes did not match, so that it looks at its copies and mends them.

Nobody waits for it and nothing follows from it here: the caller reads another replica meanwhile. What one turn of the
loop finds goes out together; where very many chunks are damaged, only so many a second are told of.
"""

import asyncio
from collections.abc import Callable

from esker.client.channel import Channel
from esker.wire.messages import Method
from esker.wire.rpc_client import IgnoredReply
from esker.wire.scrub_messages import DAMAGED_EXTENTS_MAX, Damaged

CHUNKS_PER_S_MAX = 64
assert CHUNKS_PER_S_MAX <= DAMAGED_EXTENTS_MAX


class DamageReports:
    """To one worker. `channel` is asked for when something is to be sent."""

    def __init__(self, channel: Callable[[], Channel | None]) -> None:
        self._channel = channel
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[int, list[bytes]] = {}
        self._second_s = float("-inf")
        self._count = 0

    def add(self, space: int, extent: bytes) -> None:
        """A chunk, as a row of DAMAGED_EXTENT."""
        now_s = self._loop.time()
        if now_s - self._second_s >= 1.0:
            self._second_s, self._count = now_s, 0
        if self._count >= CHUNKS_PER_S_MAX:
            return
        self._count += 1
        if not self._waiting:
            self._loop.call_soon(self._send)
        self._waiting.setdefault(space, []).append(extent)

    def _send(self) -> None:
        waiting, self._waiting = self._waiting, {}
        channel = self._channel()
        if channel is not None:
            for space, extents in waiting.items():
                channel.fast.start(Method.DAMAGED, Damaged(space, b"".join(extents)), IgnoredReply())
