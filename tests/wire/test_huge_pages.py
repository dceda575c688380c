"""Memory for huge pages: aligned, the same to everybody, and exchanged under use without a byte changing."""

import ctypes
import os
import threading
from collections.abc import Iterator

import pytest

from esker.wire.huge_pages import HUGE_PAGE_BYTES, HugePages, Mapping
from esker.wire.limits import ALIGN_BYTES
from esker.wire.memory import ForeignMemory, SharedArena

from .streams import noise

SIZE = 4 * HUGE_PAGE_BYTES
WAIT_S = 30.0


def address(view: memoryview) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(view))


def threads() -> int:
    return sum(thread.name == "esker-huge-pages" for thread in threading.enumerate())


@pytest.fixture
def arena() -> Iterator[SharedArena]:
    arena = SharedArena(SIZE, name="huge")
    yield arena
    arena.close()
    assert threads() == 0


@pytest.mark.parametrize("size", [ALIGN_BYTES, HUGE_PAGE_BYTES, HUGE_PAGE_BYTES + 3 * ALIGN_BYTES])
def test_a_mapping_is_the_file_and_aligned_where_it_can_hold_huge_pages(size: int) -> None:
    fd = os.memfd_create("mapped")
    try:
        os.ftruncate(fd, size)
        data = noise(size)
        os.pwrite(fd, data, 0)
        mapping = Mapping(fd, size, populate=True)
        assert bytes(mapping.view) == data
        assert size < HUGE_PAGE_BYTES or address(mapping.view) % HUGE_PAGE_BYTES == 0
        mapping.view[-1] = data[-1] ^ 1
        assert os.pread(fd, 1, size - 1) == bytes([data[-1] ^ 1])
        mapping.close()
    finally:
        os.close(fd)


def test_a_file_that_may_not_be_mapped_for_writing_is_an_error() -> None:
    with open("/proc/self/status", "rb") as file, pytest.raises(PermissionError):
        Mapping(file.fileno(), SIZE, populate=False)


def test_pages_are_exchanged_once_the_whole_was_used_and_nothing_changes(arena: SharedArena) -> None:
    data = noise(SIZE)
    arena.view[:] = data
    other = ForeignMemory(os.dup(arena.fd), SIZE)
    assert address(other.view) % HUGE_PAGE_BYTES == 0
    arena.used(SIZE - 1)
    assert arena.huge_pages is None
    assert threads() == 0
    arena.used(1)
    pages = arena.huge_pages
    assert pages is not None
    number = 0
    while not pages.wait(0.001):  # what is written meanwhile is not lost either
        arena.view[number % SIZE] = data[number % SIZE]
        number += 4099
    assert bytes(arena.view) == data
    assert os.pread(arena.fd, SIZE, 0) == data
    copy = memoryview(bytearray(SIZE))
    assert other.copy_from(0, [copy])
    assert copy == data
    other.retire()
    arena.used(SIZE)
    assert arena.huge_pages is pages, "it is done once"
    if not pages.made:
        pytest.skip("this kernel makes no huge pages for memory files")
    assert pages.made <= SIZE // HUGE_PAGE_BYTES


def test_it_ends_with_the_arena_at_any_point() -> None:
    for close in (SharedArena.close, SharedArena.abandon):
        arena = SharedArena(SIZE)
        arena.used(SIZE)
        close(arena)
        assert threads() == 0


def test_what_the_kernel_refuses_stays_as_it_is() -> None:
    """Memory that is no mapping of a file, at an address that is not aligned."""
    data = bytearray(noise(3 * HUGE_PAGE_BYTES))
    before = bytes(data)
    pages = HugePages(memoryview(data)[ALIGN_BYTES + 1 :])
    assert pages.wait(WAIT_S)
    assert pages.made == 0
    assert data == before
    pages.stop()


def test_an_arena_smaller_than_a_page_asks_for_none() -> None:
    arena = SharedArena(HUGE_PAGE_BYTES - ALIGN_BYTES)
    arena.used(HUGE_PAGE_BYTES)
    assert arena.huge_pages is None
    arena.close()
