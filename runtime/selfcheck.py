"""The start-up self-check: what this machine allows, as findings with the value found, the value needed, and the fix.

A check tries the thing itself and never reads a version number where trying is possible. It changes nothing that
stays: files it needs are removed again. What a finding leads to is the caller's decision; `IMPAIRED` says that esker
works without, `FAILED` that it does not.
"""

import ctypes
import errno
import mmap
import os
import platform
import resource
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import liburing

from esker.runtime.sizes import format_size

OPEN_FILES_NEEDED = 4096
"""Two connections, a memory descriptor and a process descriptor for each of about a thousand clients."""
RING_LOCKED_BYTES = 1 << 20
"""What a ring of a few hundred entries takes of the memlock limit on kernels before 5.12."""
_RING_UNCHARGED_SINCE = (5, 12)
_TRIAL_BYTES = 4096
_IO_URING_DISABLED = Path("/proc/sys/kernel/io_uring_disabled")


class Verdict(StrEnum):
    OK = "ok"
    IMPAIRED = "impaired"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Finding:
    """The outcome of one check. `fix` is empty when there is nothing to do."""

    check: str
    verdict: Verdict
    found: str
    needed: str
    fix: str = ""

    def __str__(self) -> str:
        text = f"{self.check}: {self.verdict}; found {self.found}, needed {self.needed}"
        return f"{text}; fix: {self.fix}" if self.fix else text


def check_machine() -> list[Finding]:
    """What every drive worker needs of the machine."""
    return [check_io_uring(), check_memlock(), check_open_files()]


def check_directory(directory: str | Path) -> list[Finding]:
    """What a drive's directory must allow. If it cannot be written, that is the only finding."""
    path = Path(directory)
    writable = check_writable(path)
    if writable.verdict is Verdict.FAILED:
        return [writable]
    return [writable, check_direct_io(path), check_fallocate(path)]


def check_io_uring() -> Finding:
    """Tries to set up a ring."""
    needed = "io_uring_setup(2) allowed"
    ring = liburing.Ring()
    try:
        liburing.io_uring_queue_init(2, ring, 0)
    except OSError as error:
        return Finding("io_uring", Verdict.IMPAIRED, _name(error), needed, _io_uring_fix(error.errno))
    liburing.io_uring_queue_exit(ring)
    return Finding("io_uring", Verdict.OK, "allowed", needed)


def check_memlock(needed_bytes: int | None = None) -> Finding:
    """The limit on locked memory. Rings are charged to it only by kernels before 5.12."""
    if needed_bytes is None:
        needed_bytes = 0 if _kernel() >= _RING_UNCHARGED_SINCE else RING_LOCKED_BYTES
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    found = "unlimited" if soft == resource.RLIM_INFINITY else format_size(soft)
    enough = soft == resource.RLIM_INFINITY or soft >= needed_bytes
    fix = (
        ""
        if enough
        else f"ulimit -l {-(-needed_bytes // 1024)}, LimitMEMLOCK= (systemd), or --ulimit memlock= (docker)"
    )
    return Finding("memlock limit", Verdict.OK if enough else Verdict.IMPAIRED, found, format_size(needed_bytes), fix)


