"""What says that a directory is a drive, whose it is, and that only one worker has it.

File `superblock`: 4096 bytes, little-endian, and behind them the pid of the last owner as text:

    magic 8 bytes | format version u32 | reserved u32 | capacity at creation u64 | index map u64, bytes |
    cluster id 64 bytes | drive id 64 bytes (both UTF-8, zero-padded) | zeros | XXH3-64 u64 of all before

The file is locked (`flock`) as long as the drive is open. It is made empty, and filled only when everything else
stands: an empty (or zero) one means that creation was interrupted, and creation starts over. A filled one is never made
again by itself: whatever is wrong with it is reported with what to do.
"""

import errno
import fcntl
import os
import struct
from dataclasses import dataclass
from pathlib import Path

from xxhash import xxh3_64_intdigest

from esker.chunkserver.engine.errors import DriveOwned, NotNow
from esker.wire.errors import UserError

SUPERBLOCK_BYTES = 4096
FORMAT_VERSION = 1
ID_BYTES_MAX = 64
_MAGIC = b"ESKERDRV"
_FIELDS = struct.Struct("<8sIIQQ64s64s")
_DIGEST = struct.Struct("<Q")
_NAME = "superblock"
_IGNORED = {_NAME, "lost+found"}
_OURS = {"data", "meta.lmdb"}
_MAY_NOT = (errno.EACCES, errno.EPERM, errno.EROFS)


@dataclass(frozen=True, slots=True)
class Superblock:
    """The identity of a drive."""

    cluster_id: str
    drive_id: str
    created_capacity_bytes: int
    index_map_bytes: int
    format_version: int = FORMAT_VERSION

    def encode(self) -> bytes:
        cluster, drive = self.cluster_id.encode(), self.drive_id.encode()
        for name, value in (("cluster id", cluster), ("drive id", drive)):
            if not 0 < len(value) <= ID_BYTES_MAX or b"\0" in value:
                raise UserError(f"{name} {value!r} cannot be stored; use 1 to {ID_BYTES_MAX} bytes")
        fields = _FIELDS.pack(
            _MAGIC, self.format_version, 0, self.created_capacity_bytes, self.index_map_bytes, cluster, drive
        )
        body = fields.ljust(SUPERBLOCK_BYTES - _DIGEST.size, b"\0")
        return body + _DIGEST.pack(xxh3_64_intdigest(body))


def decode_superblock(data: bytes, path: Path) -> Superblock:
    """Raises `UserError` for anything but a whole superblock of a version that this program reads."""
    restore = f"restore {path} from a backup, or replace the drive with an empty directory"
    if data[: len(_MAGIC)] != _MAGIC[: len(data)]:
        raise UserError(f"{path} is not a superblock of esker; choose another directory")
    if len(data) < SUPERBLOCK_BYTES:
        raise UserError(f"{path} is truncated to {len(data)} of {SUPERBLOCK_BYTES} bytes; {restore}")
    body = data[: -_DIGEST.size]
    if _DIGEST.unpack(data[-_DIGEST.size :])[0] != xxh3_64_intdigest(body):
        raise UserError(f"{path} is corrupted, its checksum does not match; {restore}")
    _, version, _, capacity_bytes, map_bytes, cluster, drive = _FIELDS.unpack_from(body)
    if version > FORMAT_VERSION:
        raise UserError(f"{path} has format version {version}, this esker reads up to {FORMAT_VERSION}; upgrade esker")
    return Superblock(cluster.rstrip(b"\0").decode(), drive.rstrip(b"\0").decode(), capacity_bytes, map_bytes, version)


class DriveLock:
    """The open and locked superblock of one directory. `superblock` is None until a fresh drive gets one."""

    def __init__(self, directory: Path) -> None:
        """Makes the directory if it is absent. Raises `UserError` when it cannot be a drive of ours."""
        self.directory = directory
        self._path = directory / _NAME
        self.superblock: Superblock | None = None
        try:
            directory.mkdir(parents=True, exist_ok=True)
            others = {entry.name for entry in directory.iterdir()}
            self._refuse_foreign(others)
            self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise directory_error(directory, error) from error
        try:
            self._lock()
            data = os.pread(self._fd, SUPERBLOCK_BYTES, 0)
            if data.strip(b"\0"):
                self.superblock = decode_superblock(data, self._path)
            elif any((directory / "data").glob("*.slots")):
                raise UserError(
                    f"{self._path} is empty but {directory / 'data'} holds chunks; "
                    f"restore it from a backup, or replace the drive with an empty directory"
                )
            # Only now: behind a truncated superblock the pid would hide that it is truncated.
            os.pwrite(self._fd, f"{os.getpid():<31}\n".encode(), SUPERBLOCK_BYTES)
        except BaseException:
            os.close(self._fd)
            raise

    def _refuse_foreign(self, names: set[str]) -> None:
        if _NAME not in names and names - _IGNORED:
            example = sorted(names - _IGNORED)[0]
            lost = " and its superblock is missing" if names & _OURS else ""
            raise UserError(
                f"{self.directory} is not empty (it has {example!r}){lost}; a drive needs a directory of its own"
            )

    def _lock(self) -> None:
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.pread(self._fd, 32, SUPERBLOCK_BYTES).decode("ascii", "replace").strip() or "unknown"
            raise DriveOwned(
                f"drive {self.directory} is already owned by a running worker with pid {owner}; "
                f"stop it, or choose another directory"
            ) from None

    def fill(self, superblock: Superblock) -> None:
        """Makes a fresh drive a drive, durably. Everything else on it must stand already."""
        assert self.superblock is None, "a drive gets its superblock once"
        os.pwrite(self._fd, superblock.encode(), 0)
        os.fsync(self._fd)
        for path in (self.directory, self.directory.parent):
            fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)
        self.superblock = superblock

    def release(self) -> None:
        """Unlocks. The drive must be closed by then."""
        os.close(self._fd)


def directory_error(directory: Path, error: OSError) -> UserError:
    """What an error of the operating system at start means, and what to do."""
    if error.errno in (errno.ENOTDIR, errno.EEXIST):
        return UserError(f"{directory} is not a directory; choose another path for the drive")
    if error.errno in _MAY_NOT:
        reason = error.strerror or "refused"
        return UserError(
            f"drive directory {directory} cannot be read and written ({reason}); "
            f"choose another, or change its owner or its mount"
        )
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return NotNow(f"no space left for drive {directory}; free some space on its file system")
    return UserError(f"drive {directory} cannot be opened: {error}; check the directory and its file system")
