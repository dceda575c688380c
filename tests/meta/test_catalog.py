"""The block catalog: idempotent reports, exact counters, pages."""

import asyncio
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from esker.meta import keys
from esker.meta.admin_growth import forget_drive
from esker.meta.admin_namespaces import begin_removal
from esker.meta.catalog import LIST_LIMIT_MAX, TRANSACTION_ENTRIES_MAX, Catalog
from esker.meta.namespaces import open_namespace
from esker.meta.records import RemovedDrive
from esker.meta.store.base import Store, Transaction
from esker.meta.store.memory import MemoryStore
from esker.wire.admin_messages import BLOCKS_MAX, CatalogGet, NamespaceRemove
from esker.wire.errors import RequestFailed
from esker.wire.messages import CatalogEntry, CatalogList, CatalogReport, NamespaceOpen
from esker.wire.status import Status
from esker.wire.types import Geometry

from .conftest import join_all


def entry(
    number: int, block_bytes: int = 1000, created_ms: int = 5, namespace_id: int = 1, version: int = 0
) -> CatalogEntry:
    object_id = number.to_bytes(16, "big")[::-1]
    return CatalogEntry(namespace_id, object_id, b"key%d" % number, block_bytes, 1, created_ms, version, 3)


def removal(number: int, version: int = 0) -> CatalogEntry:
    return CatalogEntry(1, entry(number).object_id, b"", 0, 0, 0, version)


def report(*entries: CatalogEntry) -> CatalogReport:
    """A report that has no place in an order."""
    return CatalogReport(entries)


async def listed(catalog: Catalog, namespace_id: int = 1) -> list[CatalogEntry]:
    return list((await catalog.page(CatalogList(namespace_id, b"", LIST_LIMIT_MAX))).entries)


async def add_namespaces(store: Store) -> None:
    for name in ("a", "b"):
        await open_namespace(store, NamespaceOpen(name, Geometry(block_bytes_max=4096)), Random(1).randbytes)


@pytest.fixture
async def catalog(ready_store: Store) -> Catalog:
    await add_namespaces(ready_store)
    return Catalog(ready_store)


async def test_what_was_reported_is_listed_and_counted(catalog: Catalog) -> None:
    await catalog.report(report(entry(1), entry(2, 500), entry(3, namespace_id=2)))
    assert (await catalog.page(CatalogList(1, b"", 10))).entries == (entry(1), entry(2, 500))
    assert await catalog.totals() == {1: (2, 1500), 2: (1, 1000)}


async def test_the_last_report_of_a_drive_that_was_removed_counts_and_leaves_no_place(
    catalog: Catalog, ready_store: Store
) -> None:
    async def forget(transaction: Transaction) -> None:
        forget_drive(transaction, RemovedDrive("d0", 1))

    async def kept(transaction: Transaction) -> bytes | None:
        return await transaction.get(keys.report("d0"))

    await catalog.report(CatalogReport((entry(1),), "d0", 1, 1))
    assert await ready_store.run(kept, what="test") is not None
    await ready_store.run(forget, what="test")
    await catalog.report(CatalogReport((entry(2),), "d0", 1, 2))
    assert await ready_store.run(kept, what="test") is None
    assert await catalog.totals() == {1: (2, 2000)}


async def test_a_report_that_comes_twice_counts_once(catalog: Catalog) -> None:
    for _ in range(2):
        await catalog.report(report(entry(1), entry(2), removal(3)))
    assert await catalog.totals() == {1: (2, 2000)}
    await catalog.report(report(entry(1, 400), entry(1, 300)))
    assert await catalog.totals() == {1: (2, 1300)}
    for _ in range(2):
        await catalog.report(report(removal(1), entry(2), removal(2)))
    assert await catalog.totals() == {1: (0, 0)}
    assert (await catalog.page(CatalogList(1, b"", 10))).entries == ()


async def test_pages_follow_each_other_in_object_order(catalog: Catalog) -> None:
    await catalog.report(report(*[entry(number) for number in range(250)] + [entry(7, namespace_id=2)]))
    found: list[CatalogEntry] = []
    after = b""
    while page := (await catalog.page(CatalogList(1, after, 100))).entries:
        found.extend(page)
        after = page[-1].object_id
    assert found == sorted((entry(number) for number in range(250)), key=lambda entry: entry.object_id)


