"""Memory shared by descriptor: exact, sealed, checked before use, never touched by the CPU, let go at once."""

import fcntl
import mmap
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from esker.wire.errors import UserError
from esker.wire.limits import ALIGN_BYTES
from esker.wire.memory import SEALS, BadMemory, ForeignMemory, SharedArena

from .streams import noise

SIZE = 4 * ALIGN_BYTES
HUGE_BYTES = 1 << 60


def mappings(name: str) -> int:
    """How many mappings of the memory file `name` this process has."""
    return sum(f"/memfd:{name} " in line for line in Path("/proc/self/maps").read_text().splitlines())


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.fixture
def memory_file() -> Iterator[Callable[..., int]]:
    """Makes memory files; closes what is still open of them."""
    made: list[int] = []

    def make(size: int = SIZE, seals: int = SEALS, flags: int = os.MFD_ALLOW_SEALING, name: str = "foreign") -> int:
        fd = os.memfd_create(name, os.MFD_CLOEXEC | flags)
        made.append(fd)
        os.ftruncate(fd, size)
        if seals:
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
        return fd

    yield make
    for fd in made:
        os.close(fd)


def foreign(fd: int, size: int = SIZE) -> ForeignMemory:
    """As a worker gets it: with a descriptor of its own."""
    return ForeignMemory(os.dup(fd), size)


# The arena


def test_an_arena_has_exactly_the_size_asked_for_and_is_all_there() -> None:
    arena = SharedArena(SIZE, name="exact")
    assert len(arena.view) == arena.size_bytes == os.fstat(arena.fd).st_size == SIZE
    assert os.fstat(arena.fd).st_blocks * 512 == SIZE
    assert bytes(arena.view) == bytes(SIZE)
    assert not os.get_inheritable(arena.fd)
    arena.close()


def test_what_is_written_into_an_arena_is_seen_through_its_descriptor() -> None:
    arena = SharedArena(SIZE)
    arena.view[100:103] = b"abc"
    assert os.pread(arena.fd, 3, 100) == b"abc"
    os.pwrite(arena.fd, b"x", 101)
    assert arena.view[100:103] == b"axc"
    arena.close()


def test_an_arena_cannot_shrink_grow_or_be_unsealed() -> None:
    arena = SharedArena(SIZE)
    for size in (0, SIZE - ALIGN_BYTES, SIZE + ALIGN_BYTES):
        with pytest.raises(PermissionError):
            os.ftruncate(arena.fd, size)
    with pytest.raises(PermissionError):
        fcntl.fcntl(arena.fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)
    assert fcntl.fcntl(arena.fd, fcntl.F_GET_SEALS) == SEALS
    arena.close()


@pytest.mark.parametrize("size", [0, -ALIGN_BYTES, 1, ALIGN_BYTES - 1, ALIGN_BYTES + 1])
def test_an_arena_of_another_size_is_refused_with_what_is_allowed(size: int) -> None:
    with pytest.raises(UserError, match=f"^pool of {size} bytes; allowed: positive multiples of {ALIGN_BYTES}$"):
        SharedArena(size)


@pytest.mark.parametrize("size", [HUGE_BYTES, 1 << 70])
def test_an_arena_that_the_machine_does_not_have_is_refused_and_leaves_nothing(size: int) -> None:
    before = open_files()
    with pytest.raises(UserError, match=f"^cannot map a pool of {size} bytes: .*; ask for less memory$"):
        SharedArena(size)
    assert open_files() == before


def test_an_arena_in_use_is_not_closed_but_may_be_closed_later() -> None:
    before = open_files()
    arena = SharedArena(SIZE, name="in-use")
    piece = arena.view[10:20]
    with pytest.raises(BufferError):
        arena.close()
    assert len(arena.view) == SIZE  # still usable
    arena.view[10] = 7
    assert piece[0] == 7
    piece.release()
    arena.close()
    arena.close()
    assert mappings("in-use") == 0
    assert open_files() == before


def test_an_abandoned_arena_lives_as_long_as_the_last_view_of_it() -> None:
    before = open_files()
    arena = SharedArena(SIZE, name="abandoned")
    piece = arena.view[10:20]
    arena.abandon()
    arena.abandon()
    piece[0] = 7
    assert mappings("abandoned") == 1
    piece.release()
    del piece
    assert mappings("abandoned") == 0
    assert open_files() == before


