"""The backup's file: what was written comes back, and everything that is not a whole backup is refused."""

import os
from pathlib import Path

import pytest

from esker.tools.admin.backup_file import (
    MAGIC,
    BackupHeader,
    BackupWriter,
    Kind,
    checked_header,
    read_backup,
)
from esker.wire.errors import UserError

HEADER = BackupHeader(format=1, esker="0.1.0", cluster_id="c1", created_ms=5, snapshot_version=9)
SNAPSHOT = [[(b"a", b"1"), (b"b", b"2")], [(b"c", bytes(1000))]]
CATALOG = [[(b"d", b"4")]]


@pytest.fixture
def backup(tmp_path: Path) -> Path:
    path = tmp_path / "backup"
    with BackupWriter(path, HEADER) as writer:
        for rows in SNAPSHOT:
            writer.add(Kind.SNAPSHOT, rows)
        for rows in CATALOG:
            writer.add(Kind.CATALOG, rows)
    assert writer.rows == 4
    assert writer.size_bytes == path.stat().st_size
    return path


def test_what_was_written_comes_back(backup: Path) -> None:
    assert checked_header(backup) == (HEADER, 4)
    assert list(read_backup(backup)) == [
        (Kind.SNAPSHOT, SNAPSHOT[0]),
        (Kind.SNAPSHOT, SNAPSHOT[1]),
        (Kind.CATALOG, CATALOG[0]),
    ]
    assert backup.stat().st_mode & 0o777 == 0o600, "salts are in it"
    assert os.listdir(backup.parent) == ["backup"]


def test_every_truncation_is_refused(backup: Path) -> None:
    whole = backup.read_bytes()
    for size in range(len(whole)):
        backup.write_bytes(whole[:size])
        with pytest.raises(UserError, match=r"was cut short|is no backup"):
            checked_header(backup)


def test_every_changed_byte_is_refused(backup: Path) -> None:
    whole = backup.read_bytes()
    for at in range(len(whole)):
        backup.write_bytes(whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1 :])
        with pytest.raises(UserError):
            checked_header(backup)


def test_frames_that_were_left_out_or_added_are_refused(backup: Path) -> None:
    whole = backup.read_bytes()
    backup.write_bytes(whole + whole[len(MAGIC) :])
    with pytest.raises(UserError, match="damaged at frame"):
        checked_header(backup)


@pytest.mark.parametrize("content", [b"", b"something else", MAGIC, b"\x00" * 100])
def test_other_files_are_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "other"
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"is no backup|was cut short"):
        checked_header(path)


def test_a_format_of_another_version_is_refused_and_says_whose(tmp_path: Path) -> None:
    path = tmp_path / "newer"
    with BackupWriter(path, BackupHeader(2, "9.9", "c", 1, 1)):
        pass
    with pytest.raises(UserError, match=r"has format 2, this esker reads 1; use esker 9\.9"):
        checked_header(path)


def test_files_that_cannot_be_read_or_written(tmp_path: Path, backup: Path) -> None:
    with pytest.raises(UserError, match="cannot read"):
        checked_header(tmp_path / "absent")
    with pytest.raises(UserError, match="is there already"), BackupWriter(backup, HEADER):
        pass
    with pytest.raises(UserError, match="cannot write"), BackupWriter(tmp_path / "no" / "where", HEADER):
        pass


def test_nothing_is_left_of_a_backup_that_failed(tmp_path: Path) -> None:
    path = tmp_path / "backup"

    def fail() -> None:
        with BackupWriter(path, HEADER) as writer:
            writer.add(Kind.SNAPSHOT, SNAPSHOT[0])
            raise ValueError("no more rows")

    with pytest.raises(ValueError, match="no more rows"):
        fail()
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("rows", [1, 5000])
def test_a_full_disk_is_named_and_nothing_is_left(tmp_path: Path, rows: int) -> None:
    """Both where the buffer still takes the rows and where it does not."""
    path = tmp_path / "backup"
    (tmp_path / "backup.partial").symlink_to("/dev/full")

    def write() -> None:
        with BackupWriter(path, HEADER) as writer:
            writer.add(Kind.SNAPSHOT, SNAPSHOT[0] * rows)

    with pytest.raises(UserError, match=r"cannot write .*: No space left on device"):
        write()
    assert os.listdir(tmp_path) == []
