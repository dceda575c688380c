"""What every metadata engine does alike: watches, limits, retries, deadlines, closing."""

import asyncio

import pytest

from esker.meta.store.base import (
    AGE_S,
    KEY_END,
    TRANSACTION_BYTES_MAX,
    VALUE_BYTES_MAX,
    Store,
    Transaction,
)
from esker.meta.store.errors import (
    InvalidOperation,
    LimitExceeded,
    RetriesExhausted,
    StoreFailed,
    TransactionTooOld,
)

from .conftest import HandClock, everything, put


class TestWatches:
    async def test_a_change_fires(self, store: Store) -> None:
        await put(store, a=b"1")
        transaction = store.transaction()
        watch = await transaction.watch(b"a")
        await transaction.commit()
        waiting = asyncio.create_task(watch.wait(30))
        await put(store, b=b"1")
        await put(store, a=b"1")
        assert not waiting.done(), "neither another key nor the same value fires"
        transaction = store.transaction()
        transaction.clear_range(b"", b"b")
        await transaction.commit()
        assert await waiting

    async def test_a_change_before_the_commit_fires(self, store: Store) -> None:
        transaction = store.transaction()
        watch = await transaction.watch(b"a")
        await put(store, a=b"1")
        await transaction.commit()
        assert await watch.wait(30)

    async def test_an_own_write_is_what_is_watched(self, store: Store) -> None:
        transaction = store.transaction()
        transaction.set(b"a", b"1")
        watch = await transaction.watch(b"a")
        await transaction.commit()
        assert not await watch.wait(0)
        transaction = store.transaction()
        transaction.add(b"a", b"\x01")
        await transaction.commit()
        assert await watch.wait(30)

    async def test_cancelled_uncommitted_and_closed(self, store: Store) -> None:
        transaction = store.transaction()
        cancelled, kept = await transaction.watch(b"a"), await transaction.watch(b"a")
        await transaction.commit()
        cancelled.cancel()
        await put(store, a=b"1")
        assert await kept.wait(30)
        assert not await cancelled.wait(30)

        transaction.reset()
        dropped = await transaction.watch(b"b")
        transaction.reset()
        with pytest.raises(InvalidOperation):
            await dropped.wait(30)

        orphan = await transaction.watch(b"b")
        await transaction.commit()
        await store.aclose()
        with pytest.raises(StoreFailed):
            await orphan.wait(30)


