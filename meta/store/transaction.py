"""A transaction over local snapshots: what the engines that hold their data themselves share.

Owns read-your-writes, conflict ranges, limits and the life of one attempt. An engine gives it three things
(`Engine`): a snapshot to read, a commit that validates and applies a `CommitSet`, and a watch table. Reads are
synchronous underneath (memory or a mapped file), so nothing here waits except for the commit.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import Protocol

from esker.meta.store.base import (
    AGE_S,
    TRANSACTION_BYTES_MAX,
    VERSIONSTAMP_BYTES,
    KeyValue,
    Transaction,
    after_key,
)
from esker.meta.store.errors import InvalidOperation, LimitExceeded, TransactionTooOld
from esker.meta.store.limits import check_range, checked_key, checked_value
from esker.meta.store.watches import KeyWatch, WatchTable
from esker.meta.store.writes import CommitSet, WriteBuffer

SNAPSHOT_PAGE_ROWS = 256


class Snapshot(Protocol):
    """The committed state at one version."""

    version: int

    def get(self, key: bytes) -> bytes | None: ...

    def get_range(self, begin: bytes, end: bytes, limit: int, reverse: bool) -> list[KeyValue]:
        """At most `limit` (> 0) pairs of [begin, end)."""
        ...

    def release(self) -> None:
        """Exactly once; no reads after it."""
        ...


class Engine(Protocol):
    """What a store offers its transactions."""

    clock: Callable[[], float]
    watches: WatchTable

    def open_snapshot(self) -> Snapshot:
        """The newest committed state."""
        ...

    async def apply(self, writes: CommitSet) -> tuple[int, bytes]:
        """Validate, apply, make durable. Returns (version, versionstamp)."""
        ...


class SnapshotTransaction(Transaction):
    """See `Transaction`."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._snapshot: Snapshot | None = None
        self._opened_s = 0.0
        self._writes = WriteBuffer()
        self._watches: list[KeyWatch] = []
        self._stamp = b""
        self._state = "open"

    async def read_version(self) -> int:
        return self._reading().version

    async def get(self, key: bytes, *, snapshot: bool = False) -> bytes | None:
        return self._get(checked_key(key), snapshot)

    async def get_many(self, keys: Sequence[bytes], *, snapshot: bool = False) -> list[bytes | None]:
        return [self._get(checked_key(key), snapshot) for key in keys]

    async def get_range(
        self, begin: bytes, end: bytes, *, limit: int = 0, reverse: bool = False, snapshot: bool = False
    ) -> list[KeyValue]:
        check_range(begin, end)
        rows = self._merged(begin, end, limit, reverse)
        found = list(islice(rows, limit) if limit else rows)
        if not snapshot:
            if limit and len(found) == limit:
                begin, end = (found[-1][0], end) if reverse else (begin, after_key(found[-1][0]))
            self._note_read(begin, end)
        return found

    def set(self, key: bytes, value: bytes) -> None:
        self._writing().set(checked_key(key), checked_value(value))

    def clear(self, key: bytes) -> None:
        self._writing().set(checked_key(key), None)

    def clear_range(self, begin: bytes, end: bytes) -> None:
        check_range(begin, end)
        if begin < end:
            self._writing().clear_range(begin, end)

    def add(self, key: bytes, operand: bytes) -> None:
        self._writing().add(checked_key(key), checked_value(operand))

    def set_versionstamped_key(self, prefix: bytes, suffix: bytes, value: bytes) -> None:
        checked_key(prefix + bytes(VERSIONSTAMP_BYTES) + suffix)
        self._writing().set_stamped(prefix, suffix, checked_value(value))

    def versionstamp(self) -> bytes:
        if not self._stamp:
            raise InvalidOperation("there is no versionstamp: nothing was written, or not committed yet")
        return self._stamp

    async def watch(self, key: bytes) -> KeyWatch:
        watch = self._engine.watches.make(key, self._get(checked_key(key), snapshot=False))
        self._watches.append(watch)
        return watch

    async def add_read_conflict_range(self, begin: bytes, end: bytes) -> None:
        check_range(begin, end)
        self._reading()
        self._note_read(begin, end)

    def add_write_conflict_range(self, begin: bytes, end: bytes) -> None:
        check_range(begin, end)
        if begin < end:
            self._writing().commit_set.write_ranges.append((begin, end))

    async def commit(self) -> int:
        writes = self._writing().commit_set
        size_bytes = _size_bytes(writes)
        if size_bytes > TRANSACTION_BYTES_MAX:
            raise LimitExceeded(f"the transaction has {size_bytes} bytes; allowed: {TRANSACTION_BYTES_MAX}")
        self._state = "committed"
        version = -1
        if writes.points or writes.cleared or writes.adds or writes.stamped or writes.write_ranges:
            if self._snapshot is not None:
                self._check_age()
                writes.read_version = self._snapshot.version
            self._release()
            version, self._stamp = await self._engine.apply(writes)
        self._release()
        for watch in self._watches:
            self._engine.watches.arm(watch)
        self._watches.clear()
        return version

    def reset(self) -> None:
        self._release()
        for watch in self._watches:
            watch.abandon(InvalidOperation("the watch's transaction was not committed"))
        self._watches.clear()
        self._writes = WriteBuffer()
        self._stamp = b""
        self._state = "open"

    def _get(self, key: bytes, snapshot: bool) -> bytes | None:
        reading = self._reading()
        known, value = self._writes.lookup(key)
        if known:
            return value
        if not snapshot:
            self._writes.commit_set.read_points.add(key)
        return self._writes.over(key, reading.get(key))

    def _note_read(self, begin: bytes, end: bytes) -> None:
        if begin < end:
            self._writes.commit_set.read_ranges.append((begin, end))

    def _merged(self, begin: bytes, end: bytes, limit: int, reverse: bool) -> Iterator[KeyValue]:
        """Stored pairs of [begin, end) with the transaction's own writes over them."""
        reading = self._reading()
        writes = self._writes
        gaps = writes.gaps(begin, end)
        written = writes.written_between(begin, end)
        if reverse:
            gaps.reverse()
            written = written[::-1]
        page_rows = min(limit or SNAPSHOT_PAGE_ROWS, SNAPSHOT_PAGE_ROWS)
        stored = chain.from_iterable(_rows(reading, *gap, page_rows, reverse) for gap in gaps)
        if not written:
            return stored
        return self._overlaid(stored, written, reverse)

    def _overlaid(self, stored: Iterator[KeyValue], written: Iterable[bytes], reverse: bool) -> Iterator[KeyValue]:
        row = next(stored, None)
        for key in written:
            while row is not None and (row[0] > key if reverse else row[0] < key):
                yield row
                row = next(stored, None)
            known, value = self._writes.lookup(key)
            beneath = row[1] if row is not None and row[0] == key else None
            if row is not None and row[0] == key:
                row = next(stored, None)
            value = value if known else self._writes.over(key, beneath)
            if value is not None:
                yield key, value
        if row is not None:
            yield row
        yield from stored

    def _reading(self) -> Snapshot:
        if self._state != "open":
            raise InvalidOperation("the transaction is committed; reset it")
        if self._snapshot is None:
            self._snapshot = self._engine.open_snapshot()
            self._opened_s = self._engine.clock()
        else:
            self._check_age()
        return self._snapshot

    def _writing(self) -> WriteBuffer:
        if self._state != "open":
            raise InvalidOperation("the transaction is committed; reset it")
        return self._writes

    def _check_age(self) -> None:
        if self._engine.clock() - self._opened_s > AGE_S:
            self._release()
            raise TransactionTooOld(f"its first read is more than {AGE_S:g} s ago")

    def _release(self) -> None:
        if self._snapshot is not None:
            self._snapshot.release()
            self._snapshot = None


def _rows(reading: Snapshot, begin: bytes, end: bytes, page_rows: int, reverse: bool) -> Iterator[KeyValue]:
    while True:
        page = reading.get_range(begin, end, page_rows, reverse)
        yield from page
        if len(page) < page_rows:
            return
        if reverse:
            end = page[-1][0]
        else:
            begin = after_key(page[-1][0])
        page_rows = SNAPSHOT_PAGE_ROWS


def _size_bytes(writes: CommitSet) -> int:
    total = sum(map(len, writes.points)) + sum(len(value) for value in writes.points.values() if value)
    total += sum(len(key) + sum(map(len, operands)) for key, operands in writes.adds.items())
    total += sum(len(a) + len(b) + len(c) + VERSIONSTAMP_BYTES for a, b, c in writes.stamped)
    total += sum(map(len, writes.read_points))
    for ranges in (writes.cleared, writes.read_ranges, writes.write_ranges):
        total += sum(len(begin) + len(end) for begin, end in ranges)
    return total
