"""Everything that may be wrong with a metadata directory is refused in one line that says what to do."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from esker.meta.store.base import Store, Transaction
from esker.meta.store.directory import DATA_FILE, MARKER, StoreDirectory
from esker.meta.store.embedded import open_embedded
from esker.wire.errors import UserError


async def fill(store: Store) -> None:
    async def body(transaction: Transaction) -> None:
        for number in range(200):
            transaction.set(b"k%d" % number, bytes(1000))

    await store.run(body, what="fill")


@pytest.fixture
async def made(tmp_path: Path) -> Path:
    """A closed store with data."""
    path = tmp_path / "meta"
    store = await open_embedded(path)
    await fill(store)
    await store.aclose()
    return path


def names(path: Path) -> list[str]:
    return sorted(entry.name for entry in path.iterdir())


def permit(path: Path, mode: int) -> None:
    path.chmod(mode)


@contextmanager
def unprivileged() -> Iterator[None]:
    """Run as nobody if the tests run as root, whom no permission stops."""
    uid = os.geteuid()
    if uid == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(uid)


async def refused(path: Path, message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        await open_embedded(path)
    assert "\n" not in str(caught.value)


async def test_it_is_made_with_its_parents_and_private(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b"
    await (await open_embedded(path)).aclose()
    assert names(path) == [MARKER, DATA_FILE, DATA_FILE + "-lock"]
    assert (path.stat().st_mode & 0o777, (path / DATA_FILE).stat().st_mode & 0o777) == (0o700, 0o600)


async def test_a_second_server_is_refused_and_a_later_one_is_not(made: Path) -> None:
    store = await open_embedded(made)
    await refused(made, "in use by another metadata server")
    await store.aclose()
    await (await open_embedded(made)).aclose()


async def test_a_foreign_directory_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("precious")
    await refused(tmp_path, r"not empty and not an esker metadata directory \(it has thesis.tex\)")
    assert names(tmp_path) == ["thesis.tex"]


async def test_a_file_is_no_directory(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("")
    await refused(path, "cannot use .* for metadata: file exists")
    await refused(path / "below", "cannot use .* for metadata: not a directory")


async def test_a_directory_that_cannot_be_written(short_directory: Path) -> None:
    permit(short_directory, 0o555)
    with unprivileged():
        await refused(short_directory, "cannot use .*: permission denied; give a directory that can be written")
        await refused(short_directory / "below", "permission denied")


async def test_a_store_that_cannot_be_read(short_directory: Path) -> None:
    permit(short_directory, 0o755)
    await (await open_embedded(short_directory / "meta")).aclose()
    with unprivileged():
        if os.geteuid() == os.stat(short_directory).st_uid:
            permit(short_directory / "meta", 0)
        await refused(short_directory / "meta", "permission denied")
    permit(short_directory / "meta", 0o700)


@pytest.mark.parametrize(("marker", "message"), [
    ("", "is damaged"),
    ("{}x", "is damaged"),
    ('{"kind": "esker drive"}', "holds a 'esker drive'"),
    ('{"format": 2}', "has format 2, this esker reads 1"),
])  # fmt: skip
async def test_markers_that_are_not_ours(made: Path, marker: str, message: str) -> None:
    (made / MARKER).write_text(marker)
    await refused(made, message)


@pytest.mark.parametrize("size_bytes", [0, 100, 8192, 65536])
async def test_a_truncated_data_file(made: Path, size_bytes: int) -> None:
    os.truncate(made / DATA_FILE, size_bytes)
    await refused(made, "truncated.*restore the directory from a backup")


async def test_a_missing_data_file(made: Path) -> None:
    (made / DATA_FILE).unlink()
    await refused(made, "missing or truncated; restore")


async def test_a_data_file_of_something_else(made: Path) -> None:
    (made / DATA_FILE).write_bytes(b"garbage!" * 4096)
    await refused(made, "cannot open .*restore the directory from a backup")


async def test_making_a_store_that_was_interrupted_starts_afresh(tmp_path: Path) -> None:
    path = tmp_path / "meta"
    directory = StoreDirectory(path)
    assert directory.created
    (path / DATA_FILE).write_bytes(b"half made")
    directory.close()
    store = await open_embedded(path)
    await fill(store)
    await store.aclose()
    later = StoreDirectory(path)
    assert not later.created
    later.close()
