"""What is FoundationDB's alone: futures of another thread, error codes, cancellation, the prefix.

What it shares with the other engines is in the conformance suite.
"""

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from esker.meta.store.base import KEY_BYTES_MAX, KEY_END, Retry, Transaction
from esker.meta.store.errors import (
    CommitUnknown,
    InvalidOperation,
    LimitExceeded,
    NotCommitted,
    RetriesExhausted,
    StoreBusy,
    StoreError,
    StoreFailed,
    StoreSilent,
    TransactionTooOld,
)
from esker.meta.store.fdb_opening import open_foundationdb
from esker.meta.store.foundationdb import FoundationStore

from ...conformance.fake_fdb import FakeFdb


@pytest.fixture
def cluster_file(tmp_path: Path) -> Path:
    path = tmp_path / "fdb.cluster"
    path.write_text("test:id@127.0.0.1:4500\n")
    return path


@pytest.fixture
def fdb(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeFdb]:
    fake = FakeFdb(Retry())
    monkeypatch.setitem(sys.modules, "fdb", fake)
    yield fake
    fake.stop()


@pytest.fixture
async def store(fdb: FakeFdb, cluster_file: Path) -> AsyncIterator[FoundationStore]:
    opened = await open_foundationdb(cluster_file, prefix=b"c1/")
    yield opened
    await opened.aclose()


async def set_a(transaction: Transaction) -> None:
    transaction.set(b"a", b"1")


async def append_to_a(transaction: Transaction) -> None:
    transaction.set(b"a", (await transaction.get(b"a") or b"") + b"x")


async def get_a(transaction: Transaction) -> bytes | None:
    return await transaction.get(b"a")


def test_the_conformance_suite_runs_on_a_cluster_too() -> None:
    variable = "ESKER_TEST_FDB_CLUSTER_FILE"
    if not os.environ.get(variable):
        pytest.skip(f"to run the conformance suite on FoundationDB, set {variable} to the path of a cluster file")
    assert Path(os.environ[variable]).is_file()


class TestPrefix:
    async def test_two_clusters_share_a_database(
        self, fdb: FakeFdb, store: FoundationStore, cluster_file: Path
    ) -> None:
        other = await open_foundationdb(cluster_file, prefix=b"c2/")
        await store.run(set_a, what="set")
        assert await other.run(get_a, what="get") is None
        await other.run(append_to_a, what="append")

        async def clear_all(transaction: Transaction) -> list[tuple[bytes, bytes]]:
            rows = await transaction.get_range(b"", KEY_END)
            transaction.clear_range(b"", KEY_END)
            return rows

        assert await store.run(clear_all, what="clear") == [(b"a", b"1")]
        assert await other.run(get_a, what="get") == b"x"
        inner = fdb.store.transaction()
        assert await inner.get_range(b"", KEY_END) == [(b"c2/a", b"x")]
        inner.reset()
        await other.aclose()

    async def test_conflicts_are_named_without_it(self, store: FoundationStore) -> None:
        transaction = store.transaction()
        await transaction.get(b"a")
        await transaction.get_range(b"k", b"m")
        transaction.set(b"z", b"1")
        await store.run(set_a, what="set")
        other = store.transaction()
        other.set(b"l", b"")
        await other.commit()
        with pytest.raises(NotCommitted, match=r"^conflict on a, k\.\.m$") as caught:
            await transaction.commit()
        assert caught.value.ranges == ((b"a", b"a\x00"), (b"k", b"m"))

    async def test_it_counts_towards_the_longest_key(self, store: FoundationStore) -> None:
        assert store.key_bytes_max == KEY_BYTES_MAX - 3


