"""Watches of one store: which keys are waited for, and what value makes each fire.

Runs on the store's event loop only. A watch compares values, so a change and its reversal between two looks may go
unseen, as with FoundationDB.
"""

import asyncio
from collections.abc import Callable

from esker.meta.store.base import Watch
from esker.meta.store.errors import InvalidOperation, LimitExceeded, StoreFailed
from esker.meta.store.writes import CommitSet

WATCHES_MAX = 10_000


class KeyWatch(Watch):
    """A watch of one key. Made unarmed by a transaction, armed by its commit."""

    def __init__(self, table: "WatchTable", key: bytes, seen: bytes | None) -> None:
        self.key = key
        self.seen = seen
        self._table = table
        self._fired = asyncio.get_running_loop().create_future()

    async def wait(self, timeout_s: float) -> bool:
        done, _ = await asyncio.wait([self._fired], timeout=timeout_s)
        return bool(done) and self._fired.result()

    def cancel(self) -> None:
        self._table.forget(self)
        self._settle(False)

    def fire(self) -> None:
        self._settle(True)

    def abandon(self, error: InvalidOperation | StoreFailed) -> None:
        """Make `wait` raise `error`."""
        if not self._fired.done():
            self._fired.set_exception(error)
            self._fired.exception()  # Marked as seen: a watch nobody waits for is no fault.

    def _settle(self, changed: bool) -> None:
        if not self._fired.done():
            self._fired.set_result(changed)


class WatchTable:
    """Armed watches by key. `read` gives a key's newest committed value."""

    def __init__(self, read: Callable[[bytes], bytes | None]) -> None:
        self._read = read
        self._armed: dict[bytes, set[KeyWatch]] = {}
        self._count = 0

    def make(self, key: bytes, seen: bytes | None) -> KeyWatch:
        """An unarmed watch. Raises `LimitExceeded` where too many are armed."""
        if self._count >= WATCHES_MAX:
            raise LimitExceeded(f"{self._count} watches are open; allowed: {WATCHES_MAX}")
        return KeyWatch(self, key, seen)

    def arm(self, watch: KeyWatch) -> None:
        """Start watching; fires at once if the value is another already."""
        if self._read(watch.key) != watch.seen:
            watch.fire()
            return
        self._armed.setdefault(watch.key, set()).add(watch)
        self._count += 1

    def forget(self, watch: KeyWatch) -> None:
        armed = self._armed.get(watch.key)
        if armed and watch in armed:
            armed.remove(watch)
            self._count -= 1
            if not armed:
                del self._armed[watch.key]

    def committed(self, writes: CommitSet) -> None:
        """Fire the watches whose value `writes`, committed by now, changed."""
        if not self._armed:
            return
        touched = {key for key in self._armed if key in writes.points or key in writes.adds}
        touched.update(key for key in self._armed for begin, end in writes.cleared if begin <= key < end)
        for key in touched:
            value = self._read(key)
            for watch in [watch for watch in self._armed[key] if watch.seen != value]:
                self.forget(watch)
                watch.fire()

    def close(self) -> None:
        for watch in [watch for armed in self._armed.values() for watch in armed]:
            self.forget(watch)
            watch.abandon(StoreFailed("the store is closed"))
