"""The worker's own aligned memory: what is received, read for a socket, or forwarded passes through it.

One sealed arena, so that a successor on the same host can copy from it by descriptor. Extents of any multiple of
4 KiB, first fit, neighbours merged. It is bounded: when nothing fits, the caller answers BUSY or waits.
"""

from bisect import bisect_left, insort
from collections.abc import Callable

from esker.wire.limits import ALIGN_BYTES, aligned
from esker.wire.memory import SharedArena

MAPPED_SHARE = 4
"""`allocate_or_map` takes no more than one part in this many of the pool."""


class Region:
    """A piece of the arena, shared by whoever called `hold`; it is free again after as many `drop`."""

    __slots__ = ("_holders", "_pool", "offset", "size_bytes", "view")

    def __init__(self, pool: "WorkerPool", offset: int, size_bytes: int, view: memoryview) -> None:
        self._pool = pool
        self._holders = 1
        self.offset = offset
        self.size_bytes = size_bytes
        self.view = view

    def hold(self) -> None:
        """One more user."""
        self._holders += 1

    def drop(self) -> None:
        """One user less."""
        self._holders -= 1
        assert self._holders >= 0, "a region was dropped twice"
        if self._holders == 0:
            self.view.release()
            self._pool.give_back(self.offset, self.size_bytes)


class WorkerPool:
    """`size_bytes` of memory for data in flight."""

    def __init__(self, size_bytes: int) -> None:
        self.arena = SharedArena(aligned(size_bytes), "esker-worker")
        self._free: list[tuple[int, int]] = [(0, self.arena.size_bytes)]
        self.free_bytes = self.arena.size_bytes
        self.on_free: Callable[[], None] | None = None
        """Called when memory came back."""

    def allocate(self, size_bytes: int) -> Region | None:
        """A region of at least `size_bytes`, held once; None when nothing fits now."""
        size = aligned(size_bytes) or ALIGN_BYTES
        for index, (offset, length) in enumerate(self._free):
            if length >= size:
                if length == size:
                    del self._free[index]
                else:
                    self._free[index] = (offset + size, length - size)
                self.free_bytes -= size
                self.arena.used(size)
                return Region(self, offset, size, self.arena.view[offset : offset + size])
        return None

    def allocate_or_map(self, size_bytes: int) -> Region:
        """A region, in memory of its own (none of `arena`'s) where the pool has no room now or would have little left:
        for what is rare, and must neither wait for clients nor keep the pool from them. Raises `UserError` where the
        machine has none.
        """
        region = self.allocate(size_bytes) if size_bytes <= self.arena.size_bytes // MAPPED_SHARE else None
        if region is not None:
            return region
        own = WorkerPool(max(size_bytes, ALIGN_BYTES))
        own.on_free = own.arena.abandon  # views of it may live a moment longer
        whole = own.allocate(size_bytes)
        assert whole is not None, "it is as large as the pool that was made for it"
        return whole

    def give_back(self, offset: int, size_bytes: int) -> None:
        """Called by the region itself."""
        self.free_bytes += size_bytes
        free = self._free
        index = bisect_left(free, (offset, 0))
        if index < len(free) and free[index][0] == offset + size_bytes:
            size_bytes += free[index][1]
            del free[index]
        if index and free[index - 1][0] + free[index - 1][1] == offset:
            offset = free[index - 1][0]
            size_bytes += free[index - 1][1]
            del free[index - 1]
        insort(free, (offset, size_bytes))
        if self.on_free is not None:
            self.on_free()

    def close(self) -> None:
        """Unmaps the arena; nothing may be held any more."""
        self.arena.close()
