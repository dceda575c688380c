"""The real files: what the file system can do is tried, and each thing it cannot do has its consequence."""

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from esker.chunkserver.engine.files import LocalFiles
from esker.wire.limits import MIB


def test_growing_and_giving_back(tmp_path: Path) -> None:
    files = LocalFiles()
    files.probe(tmp_path)
    if not (files.preallocates and files.punches):
        pytest.skip("the temporary directory has no fallocate")
    fd = files.open_data(tmp_path / "data")
    files.grow(fd, 0, 4 * MIB)
    size_bytes, backed_bytes = files.size_bytes(fd)
    assert size_bytes == 4 * MIB
    assert backed_bytes >= 4 * MIB
    files.punch(fd, MIB, 2 * MIB)
    size_bytes, backed_bytes = files.size_bytes(fd)
    assert size_bytes == 4 * MIB
    assert 2 * MIB <= backed_bytes < 3 * MIB
    files.data_sync(fd)
    files.sync_directory(tmp_path)
    files.close(fd)
    assert files.free_bytes(tmp_path) > 0


def test_probing_leaves_nothing(tmp_path: Path) -> None:
    LocalFiles().probe(tmp_path)
    assert list(tmp_path.iterdir()) == []


def refuse_direct(real_open: Callable[..., int]) -> Callable[..., int]:
    def refusing(path: Any, flags: int, *rest: Any) -> int:
        if flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return real_open(path, flags, *rest)

    return refusing


def test_without_direct_io(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    files = LocalFiles()
    monkeypatch.setattr(os, "open", refuse_direct(os.open))
    files.probe(tmp_path)
    assert not files.direct
    assert "no direct I/O here" in caplog.text
    assert "Invalid argument" in caplog.text
    fd = files.open_data(tmp_path / "data")
    assert os.pwrite(fd, b"unaligned", 3) == 9
    files.close(fd)


def test_direct_io_that_only_opens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Some file systems take the flag and refuse the first write."""

    def refuse(*_: object) -> int:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    files = LocalFiles()
    monkeypatch.setattr(os, "pwritev", refuse)
    files.probe(tmp_path)
    assert not files.direct
    assert "no direct I/O here" in caplog.text


def test_without_fallocate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    files = LocalFiles()
    monkeypatch.setattr(LocalFiles, "_call_fallocate", refuse)
    files.probe(tmp_path)
    assert not files.preallocates
    assert not files.punches
    assert "no fallocate here" in caplog.text
    assert "no hole punching here" in caplog.text
    fd = files.open_data(tmp_path / "data")
    files.grow(fd, MIB, MIB)
    files.grow(fd, 0, MIB)
    size_bytes, backed_bytes = files.size_bytes(fd)
    assert size_bytes == 2 * MIB
    assert backed_bytes < MIB
    files.close(fd)


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
def test_other_errors_are_not_taken_for_an_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def fail(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(LocalFiles, "_call_fallocate", fail)
    with pytest.raises(OSError, match=os.strerror(number)):
        LocalFiles().probe(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_growing_a_full_file_system(tmp_path: Path) -> None:
    """The errno of the system call comes through."""
    files = LocalFiles()
    fd = os.open(tmp_path / "read-only", os.O_RDONLY | os.O_CREAT)
    with pytest.raises(OSError, match="Bad file descriptor"):
        files.grow(fd, 0, 4096)
    os.close(fd)


def test_the_index(tmp_path: Path) -> None:
    files = LocalFiles()
    env = files.open_index(tmp_path, 1 << 30, create=True)
    with env.begin(write=True) as txn:
        txn.put(b"key", b"value")
    env.close()
    env = files.open_index(tmp_path, 1 << 30, create=False)
    with env.begin() as txn:
        assert txn.get(b"key") == b"value"
    flags = env.flags()
    assert flags["sync"]
    assert flags["metasync"]
    assert not flags["writemap"]
    env.close()
