"""The store in memory: the fake for simulation and tests, with the semantics of the real engines.

Keeps every key's versions of the last `AGE_S` and a sorted list of keys. Commits apply at once, after one turn of the
loop. `fault` lets a test lose a commit's answer: it returns None, "before" (the commit does not happen) or "after".
"""

import asyncio
from bisect import bisect_left, insort
from collections.abc import Callable
from typing import Literal

from esker.meta.store.base import AGE_S, KeyValue, Retry, Store
from esker.meta.store.conflicts import ConflictWindow
from esker.meta.store.errors import CommitUnknown, StoreFailed
from esker.meta.store.transaction import SnapshotTransaction
from esker.meta.store.watches import WatchTable
from esker.meta.store.writes import CommitSet, added

Fault = Literal["before", "after"] | None


def _no_fault() -> Fault:
    return None


class MemoryStore(Store):
    """See `Store`. Also the `Engine` of its transactions. Servers of a simulation share it."""

    engine = "memory"
    exclusive = False

    def __init__(self, retry: Retry | None = None, fault: Callable[[], Fault] = _no_fault) -> None:
        self.retry = retry or Retry()
        self.clock = self.retry.clock
        self.watches = WatchTable(self._newest)
        self._fault = fault
        self._version = 0
        self._keys: list[bytes] = []
        self._history: dict[bytes, list[tuple[int, bytes | None]]] = {}
        self._snapshots: dict[int, int] = {}
        self._window = ConflictWindow(0, AGE_S)
        self._closed = False

    def transaction(self) -> SnapshotTransaction:
        return SnapshotTransaction(self)

    def statistics(self) -> dict[str, int]:
        """Commits so far."""
        return {"store_commits": self._version}

    async def version(self) -> str:
        return ""

    async def aclose(self) -> None:
        self._closed = True
        self.watches.close()

    def open_snapshot(self) -> "MemorySnapshot":
        self._check_open()
        self._snapshots[self._version] = self._snapshots.get(self._version, 0) + 1
        return MemorySnapshot(self, self._version)

    async def apply(self, writes: CommitSet) -> tuple[int, bytes]:
        await asyncio.sleep(0)
        self._check_open()
        fault = self._fault()
        if fault == "before":
            raise CommitUnknown("the answer to the commit was lost")
        self._window.check(writes)
        version = self._version + 1
        stamp = version.to_bytes(8, "big") + bytes(2)
        writes.resolve_stamps(stamp)
        for begin, end in writes.cleared:
            for key in self._keys[bisect_left(self._keys, begin) : bisect_left(self._keys, end)]:
                self._put(version, key, None)
        for key, value in writes.points.items():
            self._put(version, key, value)
        for key, operands in writes.adds.items():
            total = self._newest(key)
            for operand in operands:
                total = added(total, operand)
            self._put(version, key, total)
        self._version = version
        now_s = self.clock()
        self._window.record(version, writes, now_s)
        self._window.forget_old(now_s)
        self.watches.committed(writes)
        if fault == "after":
            raise CommitUnknown("the answer to the commit was lost")
        return version, stamp

    def value_at(self, key: bytes, version: int) -> bytes | None:
        for written, value in reversed(self._history.get(key, ())):
            if written <= version:
                return value
        return None

    def keys_between(self, begin: bytes, end: bytes) -> list[bytes]:
        return self._keys[bisect_left(self._keys, begin) : bisect_left(self._keys, end)]

    def release(self, version: int) -> None:
        self._snapshots[version] -= 1
        if not self._snapshots[version]:
            del self._snapshots[version]

    def _put(self, version: int, key: bytes, value: bytes | None) -> None:
        history = self._history.get(key)
        if history is None:
            if value is None:
                return
            history = self._history[key] = []
            insort(self._keys, key)
        history.append((version, value))
        oldest = min(self._snapshots, default=version)
        while len(history) > 1 and history[1][0] <= oldest:
            history.pop(0)
        if len(history) == 1 and history[0][1] is None:
            del self._history[key]
            self._keys.pop(bisect_left(self._keys, key))

    def _newest(self, key: bytes) -> bytes | None:
        return self.value_at(key, self._version)

    def _check_open(self) -> None:
        if self._closed:
            raise StoreFailed("the store is closed")


class MemorySnapshot:
    """The store's state at `version`; its versions are kept until `release`."""

    def __init__(self, store: MemoryStore, version: int) -> None:
        self.version = version
        self._store = store

    def get(self, key: bytes) -> bytes | None:
        return self._store.value_at(key, self.version)

    def get_range(self, begin: bytes, end: bytes, limit: int, reverse: bool) -> list[KeyValue]:
        keys = self._store.keys_between(begin, end)
        found: list[KeyValue] = []
        for key in reversed(keys) if reverse else keys:
            value = self._store.value_at(key, self.version)
            if value is not None:
                found.append((key, value))
                if len(found) == limit:
                    break
        return found

    def release(self) -> None:
        self._store.release(self.version)
