"""The self-check tells what it found, what is needed and the fix, and leaves nothing behind."""

import errno
import os
import resource
from pathlib import Path

import liburing
import pytest

from esker.runtime import selfcheck
from esker.runtime.selfcheck import (
    Finding,
    Verdict,
    check_directory,
    check_io_uring,
    check_machine,
    check_memlock,
    check_open_files,
    check_shared_memory,
    worst,
)


def _refuse(number: int) -> object:
    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    return refuse


def test_the_machine_is_checked_for_rings_memory_and_files() -> None:
    assert [finding.check for finding in check_machine()] == ["io_uring", "memlock limit", "open files limit"]


@pytest.mark.parametrize(
    ("number", "fix"),
    [(errno.EPERM, "seccomp profile"), (errno.ENOSYS, "Linux kernel of 5.6"), (errno.ENOMEM, "memlock limit")],
)
def test_a_refused_ring_names_the_reason_and_the_fix(monkeypatch: pytest.MonkeyPatch, number: int, fix: str) -> None:
    monkeypatch.setattr(selfcheck, "_IO_URING_DISABLED", Path("/nonexistent"))
    monkeypatch.setattr(liburing, "io_uring_queue_init", _refuse(number))
    finding = check_io_uring()
    assert finding.verdict is Verdict.IMPAIRED
    assert finding.found.startswith(errno.errorcode[number])
    assert fix in finding.fix


def test_a_ring_forbidden_by_sysctl_names_the_sysctl(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    sysctl = tmp_path / "io_uring_disabled"
    sysctl.write_text("2\n")
    monkeypatch.setattr(selfcheck, "_IO_URING_DISABLED", sysctl)
    monkeypatch.setattr(liburing, "io_uring_queue_init", _refuse(errno.EPERM))
    assert check_io_uring().fix == "sysctl -w kernel.io_uring_disabled=0"


def test_a_ring_is_tried_and_closed() -> None:
    before = len(os.listdir("/proc/self/fd"))
    finding = check_io_uring()
    assert len(os.listdir("/proc/self/fd")) == before
    assert (finding.verdict is Verdict.OK) == (finding.fix == "")


def test_limits_below_the_need_are_told_with_both_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (65536, 65536))
    memlock = check_memlock(1 << 20)
    assert (memlock.verdict, memlock.found, memlock.needed) == (Verdict.IMPAIRED, "64 KiB", "1 MiB")
    assert "ulimit -l 1024" in memlock.fix
    files = check_open_files(100_000)
    assert (files.verdict, files.found, files.needed) == (Verdict.IMPAIRED, "65536", "100000")
    assert "ulimit -n 100000" in files.fix


@pytest.mark.parametrize("limit", [resource.RLIM_INFINITY, 1 << 30])
def test_limits_that_suffice_need_no_fix(monkeypatch: pytest.MonkeyPatch, limit: int) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (limit, limit))
    assert [(f.verdict, f.fix) for f in (check_memlock(1 << 20), check_open_files())] == [(Verdict.OK, "")] * 2


@pytest.mark.parametrize(("release", "needed"), [("5.10.0-28-amd64", "1 MiB"), ("6.1.0", "0 B"), ("5.12-rc1", "0 B")])
def test_only_old_kernels_charge_rings_to_locked_memory(
    monkeypatch: pytest.MonkeyPatch, release: str, needed: str
) -> None:
    monkeypatch.setattr(selfcheck.platform, "release", lambda: release)
    assert check_memlock().needed == needed


def test_shared_memory_is_compared_with_the_need(tmp_path: Path) -> None:
    assert check_shared_memory(1, tmp_path).verdict is Verdict.OK
    small = check_shared_memory(1 << 60, tmp_path)
    assert (small.verdict, small.needed) == (Verdict.FAILED, "1024 PiB free")
    assert "--shm-size" in small.fix
    absent = check_shared_memory(1, tmp_path / "absent")
    assert absent.found == "ENOENT (No such file or directory)"


def test_a_good_directory_is_left_empty(tmp_path: Path) -> None:
    findings = check_directory(tmp_path)
    assert findings[0].verdict is Verdict.OK
    assert len(findings) == 3
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["absent", "file"])
def test_a_directory_that_cannot_be_written_is_the_only_finding(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_text("")
    (finding,) = check_directory(tmp_path / name)
    assert finding.verdict is Verdict.FAILED
    assert str(tmp_path / name) in str(finding)


def test_a_full_file_system_is_told_as_such(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "open", _refuse(errno.ENOSPC))
    (finding,) = check_directory(tmp_path)
    assert finding.fix == "free some space on its file system"


def test_a_file_system_without_direct_io_or_fallocate_is_impaired(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real_open = os.open

    def no_direct(path: Path, flags: int, mode: int) -> int:
        if flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return real_open(path, flags, mode)

    class Libc:
        @staticmethod
        def fallocate(*_: object) -> int:
            selfcheck.ctypes.set_errno(errno.ENOTSUP)
            return -1

    monkeypatch.setattr(os, "open", no_direct)
    monkeypatch.setattr(selfcheck.ctypes, "CDLL", lambda *_, **__: Libc)
    writable, direct, space = check_directory(tmp_path)
    assert writable.verdict is Verdict.OK
    assert (direct.verdict, direct.found) == (Verdict.IMPAIRED, "EINVAL (Invalid argument)")
    assert (space.verdict, space.found) == (Verdict.IMPAIRED, "ENOTSUP (Operation not supported)")
    assert list(tmp_path.iterdir()) == []


def test_the_worst_finding_counts() -> None:
    ok, impaired, failed = (Finding("c", verdict, "f", "n") for verdict in Verdict)
    assert worst([]) is Verdict.OK
    assert worst([ok, impaired]) is Verdict.IMPAIRED
    assert worst([failed, impaired]) is Verdict.FAILED


def test_a_finding_reads_as_one_line() -> None:
    finding = Finding("open files limit", Verdict.IMPAIRED, "256", "4096", "ulimit -n 4096")
    assert str(finding) == "open files limit: impaired; found 256, needed 4096; fix: ulimit -n 4096"
