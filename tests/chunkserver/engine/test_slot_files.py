"""Slots of one class in their files: growing, giving space back, and what a restart makes of the files."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from esker.chunkserver.engine.fake_disk import FakeDisk, FakeFiles
from esker.chunkserver.engine.slot_files import SlotFiles, found_segments
from esker.wire.limits import ALIGN_BYTES

PAGES = 2
SLOT_BYTES = PAGES * ALIGN_BYTES
SEGMENT_SLOTS = 10


@pytest.fixture
def disk() -> FakeDisk:
    return FakeDisk()


@pytest.fixture
def open_files(tmp_path: Path, disk: FakeDisk) -> Iterator[Callable[..., SlotFiles]]:
    opened: list[SlotFiles] = []

    def make(segments: int = 0, claims: tuple[int, ...] = ()) -> SlotFiles:
        made = SlotFiles(FakeFiles(disk), tmp_path, PAGES, segments, SEGMENT_SLOTS * SLOT_BYTES)
        opened.append(made)
        assert [made.claim(number) for number in claims] == [True] * len(claims)
        made.finish_loading()
        return made

    yield make
    for each in opened:
        each.close()


def backed(files: SlotFiles) -> int:
    """Slots that have space on the file system."""
    return sum(FakeFiles(FakeDisk()).size_bytes(fd)[1] for fd in files.fds) // SLOT_BYTES


def test_slots_lie_one_after_the_other(open_files: Callable[..., SlotFiles]) -> None:
    files = open_files()
    assert files.extend(4) == 4
    assert [files.place(number) for number in range(4)] == [(files.fds[0], number * SLOT_BYTES) for number in range(4)]
    assert backed(files) == 4


def test_growing_stops_at_the_end_of_a_segment(open_files: Callable[..., SlotFiles], tmp_path: Path) -> None:
    files = open_files()
    assert files.extend(7) == 7
    assert files.extend(7) == 3
    assert files.extend(7) == 7
    assert len(files.fds) == 2
    assert files.place(9) == (files.fds[0], 9 * SLOT_BYTES)
    assert files.place(10) == (files.fds[1], 0)
    assert found_segments(tmp_path) == {PAGES: 2}


def test_space_goes_back_and_comes_again(open_files: Callable[..., SlotFiles]) -> None:
    files = open_files()
    files.extend(10)
    files.extend(10)
    used = [files.map.free.pop() for _ in range(3)]
    assert files.give_back(12) == 12
    assert backed(files) == 8
    assert sorted([*files.map.free, *files.map.holes, *used]) == list(range(20))
    assert files.refill(5) == 5
    assert backed(files) == 13
    assert files.refill(100) == 7
    assert backed(files) == 20
    assert not files.map.holes


def test_refilling_a_full_drive_loses_no_slot(open_files: Callable[..., SlotFiles], disk: FakeDisk) -> None:
    files = open_files()
    files.extend(10)
    files.map.free.remove(4)
    files.give_back(9)
    # Room for the first run of holes (0 to 3) and not for the second (5 to 9).
    disk.free_bytes = 4 * SLOT_BYTES
    assert files.refill(9) == 4
    assert sorted(files.map.free) == [0, 1, 2, 3]
    assert sorted(files.map.holes) == [5, 6, 7, 8, 9]
    with pytest.raises(OSError, match="No space left"):
        files.refill(9)
    assert sorted(files.map.holes) == [5, 6, 7, 8, 9]


def test_growing_a_full_drive_changes_nothing(open_files: Callable[..., SlotFiles], disk: FakeDisk) -> None:
    files = open_files()
    disk.free_bytes = 0
    with pytest.raises(OSError, match="No space left"):
        files.extend(1)
    assert files.map.end == 0


def test_claims_that_cannot_be(open_files: Callable[..., SlotFiles], tmp_path: Path, disk: FakeDisk) -> None:
    open_files().extend(6)
    files = SlotFiles(FakeFiles(disk), tmp_path, PAGES, 1, SEGMENT_SLOTS * SLOT_BYTES)
    try:
        assert files.claim(5)
        assert not files.claim(5), "another record has it"
        assert not files.claim(6), "beyond the file"
        assert not files.claim(SEGMENT_SLOTS), "no such segment"
        assert files.finish_loading() == 1
        assert sorted(files.map.free) == [0, 1, 2, 3, 4]
    finally:
        files.close()


def test_a_restart_finds_every_free_slot(open_files: Callable[..., SlotFiles]) -> None:
    first = open_files()
    first.extend(10)
    first.extend(4)
    again = open_files(2, claims=(0, 3, 9, 10, 13))
    assert sorted(again.map.free) == [1, 2, 4, 5, 6, 7, 8, 11, 12]
    assert again.map.free.pop() == 1
    assert not again.map.holes
    assert backed(again) == 14


def test_a_restart_with_holes_knows_what_is_backed(open_files: Callable[..., SlotFiles]) -> None:
    first = open_files()
    first.extend(10)
    first.extend(4)
    first.map.free.remove(0)
    first.give_back(5)
    again = open_files(2, claims=(0,))
    # The first segment had holes, so all its free slots are holes now; so with the second, or not at all.
    assert sorted([*again.map.free, *again.map.holes]) == list(range(1, 14))
    assert backed(again) == 1 + len(again.map.free)


def test_a_missing_segment_is_made_again(open_files: Callable[..., SlotFiles], tmp_path: Path) -> None:
    first = open_files()
    first.extend(10)
    first.extend(4)
    (tmp_path / f"{PAGES}-0.slots").unlink()
    again = open_files(2, claims=(11,))
    assert sorted([*again.map.free, *again.map.holes]) == [*range(11), 12, 13]
    while again.map.holes:
        again.refill(100)
    assert backed(again) == 14


def test_other_names_are_left_alone(tmp_path: Path) -> None:
    for name in ("3-0.slots", "3-2.slots", "x-1.slots", "3-1.slots~", "0-0.slots", "99999-0.slots", "notes"):
        (tmp_path / name).touch()
    assert found_segments(tmp_path) == {3: 3}
