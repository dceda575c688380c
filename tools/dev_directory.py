"""The directory of a development cluster: who may use it now, and what a second start must find again.

    DIR/esker-dev.json   figures and ports, written once the cluster is ready
    DIR/lock             locked while a cluster runs on it; holds its pid
    DIR/meta, DIR/drive-0, ...

Owns: the layout, the lock, the file of figures. Must not know: processes.
"""

import contextlib
import fcntl
import os
import shutil
import socket
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import msgspec

from esker.runtime.sizes import format_size
from esker.wire.errors import UserError

STATE_FILE = "esker-dev.json"
LOCK_FILE = "lock"
META_PORT_DEFAULT = 9380
_Count = Annotated[int, msgspec.Meta(ge=1)]
_Port = Annotated[int, msgspec.Meta(ge=0, le=65535)]


class DevState(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is kept between two starts."""

    drives: _Count
    replicas: _Count
    capacity_bytes: _Count
    """Of each drive."""
    meta_port: _Port = META_PORT_DEFAULT
    worker_ports: tuple[_Port, ...] = ()
    format: int = 1


class DevDirectory:
    """A locked directory. Make it with `claim` or `temporary`; give it back with `close`."""

    def __init__(self, path: Path, lock: int, *, remove: tuple[Path, ...]) -> None:
        self.path = path
        self._lock = lock
        self._remove = remove

    @classmethod
    def claim(cls, path: Path) -> "DevDirectory":
        """Makes `path` if absent and locks it.

        Raises `UserError` when it cannot be used, holds something else, or a running cluster has it.
        """
        path = path.absolute()
        made = [directory for directory in (path, *path.parents) if not directory.exists()]
        try:
            path.mkdir(parents=True, exist_ok=True)
            names = set(os.listdir(path))
            lock = os.open(path / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            _remove_empty(made)
            raise UserError(f"cannot use {path} for a cluster: {error.strerror}") from error
        try:
            if names - {LOCK_FILE} and STATE_FILE not in names and not _half_made(names):
                raise UserError(f"{path} is neither empty nor the directory of a development cluster; give another one")
            _lock(lock, path)
        except BaseException:
            if LOCK_FILE not in names:
                (path / LOCK_FILE).unlink()
            os.close(lock)
            _remove_empty(made)
            raise
        return cls(path, lock, remove=())

    @classmethod
    def temporary(cls, base: Path | None) -> "DevDirectory":
        """A new directory below `base` (the system's temporary directory), which `close` removes."""
        made = base is not None and not base.exists()
        try:
            if base is not None:
                base.mkdir(parents=True, exist_ok=True)
            path = Path(tempfile.mkdtemp(prefix="esker-", dir=base)).absolute()
        except OSError as error:
            raise UserError(f"cannot make a directory in {base}: {error.strerror}") from error
        remove = (path, base) if made and base is not None else (path,)
        try:
            claimed = cls.claim(path)
        except BaseException:
            _remove_empty(remove)
            raise
        claimed._remove = remove
        return claimed

    @property
    def meta(self) -> Path:
        return self.path / "meta"

    def drive(self, number: int) -> Path:
        """Directory of a drive."""
        return self.path / f"drive-{number}"

    def load(self) -> DevState | None:
        """What an earlier start kept. Raises `UserError` when it cannot be read."""
        file = self.path / STATE_FILE
        try:
            return msgspec.json.decode(file.read_bytes(), type=DevState)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.DecodeError) as error:
            raise UserError(f"cannot read {file}: {error}; restore it, or use another directory") from error

    def save(self, state: DevState) -> None:
        """Keeps `state` for the next start, whole or not at all."""
        file = self.path / STATE_FILE
        fresh = file.with_suffix(".new")
        try:
            fresh.write_bytes(msgspec.json.format(msgspec.json.encode(state)) + b"\n")
            fresh.replace(file)
        except OSError as error:
            with contextlib.suppress(OSError):
                fresh.unlink()
            raise UserError(f"cannot write {file}: {error.strerror}") from error

    def check_room(self, needed_bytes: int) -> None:
        """Raises `UserError` unless the file system has so many bytes free."""
        free_bytes = shutil.disk_usage(self.path).free
        if free_bytes < needed_bytes:
            raise UserError(
                f"{self.path} has {format_size(free_bytes)} free and {format_size(needed_bytes)} are needed; "
                "give another --dir, or a smaller size"
            )

    def close(self) -> None:
        """Unlocks; removes a temporary directory with all that is in it."""
        for path in self._remove[:1]:
            shutil.rmtree(path, ignore_errors=True)
        for path in self._remove[1:]:
            if not any(path.iterdir()):
                path.rmdir()
        os.close(self._lock)


def merged_state(
    kept: DevState | None, drives: int | None, replicas: int | None, capacity_bytes: int | None
) -> DevState:
    """The figures of this start: what was kept, else what is asked, else 4 drives, 2 replicas and 10 GiB each.

    Raises `UserError` when what is asked contradicts what was kept; only the capacity may change.
    """
    if kept is None:
        drives = 4 if drives is None else drives
        replicas = min(2, drives) if replicas is None else replicas
        if replicas > drives:
            raise UserError(f"{replicas} replicas need at least as many drives; asked for {drives}")
        return DevState(drives, replicas, 10 << 30 if capacity_bytes is None else capacity_bytes)
    for name, has, asked in (("drives", kept.drives, drives), ("replicas", kept.replicas, replicas)):
        if asked is not None and asked != has:
            raise UserError(
                f"this cluster has {has} {name}, and {asked} {name} were asked for; "
                f"start it without --{name}, or use another directory"
            )
    return kept if capacity_bytes is None else msgspec.structs.replace(kept, capacity_bytes=capacity_bytes)


def free_port(wanted: int) -> int:
    """`wanted` if nobody listens there on loopback, else 0 (any)."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", wanted))
        except OSError:
            return 0
    return wanted


def _half_made(names: set[str]) -> bool:
    """What a first start leaves that ended before the cluster was ready."""
    return all(name in (LOCK_FILE, "meta") or name.startswith("drive-") for name in names)


def _remove_empty(directories: Iterable[Path]) -> None:
    """Removes what a failed start made, innermost first, unless something is in it by now."""
    for directory in directories:
        with contextlib.suppress(OSError):
            directory.rmdir()


def _lock(lock: int, path: Path) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        pid = os.pread(lock, 20, 0).decode(errors="replace").strip() or "unknown"
        raise UserError(f"a running cluster (pid {pid}) has {path}; stop it, or use another directory") from None
    except OSError as error:
        raise UserError(f"cannot lock {path}: {error.strerror}") from error
    try:
        os.ftruncate(lock, 0)
        os.pwrite(lock, str(os.getpid()).encode(), 0)
    except OSError as error:
        raise UserError(f"cannot write {path / LOCK_FILE}: {error.strerror}") from error
