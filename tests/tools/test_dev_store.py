"""A development cluster's metadata: in its directory, or in FoundationDB under a prefix of its own."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from esker.meta.store.base import KEY_END, Retry, Transaction
from esker.meta.store.fdb_opening import open_foundationdb
from esker.tools.dev_store import STORE_VARIABLE, remove_metadata, store_arguments

from ..conformance.fake_fdb import FakeFdb


@pytest.fixture
def fdb(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeFdb]:
    """FoundationDB is where metadata is to be kept."""
    fake = FakeFdb(Retry())
    (tmp_path / "fdb.cluster").write_text("test:id@127.0.0.1:4500\n")
    monkeypatch.setenv(STORE_VARIABLE, f"fdb:{tmp_path}/fdb.cluster")
    monkeypatch.setitem(sys.modules, "fdb", fake)
    yield fake
    fake.stop()


def test_by_default_it_is_the_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(STORE_VARIABLE, raising=False)
    assert store_arguments(tmp_path / "meta") == ["--store", f"embedded:{tmp_path}/meta"]
    assert not (tmp_path / "meta").exists()


def test_any_other_store_is_passed_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(STORE_VARIABLE, "elsewhere")
    assert store_arguments(tmp_path / "meta") == ["--store", "elsewhere"]


def test_each_directory_has_a_prefix_and_keeps_it(fdb: FakeFdb, tmp_path: Path) -> None:
    first = store_arguments(tmp_path / "a")
    assert first[:3] == ["--store", f"fdb:{tmp_path}/fdb.cluster", "--fdb-prefix"]
    assert first[3].startswith("esker-dev/")
    assert store_arguments(tmp_path / "a") == first
    assert store_arguments(tmp_path / "b") != first


async def test_what_is_removed_is_one_clusters(fdb: FakeFdb, tmp_path: Path) -> None:
    async def fill(transaction: Transaction) -> None:
        transaction.set(b"k", b"v")

    for name in ("a", "b"):
        prefix = store_arguments(tmp_path / name)[3].encode()
        store = await open_foundationdb(tmp_path / "fdb.cluster", prefix=prefix)
        await store.run(fill, what="fill")
        await store.aclose()
    await remove_metadata(tmp_path / "a")
    await remove_metadata(tmp_path / "absent")
    left = await fdb.store.run(lambda transaction: transaction.get_range(b"", KEY_END), what="read")
    assert [key for key, _ in left] == [store_arguments(tmp_path / "b")[3].encode() + b"k"]
