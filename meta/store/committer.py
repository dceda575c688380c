"""The one thread that commits to an embedded store, in groups.

While a group is being made durable the next gathers. Each transaction of a group is validated against recent commits,
those of its own group included, and applied in one LMDB transaction, whose commit (default sync) makes all of them
durable. Only then are they answered, on the event loop. An error of the LMDB transaction fails its whole group; the
state on disk is then the one before it.
"""

import asyncio
import queue
import threading
from collections.abc import Callable
from typing import Any

import lmdb

from esker.meta.store.base import AGE_S, VERSIONSTAMP_BYTES
from esker.meta.store.conflicts import ConflictWindow
from esker.meta.store.errors import StoreBusy, StoreError, StoreFailed
from esker.meta.store.ordered import OrderedMap
from esker.meta.store.writes import CommitSet, added
from esker.wire.limits import MIB

QUEUE_MAX = 4096
GROUP_MAX = 512
FREE_BYTES_MIN = 16 * MIB
"""With less left on the file system, a failed commit is put down to lack of space."""
VERSION_KEY = b"version"
"""In the engine's own database: the newest committed version, u64 big-endian."""

Answer = asyncio.Future[tuple[int, bytes]]


class _Commit:
    __slots__ = ("answer", "error", "stamp", "writes")

    def __init__(self, writes: CommitSet, answer: Answer) -> None:
        self.writes = writes
        self.answer = answer
        self.stamp = b""
        self.error: StoreError | None = None


class Committer:
    """Takes commits on the loop, applies them in its thread, answers on the loop."""

    def __init__(
        self,
        environment: lmdb.Environment,
        data: OrderedMap,
        engine_database: Any,
        version: int,
        clock: Callable[[], float],
        free_bytes: Callable[[], int],
        committed: Callable[[list[CommitSet]], None],
    ) -> None:
        """`free_bytes` tells what the file system has left, from any thread.

        `committed` is called on the loop with what became durable, in order, before it is answered.
        """
        self._environment = environment
        self._data = data
        self._engine_database = engine_database
        self._version = version
        self._clock = clock
        self._free_bytes = free_bytes
        self._committed = committed
        self._window = ConflictWindow(version, AGE_S)
        self._queue: queue.SimpleQueue[_Commit | None] = queue.SimpleQueue()
        self._waiting = 0
        self._closing = False
        self._failure = ""
        self.groups = 0
        self.commits = 0
        self._loop = asyncio.get_running_loop()
        self._stopped = asyncio.Event()
        self._thread = threading.Thread(target=self._work, name="meta-committer", daemon=True)
        self._thread.start()

    async def commit(self, writes: CommitSet) -> tuple[int, bytes]:
        """(version, versionstamp) once durable. Raises `StoreError`."""
        if self._closing or self._failure:
            raise StoreFailed(self._failure or "the store is closed")
        if self._waiting >= QUEUE_MAX:
            raise StoreBusy(f"{self._waiting} commits are waiting")
        self._waiting += 1
        answer: Answer = self._loop.create_future()
        self._queue.put(_Commit(writes, answer))
        return await answer

    async def aclose(self) -> None:
        """Finish what was taken, then stop the thread."""
        if not self._closing:
            self._closing = True
            self._queue.put(None)
        await self._stopped.wait()
        self._thread.join()

    def _work(self) -> None:
        open_for_more = True
        while open_for_more:
            taken = [self._queue.get()]
            while len(taken) < GROUP_MAX and not self._queue.empty():
                taken.append(self._queue.get())
            group = [commit for commit in taken if commit is not None]
            open_for_more = len(group) == len(taken)
            if group:
                self._perform(group)
                self._loop.call_soon_threadsafe(self._answer, group)
        self._loop.call_soon_threadsafe(self._stopped.set)

    def _perform(self, group: list[_Commit]) -> None:
        try:
            applied = self._write(group)
        except lmdb.MapFullError:
            self._fail(group, "the metadata store has reached its largest size; remove data from the cluster")
        except Exception as error:
            if isinstance(error, lmdb.Error) and self._free_bytes() < FREE_BYTES_MIN:
                # LMDB reports a write that was cut short as an I/O error; the commit is undone, and space may return.
                self._fail(group, "no space left on the metadata drive; free some")
                return
            # An I/O error leaves LMDB's own view in doubt, so nothing more may be built on it.
            reason = f"the metadata store failed ({type(error).__name__}: {error}); check its drive, then restart"
            self._failure = reason
            self._fail(group, reason)
        else:
            self.groups += applied > 0
            self.commits += applied

    def _write(self, group: list[_Commit]) -> int:
        """Make a group durable; how many of it were applied."""
        version = self._version + 1
        txn = self._environment.begin(write=True)
        try:
            applied = sum(self._try(txn, commit, version, at) for at, commit in enumerate(group))
            if applied:
                txn.put(VERSION_KEY, version.to_bytes(8, "big"), db=self._engine_database)
                txn.commit()
                self._version = version
                self._window.forget_old(self._clock())
            return applied
        except BaseException:
            # The version was not reached: its writes must not stand between what is read now and later commits.
            self._window.take_back(version)
            raise
        finally:
            txn.abort()

    def _try(self, txn: lmdb.Transaction, commit: _Commit, version: int, at: int) -> bool:
        """Validate and apply one commit of a group; whether it was applied."""
        writes = commit.writes
        try:
            self._window.check(writes)
        except StoreError as error:
            commit.error = error
            return False
        commit.stamp = version.to_bytes(8, "big") + at.to_bytes(VERSIONSTAMP_BYTES - 8, "big")
        writes.resolve_stamps(commit.stamp)
        self._apply(txn, writes)
        self._window.record(version, writes, self._clock())
        return True

    def _apply(self, txn: lmdb.Transaction, writes: CommitSet) -> None:
        data = self._data
        for begin, end in writes.cleared:
            data.delete_range(txn, begin, end)
        for key in sorted(writes.points):
            value = writes.points[key]
            if value is None:
                data.delete(txn, key)
            else:
                data.put(txn, key, value)
        for key, operands in writes.adds.items():
            total = data.get(txn, key)
            for operand in operands:
                total = added(total, operand)
            data.put(txn, key, total or b"")

    def _fail(self, group: list[_Commit], reason: str) -> None:
        for commit in group:
            commit.error = commit.error or StoreFailed(reason)

    def _answer(self, group: list[_Commit]) -> None:
        self._waiting -= len(group)
        self._committed([commit.writes for commit in group if commit.error is None])
        for commit in group:
            if commit.answer.done():
                continue  # Its task was cancelled: nobody waits for this answer.
            if commit.error is None:
                commit.answer.set_result((int.from_bytes(commit.stamp[:8], "big"), commit.stamp))
            else:
                commit.answer.set_exception(commit.error)