def check_open_files(needed: int = OPEN_FILES_NEEDED) -> Finding:
    """The soft limit of open files, which `esker.runtime.process.run` has raised as far as the hard one allows."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    enough = soft == resource.RLIM_INFINITY or soft >= needed
    found = "unlimited" if soft == resource.RLIM_INFINITY else str(soft)
    fix = "" if enough else f"ulimit -n {needed}, LimitNOFILE= (systemd), or --ulimit nofile= (docker)"
    return Finding("open files limit", Verdict.OK if enough else Verdict.IMPAIRED, found, str(needed), fix)


def check_shared_memory(needed_bytes: int, directory: str | Path = "/dev/shm") -> Finding:
    """Free space in `/dev/shm`, for what is kept there: too little shows as a bus error or `Bad address` only later."""
    needed = f"{format_size(needed_bytes)} free"
    check = f"shared memory {directory}"
    try:
        state = os.statvfs(directory)
    except OSError as error:
        return Finding(check, Verdict.FAILED, _name(error), needed, f"mount a tmpfs at {directory}")
    free_bytes = state.f_bavail * state.f_frsize
    if free_bytes >= needed_bytes:
        return Finding(check, Verdict.OK, f"{format_size(free_bytes)} free", needed)
    fix = f"mount -o remount,size=… {directory}, or docker run --shm-size="
    return Finding(check, Verdict.FAILED, f"{format_size(free_bytes)} free", needed, fix)


def check_writable(directory: Path) -> Finding:
    """Makes a file there."""

    def attempt() -> None:
        with _trial_file(directory):
            pass

    fix = "choose another directory, or change its owner or its mount"
    return _tried(f"writing to {directory}", Verdict.FAILED, attempt, "possible", "a writable directory", fix)


def check_direct_io(directory: Path) -> Finding:
    """Writes and reads one aligned block past the page cache."""

    def attempt() -> None:
        with _trial_file(directory, os.O_DIRECT) as fd, mmap.mmap(-1, _TRIAL_BYTES) as block:
            os.pwritev(fd, [block], 0)
            os.preadv(fd, [block], 0)

    fix = "use a directory on ext4 or xfs; without O_DIRECT, data goes through the page cache"
    return _tried(f"direct I/O in {directory}", Verdict.IMPAIRED, attempt, "supported", "O_DIRECT at 4 KiB", fix)


def check_fallocate(directory: Path) -> Finding:
    """Asks the file system itself for space; the C library's emulation would hide that it cannot."""

    def attempt() -> None:
        with _trial_file(directory) as fd:
            libc = ctypes.CDLL(None, use_errno=True)
            size = ctypes.c_longlong
            if libc.fallocate(fd, 0, size(0), size(_TRIAL_BYTES)) != 0:
                raise OSError(ctypes.get_errno(), "fallocate")

    fix = "use a directory on ext4, xfs or tmpfs; without fallocate, space is made by writing zeros"
    return _tried(f"fallocate in {directory}", Verdict.IMPAIRED, attempt, "supported", "fallocate(2)", fix)


def worst(findings: Sequence[Finding]) -> Verdict:
    """The gravest verdict among `findings`."""
    order = (Verdict.FAILED, Verdict.IMPAIRED)
    return next((verdict for verdict in order if any(f.verdict is verdict for f in findings)), Verdict.OK)


def _tried(check: str, bad: Verdict, attempt: Callable[[], None], good: str, needed: str, fix: str) -> Finding:
    try:
        attempt()
    except OSError as error:
        if error.errno == errno.ENOSPC:
            fix = "free some space on its file system"
        return Finding(check, bad, _name(error), needed, fix)
    return Finding(check, Verdict.OK, good, needed)


@contextmanager
def _trial_file(directory: Path, flags: int = 0) -> Iterator[int]:
    path = directory / f".esker-selfcheck-{secrets.token_hex(8)}"
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | flags, 0o600)
    try:
        path.unlink()  # at once: a process that is killed leaves none either
        yield fd
    finally:
        os.close(fd)


def _io_uring_fix(number: int | None) -> str:
    if number == errno.ENOSYS:
        return "use a Linux kernel of 5.6 or newer that has io_uring"
    if number == errno.ENOMEM:
        return "raise the memlock limit (ulimit -l)"
    if _IO_URING_DISABLED.exists() and _IO_URING_DISABLED.read_text(encoding="ascii").strip() != "0":
        return "sysctl -w kernel.io_uring_disabled=0"
    return "allow io_uring_setup, io_uring_enter and io_uring_register in the container's seccomp profile"


def _kernel() -> tuple[int, int]:
    major, minor = platform.release().split(".")[:2]
    return int(major), int("".join(digit for digit in minor if digit.isdigit()))


def _name(error: OSError) -> str:
    return f"{errno.errorcode.get(error.errno or 0, 'error')} ({os.strerror(error.errno or 0)})"
