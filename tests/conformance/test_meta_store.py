"""What every metadata engine does alike: reads, writes, isolation, conflicts, order."""

import asyncio

import pytest

from esker.meta.store.base import KEY_END, Store, Transaction, after_prefix
from esker.meta.store.errors import InvalidOperation, NotCommitted

from .conftest import everything, put


class TestReadsAndWrites:
    async def test_what_was_committed_is_read(self, store: Store) -> None:
        await put(store, a=b"1", b=b"", c=b"3")
        transaction = store.transaction()
        assert await transaction.get(b"a") == b"1"
        assert await transaction.get(b"b") == b""
        assert await transaction.get(b"absent") is None
        assert await transaction.get_many([b"c", b"x", b"a"]) == [b"3", None, b"1"]
        transaction.reset()

    async def test_what_was_not_committed_is_gone(self, store: Store) -> None:
        transaction = store.transaction()
        transaction.set(b"a", b"1")
        transaction.reset()
        assert await transaction.get(b"a") is None
        transaction.reset()

    async def test_ranges_are_ordered_half_open_and_limited(self, store: Store) -> None:
        await put(store, a=b"1", b=b"2", c=b"3", d=b"4")
        transaction = store.transaction()
        assert await transaction.get_range(b"a", b"c") == [(b"a", b"1"), (b"b", b"2")]
        assert await transaction.get_range(b"a", b"d", reverse=True) == [(b"c", b"3"), (b"b", b"2"), (b"a", b"1")]
        assert await transaction.get_range(b"", KEY_END, limit=2) == [(b"a", b"1"), (b"b", b"2")]
        assert await transaction.get_range(b"", KEY_END, limit=1, reverse=True) == [(b"d", b"4")]
        assert await transaction.get_range(b"b", b"b") == []
        transaction.reset()

    @pytest.mark.parametrize("reverse", [False, True])
    async def test_pages_cover_a_range(self, store: Store, reverse: bool) -> None:
        rows = {f"k{n:04}": str(n).encode() for n in range(700)}
        await put(store, **rows)
        transaction = store.transaction()
        pages = [page async for page in transaction.pages(b"", KEY_END, page_rows=300, reverse=reverse)]
        assert [len(page) for page in pages] == [300, 300, 100]
        expected = sorted(((key.encode(), value) for key, value in rows.items()), reverse=reverse)
        assert [row for page in pages for row in page] == expected
        transaction.reset()

    @pytest.mark.parametrize("reverse", [False, True])
    async def test_every_limit_of_a_range_with_own_writes_in_it(self, store: Store, reverse: bool) -> None:
        await put(store, **{f"k{n}": b"old" for n in range(0, 10, 2)})
        transaction = store.transaction()
        transaction.set(b"k1", b"new")
        transaction.set(b"k4", b"new")
        transaction.clear(b"k6")
        transaction.clear_range(b"k8", b"k9")
        transaction.add(b"k91", b"\x01")
        names = [b"k0", b"k1", b"k2", b"k4", b"k91"]
        for low in range(len(names)):
            for high in range(low, len(names) + 1):
                inside = names[low:high][::-1] if reverse else names[low:high]
                end = names[high] if high < len(names) else b"l"
                for limit in range(7):
                    rows = await transaction.get_range(names[low], end, limit=limit, reverse=reverse)
                    assert [key for key, _ in rows] == (inside[:limit] if limit else inside)
        transaction.reset()

    async def test_a_prefix_covers_its_keys_and_no_others(self, store: Store) -> None:
        keys = [b"a", b"a\xfe\xff", b"a\xff", b"a\xff\x00", b"a\xff\xff", b"b", b"b\x00"]

        async def fill(transaction: Transaction) -> None:
            for key in keys:
                transaction.set(key, b"")

        await store.run(fill, what="fill")
        for prefix, found in ((b"a", keys[:5]), (b"a\xff", keys[2:5]), (b"b", keys[5:])):
            transaction = store.transaction()
            rows = await transaction.get_range(prefix, after_prefix(prefix))
            assert [key for key, _ in rows] == found
            transaction.reset()

    async def test_own_writes_show_in_reads(self, store: Store) -> None:
        await put(store, a=b"1", b=b"2", c=b"3", d=b"4")
        transaction = store.transaction()
        transaction.clear_range(b"b", b"d")
        transaction.set(b"bb", b"new")
        transaction.set(b"d", b"over")
        transaction.clear(b"a")
        expected = [(b"bb", b"new"), (b"d", b"over")]
        assert await transaction.get_range(b"", KEY_END) == expected
        assert await transaction.get_range(b"", KEY_END, reverse=True) == expected[::-1]
        assert await transaction.get_range(b"", KEY_END, limit=1) == expected[:1]
        assert await transaction.get_many([b"a", b"b", b"bb", b"d"]) == [None, None, b"new", b"over"]
        await transaction.commit()
        assert await everything(store) == expected

    async def test_a_clear_range_takes_earlier_writes_only(self, store: Store) -> None:
        transaction = store.transaction()
        transaction.set(b"a", b"1")
        transaction.add(b"b", b"\x01")
        transaction.clear_range(b"", KEY_END)
        transaction.set(b"c", b"3")
        await transaction.commit()
        assert await everything(store) == [(b"c", b"3")]

    async def test_keys_of_every_length_keep_their_order(self, store: Store) -> None:
        stem = b"s" * 509
        keys = [stem[:1], stem, stem + b"s", stem + b"s\x00", stem + b"s\x00\x00", stem + b"ss", stem + b"st" * 900]
        keys += [stem + b"s" * (store.key_bytes_max - 509), stem + b"t", b"t"]
        keys.sort()

        async def fill(transaction: Transaction) -> None:
            for number, key in enumerate(keys):
                transaction.set(key, str(number).encode())

        await store.run(fill, what="fill")
        rows = await everything(store)
        assert [key for key, _ in rows] == keys
        transaction = store.transaction()
        for low in range(len(keys)):
            for high in range(low, len(keys)):
                begin, end = keys[low], keys[high]
                assert await transaction.get_range(begin, end) == rows[low:high]
                assert await transaction.get_range(begin, end, reverse=True) == rows[low:high][::-1]
        assert await transaction.get_many(keys) == [value for _, value in rows]
        transaction.clear_range(keys[2], keys[5])
        transaction.clear(keys[6])
        await transaction.commit()
        assert await everything(store) == [*rows[:2], rows[5], *rows[7:]]


