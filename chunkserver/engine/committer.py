"""The two threads that make writes durable, in groups.

The first calls `fdatasync` for every data file that the puts of a group wrote. The second puts what is synced into one
LMDB transaction with LMDB's own sync; then the callbacks run on the loop, in the order in which operations came. So the
data of one group is synced while the one before it is committed. Meanwhile the next ones gather: groups grow with the
load and nobody waits for company. **The order is the rule that makes a crash harmless: no record exists whose data may
be missing.**

When data cannot be synced, or a commit ends in an unknown state, the drive has failed: the kernel may have dropped
what it could not write and reports that only once, so nothing after it may be acknowledged. Lack of space in the index
fails only its group.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import lmdb

from esker.chunkserver.engine.commit_group import Operation, Plan, data_slot, plan_group
from esker.chunkserver.engine.files import Files
from esker.chunkserver.engine.stage import Stage
from esker.runtime.logging import get_logger
from esker.wire.status import Status

GROUP_MAX = 512
"""Operations in one transaction: bounds how long planning it holds the interpreter from the loop."""

_log = get_logger("chunkserver.engine")


class Index:
    """The LMDB environment of a drive: chunk records, images of mutable chunks and the last writes of their channels,
    and the service's own area."""

    __slots__ = ("channels", "chunks", "env", "images", "state", "unreadable")

    def __init__(self, env: lmdb.Environment, *, create: bool = True) -> None:
        """Without `create`, raises `lmdb.NotFoundError` where the index of a drive was exchanged for an empty one."""
        self.env = env
        self.chunks = env.open_db(b"chunks", create=create)
        self.state = env.open_db(b"state", create=create)
        self.images = env.open_db(b"images")
        self.channels = env.open_db(b"channels")
        self.unreadable: Callable[[lmdb.Error], Exception] = lambda error: error
        """What to raise where LMDB cannot be read. Set by whoever owns the drive."""

    @contextmanager
    def snapshot(self, database: Any) -> Iterator["lmdb.Transaction[bytes]"]:
        """A short read transaction; never hold it across an await. Raises what `unreadable` gives."""
        try:
            with self.env.begin(db=database) as txn:
                yield txn
        except lmdb.Error as error:
            raise self.unreadable(error) from error


class Group:
    """Operations that were committed together, or failed together."""

    __slots__ = ("commit_us", "data_sync_us", "failure", "freed", "operations", "statuses")

    def __init__(self, operations: list[Operation]) -> None:
        self.operations = operations
        self.statuses: list[Status] = []
        self.freed: list[tuple[int, int]] = []
        self.failure: str | None = None
        """Why the drive takes no more writes."""
        self.data_sync_us = 0
        self.commit_us = 0


