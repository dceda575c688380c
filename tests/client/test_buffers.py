"""The pool's leases: who has a slot, when it comes back, and that nothing is left behind."""

import asyncio
import gc
import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from esker.client.buffers import BufferPool, PoolExhausted, Slot, begin_all, end_all
from esker.wire.errors import DeadlineExceeded, UserError


def test_the_arena_has_exactly_the_asked_size_and_is_page_aligned() -> None:
    pool = BufferPool(10_000, 3)
    assert pool.slot_bytes == 12_288
    assert pool.size_bytes == 3 * 12_288 == os.fstat(pool.fd).st_size
    slots = pool.acquire(3)
    assert sorted(slot.offset for slot in slots) == [0, 12_288, 24_576]
    assert all(slot.numpy().ctypes.data % 4096 == 0 for slot in slots)
    pool.close()


@pytest.mark.parametrize(("slot_bytes", "slots"), [(0, 1), (4096, 0), (-1, 1), (4096, 2**50)])
def test_impossible_sizes_are_the_users_mistake(slot_bytes: int, slots: int) -> None:
    with pytest.raises(UserError):
        BufferPool(slot_bytes, slots)


def test_slots_of_different_leases_do_not_overlap() -> None:
    pool = BufferPool(4096, 4)
    slots = pool.acquire(4)
    for number, slot in enumerate(slots):
        slot.view[:] = bytes([number]) * 4096
    assert [slot.view[4095] for slot in slots] == [0, 1, 2, 3]
    pool.close()


def test_memory_that_operations_have_used_once_gets_huge_pages() -> None:
    pools = [BufferPool(1 << 20, 2), BufferPool(1 << 20, 4)]
    slots = [*pools[0].acquire(2), *pools[1].acquire(2)]
    begin_all(slots, writes=False)
    end_all(slots)
    assert [pool._arena.huge_pages is not None for pool in pools] == [True, False]
    begin_all(slots[2:], writes=True)
    end_all(slots[2:])
    assert pools[1]._arena.huge_pages is not None
    for pool in pools:
        pool.close()


def test_acquire_takes_all_or_nothing() -> None:
    pool = BufferPool(4096, 4)
    kept = pool.acquire(2)
    with pytest.raises(PoolExhausted, match="3 slots wanted, 2 of 4 are free"):
        pool.acquire(3)
    assert pool.statistics().free == 2
    with pytest.raises(UserError, match="5 slots wanted; this pool has 4"):
        pool.acquire(5)
    for slot in kept:
        slot.release()
    assert pool.statistics().free == 4
    pool.close()


def test_a_second_release_is_an_error_and_changes_nothing() -> None:
    pool = BufferPool(4096, 2)
    (slot,) = pool.acquire(1)
    slot.release()
    with pytest.raises(UserError, match="released before"):
        slot.release()
    assert pool.statistics().free == 2
    pool.close()


def test_a_released_slots_memory_cannot_be_touched_through_it() -> None:
    pool = BufferPool(4096, 1)
    with pool.acquire(1)[0] as slot:
        slot.view[0] = 1
    with pytest.raises(ValueError, match="released"):
        slot.view[0]
    pool.close()


def test_arrays_are_views_of_the_slot() -> None:
    pool = BufferPool(4096, 1)
    (slot,) = pool.acquire(1)
    slot.numpy(np.uint32, (2, 8))[1, 7] = 0x01020304
    assert bytes(slot.view[60:64]) == b"\x04\x03\x02\x01"
    assert slot.numpy(np.float16).shape == (2048,)
    pool.close()


def test_arrays_over_memory_that_is_not_the_callers_are_refused() -> None:
    pool = BufferPool(4096, 2)
    slot, open_slot = pool.acquire(2)
    kept = slot.numpy()
    slot.release()
    with pytest.raises(UserError, match="this slot was released; lease another one"):
        slot.numpy()
    pool.close()
    with pytest.raises(UserError, match="the pool is closed"):
        open_slot.numpy()
    assert len(kept) == 4096


@pytest.mark.parametrize(
    ("dtype", "shape"), [(np.uint8, (2, 4096)), (np.uint8, -1), (np.uint8, (-1, 8)), (object, None), ("nonsense", None)]
)
def test_arrays_that_a_slot_cannot_be_are_the_users_mistake(dtype: Any, shape: Any) -> None:
    pool = BufferPool(4096, 1)
    (slot,) = pool.acquire(1)
    with pytest.raises(UserError):
        slot.numpy(dtype, shape)
    pool.close()


def test_tensors_are_views_of_the_slot() -> None:
    torch = pytest.importorskip("torch")
    pool = BufferPool(4096, 1)
    (slot,) = pool.acquire(1)
    slot.tensor(torch.bfloat16)[:] = 1.0
    assert bytes(slot.view[:2]) == b"\x80\x3f"
    assert slot.tensor().dtype == torch.uint8
    with pytest.raises(UserError, match="cannot be a tensor"):
        slot.tensor("nonsense")
    slot.release()
    with pytest.raises(UserError, match="this slot was released"):
        slot.tensor()
    pool.close()


def test_a_part_of_a_slot_has_the_slots_first_bytes() -> None:
    pool = BufferPool(4096, 1)
    (slot,) = pool.acquire(1)
    slot.first(10).view[9] = 7
    assert slot.view[9] == 7
    for length in (0, 4097):
        with pytest.raises(UserError, match="4096"):
            slot.first(length)
    pool.close()