class TestErrors:
    @pytest.mark.parametrize(("code", "kind", "message"), [
        (1007, TransactionTooOld, "more than 5 s ago"),
        (1009, StoreBusy, "storage server"),
        (1020, NotCommitted, "conflict on unknown keys"),
        (1021, CommitUnknown, "answer to the commit was lost"),
        (1031, StoreSilent, "did not answer in time; check that FoundationDB runs .*fdbcli -C .*fdb.cluster"),
        (1037, StoreBusy, r"error 1037 \(1037\)"),
        (1500, StoreFailed, r"error 1500 \(1500\)"),
        (2004, InvalidOperation, r"error 2004 \(2004\)"),
        (2101, LimitExceeded, "allowed: 10000000 bytes"),
        (2102, LimitExceeded, "allowed: 10000 bytes"),
        (2103, LimitExceeded, "allowed: 100000 bytes"),
    ])  # fmt: skip
    async def test_a_commits_error_is_ours(
        self, fdb: FakeFdb, store: FoundationStore, code: int, kind: type[StoreError], message: str
    ) -> None:
        transaction = store.transaction()
        transaction.set(b"a", b"1")
        fdb.plan["commit"] = [code]
        with pytest.raises(kind, match=message) as caught:
            await transaction.commit()
        assert type(caught.value) is kind
        transaction.reset()
        assert await transaction.get(b"a") is None

    @pytest.mark.parametrize("operation", ["get", "get_range", "get_read_version"])
    async def test_reads_fail_alike(self, fdb: FakeFdb, store: FoundationStore, operation: str) -> None:
        transaction = store.transaction()
        fdb.plan[operation] = [1031]
        reads = {
            "get": lambda: transaction.get_many([b"a"]),
            "get_range": lambda: transaction.get_range(b"", KEY_END),
            "get_read_version": transaction.read_version,
        }
        with pytest.raises(StoreSilent):
            await reads[operation]()
        transaction.reset()

    async def test_conflicts_that_the_cluster_does_not_name(self, fdb: FakeFdb, store: FoundationStore) -> None:
        transaction = store.transaction()
        await transaction.get(b"a")
        transaction.set(b"a", b"1")
        fdb.plan.update(commit=[1020], conflicting_keys=[2113])
        with pytest.raises(NotCommitted, match="unknown keys"):
            await transaction.commit()

    @pytest.mark.parametrize(("step", "times"), [(1021, 1), (("after", 1021), 2), (1009, 1), (1007, 1)])
    async def test_run_tries_again(self, fdb: FakeFdb, store: FoundationStore, step: object, times: int) -> None:
        """Appending is not idempotent, which shows whether the unknown commit happened."""
        fdb.plan["commit"] = [step]
        await store.run(append_to_a, what="append")
        assert await store.run(get_a, what="get") == b"x" * times

    async def test_silence_is_not_tried_again(self, fdb: FakeFdb, store: FoundationStore) -> None:
        fdb.plan["get"] = [1031]
        with pytest.raises(StoreSilent, match="check that FoundationDB runs"):
            await store.run(get_a, what="get")

    async def test_errors_and_commits_are_counted(self, fdb: FakeFdb, store: FoundationStore) -> None:
        fdb.plan["commit"] = [1020, 1009]
        await store.run(set_a, what="set")
        assert store.statistics() == {
            "store_commits": 1, "store_conflicts": 1, "store_errors": 1, "store_watches": 0,
        }  # fmt: skip


class TestCancellation:
    @pytest.mark.parametrize("operation", ["get", "get_range", "get_read_version", "commit"])
    async def test_a_cancelled_task_cancels_its_future(
        self, fdb: FakeFdb, store: FoundationStore, operation: str
    ) -> None:
        fdb.plan[operation] = ["silent"]

        async def use(transaction: Transaction) -> None:
            if operation == "get_read_version":
                await transaction.read_version()
            await transaction.get_range(b"", KEY_END)
            await transaction.get_many([b"a", b"b"])
            transaction.set(b"a", b"1")

        task = asyncio.create_task(store.run(use, what="use"))
        silent = await fdb.silent.get()
        assert not silent.is_ready()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert silent.cancels
        await store.run(set_a, what="set")

    async def test_one_failed_read_of_many_cancels_the_others(self, fdb: FakeFdb, store: FoundationStore) -> None:
        fdb.plan["get"] = [1009, "silent", "silent"]
        transaction = store.transaction()
        with pytest.raises(StoreBusy):
            await transaction.get_many([b"a", b"b", b"c"])
        assert [future.cancels for name, future in fdb.futures if name == "get"] == [1, 1, 1]
        transaction.reset()

    async def test_a_deadline_cancels_what_is_silent(self, fdb: FakeFdb, store: FoundationStore) -> None:
        fdb.plan["get"] = ["silent"]
        with pytest.raises(RetriesExhausted, match="outcome is unknown; check that FoundationDB runs") as caught:
            await store.run(get_a, what="get", timeout_s=0)
        assert not caught.value.contended

    async def test_closing_waits_for_the_commit_under_way(self, fdb: FakeFdb, store: FoundationStore) -> None:
        fdb.plan["commit"] = ["silent"]
        task = asyncio.create_task(store.run(set_a, what="set"))
        commit = await fdb.silent.get()
        closing = asyncio.create_task(store.aclose())
        await asyncio.sleep(0)
        assert not closing.done()
        commit.settle(fdb.FDBError(1500))
        with pytest.raises(StoreFailed, match="error 1500"):
            await task
        await closing


class TestWatches:
    async def test_a_lost_watch_fires(self, fdb: FakeFdb, store: FoundationStore) -> None:
        fdb.plan["watch"] = [1009]
        transaction = store.transaction()
        watch = await transaction.watch(b"a")
        await transaction.commit()
        assert await watch.wait(30)

    @pytest.mark.parametrize(("code", "kind"), [(1032, LimitExceeded), (1500, StoreFailed)])
    async def test_one_that_cannot_be_says_so(
        self, fdb: FakeFdb, store: FoundationStore, code: int, kind: type[StoreError]
    ) -> None:
        fdb.plan["watch"] = [code]
        transaction = store.transaction()
        watch = await transaction.watch(b"a")
        await transaction.commit()
        with pytest.raises(kind):
            await watch.wait(30)
        assert store.statistics()["store_watches"] == 0

    async def test_it_outlives_its_transaction(self, store: FoundationStore) -> None:
        async def begin(transaction: Transaction) -> object:
            return await transaction.watch(b"a")

        watch = await store.run(begin, what="watch")
        await store.run(set_a, what="set")
        assert await watch.wait(30)
