"""Whether tables fit each other: sound metadata has no findings, each kind of damage has its own; repairs repair."""

import re
from collections.abc import Callable

import pytest

from esker.meta import keys
from esker.meta.admin_check import CounterSum, Finding, MetadataCheck
from esker.meta.admin_namespaces import begin_removal
from esker.meta.admin_raw import meta_snapshot
from esker.meta.catalog import Catalog
from esker.meta.records import RemovedDrive, pack, unpack
from esker.meta.store.base import Store
from esker.meta.store.errors import printable
from esker.wire.admin_messages import NamespaceRemove
from esker.wire.messages import CatalogEntry, CatalogReport
from esker.wire.types import Chain, ChainGoal, ChainTable, Leaving, Namespace, NamespaceMode, Replica

from .test_admin_namespaces import make

Rows = dict[bytes, bytes]


async def snapshot(store: Store) -> Rows:
    return {key: value for page in await meta_snapshot(store) for key, value in page.rows}


@pytest.fixture
async def sound(ready_store: Store) -> Rows:
    """Metadata of a cluster with a namespace of each mode, blocks, and a removal under way."""
    await make(ready_store, "a")
    await make(ready_store, "b", mode=NamespaceMode.CACHE)
    await make(ready_store, "c")
    entries = tuple(CatalogEntry(1, bytes([n]) * 16, b"k", 100, 1, 5) for n in range(20))
    await Catalog(ready_store).report(CatalogReport(entries, "d1", 1, 1))
    await begin_removal(ready_store, NamespaceRemove("c"), now_ms=1)
    return await snapshot(ready_store)


def findings(rows: Rows) -> list[Finding]:
    return MetadataCheck(rows.items()).run()


def repaired(rows: Rows, found: list[Finding]) -> Rows:
    """The rows after all repairs."""
    rows = dict(rows)
    for finding in found:
        for key, expected, value in finding.repair:
            assert rows.get(key) == expected
            if value is None:
                del rows[key]
            else:
                rows[key] = value
    return rows


def test_sound_metadata_has_no_findings(sound: Rows) -> None:
    assert findings(sound) == []


def change_chain(rows: Rows, **changes: object) -> None:
    chain = unpack(Chain, keys.chain(1), rows[keys.chain(1)])
    fields = {name: getattr(chain, name) for name in chain.__struct_fields__}
    rows[keys.chain(1)] = pack(Chain(**{**fields, **changes}))


def change_table(rows: Rows, **changes: object) -> None:
    key = keys.table(1, 1)
    table = unpack(ChainTable, key, rows[key])
    fields = {name: getattr(table, name) for name in table.__struct_fields__}
    rows[key] = pack(ChainTable(**{**fields, **changes}))


def change_namespace(rows: Rows, number: int, **changes: object) -> None:
    key = keys.namespace(number)
    namespace = unpack(Namespace, key, rows[key])
    fields = {name: getattr(namespace, name) for name in namespace.__struct_fields__}
    rows[key] = pack(Namespace(**{**fields, **changes}))


def u32(number: int) -> bytes:
    return number.to_bytes(4, "little")


BEYOND_REPAIR: list[tuple[Callable[[Rows], object], str]] = [
    (lambda rows: rows.pop(keys.CLUSTER), "there is no cluster record"),
    (lambda rows: rows.pop(keys.ROUTING_VERSION), "has no version"),
    (lambda rows: rows.update({keys.CLUSTER: b"\x63"}), "damaged: .*has format 63"),
    (lambda rows: rows.update({b"\x7fx": b""}), "no table of this esker"),
    (lambda rows: rows.pop(keys.drive("d0")), "names drives that never joined: d0"),
    (lambda rows: rows.pop(keys.chain(1)), r"names chains that do not exist: \[1\]"),
    (lambda rows: rows.update({keys.chain(99): pack(Chain(99, 1, (Replica("d0"),)))}), "no chain table names it"),
    (lambda rows: rows.update({keys.chain(99): rows[keys.chain(1)]}), "it says that it is chain 1"),
    (lambda rows: change_chain(rows, replicas=(Replica("d0"), Replica("d0"))), "two on one drive"),
    (lambda rows: change_chain(rows, replicas=()), "it has no replicas"),
    (lambda rows: change_chain(rows, min_replicas=3), "out of range"),
    (lambda rows: change_chain(rows, version=0), "out of range"),
    (
        lambda rows: change_chain(rows, replicas=tuple(Replica(f"d{n}") for n in range(5))),
        "it has 5 replicas where the cluster keeps 2",
    ),
    (
        lambda rows: rows.update({keys.removed_drive("d1"): pack(RemovedDrive("d1", 1))}),
        "drive d1 was removed, but is in the cluster",
    ),
    (lambda rows: change_table(rows, weights=(1,)), "have not one weight each"),
    (lambda rows: rows.pop(keys.placement(1, 1, 1)), "has 65536 bytes instead of 131072"),
    (lambda rows: rows.update({keys.placement(1, 1, 0): b"\xff" * 65536}), "names chain 65535 of 12"),
    (lambda rows: rows.pop(keys.table(1, 1)), "lies over chain table 1 version 1, which does not exist"),
    (
        lambda rows: change_namespace(rows, 2, older_versions=(7,)),
        "namespace b lies over chain table 2 version 7, which does not exist",
    ),
    (lambda rows: change_namespace(rows, 1, namespace_id=2), "it says that it is namespace 2"),
    (lambda rows: change_namespace(rows, 2, name="a"), "share the name"),
    (lambda rows: rows.update({keys.namespace(3): rows[keys.namespace(1)]}), "it says that it is namespace 1"),
]


