"""The embedded store: LMDB on a directory of this machine, for clusters with one metadata server.

Reads are LMDB snapshots, taken on the event loop (a few microseconds each, the file is in the page cache). Commits go
through `Committer`. A snapshot keeps LMDB from reusing the pages of later commits, and the file never shrinks again,
so it lives as short as possible: transactions that start close together share one, and one that is still open after
`AGE_S` and its sharing time is closed under its holders, who get `TransactionTooOld`.

Written on one event loop; must be closed on it. What a directory may hold is `directory.py`'s matter.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lmdb

from esker.meta.store.base import AGE_S, KeyValue, Retry, Store
from esker.meta.store.committer import FREE_BYTES_MIN, VERSION_KEY, Committer
from esker.meta.store.directory import StoreDirectory
from esker.meta.store.errors import StoreBusy, StoreFailed, TransactionTooOld
from esker.meta.store.ordered import OrderedMap
from esker.meta.store.transaction import SnapshotTransaction
from esker.meta.store.watches import WatchTable
from esker.meta.store.writes import CommitSet
from esker.wire.errors import UserError
from esker.wire.limits import GIB

MAP_BYTES = 64 * GIB
"""Largest size of the file, which is sparse; about five hundred million blocks."""
SNAPSHOTS_MAX = 2048
SHARE_S = 1.0
"""How long a snapshot is handed to new transactions."""
SNAPSHOT_LIFE_S = AGE_S + SHARE_S


class EmbeddedStore(Store):
    """See `Store`. Also the `Engine` of its transactions. Open with `open_embedded`."""

    engine = "embedded"
    exclusive = True

    def __init__(self, directory: StoreDirectory, environment: lmdb.Environment, retry: Retry) -> None:
        self.retry = retry
        self.clock = retry.clock
        self.watches = WatchTable(self._newest)
        self._directory = directory
        self._environment = environment
        self._data = OrderedMap(environment.open_db(b"data"))
        self._engine_database = environment.open_db(b"engine")
        self._shared: LmdbSnapshot | None = None
        self._open: set[LmdbSnapshot] = set()
        self._closed = False
        version = self._stored_version()
        self._committer = Committer(
            environment,
            self._data,
            self._engine_database,
            version,
            self.clock,
            directory.free_bytes,
            self._on_committed,
        )

    def transaction(self) -> SnapshotTransaction:
        return SnapshotTransaction(self)

    async def version(self) -> str:
        return "LMDB " + ".".join(map(str, lmdb.version()))

    async def aclose(self) -> None:
        if self._closed:
            return
        self._closed = True
        await self._committer.aclose()
        self.watches.close()
        for snapshot in list(self._open):
            snapshot.expire()
        self._environment.close()
        self._directory.close()

    def open_snapshot(self) -> "LmdbSnapshot":
        if self._closed:
            raise StoreFailed("the store is closed")
        shared = self._shared
        if shared is None or shared.expired or self.clock() - shared.opened_s > SHARE_S:
            shared = self._shared = self._new_snapshot()
        shared.holders += 1
        return shared

    async def apply(self, writes: CommitSet) -> tuple[int, bytes]:
        return await self._committer.commit(writes)

    def statistics(self) -> dict[str, int]:
        """Counters: commits, groups they were made durable in, snapshots open, file size (bytes)."""
        return {
            "store_commits": self._committer.commits,
            "store_groups": self._committer.groups,
            "store_snapshots": len(self._open),
            "store_file_bytes": self._directory.data_path.stat().st_size,
        }

    def forget(self, snapshot: "LmdbSnapshot") -> None:
        """`snapshot` is closed."""
        self._open.discard(snapshot)
        if self._shared is snapshot:
            self._shared = None

    def _new_snapshot(self) -> "LmdbSnapshot":
        if len(self._open) >= SNAPSHOTS_MAX:
            raise StoreBusy(f"{len(self._open)} snapshots are open")
        snapshot = LmdbSnapshot(self, self._environment.begin(), self._data, self._engine_database)
        self._open.add(snapshot)
        return snapshot

    def _stored_version(self) -> int:
        with self._environment.begin() as txn:
            return _version(txn, self._engine_database)

    def _newest(self, key: bytes) -> bytes | None:
        with self._environment.begin() as txn:
            return self._data.get(txn, key)

    def _on_committed(self, committed: list[CommitSet]) -> None:
        # Whoever is answered now may start a transaction and must see its own commit.
        self._shared = None
        for writes in committed:
            self.watches.committed(writes)


class LmdbSnapshot:
    """A read transaction of LMDB, shared by `holders` transactions."""

    def __init__(self, store: EmbeddedStore, txn: lmdb.Transaction, data: OrderedMap, engine_database: Any) -> None:
        self.version = _version(txn, engine_database)
        self.holders = 0
        self.opened_s = store.clock()
        self.expired = False
        self._store = store
        self._txn = txn
        self._data = data
        self._expiry = asyncio.get_running_loop().call_later(SNAPSHOT_LIFE_S, self.expire)

    def get(self, key: bytes) -> bytes | None:
        self._check()
        return self._data.get(self._txn, key)

    def get_range(self, begin: bytes, end: bytes, limit: int, reverse: bool) -> list[KeyValue]:
        self._check()
        return self._data.get_range(self._txn, begin, end, limit, reverse)

    def release(self) -> None:
        self.holders -= 1
        if self.holders == 0:
            self.expire()

    def expire(self) -> None:
        """Close the read transaction, whoever holds it."""
        if not self.expired:
            self.expired = True
            self._expiry.cancel()
            self._txn.abort()
            self._store.forget(self)

    def _check(self) -> None:
        if self.expired:
            raise TransactionTooOld(f"its snapshot was closed after {SNAPSHOT_LIFE_S:g} s")


def _version(txn: lmdb.Transaction, engine_database: Any) -> int:
    stored = txn.get(VERSION_KEY, db=engine_database)
    return int.from_bytes(stored, "big") if stored else 0


async def open_embedded(path: Path, retry: Retry | None = None) -> EmbeddedStore:
    """Open the store in the directory `path`, making it where there is none.

    Raises `UserError`: the directory is in use, foreign, damaged, or cannot be written.
    """
    directory = StoreDirectory(path)
    try:
        with _explained(directory):
            environment = _open_environment(directory)
            try:
                store = EmbeddedStore(directory, environment, retry or Retry())
            except BaseException:
                environment.close()
                raise
    except BaseException:
        directory.close()
        raise
    try:
        if directory.created:
            directory.mark_ready()
    except BaseException:
        await store.aclose()
        raise
    return store


@contextmanager
def _explained(directory: StoreDirectory) -> Iterator[None]:
    try:
        yield
    except (lmdb.Error, OSError, MemoryError) as error:
        if directory.free_bytes() < FREE_BYTES_MIN:
            raise UserError(f"no space left on the drive of {directory.path}; free some") from error
        raise UserError(
            f"cannot open {directory.data_path}: {error}; if it is damaged, restore the directory from a backup"
        ) from error


def _open_environment(directory: StoreDirectory) -> lmdb.Environment:
    options: dict[str, Any] = {"lib_version": 0} if directory.created else {}
    directory.check_length()
    environment = lmdb.open(
        str(directory.data_path),
        subdir=False,
        map_size=MAP_BYTES,
        max_dbs=4,
        max_readers=SNAPSHOTS_MAX + 64,
        mode=0o600,
        **options,
    )
    try:
        directory.preread()
    except BaseException:
        environment.close()
        raise
    return environment
