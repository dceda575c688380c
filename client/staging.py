"""Slots that stand between workers of this host and memory that they cannot write into.

A worker writes into a staging slot by itself, the client verifies and copies from there: one copy instead of the two
of a socket. Made and registered when first wanted; until it is, and whenever it is used up, the socket serves.
"""

import asyncio
from collections.abc import Sequence

from esker.client.buffers import BufferPool, PoolExhausted, Slot
from esker.client.channel import Channel
from esker.client.late import may_go_direct
from esker.client.workers import Workers
from esker.runtime.logging import get_logger
from esker.wire.errors import EskerError, UserError

log = get_logger("client.staging")

STAGING_BYTES = 16 << 20
SLOTS_MAX = 1024


class Staging:
    """The staging slots of one client, each for a chunk of at most `slot_bytes`."""

    def __init__(self, workers: Workers, slot_bytes: int) -> None:
        self._workers = workers
        self._slot_bytes = slot_bytes
        self._pool: BufferPool | None = None
        self._registering: asyncio.Task[None] | None = None
        self._closed = False

    def lease(self, channel: Channel, rooms: Sequence[int]) -> tuple[int, list[Slot] | None]:
        """The memory id and a slot for each room (bytes); (0, None) where the data must come through the socket."""
        if self._registering is None and not self._closed and self._slot_bytes <= STAGING_BYTES:
            self._registering = asyncio.get_running_loop().create_task(self._register())
        pool = self._pool
        memory_id = channel.memory_ids.get(pool, 0) if pool is not None else 0
        if self._closed or pool is None or not memory_id or max(rooms) > pool.slot_bytes or not may_go_direct(pool):
            return 0, None
        try:
            return memory_id, pool.acquire(len(rooms))
        except (PoolExhausted, UserError):
            return 0, None

    async def _register(self) -> None:
        try:
            self._pool = BufferPool(self._slot_bytes, min(SLOTS_MAX, STAGING_BYTES // self._slot_bytes))
            await self._workers.add_pool(self._pool)
        except EskerError as error:
            log.warning("memory of the caller's own is read through sockets", reason=str(error))

    async def stop(self) -> None:
        """Registers and leases nothing any more."""
        self._closed = True
        if self._registering is not None:
            self._registering.cancel()
            await asyncio.gather(self._registering, return_exceptions=True)

    def close(self) -> None:
        """Frees the memory. For after `stop`, and the end of the connections over which it was being filled."""
        if self._pool is not None:
            self._pool.close()
