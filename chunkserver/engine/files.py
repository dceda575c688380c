"""The few ways in which the store touches its drive besides block I/O: open, make room, give room back, sync.

Everything goes through `Files`, so that a fake can lose unsynced data and refuse space. `LocalFiles` is the real one.
Errors are plain `OSError`: what they mean for the drive is decided by the callers.

What a file system cannot do is found by trying, once, by `probe`: without `O_DIRECT` the data goes through the page
cache, without `fallocate` files grow sparse (then a full disk shows at the write, which fails that put), without hole
punching a freed slot serves only its own size class.
"""

import ctypes
import errno
import mmap
import os
from contextlib import suppress
from pathlib import Path
from typing import Protocol

import lmdb

from esker.runtime.logging import get_logger
from esker.wire.limits import ALIGN_BYTES

_KEEP_SIZE = 1
_PUNCH_HOLE = 2
_UNSUPPORTED = (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)

_log = get_logger("chunkserver.engine")


class Files(Protocol):
    """See the module. All but `data_sync` and commits of the index are called on the loop's thread."""

    direct: bool
    """Data files are opened with `O_DIRECT`."""
    preallocates: bool
    """`grow` takes the space from the file system at once."""
    punches: bool
    """`punch` gives space back."""

    def probe(self, directory: Path) -> None:
        """Finds out what the file system of `directory` can do, and logs what it cannot."""

    def open_data(self, path: Path) -> int:
        """Opens a data file for reading and writing, making it if it is absent."""

    def close(self, fd: int) -> None: ...

    def grow(self, fd: int, offset: int, length: int) -> None:
        """Makes the range part of the file, with space of its own where that is possible."""

    def punch(self, fd: int, offset: int, length: int) -> None:
        """Gives the range's space back to the file system; its bytes become zero."""

    def size_bytes(self, fd: int) -> tuple[int, int]:
        """The file's length, and the space it takes from the file system."""

    def data_sync(self, fd: int) -> None:
        """Makes everything written so far durable."""

    def sync_directory(self, path: Path) -> None:
        """Makes names that were added to `path` durable."""

    def free_bytes(self, path: Path) -> int:
        """What the file system of `path` has left for us."""

    def open_index(self, path: Path, map_bytes: int, *, create: bool) -> lmdb.Environment:
        """Opens the LMDB environment in directory `path`."""


class LocalFiles:
    """The real files of this machine."""

    def __init__(self) -> None:
        self.direct = True
        self.preallocates = True
        self.punches = True
        self._fallocate = ctypes.CDLL(None, use_errno=True).fallocate
        self._fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_longlong, ctypes.c_longlong)

    def probe(self, directory: Path) -> None:
        path = directory / f"probe-{os.getpid()}"
        try:
            self.direct = self._probe_direct(path)
            self._probe_space(path)
        finally:
            path.unlink(missing_ok=True)

    def _probe_direct(self, path: Path) -> bool:
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_DIRECT, 0o600)
        except OSError as error:
            if error.errno not in _UNSUPPORTED:
                raise
            reason = str(error)
        else:
            try:
                with mmap.mmap(-1, ALIGN_BYTES) as block:
                    os.pwritev(fd, [block], 0)
                    os.preadv(fd, [block], 0)
                return True
            except OSError as error:
                if error.errno not in _UNSUPPORTED:
                    raise
                reason = str(error)
            finally:
                os.close(fd)
        _log.warning(
            "no direct I/O here, data goes through the page cache",
            directory=path.parent,
            reason=reason,
            fix="use a directory on ext4 or xfs",
        )
        return False

    def _probe_space(self, path: Path) -> None:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            for name, mode, cost in (
                ("preallocates", 0, "no fallocate here, files grow sparse"),
                ("punches", _PUNCH_HOLE | _KEEP_SIZE, "no hole punching here, freed space serves only its own class"),
            ):
                try:
                    self._call_fallocate(fd, mode, 0, ALIGN_BYTES)
                except OSError as error:
                    if error.errno not in _UNSUPPORTED:
                        raise
                    setattr(self, name, False)
                    _log.warning(cost, directory=path.parent, reason=str(error), fix="use ext4, xfs or tmpfs")
        finally:
            os.close(fd)

    def _call_fallocate(self, fd: int, mode: int, offset: int, length: int) -> None:
        while self._fallocate(fd, mode, offset, length) != 0:
            number = ctypes.get_errno()
            if number != errno.EINTR:
                raise OSError(number, os.strerror(number))

    def open_data(self, path: Path) -> int:
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | (os.O_DIRECT if self.direct else 0)
        return os.open(path, flags, 0o600)

    def close(self, fd: int) -> None:
        os.close(fd)

    def grow(self, fd: int, offset: int, length: int) -> None:
        if self.preallocates:
            self._call_fallocate(fd, 0, offset, length)
        elif os.fstat(fd).st_size < offset + length:
            os.ftruncate(fd, offset + length)

    def punch(self, fd: int, offset: int, length: int) -> None:
        self._call_fallocate(fd, _PUNCH_HOLE | _KEEP_SIZE, offset, length)

    def size_bytes(self, fd: int) -> tuple[int, int]:
        state = os.fstat(fd)
        return state.st_size, state.st_blocks * 512

    def data_sync(self, fd: int) -> None:
        os.fdatasync(fd)

    def sync_directory(self, path: Path) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def free_bytes(self, path: Path) -> int:
        state = os.statvfs(path)
        return state.f_bavail * state.f_frsize

    def open_index(self, path: Path, map_bytes: int, *, create: bool) -> lmdb.Environment:
        if create:
            return lmdb.open(str(path), map_size=map_bytes, max_dbs=4, readahead=False, mode=0o600, lib_version=0)
        _read_ahead(path / "data.mdb")
        return lmdb.open(str(path), map_size=map_bytes, max_dbs=4, readahead=False, mode=0o600, create=False)


def _read_ahead(path: Path) -> None:
    """Brings the index into the page cache: a cold page would block the loop in the middle of a lookup."""
    with suppress(OSError), open(path, "rb", buffering=0) as file:
        chunk = bytearray(1 << 20)
        while file.readinto(chunk):
            pass
