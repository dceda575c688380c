"""Backup and restore of a store: what outlives processes comes back, and nothing is overwritten by mistake."""

from pathlib import Path

import msgspec
import pytest

from esker.meta import keys
from esker.meta.admin_decode import TABLES
from esker.meta.admin_namespaces import begin_removal
from esker.meta.catalog import Catalog
from esker.meta.cluster import found_cluster
from esker.meta.records import ClusterRecord, MetaServer, pack, unpack
from esker.meta.store.base import KEY_END, Store, Transaction
from esker.meta.store.embedded import open_embedded
from esker.meta.store.errors import StoreError
from esker.meta.store.memory import MemoryStore
from esker.tools.admin.meta_backup import (
    CHAIN_LEAP,
    NAMESPACE_LEAP,
    OF_PROCESSES,
    ROUTING_LEAP,
    check_target,
    restore,
    run_backup,
    run_restore,
    write_backup,
)
from esker.tools.admin.meta_check import check_metadata
from esker.tools.admin.meta_source import LocalRows
from esker.tools.exit_codes import ExitCode
from esker.wire.admin_messages import NamespaceRemove
from esker.wire.errors import UserError
from esker.wire.messages import CatalogEntry, CatalogReport
from esker.wire.types import Chain

from ...meta.conftest import cluster_record, join_all
from ...meta.test_admin_namespaces import make

BLOCKS = 300


async def fill(store: Store) -> None:
    """A cluster with namespaces, blocks, a removal under way and a running server."""
    await join_all(store, 4)
    await make(store, "a", "b", "c")
    entries = [
        CatalogEntry(1 + n % 2, n.to_bytes(16, "little"), b"k%d" % n, 100 + n, 1, 5, 7, 1) for n in range(BLOCKS)
    ]
    await Catalog(store).report(CatalogReport(tuple(entries), "d1", 3, 4))
    await begin_removal(store, NamespaceRemove("c"), now_ms=1)
    await beat(store, 1)


async def beat(store: Store, beats: int) -> None:
    async def body(transaction: Transaction) -> None:
        transaction.set(keys.meta_server("h:1"), pack(MetaServer("h:1", "i", beats)))
        transaction.set(keys.MANAGER_BEATS, beats.to_bytes(8, "little"))

    await store.run(body, what="test")


async def rows_of(store: Store) -> dict[bytes, bytes]:
    return dict(await store.run(lambda transaction: transaction.get_range(b"\x00", KEY_END), what="test"))


@pytest.fixture
async def backed_up(tmp_path: Path) -> tuple[Path, dict[bytes, bytes]]:
    """A backup, and the rows that it was made of."""
    store = MemoryStore()
    await fill(store)
    header, writer = await write_backup(LocalRows(store), tmp_path / "backup")
    rows = await rows_of(store)
    await store.aclose()
    assert header.cluster_id == "c1"
    assert writer.rows < len(rows)
    return tmp_path / "backup", rows


def as_restored(rows: dict[bytes, bytes]) -> dict[bytes, bytes]:
    """What a restore makes of these rows."""
    expected = {key: value for key, value in rows.items() if key[0] not in (0x07, 0x08, 0x09, 0x22)}
    for key, leap in ((keys.ROUTING_VERSION, ROUTING_LEAP), (keys.NAMESPACE_LAST, NAMESPACE_LEAP)):
        stored = expected[key]
        expected[key] = (int.from_bytes(stored, "little") + leap).to_bytes(len(stored), "little")
    first, end = keys.chains()
    for key in [key for key in expected if first <= key < end]:
        chain = unpack(Chain, key, expected[key])
        expected[key] = pack(msgspec.structs.replace(chain, version=chain.version + CHAIN_LEAP))
    return expected