class TestIsolation:
    async def test_a_transaction_reads_one_version(self, store: Store) -> None:
        await put(store, a=b"1", b=b"1")
        transaction = store.transaction()
        assert await transaction.get(b"a") == b"1"
        await put(store, a=b"2", b=b"2", c=b"2")
        assert await transaction.get_range(b"", KEY_END) == [(b"a", b"1"), (b"b", b"1")]
        assert await transaction.commit() == -1

    async def test_a_later_transaction_sees_what_was_acknowledged(self, store: Store) -> None:
        first = store.transaction()
        await first.get(b"a")
        await put(store, a=b"1")
        second = store.transaction()
        assert await second.get(b"a") == b"1"
        assert await second.read_version() > await first.read_version()
        first.reset()
        second.reset()

    async def test_a_read_that_changed_conflicts_and_is_named(self, store: Store) -> None:
        transaction = store.transaction()
        await transaction.get(b"a")
        transaction.set(b"b", b"1")
        await put(store, a=b"2")
        with pytest.raises(NotCommitted, match="conflict on a") as caught:
            await transaction.commit()
        assert caught.value.ranges == ((b"a", b"a\x00"),)
        assert await everything(store) == [(b"a", b"2")]

    async def test_snapshot_reads_and_blind_writes_do_not_conflict(self, store: Store) -> None:
        transaction = store.transaction()
        await transaction.get(b"a", snapshot=True)
        await transaction.get_range(b"", KEY_END, snapshot=True)
        transaction.set(b"b", b"1")
        await put(store, a=b"2", b=b"2")
        await transaction.commit()
        assert await everything(store) == [(b"a", b"2"), (b"b", b"1")]

    async def test_reading_an_own_write_does_not_conflict(self, store: Store) -> None:
        transaction = store.transaction()
        await transaction.read_version()
        transaction.set(b"a", b"1")
        assert await transaction.get(b"a") == b"1"
        await put(store, a=b"2")
        await transaction.commit()
        assert await everything(store) == [(b"a", b"1")]

    @pytest.mark.parametrize("write", ["insert", "clear", "clear_range", "add", "stamp"])
    async def test_every_kind_of_write_into_a_read_range_conflicts(self, store: Store, write: str) -> None:
        await put(store, k5=b"5")
        transaction = store.transaction()
        await transaction.get_range(b"k", b"l")
        transaction.set(b"z", b"1")

        other = store.transaction()
        if write == "insert":
            other.set(b"k7", b"7")
        elif write == "clear":
            other.clear(b"k5")
        elif write == "clear_range":
            other.clear_range(b"k5", b"k6")
        elif write == "add":
            other.add(b"k9", b"\x01")
        else:
            other.set_versionstamped_key(b"k", b"", b"")
        await other.commit()
        with pytest.raises(NotCommitted):
            await transaction.commit()

    @pytest.mark.parametrize(("reverse", "changed", "conflicts"), [
        (False, b"b", True), (False, b"bb", False), (True, b"c", True), (True, b"bb", False),
    ])  # fmt: skip
    async def test_only_the_part_that_was_read_conflicts(
        self, store: Store, reverse: bool, changed: bytes, conflicts: bool
    ) -> None:
        await put(store, a=b"1", b=b"2", c=b"3", d=b"4")
        transaction = store.transaction()
        assert len(await transaction.get_range(b"a", b"e", limit=2, reverse=reverse)) == 2
        transaction.set(b"z", b"1")
        await put(store, **{changed.decode(): b"new"})
        if conflicts:
            with pytest.raises(NotCommitted):
                await transaction.commit()
        else:
            await transaction.commit()

    async def test_explicit_conflict_ranges(self, store: Store) -> None:
        reader = store.transaction()
        await reader.add_read_conflict_range(b"a", b"b")
        reader.set(b"z", b"1")
        writer = store.transaction()
        writer.add_write_conflict_range(b"aa", b"ab")
        await writer.commit()
        with pytest.raises(NotCommitted):
            await reader.commit()
        assert await everything(store) == []

    async def test_write_skew_is_refused(self, store: Store) -> None:
        await put(store, a=b"on", b=b"on")
        first, second = store.transaction(), store.transaction()
        for transaction, own in ((first, b"a"), (second, b"b")):
            assert len(await transaction.get_range(b"", KEY_END)) == 2
            transaction.set(own, b"off")
        results = await asyncio.gather(first.commit(), second.commit(), return_exceptions=True)
        assert sum(isinstance(result, NotCommitted) for result in results) == 1

    async def test_contended_increments_are_all_counted(self, store: Store) -> None:
        async def increment(transaction: Transaction) -> None:
            value = int.from_bytes(await transaction.get(b"n") or b"", "little")
            transaction.set(b"n", (value + 1).to_bytes(4, "little"))

        await asyncio.gather(*(store.run(increment, what="increment", timeout_s=10_000) for _ in range(30)))
        assert await everything(store) == [(b"n", (30).to_bytes(4, "little"))]


