"""Rows as they are: pages, the snapshot, and changes that change nothing that has changed since."""

import pytest

from esker.meta import admin_raw, keys
from esker.meta.admin_raw import meta_change, meta_page, meta_snapshot
from esker.meta.catalog import Catalog
from esker.meta.store.base import KEY_END, Store, Transaction
from esker.meta.store.memory import Fault, MemoryStore
from esker.wire.admin_messages import META_CHANGES_MAX, META_PAGE_ROWS_MAX, MetaChange, MetaPage, MetaRow
from esker.wire.errors import RequestFailed
from esker.wire.messages import CatalogEntry, CatalogReport
from esker.wire.status import Status

from .test_admin_namespaces import make


async def put(store: Store, **rows: bytes) -> None:
    async def body(transaction: Transaction) -> None:
        for name, value in rows.items():
            transaction.set(name.encode(), value)

    await store.run(body, what="test")


async def rows_of(store: Store) -> list[MetaRow]:
    return await store.run(lambda transaction: transaction.get_range(b"\x00", KEY_END), what="test")


async def test_pages_go_on_where_the_last_one_ended(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin_raw, "SLICE_ROWS", 3)
    await put(store, **{f"k{number:02}": bytes([number]) for number in range(10)})
    for limit in (1, 3, 4, 9, 10, 11):
        found: list[MetaRow] = []
        begin = b"\x00"
        while True:
            page = await meta_page(store, MetaPage(begin, KEY_END, limit))
            assert len(page.rows) <= limit
            found += page.rows
            if page.over:
                break
            begin = page.rows[-1][0] + b"\x00"
        assert found == await rows_of(store)
    assert (await meta_page(store, MetaPage(b"k03", b"k05", 9))).rows == ((b"k03", b"\x03"), (b"k04", b"\x04"))


async def test_a_page_of_large_rows_is_cut(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin_raw, "SLICE_ROWS", 2)
    monkeypatch.setattr(admin_raw, "META_PAGE_BYTES_AIM", 3000)
    await put(store, **{f"k{number}": bytes(1000) for number in range(9)})
    page = await meta_page(store, MetaPage(b"\x00", KEY_END, 100))
    assert (len(page.rows), page.over) == (4, False)


@pytest.mark.parametrize("ask", [
    MetaPage(b"", b"\xff", 1), MetaPage(b"b", b"a", 1), MetaPage(b"a", b"\xff\x00", 1), MetaPage(b"a", b"b", 0),
    MetaPage(b"a", b"b", META_PAGE_ROWS_MAX + 1),
])  # fmt: skip
async def test_malformed_ranges_are_refused(store: Store, ask: MetaPage) -> None:
    with pytest.raises(RequestFailed, match="malformed range"):
        await meta_page(store, ask)


async def test_the_snapshot_has_everything_but_blocks_at_one_version(
    ready_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admin_raw, "META_PAGE_BYTES_AIM", 500)
    await make(ready_store, "a")
    await Catalog(ready_store).report(CatalogReport((CatalogEntry(1, bytes(16), b"k", 1, 1, 1),)))
    pages = await meta_snapshot(ready_store)
    assert [page.over for page in pages] == [False] * (len(pages) - 1) + [True]
    assert len(pages) > 3
    assert len({page.version for page in pages}) == 1
    everything = await rows_of(ready_store)
    begin, end = keys.all_blocks()
    blocks = [row for row in everything if begin <= row[0] < end]
    assert len(blocks) == 1
    assert [row for page in pages for row in page.rows] == [row for row in everything if row not in blocks]


async def test_a_snapshot_of_nothing_is_one_empty_page(store: Store) -> None:
    (page,) = await meta_snapshot(store)
    assert (page.rows, page.over) == ((), True)


async def test_a_change_finds_what_it_expects_or_changes_nothing(store: Store) -> None:
    await put(store, a=b"1", b=b"2")
    await meta_change(store, MetaChange(((b"a", b"1", b"9"), (b"b", b"2", None), (b"c", None, b"3")), "test"))
    assert await rows_of(store) == [(b"a", b"9"), (b"c", b"3")]
    for stale in ((b"a", b"1", b"7"), (b"c", None, b"7"), (b"d", b"4", None)):
        with pytest.raises(RequestFailed, match="has changed meanwhile; look again") as caught:
            await meta_change(store, MetaChange(((b"e", None, b"5"), stale), "test"))
        assert caught.value.status is Status.CONFLICT
    assert await rows_of(store) == [(b"a", b"9"), (b"c", b"3")]


async def test_a_change_whose_answer_was_lost_is_told_as_done() -> None:
    faults: list[Fault] = ["after"]
    store = MemoryStore(fault=lambda: faults.pop() if faults else None)
    await meta_change(store, MetaChange(((b"a", None, b"1"),), "test"))
    assert await rows_of(store) == [(b"a", b"1")]
    await store.aclose()


@pytest.mark.parametrize("ask", [
    MetaChange((), "test"), MetaChange(((b"a", None, b"1"),), ""), MetaChange(((b"\xff", None, b"1"),), "test"),
    MetaChange(((b"a", None, b"1"), (b"a", None, b"2")), "test"), MetaChange(((b"", None, b"1"),), "test"),
    MetaChange(tuple((b"%06d" % n, None, b"") for n in range(META_CHANGES_MAX + 1)), "test"),
])  # fmt: skip
async def test_malformed_changes_are_refused(store: Store, ask: MetaChange) -> None:
    with pytest.raises(RequestFailed) as caught:
        await meta_change(store, ask)
    assert caught.value.status is Status.BAD_REQUEST
    assert await rows_of(store) == []
