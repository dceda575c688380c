"""The check of a whole store: counters against blocks, strays, repairs that find what they expect, moving targets."""

from collections.abc import Sequence

import pytest

from esker.meta import keys
from esker.meta.catalog import Catalog
from esker.meta.catalog_record import StoredBlock, pack_block
from esker.meta.store.base import Store, Transaction
from esker.meta.store.memory import MemoryStore
from esker.tools.admin import meta_check
from esker.tools.admin.meta_check import MetaCheckResult, check_metadata
from esker.tools.admin.meta_source import Change, LocalRows
from esker.tools.exit_codes import ExitCode
from esker.wire.admin_messages import MetaPageReply
from esker.wire.messages import CatalogEntry, CatalogReport

from ...meta.conftest import join_all
from ...meta.test_admin_namespaces import make


def entry(number: int, namespace_id: int = 1) -> CatalogEntry:
    return CatalogEntry(namespace_id, number.to_bytes(16, "little"), b"k", 100, 1, 5)


@pytest.fixture
async def store() -> Store:
    """Two namespaces with blocks."""
    opened = MemoryStore()
    await join_all(opened, 2)
    await make(opened, "a", "b")
    entries = [entry(number, namespace_id) for number in range(100) for namespace_id in (1, 2)]
    await Catalog(opened).report(CatalogReport(tuple(entries)))
    return opened


async def change(store: Store, rows: dict[bytes, bytes | None]) -> None:
    async def body(transaction: Transaction) -> None:
        for key, value in rows.items():
            if value is None:
                transaction.clear(key)
            else:
                transaction.set(key, value)

    await store.run(body, what="test")


async def check(store: Store, *, repair: bool = False) -> MetaCheckResult:
    return await check_metadata(LocalRows(store), repair=repair)


async def test_sound_metadata(store: Store) -> None:
    result = await check(store)
    assert (result.exit_code(), result.findings, result.unchecked) == (ExitCode.FINE, [], [])
    assert result.blocks == 200
    assert result.rows > 10


async def test_wrong_counters_are_found_and_put_right(store: Store) -> None:
    await change(
        store,
        {
            keys.counter(1, keys.BLOCKS, 3): (77).to_bytes(8, "little"),
            keys.counter(2, keys.BYTES, 4): None,
            keys.counter(2, keys.BLOCKS, 5): (-3).to_bytes(8, "little", signed=True),
            keys.counter(9, keys.BYTES, 4): bytes(8),
        },
    )
    result = await check(store)
    assert result.exit_code() is ExitCode.DIFFERENCES
    assert len(result.findings) == 4
    result = await check(store, repair=True)
    assert (result.exit_code(), len(result.repaired)) == (ExitCode.FINE, 4)
    assert (await check(store)).findings == []
    assert await Catalog(store).totals() == {1: (100, 10_000), 2: (100, 10_000)}


async def test_blocks_of_no_namespace_are_found_and_dropped(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meta_check, "CHANGE_ROWS", 10)
    value = pack_block(StoredBlock(b"k", 1, 1, 1, 1, 1))
    strays = {keys.block(5, bytes([number]) * 16): value for number in range(25)}
    strays |= {keys.block(0, bytes(16)): value, keys.block(2**32 - 1, bytes(16)): value}
    await change(store, dict(strays))
    result = await check(store)
    assert sum(int(finding.problem.split()[0]) for finding in result.findings) == 27
    assert (await check(store, repair=True)).exit_code() is ExitCode.FINE
    assert (await check(store)).findings == []


async def test_damaged_blocks_are_named_and_left_to_the_drives(store: Store) -> None:
    await change(store, {keys.block(1, (3).to_bytes(16, "little")): b"\x02\xff"})
    result = await check(store, repair=True)
    assert result.exit_code() is ExitCode.DIFFERENCES
    (damaged,) = [finding for finding in result.findings if finding.table == "block"]
    assert "catalog check --repair" in damaged.problem
    assert damaged not in result.repaired
    await Catalog(store).report(CatalogReport((entry(3),)))
    await check(store, repair=True)
    assert (await check(store)).findings == []
    assert (await Catalog(store).totals())[1] == (100, 10_000)


class Moving(LocalRows):
    """A store in which something happens each time that blocks are read."""

    def __init__(self, store: Store, happens: int) -> None:
        super().__init__(store)
        self._catalog = Catalog(store)
        self._left = happens
        self._number = 1000

    async def page(self, begin: bytes, end: bytes, limit: int) -> MetaPageReply:
        reply = await super().page(begin, end, limit)
        if begin[:1] == b"\x20" and limit > 1 and self._left:
            self._left -= 1
            self._number += 1
            await self._catalog.report(CatalogReport((entry(self._number),)))
        return reply


async def test_counters_are_judged_when_they_stand_still(store: Store) -> None:
    result = await check_metadata(Moving(store, 2), repair=True)
    assert (result.exit_code(), result.findings) == (ExitCode.FINE, [])


async def test_what_never_stands_still_is_not_judged_and_named(store: Store) -> None:
    await change(store, {keys.counter(1, keys.BLOCKS, 3): (77).to_bytes(8, "little")})
    result = await check_metadata(Moving(store, 1000), repair=True)
    assert result.exit_code() is ExitCode.DEGRADED
    assert result.findings == []
    assert result.unchecked == [
        "counters of namespace 1: its blocks keep changing",
    ]


class Hasty(LocalRows):
    """A store in which somebody is always faster."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self._store_of_all = store

    async def change(self, rows: Sequence[Change], why: str) -> None:
        await change(self._store_of_all, {rows[0][0]: (1).to_bytes(8, "little")})
        await super().change(rows, why)


async def test_what_has_changed_since_it_was_looked_at_stays(store: Store) -> None:
    key = keys.counter(1, keys.BLOCKS, 3)
    await change(store, {key: (77).to_bytes(8, "little")})
    result = await check_metadata(Hasty(store), repair=True)
    assert (result.exit_code(), result.repaired) == (ExitCode.DIFFERENCES, [])
    assert await store.run(lambda transaction: transaction.get(key), what="test") == (1).to_bytes(8, "little")


async def test_a_counter_that_cannot_be_read_is_a_finding_and_counts_nothing(store: Store) -> None:
    await change(store, {keys.counters()[0] + b"x": b"y"})
    (finding,) = (await check(store)).findings
    assert (finding.table, finding.problem) == ("counter", "damaged: namespace_id is cut off")
