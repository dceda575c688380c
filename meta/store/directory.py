"""The directory of an embedded store: who owns it, what state it is in, and every mistake a user can make with it.

Layout: `esker-meta` (marker: one line of JSON, replaced atomically), `store.mdb` and `store.mdb-lock` (LMDB). The
marker says "creating" until the first LMDB commit is durable, so that a crash while a store is made is told from a
store that lost its data. An exclusive flock on the directory itself is held as long as the store is open.
"""

import contextlib
import errno
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import msgspec

from esker.runtime.lmdb_length import missing_bytes
from esker.wire.errors import UserError

MARKER = "esker-meta"
DATA_FILE = "store.mdb"
FORMAT = 1
PAGE_BYTES = 4096
_READ_BYTES = 1 << 20


class Marker(msgspec.Struct, frozen=True):
    """Content of the marker file."""

    kind: str = "esker metadata store"
    format: int = FORMAT
    state: Literal["creating", "ready"] = "ready"


class StoreDirectory:
    """An owned directory. `created` tells that the store in it is to be made; call `mark_ready` after that."""

    def __init__(self, path: Path) -> None:
        """Take the directory, making it if absent. Raises `UserError`."""
        self.path = path
        with _explained(path):
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock_fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            with _explained(path):
                _take_lock(self._lock_fd, path)
                self.created = self._prepare()
        except BaseException:
            os.close(self._lock_fd)
            raise

    @property
    def data_path(self) -> Path:
        return self.path / DATA_FILE

    def mark_ready(self) -> None:
        """The store's first commit is durable."""
        with _explained(self.path):
            self._write_marker(Marker())
        self.created = False

    def check_length(self) -> None:
        """Refuse a data file that lacks pages it uses, before it is mapped: reading one would kill the process."""
        with _explained(self.path):
            missing = missing_bytes(self.data_path) if self.data_path.exists() else 0
        if missing:
            raise UserError(
                f"{self.data_path} is truncated: {missing} bytes that it uses are missing at its end; "
                "restore the directory from a backup"
            )

    def preread(self) -> None:
        """Bring the data file into the page cache, as a cold page would block whoever reads it."""
        with _explained(self.path), self.data_path.open("rb", buffering=0) as file:
            while file.read(_READ_BYTES):
                pass

    def free_bytes(self) -> int:
        """What an unprivileged process may still write to this file system."""
        space = os.statvfs(self.path)
        return space.f_bavail * space.f_frsize

    def close(self) -> None:
        """Give the directory up."""
        os.close(self._lock_fd)

    def _prepare(self) -> bool:
        if not os.access(self.path, os.R_OK | os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, "permission denied")
        marker_path = self.path / MARKER
        if not marker_path.exists():
            others = sorted(entry.name for entry in self.path.iterdir() if entry.name != MARKER + ".new")
            if others:
                raise UserError(
                    f"{self.path} is not empty and not an esker metadata directory (it has {others[0]}); "
                    "give an empty directory or another path"
                )
            self._write_marker(Marker(state="creating"))
            return True
        marker = self._read_marker(marker_path)
        if marker.state == "creating":
            for name in (DATA_FILE, DATA_FILE + "-lock"):
                (self.path / name).unlink(missing_ok=True)
            return True
        if not self.data_path.exists() or self.data_path.stat().st_size < 2 * PAGE_BYTES:
            raise UserError(f"{self.data_path} is missing or truncated; restore the directory from a backup")
        return False

    def _read_marker(self, marker_path: Path) -> Marker:
        try:
            marker = msgspec.json.decode(marker_path.read_bytes(), type=Marker)
        except msgspec.DecodeError as error:
            raise UserError(f"{marker_path} is damaged ({error}); restore the directory from a backup") from None
        if marker.kind != Marker().kind:
            raise UserError(f"{self.path} holds a {marker.kind!r}, not an esker metadata store; give another path")
        if marker.format != FORMAT:
            raise UserError(
                f"{self.path} has format {marker.format}, this esker reads {FORMAT}; use the esker that made it"
            )
        return marker

    def _write_marker(self, marker: Marker) -> None:
        fresh = self.path / (MARKER + ".new")
        with fresh.open("wb") as file:
            file.write(msgspec.json.encode(marker) + b"\n")
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(self.path / MARKER)
        os.fsync(self._lock_fd)


def _take_lock(fd: int, path: Path) -> None:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise UserError(f"{path} is in use by another metadata server; stop it, or give another directory") from None


@contextlib.contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason = os.strerror(error.errno).lower() if error.errno else str(error)
        raise UserError(f"cannot use {path} for metadata: {reason}; give a directory that can be written") from error