class Committer:
    """See the module. On the loop, for each group in order: `on_group`, its callbacks, `on_delivered`."""

    def __init__(
        self,
        index: Index,
        files: Files,
        loop: asyncio.AbstractEventLoop,
        on_group: Callable[[Group], None],
        on_delivered: Callable[[], None],
    ) -> None:
        self._index = index
        self._files = files
        self._loop = loop
        self._on_group = on_group
        self._on_delivered = on_delivered
        self._queue: deque[Operation] = deque()
        self._synced: deque[Group] = deque()
        """Groups whose data is durable, or cannot be made so; no longer than the callers' operations are many."""
        self._results: deque[Group] = deque()
        self._failure: str | None = None
        """Set by either thread: nothing is synced any more."""
        self._commit_failure: str | None = None
        """Set by the second: nothing is committed any more. What was synced before the data failed still is."""
        self.pending = 0
        """Operations whose callback has not run yet."""
        self._closed = False
        self._syncing = Stage("esker-sync", self._sync_queued)
        self._committing = Stage("esker-commit", self._commit_synced)

    def queue(self, operation: Operation) -> None:
        """Will be committed; its callback runs on the loop.

        The thread is woken once per turn of the loop: what one turn queues makes one group, and the threads do not
        fight over the interpreter for every chunk.
        """
        assert not self._closed, "the store is closed"
        self.pending += 1
        if not self._queue:
            self._loop.call_soon(self._syncing.wake)
        self._queue.append(operation)

    def close(self) -> None:
        """Commits what is queued and ends the threads; all callbacks have run when it returns."""
        self._closed = True
        self._syncing.finish()
        self._committing.finish()
        self._deliver()

    # On the first thread

    def _sync_queued(self) -> None:
        queue = self._queue
        while queue:
            group = Group([queue.popleft() for _ in range(min(len(queue), GROUP_MAX))])
            self._sync_data(group)
            self._synced.append(group)
            self._committing.wake()

    def _sync_data(self, group: Group) -> None:
        group.failure = self._failure
        if group.failure is not None:
            return
        begun = time.perf_counter()
        try:
            for fd in sorted({slot.fd for slot in map(data_slot, group.operations) if slot is not None}):
                self._files.data_sync(fd)
        except Exception as error:
            _log.exception("data cannot be synced, the drive takes no more writes", operations=len(group.operations))
            group.failure = self._failure = f"{type(error).__name__}: {error}"
        group.data_sync_us = int((time.perf_counter() - begun) * 1e6)

    # On the second thread

    def _commit_synced(self) -> None:
        synced = self._synced
        while synced:
            group = synced.popleft()
            while synced and _joins(group, synced[0]):
                following = synced.popleft()
                group.operations += following.operations
                group.data_sync_us += following.data_sync_us
            self._commit(group)
            self._results.append(group)
            # A loop that is gone delivers nothing; `close` does.
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._deliver)

    def _commit(self, group: Group) -> None:
        operations = group.operations
        # A commit that failed leaves the index unknown, also for groups whose data was synced before.
        group.failure = group.failure or self._commit_failure
        status = Status.IO_ERROR
        try:
            if group.failure is None:
                plan = self._write_index(group)
                group.statuses = plan.statuses
                group.freed = plan.freed
                if plan.corrupt:
                    _log.error("replaced or cleared corrupt records", records=plan.corrupt)
                return
        except (lmdb.MapFullError, lmdb.DiskError) as error:
            _log.error("no space for the index, writes are refused", error=str(error), operations=len(operations))
            status = Status.NO_SPACE
            group.freed = [(slot.pages, slot.number) for slot in map(data_slot, operations) if slot is not None]
        except Exception as error:
            # Whether it became durable is unknown, so its slots stay out of use.
            _log.exception("commit failed, the drive takes no more writes", operations=len(operations))
            group.failure = self._failure = self._commit_failure = f"{type(error).__name__}: {error}"
        group.statuses = [status] * len(operations)

    def _write_index(self, group: Group) -> Plan:
        begun = time.perf_counter()
        index = self._index
        with index.env.begin(write=True, db=index.chunks) as txn:
            plan = plan_group(
                group.operations,
                txn.get,
                partial(txn.get, db=index.images),
                partial(txn.get, db=index.channels),
                partial(_keys, txn.cursor(db=index.channels)),
            )
            for key in plan.deletes:
                txn.delete(key)
            if plan.puts:
                txn.cursor().putmulti(plan.puts)
            for name, value in plan.states.items():
                txn.put(name, value, db=index.state)
            for database, changes in ((index.images, plan.images), (index.channels, plan.channels)):
                for key in sorted(changes):
                    change = changes[key]
                    if change is None:
                        txn.delete(key, db=database)
                    else:
                        txn.put(key, change, db=database)
        group.commit_us = int((time.perf_counter() - begun) * 1e6)
        return plan

    # On the loop

    def _deliver(self) -> None:
        results = self._results
        while results:
            group = results.popleft()
            self._on_group(group)
            for operation, status in zip(group.operations, group.statuses, strict=True):
                try:
                    operation.done(operation.token, status)
                except Exception:
                    _log.exception("commit callback failed")
            self.pending -= len(group.operations)
            self._on_delivered()


def _keys(cursor: "lmdb.Cursor[bytes]", prefix: bytes) -> list[bytes]:
    """The stored keys that begin with `prefix`."""
    keys: list[bytes] = []
    found = cursor.set_range(prefix)
    while found and cursor.key().startswith(prefix):
        keys.append(cursor.key())
        found = cursor.next()
    return keys


def _joins(group: Group, following: Group) -> bool:
    """Whether two groups may be committed together."""
    return group.failure is following.failure and len(group.operations) + len(following.operations) <= GROUP_MAX
