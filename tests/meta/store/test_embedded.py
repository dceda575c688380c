"""What only the embedded store has: durability, groups, snapshots of bounded age, a failing drive."""

import asyncio
import subprocess
import sys
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import lmdb
import pytest

from esker.meta.store import embedded
from esker.meta.store.base import AGE_S, KEY_END, Transaction
from esker.meta.store.committer import QUEUE_MAX, Committer
from esker.meta.store.embedded import EmbeddedStore, open_embedded
from esker.meta.store.errors import NotCommitted, StoreBusy, StoreFailed, TransactionTooOld
from esker.meta.store.ordered import OrderedMap
from esker.meta.store.writes import CommitSet

WRITER = """
import asyncio, sys
from pathlib import Path
from esker.meta.store.embedded import open_embedded

async def main():
    store = await open_embedded(Path(sys.argv[1]))

    async def count(transaction):
        value = int(await transaction.get(b"n") or b"0") + 1
        transaction.set(b"n", b"%d" % value)
        transaction.set(b"twin", b"%d" % value)
        return value

    while True:
        print(await store.run(count, what="count"), flush=True)

asyncio.run(main())
"""


async def put(store: EmbeddedStore, key: bytes, value: bytes) -> None:
    transaction = store.transaction()
    transaction.set(key, value)
    await transaction.commit()


def killed_writer(path: Path, counts: int) -> int:
    """Let a process count in a store, kill it after some counts; the last count that it reported."""
    with subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        for _ in range(counts):
            acknowledged = int(writer.stdout.readline())
        writer.kill()
        for line in writer.stdout:
            if line.endswith(b"\n"):
                acknowledged = int(line)
    return acknowledged


async def test_everything_acknowledged_survives_a_kill(tmp_path: Path) -> None:
    for counts in (20, 1, 37):
        acknowledged = killed_writer(tmp_path / "meta", counts)
        store = await open_embedded(tmp_path / "meta")
        transaction = store.transaction()
        n, twin = await transaction.get_many([b"n", b"twin"])
        transaction.reset()
        await store.aclose()
        assert n is not None
        assert n == twin
        assert acknowledged <= int(n) <= acknowledged + 1


async def test_commits_that_come_together_are_made_durable_together(tmp_path: Path) -> None:
    store = await open_embedded(tmp_path / "meta")
    await asyncio.gather(*(put(store, b"k%d" % number, b"") for number in range(200)))
    statistics = store.statistics()
    assert statistics["store_commits"] == 200
    assert statistics["store_groups"] < 100
    assert statistics["store_file_bytes"] > 0
    await store.aclose()


async def test_transactions_that_start_together_share_a_snapshot(tmp_path: Path) -> None:
    store = await open_embedded(tmp_path / "meta")
    first, second, third = (store.transaction() for _ in range(3))
    await first.get(b"a")
    await second.get(b"a")
    assert store.statistics()["store_snapshots"] == 1
    await put(store, b"a", b"1")
    assert await third.get(b"a") == b"1"
    assert store.statistics()["store_snapshots"] == 2
    for transaction in (first, second, third):
        transaction.reset()
    assert store.statistics()["store_snapshots"] == 0
    await store.aclose()


async def test_a_snapshot_is_closed_under_a_transaction_that_keeps_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded, "SNAPSHOT_LIFE_S", 0.01)
    closed = asyncio.Event()
    forget = EmbeddedStore.forget
    monkeypatch.setattr(EmbeddedStore, "forget", lambda *arguments: (forget(*arguments), closed.set()))
    store = await open_embedded(tmp_path / "meta")
    transaction = store.transaction()
    await transaction.get(b"a")
    await asyncio.wait_for(closed.wait(), 30)
    with pytest.raises(TransactionTooOld):
        await transaction.get(b"a")
    transaction.reset()
    assert await transaction.get(b"a") is None
    transaction.reset()
    await store.aclose()


async def test_closing_finishes_the_commits_under_way(tmp_path: Path) -> None:
    store = await open_embedded(tmp_path / "meta")
    commits = [asyncio.create_task(put(store, b"k%03d" % number, b"")) for number in range(100)]
    await asyncio.sleep(0)
    await store.aclose()
    await asyncio.gather(*commits)
    store = await open_embedded(tmp_path / "meta")
    assert len(await store.run(lambda transaction: transaction.get_range(b"", KEY_END), what="read")) == 100
    await store.aclose()


async def test_versions_grow_over_restarts(tmp_path: Path) -> None:
    stamps = []
    for _ in range(3):
        store = await open_embedded(tmp_path / "meta")
        transaction = store.transaction()
        transaction.set_versionstamped_key(b"log/", b"", b"")
        await transaction.commit()
        stamps.append(transaction.versionstamp())
        await store.aclose()
    assert stamps == sorted(set(stamps))


