"""The FoundationDB engine, thin over the package `foundationdb`.

Reads, conflicts, limits and read-your-writes are FoundationDB's own. What is
added here: a prefix before every key, so that clusters and other programs share a database; one error tree; and the
bounds that `Store` promises (an age of 5 s, a timeout of each attempt), which hold here even if no server answers.

`Store.run` retries by itself (the package's `on_error` is not used, as it waits beyond deadlines). A commit whose
answer is lost (`CommitUnknown`) is over when the error arrives, so running the transaction again is safe where it
reads what it depends on. Opening is `fdb_opening.py`'s.
"""

import asyncio
import struct
from collections.abc import Sequence
from typing import Any

from esker.meta.store.base import (
    AGE_S,
    KEY_BYTES_MAX,
    KEY_END,
    VERSIONSTAMP_BYTES,
    KeyValue,
    Retry,
    Store,
    Transaction,
)
from esker.meta.store.errors import (
    InvalidOperation,
    KeyRange,
    NotCommitted,
    StoreError,
    StoreFailed,
    TransactionTooOld,
)
from esker.meta.store.fdb_library import FoundationLibrary
from esker.meta.store.fdb_watch import FoundationWatch
from esker.meta.store.limits import check_range, checked_key, checked_value

CONFLICTING_KEYS = b"\xff\xff/transaction/conflicting_keys/"
"""Where a transaction that met a conflict reads the ranges, as boundaries: value 1 begins one, 0 ends it."""
_STAMP_OFFSET = struct.Struct("<I")


class FoundationStore(Store):
    """See `Store`. Open with `open_foundationdb`."""

    engine = "foundationdb"
    exclusive = False

    def __init__(self, fdb: Any, database: Any, prefix: bytes, retry: Retry, *, if_silent: str, version: str) -> None:
        """`fdb` is the package, its API version chosen; `database` one that it opened."""
        self.retry = retry
        self.key_bytes_max = KEY_BYTES_MAX - len(prefix)
        self.if_silent = if_silent
        self.library = FoundationLibrary(fdb, if_silent=if_silent)
        self.database = database
        self.prefix = prefix
        self.watches: set[FoundationWatch] = set()
        self.closed = False
        self._version = version
        self._committing: set[asyncio.Future[None]] = set()

    def transaction(self) -> "FoundationTransaction":
        return FoundationTransaction(self)

    def statistics(self) -> dict[str, int]:
        """Commits, conflicts and other errors so far, watches open."""
        return {**self.library.counters, "store_watches": len(self.watches)}

    async def version(self) -> str:
        return self._version

    async def aclose(self) -> None:
        self.closed = True
        if self._committing:
            await asyncio.wait(self._committing)  # Each ends by its transaction's timeout.
        for watch in list(self.watches):
            watch.abandon(StoreFailed("the store is closed"))

    def check_open(self) -> None:
        """Raises `StoreFailed` once the store is closed."""
        if self.closed:
            raise StoreFailed("the store is closed")

    async def commit(self, transaction: Any) -> None:
        """Commit the package's `transaction`; `aclose` waits for it."""
        under_way = asyncio.get_running_loop().create_future()
        self._committing.add(under_way)
        try:
            await self.library.result(transaction.commit(), _nothing)
            self.library.counters["store_commits"] += 1
        finally:
            self._committing.discard(under_way)
            under_way.set_result(None)