async def test_a_report_larger_than_a_transaction(catalog: Catalog) -> None:
    count = 2 * TRANSACTION_ENTRIES_MAX + 1
    await catalog.report(report(*[entry(number) for number in range(count)]))
    assert await catalog.totals() == {1: (count, 1000 * count)}


async def test_reports_of_several_workers_at_once(catalog: Catalog) -> None:
    async def reports(first: int) -> None:
        for start in range(first, first + 60, 20):
            await catalog.report(report(*[entry(number) for number in range(start, start + 20)]))

    await asyncio.gather(*(reports(first) for first in (0, 40, 80, 0)))
    assert await catalog.totals() == {1: (140, 140_000)}


@settings(max_examples=30)
@given(st.lists(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3)), max_size=6), max_size=6), st.randoms())
async def test_counters_are_exact_when_answers_are_lost(batches: list, chance: Random) -> None:
    armed = False
    store = MemoryStore(fault=lambda: chance.choice([None, "before", "after"]) if armed else None)
    await join_all(store, 2)
    await add_namespaces(store)
    catalog = Catalog(store)
    armed = True
    model: dict[int, int] = {}
    for batch in batches:
        await catalog.report(
            report(*[entry(number, 100 * size) if size else removal(number) for number, size in batch])
        )
        for number, size in batch:
            model.pop(number, None)
            if size:
                model[number] = 100 * size
    armed = False
    assert (await catalog.totals()).get(1, (0, 0)) == (len(model), sum(model.values()))
    listed = (await catalog.page(CatalogList(1, b"", 100))).entries
    assert {e.key: e.block_bytes for e in listed} == {b"key%d" % number: size for number, size in model.items()}
    await store.aclose()


@pytest.mark.parametrize("bad", [
    CatalogEntry(1, b"short", b"k", 1, 1, 1),
    CatalogEntry(1, bytes(16), b"", 1, 1, 1),
    CatalogEntry(1, bytes(16), b"k" * 257, 1, 1, 1),
    CatalogEntry(1, bytes(16), b"k", 0, 1, 1),
    CatalogEntry(1, bytes(16), b"k", 1, 0, 1),
    CatalogEntry(1, bytes(16), b"k", 1, 1, -1),
    CatalogEntry(0, bytes(16), b"k", 1, 1, 1),
    CatalogEntry(1 << 32, bytes(16), b"k", 1, 1, 1),
    CatalogEntry(1, bytes(16), b"k", 1, 1, 1, -1),
    CatalogEntry(1, bytes(16), b"k", 1, 1, 1, 1, 1 << 32),
])  # fmt: skip
async def test_a_malformed_entry_refuses_the_whole_report(catalog: Catalog, bad: CatalogEntry) -> None:
    with pytest.raises(RequestFailed, match="malformed catalog entry") as caught:
        await catalog.report(report(entry(1), bad))
    assert caught.value.status == Status.BAD_REQUEST
    assert await catalog.totals() == {}


async def test_entries_of_no_namespace_are_passed_over(catalog: Catalog) -> None:
    assert await catalog.report(report(entry(1), entry(1, namespace_id=3))) == 1
    assert await catalog.totals() == {1: (1, 1000)}
    assert await listed(catalog, 3) == []


async def test_what_is_reported_of_a_namespace_after_its_removal_began_is_passed_over(
    catalog: Catalog, ready_store: Store
) -> None:
    await catalog.report(report(entry(1), entry(2, namespace_id=2)))
    await begin_removal(ready_store, NamespaceRemove("a"), now_ms=1)
    assert await catalog.report(report(entry(3), removal(1), entry(4, namespace_id=2))) == 2
    assert await catalog.totals() == {1: (1, 1000), 2: (2, 2000)}