class TestAtomicOperations:
    async def test_adds_do_not_conflict_and_none_is_lost(self, store: Store) -> None:
        async def add(transaction: Transaction) -> None:
            await transaction.read_version()
            transaction.add(b"n", (3).to_bytes(8, "little"))

        await asyncio.gather(*(store.run(add, what="add") for _ in range(50)))
        assert await everything(store) == [(b"n", (150).to_bytes(8, "little"))]

    @pytest.mark.parametrize(("before", "operand", "after"), [
        (b"\xff", b"\x02", b"\x01"),
        (b"\xff\xff", b"\x01\x00\x00\x00", b"\x00\x00\x01\x00"),
        (b"\x01\x02\x03\x04", b"\x01\x00", b"\x02\x02"),
        (b"\x05\x00", (-2).to_bytes(2, "little", signed=True), b"\x03\x00"),
    ])  # fmt: skip
    async def test_the_operand_gives_the_width(self, store: Store, before: bytes, operand: bytes, after: bytes) -> None:
        await put(store, n=before)
        transaction = store.transaction()
        transaction.add(b"n", operand)
        assert await transaction.get(b"n") == after
        assert await transaction.get_range(b"n", b"o") == [(b"n", after)]
        await transaction.commit()
        assert await everything(store) == [(b"n", after)]

    async def test_adds_over_own_writes(self, store: Store) -> None:
        await put(store, a=b"\x05", b=b"\x05", c=b"\x05")
        transaction = store.transaction()
        transaction.set(b"a", b"\x01")
        transaction.clear(b"b")
        transaction.clear_range(b"c", b"d")
        for key in (b"a", b"b", b"c", b"d"):
            transaction.add(key, b"\x02")
            transaction.add(key, b"\x02")
        expected = [(b"a", b"\x05"), (b"b", b"\x04"), (b"c", b"\x04"), (b"d", b"\x04")]
        assert await transaction.get_range(b"", KEY_END) == expected
        await transaction.commit()
        assert await everything(store) == expected

    async def test_versionstamped_keys_follow_the_order_of_commits(self, store: Store) -> None:
        stamps = []
        for name in (b"first", b"second", b"third"):
            transaction = store.transaction()
            transaction.set_versionstamped_key(b"log/", b"!", name)
            with pytest.raises(InvalidOperation):
                await transaction.get_range(b"log/", b"log0")
            with pytest.raises(InvalidOperation):
                transaction.versionstamp()
            await transaction.commit()
            stamps.append(transaction.versionstamp())
        rows = await everything(store)
        assert [value for _, value in rows] == [b"first", b"second", b"third"]
        assert [key for key, _ in rows] == [b"log/" + stamp + b"!" for stamp in stamps]

    async def test_concurrent_versionstamps_are_distinct(self, store: Store) -> None:
        async def append(transaction: Transaction) -> None:
            transaction.set_versionstamped_key(b"log/", b"", b"x")

        await asyncio.gather(*(store.run(append, what="append") for _ in range(40)))
        assert len(await everything(store)) == 40