class FoundationTransaction(Transaction):
    """See `Transaction`."""

    def __init__(self, store: FoundationStore) -> None:
        self._store = store
        self._library = store.library
        try:
            self._tr = store.database.create_transaction()
        except store.library.fdb.FDBError as error:
            raise store.library.translated(error) from error
        self._opened_s: float | None = None
        self._wrote = False
        self._watches: list[FoundationWatch] = []
        self._stamp = b""
        self._state = "open"

    async def read_version(self) -> int:
        return await self._library.result(self._reading(snapshot=False).get_read_version(), _integer)

    async def get(self, key: bytes, *, snapshot: bool = False) -> bytes | None:
        return await self._library.result(self._reading(snapshot).get(self._full(key)), _value)

    async def get_many(self, keys: Sequence[bytes], *, snapshot: bool = False) -> list[bytes | None]:
        reading = self._reading(snapshot)
        futures = [reading.get(full) for full in map(self._full, keys)]
        try:
            return [await self._library.result(future, _value) for future in futures]
        except BaseException:
            for future in futures:
                future.cancel()
            raise

    async def get_range(
        self, begin: bytes, end: bytes, *, limit: int = 0, reverse: bool = False, snapshot: bool = False
    ) -> list[KeyValue]:
        check_range(begin, end, self._store.key_bytes_max)
        reading = self._reading(snapshot)
        if begin == end:
            return []
        skip = len(self._store.prefix)
        rows = await self._rows(reading, *self._full_range(begin, end), limit, reverse)
        return [(row.key[skip:], row.value) for row in rows]

    def set(self, key: bytes, value: bytes) -> None:
        self._writing().set(self._full(key), checked_value(value))
        self._wrote = True

    def clear(self, key: bytes) -> None:
        self._writing().clear(self._full(key))
        self._wrote = True

    def clear_range(self, begin: bytes, end: bytes) -> None:
        check_range(begin, end, self._store.key_bytes_max)
        if begin < end:
            self._writing().clear_range(*self._full_range(begin, end))
            self._wrote = True

    def add(self, key: bytes, operand: bytes) -> None:
        self._writing().add(self._full(key), checked_value(operand))
        self._wrote = True

    def set_versionstamped_key(self, prefix: bytes, suffix: bytes, value: bytes) -> None:
        full = self._full(prefix + bytes(VERSIONSTAMP_BYTES) + suffix)
        offset = _STAMP_OFFSET.pack(len(self._store.prefix) + len(prefix))
        self._writing().set_versionstamped_key(full + offset, checked_value(value))
        self._wrote = True

    def versionstamp(self) -> bytes:
        if not self._stamp:
            raise InvalidOperation("there is no versionstamp: nothing was written, or not committed yet")
        return self._stamp

    async def watch(self, key: bytes) -> "FoundationWatch":
        await self.get(key)  # What is watched is this value, though the future would read it only later.
        watch = FoundationWatch(self._library, self._tr.watch(self._full(key)), self._store.watches)
        self._watches.append(watch)
        return watch

    async def add_read_conflict_range(self, begin: bytes, end: bytes) -> None:
        check_range(begin, end, self._store.key_bytes_max)
        await self.read_version()
        if begin < end:
            self._tr.add_read_conflict_range(*self._full_range(begin, end))

    def add_write_conflict_range(self, begin: bytes, end: bytes) -> None:
        check_range(begin, end, self._store.key_bytes_max)
        if begin < end:
            self._writing().add_write_conflict_range(*self._full_range(begin, end))
            self._wrote = True

    async def commit(self) -> int:
        transaction = self._writing()
        self._store.check_open()
        if self._wrote and self._opened_s is not None:
            self._check_age()
        self._state = "committed"
        if not self._wrote and not self._watches:
            return -1
        stamp = transaction.get_versionstamp() if self._wrote else None
        try:
            await self._store.commit(transaction)
        except NotCommitted as conflict:
            raise NotCommitted(await self._conflicting_ranges()) from conflict
        for watch in self._watches:
            watch.arm()
        self._watches.clear()
        if stamp is not None:
            self._stamp = await self._library.result(stamp, _stamp)
        return int(transaction.get_committed_version())

    def reset(self) -> None:
        for watch in self._watches:
            watch.abandon(InvalidOperation("the watch's transaction was not committed"))
        self._watches.clear()
        self._tr.reset()
        self._opened_s = None
        self._wrote = False
        self._stamp = b""
        self._state = "open"

    async def _rows(self, reading: Any, begin: bytes, end: bytes, limit: int, reverse: bool) -> list[Any]:
        """Rows as the package has them. `_get_range` is what its own iterator uses, which would block the loop."""
        fdb = self._library.fdb
        mode = fdb.StreamingMode.exact if limit else fdb.StreamingMode.want_all
        first = fdb.KeySelector.first_greater_or_equal(begin)
        last = fdb.KeySelector.first_greater_or_equal(end)
        rows: list[Any] = []
        more, iteration = True, 1
        while more:
            future = reading._get_range(first, last, limit and limit - len(rows), mode, iteration, reverse)
            page, count, more = await self._library.result(future, _page)
            rows += page
            more = more and count > 0 and len(rows) != limit
            if more and reverse:
                last = fdb.KeySelector.first_greater_or_equal(page[-1].key)
            elif more:
                first = fdb.KeySelector.first_greater_than(page[-1].key)
            iteration += 1
        return rows

    async def _conflicting_ranges(self) -> list[KeyRange]:
        """What the failed commit conflicted on; empty where the cluster did not tell."""
        end = CONFLICTING_KEYS + b"\xff"
        try:
            rows = await self._rows(self._tr, CONFLICTING_KEYS, end, limit=0, reverse=False)
        except StoreError:
            return []
        skip = len(CONFLICTING_KEYS) + len(self._store.prefix)
        begins = [row.key[skip:] for row in rows if row.value == b"1"]
        ends = [row.key[skip:] for row in rows if row.value != b"1"]
        return list(zip(begins, ends, strict=False))

    def _full(self, key: bytes) -> bytes:
        return self._store.prefix + checked_key(key, self._store.key_bytes_max)

    def _full_range(self, begin: bytes, end: bytes) -> KeyRange:
        return self._store.prefix + begin, self._store.prefix + end

    def _reading(self, snapshot: bool) -> Any:
        transaction = self._writing()
        self._store.check_open()
        if self._opened_s is None:
            self._opened_s = self._store.retry.clock()
        else:
            self._check_age()
        return transaction.snapshot if snapshot else transaction

    def _writing(self) -> Any:
        if self._state != "open":
            raise InvalidOperation("the transaction is committed; reset it")
        return self._tr

    def _check_age(self) -> None:
        assert self._opened_s is not None
        if self._store.retry.clock() - self._opened_s > AGE_S:
            raise TransactionTooOld(f"its first read is more than {AGE_S:g} s ago")


assert KEY_END == b"\xff", "a prefixed range up to the end must cover the prefix's own keys and no others"


def _nothing(future: Any) -> None:
    future.wait()


def _integer(future: Any) -> int:
    return int(future.wait())


def _value(future: Any) -> bytes | None:
    value: bytes | None = future.value
    return value


def _stamp(future: Any) -> bytes:
    stamp: bytes = future.value
    return stamp


def _page(future: Any) -> tuple[list[Any], int, bool]:
    page, count, more = future.wait()
    return page, count, bool(more)
