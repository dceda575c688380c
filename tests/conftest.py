"""What every test gets: determinism, directories with short paths, and the demand to leave nothing behind.

Each test module is checked at its end: no child process, no Unix socket in the runtime directory, no memfd, no mount
and no temporary file may be left. So the widest scope that a fixture with any of these may have is the module.
"""

import asyncio
import gc
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
import uvloop
from hypothesis import settings

settings.register_profile("deterministic", derandomize=True, database=None, deadline=None, print_blob=True)
settings.load_profile("deterministic")

_SHORT_BASE = "/tmp"
"""Unix socket paths hold 107 bytes, so directories for sockets cannot stand below pytest's own long ones."""


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Asynchronous tests run on the loop that every process of ours runs on."""
    return {"uvloop": uvloop.new_event_loop}


def _children() -> set[str]:
    """Processes that this one started and has not waited for, but for multiprocessing's own, which outlives its use."""
    found: set[str] = set()
    for children in Path("/proc/self/task").glob("*/children"):
        for pid in children.read_text(encoding="ascii").split():
            try:
                command = Path("/proc", pid, "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except FileNotFoundError:
                continue  # Waited for just now.
            if "multiprocessing.resource_tracker" not in command:
                found.add(f"process {pid} ({command.strip() or 'ended, but nobody waited for it'})")
    return found


def _memory_files() -> set[str]:
    """Descriptors of memfds that are still open."""
    found: set[str] = set()
    for link in Path("/proc/self/fd").iterdir():
        try:
            target = str(link.readlink())
        except FileNotFoundError:
            continue  # The descriptor by which the directory itself was listed.
        if target.startswith("/memfd:"):
            found.add(f"memfd {link.name} ({target})")
    return found


def _mounts() -> set[str]:
    lines = Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines()
    return {f"mount {line.split()[1]}" for line in lines if "esker" in line}


def _files_below(directory: Path) -> set[str]:
    return {f"file {path}" for path in directory.rglob("*")}


@pytest.fixture(scope="session", autouse=True)
def _own_directories(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Temporary files and sockets of the tests, and of the processes they start, go to a directory of this run."""
    tmp_path_factory.getbasetemp()  # Settled before the change, so that `tmp_path` stays where pytest keeps it.
    base = Path(tempfile.mkdtemp(prefix="et-", dir=_SHORT_BASE))
    temporary, runtime = base / "t", base / "r"
    temporary.mkdir()
    runtime.mkdir(mode=0o700)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(temporary))
        patch.setattr(tempfile, "tempdir", str(temporary))
        patch.setenv("XDG_RUNTIME_DIR", str(runtime))
        yield base
    shutil.rmtree(base)


@pytest.fixture(scope="module", autouse=True)
def _nothing_left(_own_directories: Path) -> Iterator[None]:
    """Fails the module that leaves something behind."""

    def present() -> set[str]:
        sockets = {f"socket {path}" for path in (_own_directories / "r").rglob("*") if path.is_socket()}
        return _children() | _memory_files() | _mounts() | sockets | _files_below(_own_directories / "t")

    before = present()
    yield
    left = present() - before
    if any(name.startswith("memfd") for name in left):
        gc.collect()  # A traceback of a failed test may have held it in a reference cycle.
        left = present() - before
    assert not left, "left behind: " + "; ".join(sorted(left))


def _short_directory() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="e-", dir=_SHORT_BASE))
    yield path
    shutil.rmtree(path)


@pytest.fixture
def short_directory() -> Iterator[Path]:
    """An empty directory whose path is short enough for Unix sockets."""
    yield from _short_directory()


@pytest.fixture(scope="module")
def module_directory() -> Iterator[Path]:
    """`short_directory` for a whole module."""
    yield from _short_directory()


@pytest.fixture
def small_file_system(tmp_path: Path) -> Iterator[Path]:
    """A file system of 4 MiB."""
    path = tmp_path / "small"
    path.mkdir()
    mount = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "none", path], capture_output=True, text=True)
    if mount.returncode:
        pytest.skip(f"no file system may be mounted here: {mount.stderr.strip()}")
    yield path
    subprocess.run(["umount", path], check=True)


@pytest.fixture(scope="session")
def conversation_trace() -> Path:
    """The public conversation trace, where `ESKER_TEST_TRACE` says."""
    name = os.environ.get("ESKER_TEST_TRACE", "")
    if not name:
        pytest.skip("ESKER_TEST_TRACE does not name the conversation trace")
    path = Path(name)
    assert path.is_file(), f"ESKER_TEST_TRACE names {path}, which is no file"
    return path
