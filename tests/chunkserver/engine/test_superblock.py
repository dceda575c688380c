"""A drive's identity, its lock, and every directory that is not a drive of ours."""

import os
import shutil
import struct
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from xxhash import xxh3_64_intdigest

from esker.chunkserver.engine.superblock import (
    SUPERBLOCK_BYTES,
    DriveLock,
    Superblock,
    decode_superblock,
    directory_error,
)
from esker.wire.errors import UserError

IDENTITY = Superblock("cluster-1", "drive-1", 1 << 30, 1 << 34)
PATH = Path("/drive/superblock")


@contextmanager
def locked(directory: Path) -> Iterator[DriveLock]:
    lock = DriveLock(directory)
    try:
        yield lock
    finally:
        lock.release()


def make_drive(directory: Path) -> None:
    with locked(directory) as lock:
        lock.fill(IDENTITY)


def test_round_trip() -> None:
    data = IDENTITY.encode()
    assert len(data) == SUPERBLOCK_BYTES
    assert decode_superblock(data, PATH) == IDENTITY


def test_a_fresh_directory_becomes_a_drive(tmp_path: Path) -> None:
    directory = tmp_path / "some" / "drive"
    with locked(directory) as lock:
        assert lock.superblock is None
        lock.fill(IDENTITY)
        assert lock.superblock == IDENTITY
    with locked(directory) as lock:
        assert lock.superblock == IDENTITY


def test_a_mount_point_counts_as_empty(tmp_path: Path) -> None:
    (tmp_path / "lost+found").mkdir()
    make_drive(tmp_path)
    with locked(tmp_path) as lock:
        assert lock.superblock == IDENTITY


def test_an_interrupted_creation_starts_over(tmp_path: Path) -> None:
    with locked(tmp_path):
        (tmp_path / "data").mkdir()
    with locked(tmp_path) as lock:
        assert lock.superblock is None


def test_an_owned_drive_names_its_owner(tmp_path: Path) -> None:
    make_drive(tmp_path)
    with (
        locked(tmp_path),
        pytest.raises(UserError, match=rf"already owned by a running worker with pid {os.getpid()}; stop it"),
    ):
        DriveLock(tmp_path)
    with locked(tmp_path):
        pass


def test_a_directory_with_other_content(tmp_path: Path) -> None:
    (tmp_path / "photo.jpg").touch()
    with pytest.raises(UserError, match=r"is not empty \(it has 'photo.jpg'\); a drive needs a directory of its own"):
        DriveLock(tmp_path)
    assert list(tmp_path.iterdir()) == [tmp_path / "photo.jpg"]


def test_a_drive_without_its_superblock(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    with pytest.raises(UserError, match=r"is not empty .* its superblock is missing"):
        DriveLock(tmp_path)


@pytest.mark.parametrize("length", [1, 8, 9, 100, SUPERBLOCK_BYTES - 1])
def test_a_truncated_superblock(tmp_path: Path, length: int) -> None:
    make_drive(tmp_path)
    os.truncate(tmp_path / "superblock", length)
    for _ in range(2):
        with pytest.raises(UserError, match=rf"is truncated to {length} of 4096 bytes; restore .* or replace"):
            DriveLock(tmp_path)


@pytest.mark.parametrize("length", [0, SUPERBLOCK_BYTES])
def test_an_emptied_superblock_with_chunks_is_not_made_again(tmp_path: Path, length: int) -> None:
    make_drive(tmp_path)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "1-0.slots").touch()
    (tmp_path / "superblock").write_bytes(bytes(length))
    with pytest.raises(UserError, match=r"is empty but .*data holds chunks; restore it"):
        DriveLock(tmp_path)


@pytest.mark.parametrize("offset", [8, 12, 16, 40, 100, 1000, SUPERBLOCK_BYTES - 1])
def test_a_corrupted_superblock(offset: int) -> None:
    data = bytearray(IDENTITY.encode())
    data[offset] ^= 1
    with pytest.raises(UserError, match="is corrupted, its checksum does not match; restore"):
        decode_superblock(bytes(data), PATH)


def test_another_file_of_that_name() -> None:
    with pytest.raises(UserError, match="is not a superblock of esker"):
        decode_superblock(b"something else" * 1000, PATH)


def test_a_newer_format() -> None:
    body = bytearray(IDENTITY.encode()[:-8])
    struct.pack_into("<I", body, 8, 2)
    data = bytes(body) + struct.pack("<Q", xxh3_64_intdigest(bytes(body)))
    with pytest.raises(UserError, match="has format version 2, this esker reads up to 1; upgrade esker"):
        decode_superblock(data, PATH)


@pytest.mark.parametrize("bad_id", ["", "x" * 65, "nul\0byte"])
def test_ids_that_cannot_be_stored(bad_id: str) -> None:
    with pytest.raises(UserError, match="cluster id"):
        Superblock(bad_id, "drive-1", 1, 1).encode()


def test_a_path_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(UserError, match="is not a directory; choose another path"):
            DriveLock(path)


@contextmanager
def without_privileges() -> Iterator[None]:
    """Permissions mean nothing to root."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def public_directory() -> Iterator[Path]:
    """Reachable by everyone, unlike pytest's own temporary directories."""
    directory = Path(tempfile.mkdtemp())
    directory.chmod(0o755)
    yield directory
    shutil.rmtree(directory)


@pytest.mark.parametrize("mode", [0o000, 0o500])
def test_a_directory_that_may_not_be_used(public_directory: Path, mode: int) -> None:
    directory = public_directory / "closed"
    directory.mkdir()
    if os.geteuid() == 0:
        os.chown(directory, 65534, 65534)
    directory.chmod(mode)
    with (
        without_privileges(),
        pytest.raises(UserError, match=r"cannot be read and written \(Permission denied\); choose another"),
    ):
        DriveLock(directory)
    directory.chmod(0o700)


@pytest.mark.parametrize(
    ("number", "message"),
    [
        (30, r"cannot be read and written \(Read-only file system\)"),
        (28, "no space left for drive .*; free some space"),
        (122, "no space left"),
        (5, r"cannot be opened: .*check the directory"),
    ],
)
def test_errors_of_the_file_system(number: int, message: str) -> None:
    with pytest.raises(UserError, match=message):
        raise directory_error(Path("/drive"), OSError(number, os.strerror(number)))
