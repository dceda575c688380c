"""Payload that comes in: brought into the worker's pool, from the connection or from a client's registered memory.

What was brought in is a snapshot: whoever sent it may change its memory meanwhile and changes nothing. Knows nothing of
what the bytes are; they are not verified here.
"""

import asyncio
from collections.abc import Callable, Sequence

from esker.chunkserver.memories import ClientMemories
from esker.chunkserver.pool import Region, WorkerPool
from esker.wire.errors import ConnectionFailed, RequestFailed
from esker.wire.limits import REQUEST_PAYLOAD_BYTES_MAX
from esker.wire.rpc_server import Request
from esker.wire.status import Status

PAYLOAD_TIMEOUT_S = 30.0
"""A payload that is not here by then, or by the end of the request's budget, holds pool memory no longer."""

Piece = tuple[int, int, int]
"""Where it stands in registered memory, where in the pool's region, and its length, in bytes."""


def check_payload(request: Request, size_bytes: int, memory_id: int) -> None:
    """Raises `RequestFailed` where the request cannot carry `size_bytes`, or does not carry what it says."""
    if size_bytes > REQUEST_PAYLOAD_BYTES_MAX:
        raise RequestFailed(
            Status.TOO_LARGE, f"{size_bytes} bytes in one request; allowed: {REQUEST_PAYLOAD_BYTES_MAX}"
        )
    if request.payload_bytes != (0 if memory_id else size_bytes):
        raise RequestFailed(Status.BAD_REQUEST, f"a payload of {request.payload_bytes} bytes for {size_bytes}")


class Incoming:
    """Of one drive."""

    def __init__(self, pool: WorkerPool, memories: ClientMemories) -> None:
        self._pool = pool
        self._memories = memories
        self._loop = asyncio.get_running_loop()

    def take(
        self,
        request: Request,
        pieces: Sequence[Piece],
        region_bytes: int,
        memory_id: int,
        budget_ms: int,
        start: Callable[[Region], None],
    ) -> Sequence[memoryview] | None:
        """Calls `start`, once, with a region that has the pieces; it drops the region. Not where they never come.

        Returns the memory for a payload that is to follow (`memory_id` 0). Raises `RequestFailed`: BUSY, BAD_MEMORY.
        """
        region = self._pool.allocate(region_bytes)
        if region is None:
            raise RequestFailed(Status.BUSY, "the worker's pool is full")
        if memory_id:
            try:
                self._copy(request, memory_id, pieces, region)
            except BaseException:
                region.drop()
                raise
            start(region)
            return None
        stream = request.connection.stream
        late = self._loop.call_later(
            min(max(0, budget_ms) / 1000, PAYLOAD_TIMEOUT_S),
            lambda: stream.close(
                ConnectionFailed(f"the payload of a {request.method.name} did not arrive within its budget")
            ),
        )

        def arrived() -> None:
            late.cancel()
            start(region)

        def lost() -> None:
            late.cancel()
            region.drop()

        request.on_payload = arrived
        request.on_lost = lost
        return [region.view[at : at + length] for _, at, length in pieces]

    def _copy(self, request: Request, memory_id: int, pieces: Sequence[Piece], region: Region) -> None:
        memory = self._memories.find(request.connection, memory_id)
        for memory_at, at, length in pieces:
            if not memory.holds(memory_at, length):
                raise RequestFailed(Status.BAD_MEMORY, f"{length} bytes at {memory_at} lie outside the memory")
            if length and not memory.copy_from(memory_at, [region.view[at : at + length]]):
                self._memories.distrust(request.connection, "a copy from it came short")
                raise RequestFailed(Status.BAD_MEMORY, "the memory is shorter than it was registered")
