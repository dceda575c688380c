"""Namespaces for operators: figures in pages, and what the begin of a removal changes at once."""

from random import Random

import pytest

from esker.meta import keys
from esker.meta.admin_namespaces import begin_removal, namespace_figures, removals_under_way
from esker.meta.catalog import Catalog
from esker.meta.chain_setup import TABLE_ID
from esker.meta.namespaces import open_namespace
from esker.meta.routing import read_routing
from esker.meta.store.base import Store
from esker.meta.store.errors import StoreFailed
from esker.meta.store.memory import Fault, MemoryStore
from esker.wire.admin_messages import NamespaceFiguresGet, NamespaceRemove
from esker.wire.errors import RequestFailed
from esker.wire.messages import CatalogEntry, CatalogReport, NamespaceOpen
from esker.wire.status import Status
from esker.wire.types import Geometry, Namespace, NamespaceMode, Routing

from .conftest import join_all


async def make(store: Store, *names: str, mode: NamespaceMode = NamespaceMode.REPLICATED) -> list[Namespace]:
    """Namespaces of these names."""
    openings = [NamespaceOpen(name, Geometry(block_bytes_max=4096), mode=mode) for name in names]
    return [(await open_namespace(store, opening, Random(1).randbytes))[0].namespace for opening in openings]


async def routing_of(store: Store) -> Routing:
    return await store.run(read_routing, what="test")


async def names(store: Store, **ask: object) -> list[str]:
    reply = await namespace_figures(store, NamespaceFiguresGet(**ask))
    return [figures.namespace.name for figures in reply.namespaces]


async def test_figures_come_in_pages_by_id(ready_store: Store) -> None:
    await make(ready_store, "c", "a", "b")
    await begin_removal(ready_store, NamespaceRemove("a"), now_ms=7)
    entries = [CatalogEntry(3, bytes([n]) * 16, b"k", 100, 1, 5) for n in range(4)]
    await Catalog(ready_store).report(CatalogReport(tuple(entries)))
    whole = await namespace_figures(ready_store, NamespaceFiguresGet())
    assert [(each.namespace.name, each.blocks, each.block_bytes) for each in whole.namespaces] == [
        ("c", 0, 0),
        ("a", 0, 0),
        ("b", 4, 400),
    ]
    assert [each.removal is not None for each in whole.namespaces] == [False, True, False]
    assert await names(ready_store, limit=2) == ["c", "a"]
    assert await names(ready_store, limit=2, after_id=2) == ["b"]
    assert await names(ready_store, limit=1, name="b") == ["b"]
    assert await names(ready_store, name="d") == []
    for bad in (NamespaceFiguresGet(limit=0), NamespaceFiguresGet(limit=1001), NamespaceFiguresGet(after_id=-1)):
        with pytest.raises(RequestFailed, match="malformed page"):
            await namespace_figures(ready_store, bad)


async def test_a_removal_frees_the_name_and_takes_the_namespace_off_the_map(ready_store: Store) -> None:
    first, other = await make(ready_store, "a", "b")
    before = await routing_of(ready_store)
    assert (before.namespace_last, before.namespaces) == (2, (1, 2))
    reply = await begin_removal(ready_store, NamespaceRemove("a"), now_ms=7)
    assert reply.removed == (first,)
    after = await routing_of(ready_store)
    assert after.version > before.version
    assert (after.namespace_last, after.namespaces) == (2, (other.namespace_id,))
    (removal,) = await removals_under_way(ready_store)
    assert (removal.namespace, removal.started_ms, removal.routing_version) == (first, 7, after.version)
    (again,) = await make(ready_store, "a")
    assert again.namespace_id == 3, "ids are never given twice"
    assert (await routing_of(ready_store)).namespaces == (2, 3)


async def test_a_prefix_takes_all_that_begin_with_it_a_page_at_a_time(ready_store: Store) -> None:
    await make(ready_store, "t/a", "t/b", "t2/a", "t", "t/c", "s")
    reply = await begin_removal(ready_store, NamespaceRemove(prefix="t/", limit=2), now_ms=1)
    assert [each.name for each in reply.removed] == ["t/a", "t/b"]
    reply = await begin_removal(ready_store, NamespaceRemove(prefix="t/", limit=2), now_ms=2)
    assert [each.name for each in reply.removed] == ["t/c"]
    assert (await begin_removal(ready_store, NamespaceRemove(prefix="t/"), now_ms=3)).removed == ()
    assert (await routing_of(ready_store)).namespaces == (3, 4, 6)


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (NamespaceRemove("absent"), Status.NOT_FOUND),
        (NamespaceRemove(), Status.BAD_REQUEST),
        (NamespaceRemove("a", "a"), Status.BAD_REQUEST),
        (NamespaceRemove("a", strange=3), Status.BAD_REQUEST),
        (NamespaceRemove(strange=-1), Status.BAD_REQUEST),
        (NamespaceRemove("a b"), Status.BAD_REQUEST),
        (NamespaceRemove(prefix="a", limit=0), Status.BAD_REQUEST),
    ],
)
async def test_what_cannot_be_removed_is_refused(ready_store: Store, request_: NamespaceRemove, status: Status) -> None:
    await make(ready_store, "a")
    with pytest.raises(RequestFailed) as caught:
        await begin_removal(ready_store, request_, now_ms=1)
    assert caught.value.status is status
    assert (await routing_of(ready_store)).namespaces == (1,)


async def test_a_removal_whose_answer_was_lost_is_told_as_done() -> None:
    faults: list[Fault] = []
    store = MemoryStore(fault=lambda: faults.pop() if faults else None)
    await join_all(store, 2)
    (namespace,) = await make(store, "a")
    faults.append("after")
    reply = await begin_removal(store, NamespaceRemove("a"), now_ms=1)
    assert reply.removed == (namespace,)
    assert len(await removals_under_way(store)) == 1
    await store.aclose()


async def test_an_id_that_no_namespace_has_can_be_removed(ready_store: Store) -> None:
    await make(ready_store, "a", mode=NamespaceMode.CACHE)
    with pytest.raises(RequestFailed, match="id 1 is namespace 'a'; remove it by its name"):
        await begin_removal(ready_store, NamespaceRemove(strange=1), now_ms=1)
    before = await routing_of(ready_store)
    reply = await begin_removal(ready_store, NamespaceRemove(strange=40), now_ms=1)
    assert await begin_removal(ready_store, NamespaceRemove(strange=40), now_ms=2) == reply
    (removal,) = await removals_under_way(ready_store)
    after = await routing_of(ready_store)
    assert removal.namespace.namespace_id == after.namespace_last == 40
    assert removal.routing_version == after.version > before.version
    assert (removal.namespace.table_id, removal.namespace.table_version) == (TABLE_ID, 1)
    (fresh,) = await make(ready_store, "b")
    assert fresh.namespace_id == 41
    await begin_removal(ready_store, NamespaceRemove(strange=0xFFFFFFFF), now_ms=1)
    (fresh,) = await make(ready_store, "c")
    assert fresh.namespace_id == 42, "a mistyped id does not use all of them up"


async def test_a_name_without_a_record_is_not_removed_blindly(ready_store: Store) -> None:
    await make(ready_store, "a")

    async def damage(transaction: object) -> None:
        transaction.clear(keys.namespace(1))  # type: ignore[attr-defined]

    await ready_store.run(damage, what="test")
    with pytest.raises(RequestFailed, match="meta check --repair"):
        await begin_removal(ready_store, NamespaceRemove("a"), now_ms=1)
    with pytest.raises(StoreFailed, match="namespace a has a name but no record"):
        await make(ready_store, "a")