async def test_everything_comes_back(backed_up: tuple[Path, dict[bytes, bytes]], tmp_path: Path) -> None:
    path, rows = backed_up
    name = f"embedded:{tmp_path / 'store'}"
    assert await run_restore(path, name, "esker/", force=False, as_json=True) is ExitCode.FINE
    store = await open_embedded(tmp_path / "store")
    try:
        assert await rows_of(store) == as_restored(rows)
        assert (await check_metadata(LocalRows(store), repair=False)).exit_code() is ExitCode.FINE
        (fresh,) = await make(store, "fresh")
        assert fresh.namespace_id == 3 + NAMESPACE_LEAP + 1, "ids given since the backup are not given again"
    finally:
        await store.aclose()


async def test_a_filled_store_needs_force_and_is_emptied_first(
    backed_up: tuple[Path, dict[bytes, bytes]], tmp_path: Path
) -> None:
    path, rows = backed_up
    name = f"embedded:{tmp_path / 'store'}"
    store = await open_embedded(tmp_path / "store")
    await found_cluster(store, cluster_record(cluster_id="other"), any_id=True)

    async def more(transaction: Transaction) -> None:
        for number in range(3000):
            transaction.set(b"\x20stray%d" % number, b"x")

    await store.run(more, what="test")
    await store.aclose()
    with pytest.raises(UserError, match=r"is not empty; .*--force"):
        await run_restore(path, name, "esker/", force=False, as_json=True)
    store = await open_embedded(tmp_path / "store")
    assert len(await rows_of(store)) > 3000
    await store.aclose()
    assert await run_restore(path, name, "esker/", force=True, as_json=True) is ExitCode.FINE
    store = await open_embedded(tmp_path / "store")
    assert await rows_of(store) == as_restored(rows)
    await store.aclose()


async def test_a_backup_straight_from_a_store(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = await open_embedded(tmp_path / "store")
    await fill(store)
    await store.aclose()
    name = f"embedded:{tmp_path / 'store'}"
    assert await run_backup(None, name, "esker/", tmp_path / "backup", as_json=False) is ExitCode.FINE
    assert "cluster c1" in capsys.readouterr().out


async def test_a_damaged_file_touches_nothing(backed_up: tuple[Path, dict[bytes, bytes]], tmp_path: Path) -> None:
    path, _ = backed_up
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(UserError, match="was cut short"):
        await run_restore(path, f"embedded:{tmp_path / 'store'}", "esker/", force=True, as_json=True)
    assert not (tmp_path / "store").exists()


async def test_a_restore_that_was_cut_off_is_no_cluster(
    backed_up: tuple[Path, dict[bytes, bytes]],
) -> None:
    path, rows = backed_up
    store = MemoryStore()

    def cut_off(done: int, words: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        await restore(store, path, cut_off)
    with pytest.raises(StoreError, match="restore a backup"):
        await found_cluster(store, cluster_record(), any_id=True)
    with pytest.raises(UserError, match="is not empty"):
        await check_target(store, "it", force=False)
    await restore(store, path, lambda done, words: None)
    assert await rows_of(store) == as_restored(rows)
    await store.aclose()


async def test_no_store_is_restored_under_running_servers() -> None:
    store = MemoryStore()
    await fill(store)

    async def meanwhile_it_beats(seconds: float) -> None:
        await beat(store, 2)

    async def meanwhile_nothing(seconds: float) -> None:
        pass

    with pytest.raises(UserError, match="metadata servers are running over it, at h:1; stop them first"):
        await check_target(store, "it", force=True, sleep=meanwhile_it_beats)
    await check_target(store, "it", force=True, sleep=meanwhile_nothing)
    await store.aclose()


async def test_a_backup_from_before_the_first_namespace(tmp_path: Path) -> None:
    store = MemoryStore()
    await join_all(store, 2)
    await write_backup(LocalRows(store), tmp_path / "backup")
    await restore(store, tmp_path / "backup", lambda done, words: None)
    (first,) = await make(store, "a")
    assert first.namespace_id == NAMESPACE_LEAP + 1
    assert (await found_cluster(store, ClusterRecord("", 2, 2, 1), any_id=True)).cluster_id == "c1"
    await store.aclose()


def test_what_is_left_out_are_tables() -> None:
    assert {table.name for table in TABLES} >= OF_PROCESSES
