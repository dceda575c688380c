"""The fake drive loses exactly what the rules allow a real one to lose."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from esker.chunkserver.engine.fake import FakeEngine
from esker.chunkserver.engine.fake_disk import SECTOR_BYTES, FakeDisk, FakeFiles, SimulatedCrash, flip_bit

OLD, NEW = b"o" * SECTOR_BYTES, b"n" * SECTOR_BYTES


class Setup:
    """One data file with four old, durable sectors."""

    def __init__(self, directory: Path, seed: int = 0) -> None:
        self.disk = FakeDisk(seed)
        self.files = FakeFiles(self.disk)
        self.path = directory / f"data-{seed}"
        self.fd = self.files.open_data(self.path)
        self.engine = FakeEngine(self.disk, manual=True)
        self.files.sync_directory(directory)
        self.write(OLD * 4, 0)
        self.files.data_sync(self.fd)

    def write(self, data: bytes, offset: int) -> int:
        results: list[int] = []
        self.engine.write(self.fd, offset, memoryview(data), lambda _, result: results.append(result), None)
        self.engine.submit()
        self.engine.step()
        return results[0]

    def crash(self, *, keep: bool | None) -> bytes:
        self.disk.crash()
        self.files.close(self.fd)
        self.disk.settle(keep=keep)
        return self.path.read_bytes()


@pytest.fixture
async def setup(tmp_path: Path) -> Setup:
    return Setup(tmp_path)


async def test_what_is_not_synced_is_lost(setup: Setup) -> None:
    setup.write(NEW, SECTOR_BYTES)
    setup.write(NEW * 2, 4 * SECTOR_BYTES)
    assert setup.crash(keep=False) == OLD * 4


async def test_or_kept(setup: Setup) -> None:
    setup.write(NEW, SECTOR_BYTES)
    assert setup.crash(keep=True) == OLD + NEW + OLD * 2


async def test_what_is_synced_stays(setup: Setup) -> None:
    setup.write(NEW * 2, SECTOR_BYTES)
    setup.files.data_sync(setup.fd)
    setup.write(OLD, SECTOR_BYTES)
    assert setup.crash(keep=False) == OLD + NEW * 2 + OLD


async def test_sectors_are_old_new_or_torn(tmp_path: Path) -> None:
    seen: set[str] = set()
    for seed in range(20):
        setup = Setup(tmp_path, seed)
        setup.write(NEW * 4, 0)
        after = setup.crash(keep=None)
        for number in range(4):
            sector = after[number * SECTOR_BYTES : (number + 1) * SECTOR_BYTES]
            fresh = sector.count(b"n")
            assert sector == NEW[:fresh] + OLD[fresh:]
            seen.add({0: "old", SECTOR_BYTES: "new"}.get(fresh, "torn"))
    assert seen == {"old", "new", "torn"}


async def test_a_name_that_was_not_synced_is_lost(setup: Setup, tmp_path: Path) -> None:
    other = setup.files.open_data(tmp_path / "other")
    setup.files.grow(other, 0, SECTOR_BYTES)
    setup.files.data_sync(other)
    setup.files.close(other)
    setup.crash(keep=False)
    assert not (tmp_path / "other").exists()
    assert setup.path.exists()


async def test_nothing_succeeds_after_the_crash(setup: Setup) -> None:
    setup.disk.crash_at = len(setup.disk.events) + 1
    assert setup.write(NEW, 0) == SECTOR_BYTES
    assert setup.write(NEW, 0) == -5
    with pytest.raises(SimulatedCrash):
        setup.files.data_sync(setup.fd)
    with pytest.raises(SimulatedCrash):
        setup.files.grow(setup.fd, 0, 1)
    assert setup.crash(keep=False) == OLD * 4


async def test_latent_corruption(setup: Setup) -> None:
    flip_bit(setup.path, SECTOR_BYTES)
    after = setup.crash(keep=True)
    assert [place for place in range(len(after)) if after[place] != ord("o")] == [SECTOR_BYTES]


@pytest.fixture(autouse=True)
def no_open_files(tmp_path: Path) -> Iterator[None]:
    """Every test has closed what it opened there."""
    yield
    for entry in Path("/proc/self/fd").iterdir():
        if entry.is_symlink() and str(entry.readlink()).startswith(str(tmp_path)):
            pytest.fail(f"{entry.readlink()} is still open")
