"""The worker's pool against a model: regions never overlap, nothing is lost, and neighbours merge again."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from esker.chunkserver.pool import Region, WorkerPool
from esker.wire.limits import ALIGN_BYTES, aligned

PAGES = 64
SIZE = PAGES * ALIGN_BYTES

Steps = st.lists(st.one_of(st.integers(0, 20 * ALIGN_BYTES), st.tuples(st.integers(0, 1000), st.booleans())))


def first_fit(taken: dict[int, int], size: int) -> int | None:
    """Where the lowest gap of `size` bytes between what is taken begins."""
    at = 0
    for offset, length in sorted(taken.items()):
        if offset - at >= size:
            return at
        at = offset + length
    return at if SIZE - at >= size else None


@given(Steps)
def test_any_sequence_of_allocations_and_returns(steps: list[int | tuple[int, bool]]) -> None:
    pool = WorkerPool(SIZE)
    freed: list[int] = []
    pool.on_free = lambda: freed.append(pool.free_bytes)
    taken: dict[int, int] = {}
    regions: list[Region] = []
    for step in steps:
        if isinstance(step, int):
            size = aligned(step) or ALIGN_BYTES
            expected = first_fit(taken, size)
            region = pool.allocate(step)
            if expected is None:
                assert region is None
                continue
            assert region is not None
            assert (region.offset, region.size_bytes, len(region.view)) == (expected, size, size)
            region.view[:] = bytes([len(regions) & 255]) * size
            taken[region.offset] = size
            regions.append(region)
        elif regions:
            number, shared = step
            region = regions.pop(number % len(regions))
            if shared:
                region.hold()
                region.drop()
                assert pool.free_bytes == SIZE - sum(taken.values()), "a region that is held is not free"
            before = len(freed)
            del taken[region.offset]
            region.drop()
            assert len(freed) == before + 1
        assert pool.free_bytes == SIZE - sum(taken.values())
    for region in regions:
        region.drop()
    whole = pool.allocate(SIZE)
    assert whole is not None, "all that was free again is one piece"
    whole.drop()
    pool.close()


def test_a_region_is_memory_of_the_arena_and_not_another_regions() -> None:
    pool = WorkerPool(SIZE)
    regions = [pool.allocate(3 * ALIGN_BYTES) for _ in range(5)]
    for number, region in enumerate(regions):
        assert region is not None
        region.view[:] = bytes([number]) * len(region.view)
    for number, region in enumerate(regions):
        assert region is not None
        assert pool.arena.view[region.offset : region.offset + region.size_bytes] == bytes([number]) * region.size_bytes
        region.drop()
    pool.close()


def test_a_dropped_region_cannot_be_used_or_dropped_again() -> None:
    pool = WorkerPool(SIZE)
    region = pool.allocate(1)
    assert region is not None
    region.drop()
    with pytest.raises(ValueError, match="released"):
        region.view[0] = 1
    with pytest.raises(AssertionError, match="dropped twice"):
        region.drop()
    pool.close()


def test_what_is_rare_gets_memory_of_its_own_where_the_pool_has_none() -> None:
    pool = WorkerPool(SIZE)
    short = pool.allocate_or_map(SIZE // 4)
    assert pool.free_bytes == SIZE - SIZE // 4
    long = pool.allocate_or_map(SIZE // 4 + 1)
    assert pool.free_bytes == SIZE - SIZE // 4, "it would keep too much of it from clients"
    rest = pool.allocate(pool.free_bytes)
    assert rest is not None
    late = pool.allocate_or_map(1)
    for region in (long, late):
        region.view[:] = b"x" * len(region.view)
        region.drop()
        with pytest.raises(ValueError, match="released"):
            region.view[0] = 1
    short.drop()
    rest.drop()
    assert pool.free_bytes == SIZE
    pool.close()