# Another process's memory


def test_sealed_memory_is_taken_and_let_go_at_once(memory_file: Callable[..., int]) -> None:
    fd = memory_file(name="taken")
    before = open_files()
    memory = foreign(fd)
    assert memory.length_bytes == len(memory.view) == SIZE
    assert mappings("taken") == 1
    memory.retire()
    assert memory.fd == -1
    assert mappings("taken") == 0
    assert open_files() == before
    memory.retire()


def test_memory_in_use_is_kept_until_the_last_user_has_left(memory_file: Callable[..., int]) -> None:
    memory = foreign(memory_file(name="used"))
    memory.users += 2
    memory.retire()
    assert mappings("used") == 1
    memory.leave()
    assert mappings("used") == 1
    assert memory.fd >= 0
    memory.leave()
    assert mappings("used") == 0
    assert memory.fd == -1


def test_users_that_leave_before_it_is_retired_unmap_nothing(memory_file: Callable[..., int]) -> None:
    memory = foreign(memory_file(name="before"))
    memory.users += 1
    memory.leave()
    assert mappings("before") == 1
    memory.retire()
    assert mappings("before") == 0


def test_a_piece_that_somebody_still_holds_keeps_the_mapping_and_nothing_else(memory_file: Callable[..., int]) -> None:
    memory = foreign(memory_file(name="piece"))
    piece = memory.view[:ALIGN_BYTES]
    memory.retire()
    assert memory.fd == -1
    assert mappings("piece") == 1
    piece.release()
    del piece
    assert mappings("piece") == 0


SHRINK, GROW, SEAL = fcntl.F_SEAL_SHRINK, fcntl.F_SEAL_GROW, fcntl.F_SEAL_SEAL


@pytest.mark.parametrize("seals", [0, SHRINK, GROW])
def test_memory_that_its_owner_could_have_sealed_must_be(memory_file: Callable[..., int], seals: int) -> None:
    with pytest.raises(BadMemory, match="must carry F_SEAL_SHRINK and F_SEAL_GROW"):
        foreign(memory_file(seals=seals))


@pytest.mark.parametrize(
    ("seals", "flags"), [(SHRINK | GROW, os.MFD_ALLOW_SEALING), (SEALS, os.MFD_ALLOW_SEALING), (0, 0)]
)
def test_sealed_memory_and_memory_that_cannot_be_sealed_are_taken(
    memory_file: Callable[..., int], seals: int, flags: int
) -> None:
    foreign(memory_file(seals=seals, flags=flags)).retire()


@pytest.mark.parametrize(
    ("claimed", "why"),
    [
        (SIZE + ALIGN_BYTES, f"^{SIZE} bytes long, {SIZE + ALIGN_BYTES} were claimed$"),
        (1 << 62, "were claimed"),
        (1 << 80, "were claimed"),
        (0, f"^0 bytes; allowed: positive multiples of {ALIGN_BYTES}$"),
        (-ALIGN_BYTES, "allowed: positive multiples"),
        (ALIGN_BYTES + 1, "allowed: positive multiples"),
    ],
)
def test_memory_of_another_size_than_claimed_is_refused(
    memory_file: Callable[..., int], claimed: int, why: str
) -> None:
    fd = memory_file()
    before = open_files()
    with pytest.raises(BadMemory, match=why):
        foreign(fd, claimed)
    assert open_files() == before


def test_more_memory_than_an_address_space_holds_is_refused(memory_file: Callable[..., int]) -> None:
    fd = memory_file(HUGE_BYTES)
    before = open_files()
    with pytest.raises(BadMemory, match=r"^cannot be mapped: "):
        foreign(fd, HUGE_BYTES)
    assert open_files() == before


def test_a_part_of_the_memory_may_be_claimed(memory_file: Callable[..., int]) -> None:
    memory = foreign(memory_file(), ALIGN_BYTES)
    assert len(memory.view) == ALIGN_BYTES
    memory.retire()