class TestLimits:
    async def test_the_largest_key_and_value_fit(self, store: Store) -> None:
        key, value = b"k" * store.key_bytes_max, b"v" * VALUE_BYTES_MAX
        transaction = store.transaction()
        transaction.set(key, value)
        await transaction.commit()
        assert await everything(store) == [(key, value)]

    async def test_what_is_larger_is_refused_at_once(self, store: Store) -> None:
        transaction = store.transaction()
        longest = store.key_bytes_max
        with pytest.raises(LimitExceeded, match=f"{longest + 1} bytes; allowed: 1 to {longest}"):
            transaction.set(b"k" * (longest + 1), b"")
        with pytest.raises(LimitExceeded, match="100001 bytes; allowed: 100000"):
            transaction.set(b"k", bytes(VALUE_BYTES_MAX + 1))
        with pytest.raises(LimitExceeded):
            transaction.set(b"", b"")
        with pytest.raises(LimitExceeded):
            await transaction.get(KEY_END)
        with pytest.raises(LimitExceeded):
            transaction.clear_range(b"a", b"\xff\x01")
        with pytest.raises(InvalidOperation):
            await transaction.get_range(b"b", b"a")
        assert await transaction.commit() == -1

    async def test_every_operation_is_checked(self, store: Store) -> None:
        transaction = store.transaction()
        longest = store.key_bytes_max
        long_key, long_value = b"k" * (longest + 1), bytes(VALUE_BYTES_MAX + 1)
        for too_much in (
            lambda: transaction.clear(long_key),
            lambda: transaction.add(long_key, b"\x01"),
            lambda: transaction.add(b"k", long_value),
            lambda: transaction.set_versionstamped_key(b"k" * (longest - 10), b"s", b""),
            lambda: transaction.set_versionstamped_key(b"k", b"", long_value),
            lambda: transaction.clear_range(b"a", long_key + b"\x00"),
            lambda: transaction.add_write_conflict_range(b"a", b"\xff\xff"),
        ):
            with pytest.raises(LimitExceeded):
                too_much()
        for reading in (
            transaction.get(long_key),
            transaction.get_many([b"a", long_key]),
            transaction.get_range(b"a", b"\xff\x01"),
            transaction.watch(long_key),
            transaction.add_read_conflict_range(b"a", b"\xff\xff"),
        ):
            with pytest.raises(LimitExceeded):
                await reading
        transaction.set_versionstamped_key(b"k" * (longest - 10), b"", b"")
        await transaction.commit()
        assert len(await everything(store)) == 1

    async def test_a_large_transaction_that_is_allowed(self, store: Store) -> None:
        transaction = store.transaction()
        for number in range(95):
            transaction.set(b"%03d" % number, bytes(VALUE_BYTES_MAX))
        await transaction.commit()
        assert len(await everything(store)) == 95

    async def test_a_transaction_has_a_largest_size(self, store: Store) -> None:
        transaction = store.transaction()
        for number in range(TRANSACTION_BYTES_MAX // VALUE_BYTES_MAX):
            transaction.set(b"%03d" % number, bytes(VALUE_BYTES_MAX))
        with pytest.raises(LimitExceeded, match="allowed: 10000000"):
            await transaction.commit()
        assert await everything(store) == []

    async def test_an_old_transaction_is_refused(self, store: Store, clock: HandClock) -> None:
        reading, writing = store.transaction(), store.transaction()
        await reading.get(b"a")
        await writing.get(b"a")
        writing.set(b"a", b"1")
        clock.now_s += AGE_S + 0.1
        with pytest.raises(TransactionTooOld):
            await reading.get(b"a")
        with pytest.raises(TransactionTooOld):
            await writing.commit()
        writing.reset()
        assert await writing.get(b"a") is None
        writing.reset()

    async def test_after_its_commit_a_transaction_is_used_up(self, store: Store) -> None:
        transaction = store.transaction()
        transaction.set(b"a", b"1")
        await transaction.commit()
        with pytest.raises(InvalidOperation):
            transaction.set(b"a", b"2")
        with pytest.raises(InvalidOperation):
            await transaction.get(b"a")
        with pytest.raises(InvalidOperation):
            await transaction.commit()
        transaction.reset()
        assert await transaction.get(b"a") == b"1"
        transaction.reset()


class TestRun:
    async def test_it_ends_within_its_deadline_and_names_what_was_contended(
        self, store: Store, clock: HandClock
    ) -> None:
        attempts = 0

        async def always_late(transaction: Transaction) -> None:
            nonlocal attempts
            attempts += 1
            await transaction.get(b"hot")
            transaction.set(b"hot", b"mine")
            await put(store, hot=str(attempts).encode())

        begun_s = clock.now_s
        with pytest.raises(RetriesExhausted, match=r"^rename of x: not done within 2 s, \d+ attempts; contended: hot$"):
            await store.run(always_late, what="rename of x", timeout_s=2)
        assert attempts > 3
        assert clock.now_s - begun_s <= 2

    async def test_a_conflict_is_tried_again(self, store: Store) -> None:
        attempts = 0

        async def late_once(transaction: Transaction) -> bytes | None:
            nonlocal attempts
            attempts += 1
            found = await transaction.get(b"a")
            transaction.set(b"b", b"1")
            if attempts == 1:
                await put(store, a=b"2")
            return found

        assert await store.run(late_once, what="test") == b"2"
        assert attempts == 2

    async def test_other_errors_pass_through(self, store: Store) -> None:
        async def broken(transaction: Transaction) -> None:
            transaction.set(b"a", b"1")
            raise KeyError("mine")

        with pytest.raises(KeyError):
            await store.run(broken, what="test")
        assert await everything(store) == []

    async def test_a_function_that_hangs_is_cut_off(self, store: Store) -> None:
        async def hangs(transaction: Transaction) -> None:
            await asyncio.Event().wait()

        with pytest.raises(RetriesExhausted, match="outcome is unknown"):
            await store.run(hangs, what="test", timeout_s=0)

    async def test_a_closed_store_says_so(self, store: Store) -> None:
        await store.aclose()
        await store.aclose()
        with pytest.raises(StoreFailed, match="closed"):
            await put(store, a=b"1")
        with pytest.raises(StoreFailed, match="closed"):
            await everything(store)