async def test_waiting_for_slots_is_first_come_first_served() -> None:
    pool = BufferPool(4096, 3)
    slots = pool.acquire(3)
    order: list[str] = []

    async def wait(name: str, count: int) -> list[Slot]:
        leased = await pool.acquire_wait(count, 10)
        order.append(name)
        return leased

    large = asyncio.ensure_future(wait("large", 3))
    await asyncio.sleep(0)
    small = asyncio.ensure_future(wait("small", 1))
    await asyncio.sleep(0)
    slots[0].release()  # enough for the small one, which came later
    slots[1].release()
    slots[2].release()
    (await large)[0].release()
    await small
    assert order == ["large", "small"]
    pool.close()


async def test_waiting_ends_with_its_deadline_and_leaves_the_queue() -> None:
    pool = BufferPool(4096, 2)
    (kept, other) = pool.acquire(2)
    impatient = asyncio.ensure_future(pool.acquire_wait(2, 0.01))
    await asyncio.sleep(0)
    patient = asyncio.ensure_future(pool.acquire_wait(1, 10))
    with pytest.raises(DeadlineExceeded, match="2 slots of 2"):
        await impatient
    other.release()
    assert len(await patient) == 1
    kept.release()
    pool.close()


async def test_a_release_from_another_thread_wakes_who_waits() -> None:
    pool = BufferPool(4096, 1)
    (slot,) = pool.acquire(1)
    waiting = asyncio.ensure_future(pool.acquire_wait(1, 10))
    await asyncio.sleep(0)
    await asyncio.to_thread(slot.release)
    assert len(await waiting) == 1
    pool.close()


async def test_closing_ends_those_who_wait() -> None:
    pool = BufferPool(4096, 1)
    pool.acquire(1)
    waiting = asyncio.ensure_future(pool.acquire_wait(1, 10))
    await asyncio.sleep(0)
    pool.close()
    with pytest.raises(UserError, match="closed"):
        await waiting


def test_leases_from_many_threads_never_share_a_slot() -> None:
    pool = BufferPool(4096, 8)
    clashes: list[int] = []

    def work(mark: int) -> None:
        for _ in range(300):
            try:
                slots = pool.acquire(2)
            except PoolExhausted:
                continue
            for slot in slots:
                slot.view[0] = mark
            clashes.extend(slot.view[0] for slot in slots if slot.view[0] != mark)
            for slot in slots:
                slot.release()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert clashes == []
    assert pool.statistics().free == 8
    pool.close()


def test_a_slot_that_an_operation_uses_comes_back_only_after_it() -> None:
    pool = BufferPool(4096, 1)
    slots = pool.acquire(1)
    begin_all(slots, writes=False)
    slots[0].release()
    assert pool.statistics().free == 0
    end_all(slots)
    assert pool.statistics().free == 1
    pool.close()


def test_operations_may_share_reading_but_not_writing() -> None:
    pool = BufferPool(4096, 2)
    first, second = pool.acquire(2)
    begin_all([first], writes=False)
    begin_all([first], writes=False)
    with pytest.raises(UserError, match="in use"):
        begin_all([second, first], writes=True)
    begin_all([second], writes=True)  # the refused attempt took nothing
    with pytest.raises(UserError, match="in use"):
        begin_all([second], writes=False)
    end_all([first, first, second])
    begin_all([first, second], writes=True)
    pool.close()


def test_one_call_cannot_write_a_slot_twice() -> None:
    pool = BufferPool(4096, 1)
    (slot,) = pool.acquire(1)
    with pytest.raises(UserError, match="in use"):
        begin_all([slot, slot], writes=True)
    begin_all([slot], writes=True)
    pool.close()


def test_a_released_slot_cannot_be_used() -> None:
    pool = BufferPool(4096, 1)
    slots = pool.acquire(1)
    slots[0].release()
    with pytest.raises(UserError, match="was released"):
        begin_all(slots, writes=False)
    pool.close()


def test_quarantine_keeps_a_slot_from_use_and_from_being_leased_again() -> None:
    pool = BufferPool(4096, 1)
    (slot,) = pool.acquire(1)
    begin_all([slot], writes=True)
    slot.keep_for_worker()
    slot.keep_for_worker()
    end_all([slot])
    assert slot.quarantined
    assert pool.statistics().quarantined == 1
    with pytest.raises(UserError, match="quarantine"):
        begin_all([slot], writes=True)
    slot.release()
    assert pool.statistics().free == 0
    slot.worker_is_done()
    assert pool.statistics().free == 0
    slot.worker_is_done()
    assert pool.statistics() == type(pool.statistics())(4096, 1, 1, 0, 0, False)
    pool.close()


def _mappings() -> int:
    return Path("/proc/self/maps").read_text(encoding="utf-8").count("memfd:esker-pool")


def test_close_leaves_memory_to_arrays_that_live_on() -> None:
    pool = BufferPool(4096, 1)
    (slot,) = pool.acquire(1)
    array = slot.numpy()
    array[5] = 42
    before = _mappings()
    fd = pool.fd
    pool.close()
    pool.close()
    assert _mappings() == before
    assert array[5] == 42
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)
    del array, slot
    gc.collect()
    assert _mappings() == before - 1


def test_a_closed_pool_leases_nothing() -> None:
    pool = BufferPool(4096, 1)
    (slot,) = pool.acquire(1)
    pool.close()
    with pytest.raises(UserError, match="closed"):
        pool.acquire(1)
    slot.release()