def test_what_is_no_memory_is_refused(tmp_path: Path) -> None:
    read_end, write_end = os.pipe()
    descriptors = [read_end, os.open(tmp_path, os.O_RDONLY), os.open("/dev/null", os.O_RDWR)]
    before = open_files()
    for fd in descriptors:
        with pytest.raises(BadMemory, match=r"^not a memory file$"):
            ForeignMemory(fd, SIZE)
    assert open_files() == before - len(descriptors)
    os.close(write_end)


def test_memory_that_may_only_be_read_is_refused(memory_file: Callable[..., int]) -> None:
    fd = os.open(f"/proc/self/fd/{memory_file()}", os.O_RDONLY)
    with pytest.raises(BadMemory, match=r"^cannot be mapped: .*Permission denied"):
        ForeignMemory(fd, SIZE)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


def test_a_shared_memory_file_is_taken_although_it_cannot_be_sealed() -> None:
    path = Path("/dev/shm") / f"esker-test-{os.getpid()}"
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
    path.unlink()
    os.ftruncate(fd, SIZE)
    os.pwrite(fd, b"abc", 0)
    memory = foreign(fd)
    data = bytearray(3)
    assert memory.copy_from(0, [memoryview(data)])
    assert data == b"abc"
    os.ftruncate(fd, 0)
    assert not memory.copy_from(0, [memoryview(data)])
    memory.retire()
    os.close(fd)


@pytest.mark.parametrize(
    ("offset", "length", "inside"),
    [
        (0, SIZE, True),
        (0, 0, True),
        (SIZE, 0, True),
        (SIZE - 1, 1, True),
        (0, SIZE + 1, False),
        (1, SIZE, False),
        (SIZE, 1, False),
        (-1, 1, False),
        (0, -1, False),
        (SIZE + 1, -1, False),
        (2**64, 1, False),
        (1, 2**64 - 1, False),
        (2**63, 2**63, False),
    ],
)
def test_what_lies_inside(memory_file: Callable[..., int], offset: int, length: int, inside: bool) -> None:
    memory = foreign(memory_file())
    assert memory.holds(offset, length) is inside
    memory.retire()


# Copies


def test_a_copy_fills_all_its_destinations(memory_file: Callable[..., int]) -> None:
    fd = memory_file()
    os.pwrite(fd, noise(SIZE), 0)
    memory = foreign(fd)
    data = bytearray(3000)
    view = memoryview(data)
    assert memory.copy_from(5000, [view[:1], view[1:1000], view[1000:]])
    assert data == noise(SIZE)[5000:8000]
    memory.retire()


def test_a_copy_that_comes_short_says_so(memory_file: Callable[..., int]) -> None:
    memory = foreign(memory_file(seals=0, flags=0))
    data = memoryview(bytearray(ALIGN_BYTES))
    assert memory.copy_from(SIZE - ALIGN_BYTES, [data])
    os.ftruncate(memory.fd, SIZE - 1)
    assert not memory.copy_from(SIZE - ALIGN_BYTES, [data])
    os.ftruncate(memory.fd, 0)
    assert not memory.copy_from(0, [data])  # a touch of the mapping would end this process
    memory.retire()


def test_a_copy_from_memory_that_was_let_go_says_so(memory_file: Callable[..., int]) -> None:
    memory = foreign(memory_file())
    memory.retire()
    assert not memory.copy_from(0, [memoryview(bytearray(1))])


def test_holes_read_as_zeros(memory_file: Callable[..., int]) -> None:
    fd = memory_file()
    os.pwrite(fd, noise(SIZE), 0)
    memory = foreign(fd)
    punch_hole(fd, ALIGN_BYTES, ALIGN_BYTES)
    data = bytearray(SIZE)
    assert memory.copy_from(0, [memoryview(data)])
    assert data == noise(SIZE)[:ALIGN_BYTES] + bytes(ALIGN_BYTES) + noise(SIZE)[2 * ALIGN_BYTES :]
    memory.retire()


def punch_hole(fd: int, offset: int, length: int) -> None:
    """Gives the pages back, as sealed memory still allows."""
    with mmap.mmap(fd, SIZE, mmap.MAP_SHARED) as mapping:
        mapping.madvise(mmap.MADV_REMOVE, offset, length)