async def test_an_older_entry_never_replaces_or_removes_a_newer_one(catalog: Catalog) -> None:
    await catalog.report(report(entry(1, 700, version=9)))
    await catalog.report(report(removal(1, version=8)))
    await catalog.report(report(entry(1, 300, version=8)))
    assert await listed(catalog) == [entry(1, 700, version=9)]
    assert await catalog.totals() == {1: (1, 700)}
    await catalog.report(report(entry(1, 800, version=10), entry(1, 200, version=3), removal(1, version=9)))
    assert await listed(catalog) == [entry(1, 800, version=10)]
    # A copy that was replaced by an older one goes first.
    await catalog.report(report(removal(1, version=10), entry(1, 500, version=4)))
    assert await listed(catalog) == [entry(1, 500, version=4)]
    await catalog.report(report(removal(1, version=4)))
    assert await catalog.totals() == {1: (0, 0)}


def numbered(number: int, *entries: CatalogEntry, life: int = 5) -> CatalogReport:
    return CatalogReport(entries, "d1", life, number)


async def test_a_report_that_was_overtaken_is_not_taken_any_more(catalog: Catalog) -> None:
    await catalog.report(numbered(1, entry(1, version=1)))
    await catalog.report(numbered(2, removal(1, version=1)))
    await catalog.report(numbered(1, entry(1, version=1)))
    assert await listed(catalog) == []
    await catalog.report(numbered(9, entry(2), life=4))
    assert await listed(catalog) == []
    await catalog.report(numbered(1, entry(3), life=6))
    assert await listed(catalog) == [entry(3)]
    await catalog.report(CatalogReport((entry(4),), "d2", 1, 1))
    assert await listed(catalog) == [entry(3), entry(4)]


async def test_a_large_report_is_taken_whole_after_a_part_of_it(catalog: Catalog, ready_store: Store) -> None:
    count = TRANSACTION_ENTRIES_MAX + 1
    whole = numbered(1, *[entry(number) for number in range(count)])
    await catalog.report(CatalogReport(whole.entries[:TRANSACTION_ENTRIES_MAX]))  # as if the rest got lost
    await catalog.report(whole)
    assert await catalog.totals() == {1: (count, 1000 * count)}


async def test_a_damaged_entry_is_shown_as_one_and_replaced_by_any_report(catalog: Catalog, ready_store: Store) -> None:
    await catalog.report(report(entry(1)))

    async def damage(transaction: Transaction) -> None:
        transaction.set(keys.block(1, entry(1).object_id), b"\x02\xff")

    await ready_store.run(damage, what="test")
    assert await listed(catalog) == [CatalogEntry(1, entry(1).object_id, b"", 0, 0, 0)]
    await catalog.report(report(entry(1)))
    assert await listed(catalog) == [entry(1)]


async def test_entries_are_found_by_object(catalog: Catalog) -> None:
    await catalog.report(report(entry(1), entry(2), entry(3)))
    objects = b"".join(entry(number).object_id for number in (3, 7, 1))
    assert (await catalog.some(CatalogGet(1, objects))).entries == (entry(3), entry(1))
    for bad in (b"", b"short", bytes(16 * (BLOCKS_MAX + 1))):
        with pytest.raises(RequestFailed, match="object ids"):
            await catalog.some(CatalogGet(1, bad))


async def test_a_removed_namespaces_entries_go_in_pages_and_the_counters_with_them(
    catalog: Catalog, ready_store: Store
) -> None:
    count = TRANSACTION_ENTRIES_MAX + 5
    await catalog.report(report(*[entry(number) for number in range(count)], entry(1, namespace_id=2)))
    await begin_removal(ready_store, NamespaceRemove("a"), now_ms=1)
    assert await catalog.clear_page(1) == TRANSACTION_ENTRIES_MAX
    assert await catalog.totals() == {1: (5, 5000), 2: (1, 1000)}
    assert await catalog.clear_page(1) == 5
    assert await catalog.clear_page(1) == 0
    assert await catalog.totals() == {1: (0, 0), 2: (1, 1000)}


@pytest.mark.parametrize("request_", [
    CatalogList(1, b"", 0), CatalogList(1, b"", LIST_LIMIT_MAX + 1), CatalogList(1, b"x", 1), CatalogList(-1, b"", 1),
])  # fmt: skip
async def test_malformed_pages(catalog: Catalog, request_: CatalogList) -> None:
    with pytest.raises(RequestFailed) as caught:
        await catalog.page(request_)
    assert caught.value.status == Status.BAD_REQUEST
