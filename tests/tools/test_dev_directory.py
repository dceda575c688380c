"""The directory of a development cluster: who may use it, and what it keeps."""

import errno
import os
from pathlib import Path

import pytest

from esker.tools.dev_directory import DevDirectory, DevState, free_port, merged_state
from esker.wire.errors import UserError

STATE = DevState(drives=3, replicas=2, capacity_bytes=1 << 30, meta_port=1234, worker_ports=(1, 2, 3))


def test_figures_are_kept_for_the_next_start(tmp_path: Path) -> None:
    first = DevDirectory.claim(tmp_path / "new" / "dir")
    assert first.load() is None
    first.save(STATE)
    first.close()
    second = DevDirectory.claim(tmp_path / "new" / "dir")
    assert second.load() == STATE
    second.close()


def test_a_directory_in_use_is_refused_with_the_pid(tmp_path: Path) -> None:
    first = DevDirectory.claim(tmp_path)
    with pytest.raises(UserError, match=rf"pid {os.getpid()}\) has {tmp_path}"):
        DevDirectory.claim(tmp_path)
    first.close()
    DevDirectory.claim(tmp_path).close()


def test_a_directory_with_other_things_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("dear")
    with pytest.raises(UserError, match="neither empty nor"):
        DevDirectory.claim(tmp_path)
    assert os.listdir(tmp_path) == ["thesis.txt"]


def test_a_directory_whose_first_start_was_cut_short_can_be_used(tmp_path: Path) -> None:
    first = DevDirectory.claim(tmp_path)
    first.meta.mkdir()
    first.drive(0).mkdir()
    first.close()
    DevDirectory.claim(tmp_path).close()


def test_a_file_in_the_way_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=f"cannot use {tmp_path / 'file'}"):
        DevDirectory.claim(tmp_path / "file")
    with pytest.raises(UserError, match="cannot make a directory"):
        DevDirectory.temporary(tmp_path / "file")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{}",
        b'{"drives": 1, "replicas": 1, "capacity_bytes": 1, "other": 2}',
        b'{"drives": 0, "replicas": 1, "capacity_bytes": 1}',
        b'{"drives": 1, "replicas": 1, "capacity_bytes": 1, "worker_ports": [65536]}',
    ],
)
def test_a_damaged_file_of_figures_is_named(tmp_path: Path, content: bytes) -> None:
    directory = DevDirectory.claim(tmp_path)
    (tmp_path / "esker-dev.json").write_bytes(content)
    with pytest.raises(UserError, match=r"cannot read .*esker-dev\.json"):
        directory.load()
    directory.close()


def no_space(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_is_named_and_nothing_half_made_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("os.pwrite", no_space)
        with pytest.raises(UserError, match="No space left on device"):
            DevDirectory.claim(tmp_path / "new" / "dir")
        with pytest.raises(UserError, match="No space left on device"):
            DevDirectory.temporary(tmp_path / "base")
    assert os.listdir(tmp_path) == []
    directory = DevDirectory.claim(tmp_path)
    directory.save(STATE)
    (tmp_path / "esker-dev.new").symlink_to("/dev/full")
    with pytest.raises(UserError, match=r"cannot write .*esker-dev\.json: No space left on device"):
        directory.save(STATE)
    assert directory.load() == STATE
    directory.close()
    assert sorted(os.listdir(tmp_path)) == ["esker-dev.json", "lock"]


def test_temporary_directories_go_with_their_content_and_with_a_base_of_their_own(tmp_path: Path) -> None:
    kept, made = tmp_path, tmp_path / "base"
    for base in (kept, made):
        directory = DevDirectory.temporary(base)
        assert directory.path.parent == base
        (directory.path / "meta").mkdir()
        directory.close()
    assert os.listdir(kept) == []


def test_too_little_room_is_named_with_both_figures(tmp_path: Path) -> None:
    directory = DevDirectory.claim(tmp_path)
    directory.check_room(0)
    with pytest.raises(UserError, match="free and 1024 PiB are needed"):
        directory.check_room(1 << 60)
    directory.close()


def test_first_start_takes_what_is_asked_or_the_defaults() -> None:
    assert merged_state(None, None, None, None) == DevState(4, 2, 10 << 30)
    assert merged_state(None, 1, None, 5) == DevState(1, 1, 5)
    with pytest.raises(UserError, match="at least as many drives"):
        merged_state(None, 2, 3, None)


def test_later_starts_keep_their_figures_but_for_the_capacity() -> None:
    assert merged_state(STATE, None, None, None) == STATE
    assert merged_state(STATE, 3, 2, 7).capacity_bytes == 7
    with pytest.raises(UserError, match="has 3 drives, and 4 drives were asked for"):
        merged_state(STATE, 4, None, None)
    with pytest.raises(UserError, match="has 2 replicas, and 1 replicas were asked for"):
        merged_state(STATE, None, 1, None)


def test_a_port_in_use_gives_way_to_any() -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server:
        taken = server.getsockname()[1]
        assert free_port(taken) == 0
    assert free_port(taken) == taken
