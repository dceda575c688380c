"""Boot id, runtime directory and socket paths."""

import os
import stat
import uuid
from pathlib import Path

import pytest

from esker.runtime.errors import SettingError
from esker.runtime.hostid import SOCKET_PATH_BYTES_MAX, boot_id, runtime_directory, socket_path


def test_the_boot_id_is_the_kernels_and_stays() -> None:
    assert uuid.UUID(boot_id()).int != 0
    assert boot_id() == boot_id()


def test_the_runtime_directory_is_made_for_its_owner_alone(short_directory: Path) -> None:
    path = runtime_directory({"XDG_RUNTIME_DIR": str(short_directory)})
    assert path == short_directory / "esker"
    assert stat.S_IMODE(path.stat().st_mode) == 0o700
    assert runtime_directory({"XDG_RUNTIME_DIR": str(short_directory)}) == path


@pytest.mark.parametrize("base", ["", "relative", "/nonexistent/of/esker"])
def test_without_a_usable_base_it_stands_in_tmp(base: str) -> None:
    expected = Path(f"/tmp/esker-{os.geteuid()}")
    existed = expected.exists()
    assert runtime_directory({"XDG_RUNTIME_DIR": base}) == expected
    if not existed:
        expected.rmdir()


def test_a_directory_that_others_may_enter_is_refused(short_directory: Path) -> None:
    (short_directory / "esker").mkdir()
    (short_directory / "esker").chmod(0o750)
    with pytest.raises(SettingError, match="run chmod 700"):
        runtime_directory({"XDG_RUNTIME_DIR": str(short_directory)})


def test_a_link_in_its_place_is_refused(short_directory: Path) -> None:
    (short_directory / "elsewhere").mkdir(mode=0o700)
    (short_directory / "esker").symlink_to(short_directory / "elsewhere")
    with pytest.raises(SettingError, match="is not a directory: remove it"):
        runtime_directory({"XDG_RUNTIME_DIR": str(short_directory)})


def test_a_file_in_its_place_is_refused(short_directory: Path) -> None:
    (short_directory / "esker").write_text("")
    with pytest.raises(SettingError, match="cannot make the runtime directory"):
        runtime_directory({"XDG_RUNTIME_DIR": str(short_directory)})


def test_a_directory_of_another_user_is_refused(short_directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    environment = {"XDG_RUNTIME_DIR": str(short_directory)}
    runtime_directory(environment)
    owner = os.geteuid()
    seen = iter([owner + 1, owner])  # The user of the process, then the owner of the base.
    monkeypatch.setattr(os, "geteuid", lambda: next(seen))
    with pytest.raises(SettingError, match=f"belongs to user {owner}, not {owner + 1}"):
        runtime_directory(environment)


def test_a_socket_path_may_use_what_the_kernel_takes_and_no_more(short_directory: Path) -> None:
    environment = {"XDG_RUNTIME_DIR": str(short_directory)}
    room = SOCKET_PATH_BYTES_MAX - len(str(short_directory / "esker")) - 1
    assert len(socket_path("s" * room, environment)) == SOCKET_PATH_BYTES_MAX
    with pytest.raises(SettingError, match="set XDG_RUNTIME_DIR to a shorter directory"):
        socket_path("s" * (room + 1), environment)