@pytest.mark.parametrize(("damage", "problem"), BEYOND_REPAIR)
def test_what_only_a_backup_can_mend_is_named(sound: Rows, damage: Callable[[Rows], object], problem: str) -> None:

    damage(sound)
    named = [finding for finding in findings(sound) if re.search(problem, finding.problem)]
    assert named
    assert all(finding.repair == () for finding in named)


REPAIRABLE: list[tuple[Callable[[Rows], object], str]] = [
    (lambda rows: rows.pop(keys.namespace_name("a")), "namespace 1 cannot be found by its name"),
    (lambda rows: rows.update({keys.namespace_name("a"): u32(2)}), "namespace 1 cannot be found by its name"),
    (lambda rows: rows.update({keys.namespace_name("x"): u32(1)}), "leads to namespace 1, which has it not"),
    (lambda rows: rows.update({keys.namespace_name("x"): u32(9)}), "leads to namespace 9, which has it not"),
    (
        lambda rows: rows.update({keys.NAMESPACE_LAST: u32(1)}),
        "up to 1 are said to be given, but there is",
    ),
    (lambda rows: rows.pop(keys.NAMESPACE_LAST), "up to 0 are said to be given"),
    (lambda rows: rows.update({keys.counter(9, 1, 0): bytes(8)}), "counts for namespace 9, which does not exist"),
    (lambda rows: rows.update({keys.report("d9"): bytes(16)}), "no such drive has joined"),
    (lambda rows: rows.update({keys.chain_goal(99): pack(ChainGoal(99, ("d0",)))}), "it is of chain 99"),
    (lambda rows: rows.update({keys.chain_goal(1): pack(ChainGoal(1, ("d9",)))}), "or names drives, that do not exist"),
    (lambda rows: rows.update({keys.leaving("d9"): pack(Leaving("d9", 1))}), "no such drive has joined"),
    (lambda rows: rows.update({keys.placement(1, 7, 0): bytes(65536)}), "belongs to no chain table"),
]


@pytest.mark.parametrize(("damage", "problem"), REPAIRABLE)
def test_what_the_rest_tells_is_repaired(sound: Rows, damage: Callable[[Rows], object], problem: str) -> None:
    before = dict(sound)
    damage(sound)
    found = findings(sound)
    assert [finding for finding in found if problem in finding.problem and finding.repair]
    after = repaired(sound, found)
    assert findings(after) == []
    assert after == before


@pytest.mark.parametrize(("owner", "kept"), [
    (keys.namespace(1), {keys.namespace_name("a"), keys.counter(1, keys.BLOCKS, 0), keys.counter(1, keys.BYTES, 0)}),
    (keys.removal(3), set()),
    (keys.table(1, 1), {keys.placement(1, 1, 0), keys.placement(1, 1, 1)}),
    (keys.drive("d1"), {keys.report("d1"), keys.leaving("d1"), keys.chain_goal(1)}),
    (keys.chain(1), {keys.chain_goal(1)}),
])  # fmt: skip
def test_what_belongs_to_a_damaged_row_is_kept(sound: Rows, owner: bytes, kept: set[bytes]) -> None:
    sound[keys.leaving("d1")] = pack(Leaving("d1", 1))
    sound[keys.chain_goal(1)] = pack(ChainGoal(1, ("d0", "d1")))
    assert findings(sound) == []
    sound[owner] = b"\x63" + sound[owner][1:]
    found = findings(sound)
    assert {printable(key) for key in kept} <= {finding.key for finding in found}
    assert all(finding.repair == () for finding in found)


def test_counters_are_compared_with_what_was_counted() -> None:
    sums = CounterSum(7)
    blocks = {bytes([number]) * 16: 100 + number for number in range(40)}
    for object_id, size in blocks.items():
        sums.add(object_id, size)
    changes = [change for finding in sums.findings({}) for change in finding.repair]
    assert all(expected is None for _, expected, _ in changes)
    right = {key: value for key, _, value in changes if value is not None}
    assert sums.findings(right) == []
    totals = [0, 0]
    for key, value in right.items():
        totals[keys.split_counter(key)[1] - keys.BLOCKS] += int.from_bytes(value, "little", signed=True)
    assert totals == [40, sum(blocks.values())]
    key = keys.counter(7, keys.BLOCKS, 3)
    wrong = right[key]
    right[key] = (99).to_bytes(8, "little")
    (finding,) = sums.findings(right)
    assert "shard 3 of namespace 7 says 99 blocks, there are 3" in finding.problem
    assert finding.repair == ((key, right[key], wrong),)


async def test_the_sums_are_those_that_reports_keep(ready_store: Store) -> None:
    await make(ready_store, "a")
    entries = tuple(CatalogEntry(1, bytes([n]) * 16, b"k", 100 + n, 1, 5) for n in range(200))
    await Catalog(ready_store).report(CatalogReport(entries))
    sums = CounterSum(1)
    for entry in entries:
        sums.add(entry.object_id, entry.block_bytes)
    begin, end = keys.counters_of(1)
    stored = {key: value for key, value in (await snapshot(ready_store)).items() if begin <= key < end}
    assert sums.findings(stored) == []
