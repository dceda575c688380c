"""Which host this is, and where this user's Unix sockets stand on it.

Two processes are on the same host when their boot ids are equal. Containers share their host's boot id without sharing
its files, so an equal id means "worth trying", never "reachable". Sockets stand in a directory that only their owner
can enter; its path is short, because the kernel takes at most 107 bytes for a socket's path.
"""

import os
import stat
from collections.abc import Mapping
from pathlib import Path

from esker.runtime.errors import SettingError

SOCKET_PATH_BYTES_MAX = 107
"""`sun_path` holds 108 bytes, one of them the final zero (unix(7))."""
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def boot_id() -> str:
    """A random id that the kernel makes at each boot."""
    return _BOOT_ID.read_text(encoding="ascii").strip()


def runtime_directory(environment: Mapping[str, str] = os.environ) -> Path:
    """This user's directory for sockets, made if absent: `$XDG_RUNTIME_DIR/esker`, else `/tmp/esker-<uid>`.

    Raises `SettingError` when it belongs to somebody else, others may enter it, or it cannot be made.
    """
    base = environment.get("XDG_RUNTIME_DIR", "")
    user = os.geteuid()
    path = Path(base) / "esker" if _is_own_directory(base) else Path("/tmp") / f"esker-{user}"
    try:
        path.mkdir(mode=0o700, exist_ok=True)
        found = path.lstat()
    except OSError as error:
        raise SettingError(f"cannot make the runtime directory {path}: {error.strerror}") from error
    if not stat.S_ISDIR(found.st_mode):
        raise SettingError(f"the runtime directory {path} is not a directory: remove it")
    if found.st_uid != user:
        raise SettingError(f"the runtime directory {path} belongs to user {found.st_uid}, not {user}: remove it")
    if found.st_mode & 0o077:
        raise SettingError(f"others may enter the runtime directory {path}: run chmod 700 {path}")
    return path


def socket_path(name: str, environment: Mapping[str, str] = os.environ) -> str:
    """Path of the socket called `name` in the runtime directory, checked against the kernel's limit.

    Raises `SettingError` when it is too long.
    """
    path = str(runtime_directory(environment) / name)
    length_bytes = len(os.fsencode(path))
    if length_bytes > SOCKET_PATH_BYTES_MAX:
        raise SettingError(
            f"the socket path {path} has {length_bytes} bytes, {SOCKET_PATH_BYTES_MAX} are allowed: "
            "set XDG_RUNTIME_DIR to a shorter directory"
        )
    return path


def _is_own_directory(path: str) -> bool:
    if not path.startswith("/"):
        return False
    try:
        found = os.stat(path)
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