async def test_a_waiting_task_that_is_cancelled_does_not_stop_the_others(tmp_path: Path) -> None:
    store = await open_embedded(tmp_path / "meta")
    tasks = [asyncio.create_task(put(store, b"k%d" % number, b"")) for number in range(3)]
    await asyncio.sleep(0)
    tasks[1].cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(result) for result in results] == [type(None), asyncio.CancelledError, type(None)]
    await store.aclose()


class FailingEnvironment:
    """An LMDB environment whose write transactions fail to start with the errors given, then work."""

    def __init__(self, environment: lmdb.Environment, errors: list[Exception]) -> None:
        self._environment = environment
        self._errors = errors

    def begin(self, write: bool) -> lmdb.Transaction:
        if self._errors:
            raise self._errors.pop(0)
        return self._environment.begin(write=write)


@pytest.mark.parametrize(("error", "free_bytes", "message", "goes_on"), [
    (lmdb.DiskError("no space left"), 4096, "no space left on the metadata drive", True),
    (lmdb.Error("I/O error"), 4096, "no space left on the metadata drive", True),
    (lmdb.MapFullError("full"), 1 << 40, "largest size", True),
    (lmdb.Error("I/O error"), 1 << 40, "check its drive, then restart", False),
    (OSError(5, "I/O error"), 4096, "check its drive, then restart", False),
])  # fmt: skip
async def test_a_failing_drive_fails_the_group(
    tmp_path: Path, error: Exception, message: str, goes_on: bool, free_bytes: int
) -> None:
    committed: list[CommitSet] = []
    with lmdb.open(str(tmp_path / "x.mdb"), subdir=False, map_size=1 << 24, max_dbs=2) as environment:
        data, own = OrderedMap(environment.open_db(b"data")), environment.open_db(b"engine")
        failing = FailingEnvironment(environment, [error])
        committer = Committer(failing, data, own, 0, lambda: 0.0, lambda: free_bytes, committed.extend)
        with pytest.raises(StoreFailed, match=message):
            await committer.commit(CommitSet(points={b"a": b"1"}))
        assert committed == []
        if goes_on:
            assert (await committer.commit(CommitSet(points={b"b": b"1"})))[0] == 1
        else:
            with pytest.raises(StoreFailed, match=message):
                await committer.commit(CommitSet(points={b"b": b"1"}))
        await committer.aclose()


class FullTransaction:
    """A write transaction of LMDB that finds no space when it is committed."""

    def __init__(self, txn: lmdb.Transaction) -> None:
        self._txn = txn

    def __getattr__(self, name: str) -> Any:
        return getattr(self._txn, name)

    def commit(self) -> None:
        raise lmdb.DiskError("no space left")


class FillingEnvironment:
    """An LMDB environment whose first commits find no space."""

    def __init__(self, environment: lmdb.Environment, full: int) -> None:
        self._environment = environment
        self._full = full

    def begin(self, write: bool) -> Any:
        txn = self._environment.begin(write=write)
        self._full -= 1
        return FullTransaction(txn) if self._full >= 0 else txn


async def test_once_there_is_space_again_commits_go_on_where_they_were(tmp_path: Path) -> None:
    now_s = 0.0

    def commit(key: bytes) -> Awaitable[tuple[int, bytes]]:
        return committer.commit(CommitSet(read_version=0, read_points={b"a", b"b"}, points={key: b"1"}))

    with lmdb.open(str(tmp_path / "x.mdb"), subdir=False, map_size=1 << 24, max_dbs=2) as environment:
        data, own = OrderedMap(environment.open_db(b"data")), environment.open_db(b"engine")
        filling = FillingEnvironment(environment, 2)
        committer = Committer(filling, data, own, 0, lambda: now_s, lambda: 4096, list[CommitSet]().extend)
        for key, now_s in ((b"a", 0.0), (b"b", 2 * AGE_S)):  # noqa: B007 - the clock
            with pytest.raises(StoreFailed, match="no space left"):
                await commit(key)
        assert (await commit(b"a"))[0] == 1
        with pytest.raises(NotCommitted):
            await commit(b"b")
        await committer.aclose()


async def test_the_queue_of_commits_is_bounded(tmp_path: Path) -> None:
    store = await open_embedded(tmp_path / "meta")

    async def write(transaction: Transaction) -> None:
        transaction.set(b"a", b"1")

    transactions = [store.transaction() for _ in range(QUEUE_MAX + 1)]
    for transaction in transactions:
        await write(transaction)
    results = await asyncio.gather(*(transaction.commit() for transaction in transactions), return_exceptions=True)
    assert sum(isinstance(result, StoreBusy) for result in results) == 1
    await store.aclose()
