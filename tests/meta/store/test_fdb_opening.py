"""Every mistake of a FoundationDB set-up has an error that says what to check."""

import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from esker.meta.store import fdb_opening
from esker.meta.store.base import Retry
from esker.meta.store.cluster_file import coordinators
from esker.meta.store.fdb_opening import open_foundationdb
from esker.wire.errors import UserError

from ...conformance.fake_fdb import FakeFdb


@pytest.fixture
def cluster_file(tmp_path: Path) -> Path:
    path = tmp_path / "fdb.cluster"
    path.write_text("# made by hand\n\ntest:id@127.0.0.1:4500,[::1]:4501:tls\n")
    return path


@pytest.fixture
def fdb(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeFdb]:
    fake = FakeFdb(Retry())
    monkeypatch.setitem(sys.modules, "fdb", fake)
    yield fake
    fake.stop()


def raising(error: Exception) -> Callable[..., None]:
    def function(*_: object) -> None:
        raise error

    return function


async def test_what_is_set_when_it_opens(fdb: FakeFdb, cluster_file: Path) -> None:
    store = await open_foundationdb(cluster_file)
    assert fdb.settings == {
        "api_version": 730,
        "fail_incompatible_client": True,
        "cluster_file": str(cluster_file),
        "timeout_ms": 4000,
        "size_limit": 10_000_000,
        "report_conflicting_keys": True,
    }
    assert await store.version() == "client 7.3.0, API 730"
    assert (store.engine, store.exclusive) == ("foundationdb", False)
    await store.aclose()


class TestPackageAndLibrary:
    async def test_the_package_is_missing(self, monkeypatch: pytest.MonkeyPatch, cluster_file: Path) -> None:
        monkeypatch.setitem(sys.modules, "fdb", None)
        with pytest.raises(UserError, match=r"package foundationdb: pip install 'esker\[fdb\]'"):
            await open_foundationdb(cluster_file)

    async def test_it_is_another_package(self, monkeypatch: pytest.MonkeyPatch, cluster_file: Path) -> None:
        monkeypatch.setitem(sys.modules, "fdb", ModuleType("fdb"))
        with pytest.raises(UserError, match=r"not FoundationDB's .*pip uninstall fdb"):
            await open_foundationdb(cluster_file)

    async def test_it_is_too_old(self, fdb: FakeFdb, cluster_file: Path) -> None:
        fdb.LATEST_API_VERSION = 710
        with pytest.raises(UserError, match="knows API version 710, needed is 730"):
            await open_foundationdb(cluster_file)

    @pytest.mark.parametrize(("error", "message"), [
        (Exception("Unable to locate the FoundationDB API shared library!"), "cannot be loaded .*foundationdb-clients"),
        (OSError("libfdb_c.so: cannot open shared object"), "cannot be loaded .*foundationdb-clients"),
        (RuntimeError("This version of the FoundationDB Python binding is not supported"), "do not match .*7.3"),
        (RuntimeError("FDB API already loaded at version 710"), "already loaded at version 710, but esker needs 730"),
    ])  # fmt: skip
    async def test_the_library_does_not_fit(
        self, fdb: FakeFdb, cluster_file: Path, error: Exception, message: str
    ) -> None:
        fdb.api_version = raising(error)
        with pytest.raises(UserError, match=message) as caught:
            await open_foundationdb(cluster_file)
        assert "\n" not in str(caught.value)

    async def test_the_librarys_own_version_is_told(self, fdb: FakeFdb, cluster_file: Path) -> None:
        def get_client_version() -> bytes:
            return b"7.3.43,abcdef,fdb00b073000000"

        fdb.impl = SimpleNamespace(_capi=SimpleNamespace(fdb_get_client_version=get_client_version))
        store = await open_foundationdb(cluster_file)
        assert await store.version() == "client 7.3.43, API 730"
        await store.aclose()


class TestClusterFile:
    def test_coordinators(self, cluster_file: Path) -> None:
        assert coordinators(cluster_file) == ["127.0.0.1:4500", "[::1]:4501:tls"]

    @pytest.mark.parametrize("content", [
        "", "# nothing\n", "garbage", "test@127.0.0.1:4500", "test:id@", "test:id@127.0.0.1", "a:b@h:1\nc:d@h:2",
        "test:id@127.0.0.1:99999", "test:id@127.0.0.1:4500,", "test:id@127.0.0.1:4500:tcp", "\x00\xff" * 100,
    ])  # fmt: skip
    def test_malformed(self, cluster_file: Path, content: str) -> None:
        cluster_file.write_text(content)
        with pytest.raises(UserError, match=r"is not a cluster file: .*description:id@host:port,\.\.\.; copy it"):
            coordinators(cluster_file)

    async def test_missing(self, tmp_path: Path) -> None:
        with pytest.raises(UserError, match=r"absent: no such file or directory; give the path"):
            await open_foundationdb(tmp_path / "absent")
        with pytest.raises(UserError, match="is a directory; give the path"):
            await open_foundationdb(tmp_path)

    async def test_refused_by_the_library(self, fdb: FakeFdb, cluster_file: Path) -> None:
        fdb.open = raising(fdb.FDBError(2104))
        with pytest.raises(UserError, match=r"cannot open the FoundationDB cluster of .*fdb.cluster.*check that file"):
            await open_foundationdb(cluster_file)


class TestCluster:
    async def test_it_does_not_answer(self, fdb: FakeFdb, cluster_file: Path) -> None:
        fdb.plan["get_read_version"] = [1031]
        with pytest.raises(
            UserError,
            match=r"coordinators 127.0.0.1:4500, \[::1\]:4501:tls; no answer within 4 s.*fdbcli -C .*fdb.cluster",
        ):
            await open_foundationdb(cluster_file)

    @pytest.mark.parametrize("status", [
        b'{"DatabaseStatus":{"Connections":[{"Compatible":true},{"Address":"a","Compatible":false}]}}',
        b'{"InitializationState":"incompatible"}',
    ])  # fmt: skip
    async def test_it_has_another_version(self, fdb: FakeFdb, cluster_file: Path, status: bytes) -> None:
        fdb.plan["get_read_version"] = [1031]
        fdb.settings["client_status"] = status
        with pytest.raises(
            UserError, match=r"client library \(client 7.3.0, API 730\) and the cluster .* do not match"
        ):
            await open_foundationdb(cluster_file)

    @pytest.mark.parametrize("status", [b"", b"[]", b"nonsense", b'{"DatabaseStatus":{"Connections":[1]}}'])
    async def test_a_report_that_tells_nothing(self, fdb: FakeFdb, cluster_file: Path, status: bytes) -> None:
        fdb.plan["get_read_version"] = [1500]
        fdb.settings["client_status"] = status
        with pytest.raises(UserError, match=r"cannot be used .*error 1500"):
            await open_foundationdb(cluster_file)

    @pytest.mark.parametrize("prefix", [b"x" * 101, b"\xff", b"\xff\x02"])
    async def test_a_prefix_that_cannot_be(self, cluster_file: Path, prefix: bytes) -> None:
        with pytest.raises(UserError, match="key prefix has"):
            await open_foundationdb(cluster_file, prefix=prefix)


def test_no_other_module_imports_the_package() -> None:
    folder = Path(fdb_opening.__file__).parent.parent
    importers = [path.name for path in folder.rglob("*.py") if re.search(r'import fdb|module\("fdb"', path.read_text())]
    assert importers == ["fdb_opening.py"]
