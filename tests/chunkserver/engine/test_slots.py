"""Capacity, reserve, the fence around freed slots, and space that moves between classes."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from esker.chunkserver.engine.errors import NoSpace
from esker.chunkserver.engine.fake import FakeEngine
from esker.chunkserver.engine.fake_disk import FakeDisk, FakeFiles
from esker.chunkserver.engine.slot_files import Slot
from esker.chunkserver.engine.slots import Slots, reserve_bytes
from esker.wire.limits import GIB, KIB, MIB

CAPACITY_BYTES = 64 * MIB
MAPS_BYTES = 64 * KIB
"""What a file system may count for its own maps of the files' extents."""


class Bench:
    """Slots over a fake drive."""

    def __init__(self, directory: Path, capacity_bytes: int = CAPACITY_BYTES) -> None:
        directory.mkdir(exist_ok=True)
        self.disk = FakeDisk()
        self.files = FakeFiles(self.disk)
        self.engine = FakeEngine(self.disk, manual=True)
        self.slots = Slots(self.files, directory, capacity_bytes, self.engine)
        self.slots.finish_loading()

    def fill(self, length: int, *, reserve: bool = False) -> list[Slot]:
        """Takes slots until there are none."""
        taken: list[Slot] = []
        while True:
            try:
                taken.append(self.slots.allocate(length, length, reserve=reserve))
            except NoSpace:
                return taken

    def free(self, slots: list[Slot]) -> None:
        self.slots.give_back([(slot.pages, slot.number) for slot in slots])

    def backed_bytes(self) -> int:
        """As the file system sees it."""
        return sum(self.files.size_bytes(fd)[1] for owner in self.slots.classes.values() for fd in owner.fds)


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    made = Bench(tmp_path)
    yield made
    made.engine.close()
    made.slots.close()


@pytest.mark.parametrize(
    ("capacity_bytes", "expected"),
    [(16 * MIB, 2 * MIB), (64 * MIB, 4 * MIB), (GIB, GIB // 50), (100 * GIB, 256 * MIB), (10_000 * GIB, 256 * MIB)],
)
def test_the_reserve(capacity_bytes: int, expected: int) -> None:
    assert reserve_bytes(capacity_bytes) == expected


@pytest.mark.parametrize("length", [4 * KIB, 64 * KIB, MIB, 3 * MIB])
async def test_heads_stop_before_replicas(bench: Bench, length: int) -> None:
    heads = bench.fill(length)
    assert len(heads) == (CAPACITY_BYTES - bench.slots.reserve_bytes) // length
    replicas = bench.fill(length, reserve=True)
    assert len(heads) + len(replicas) == CAPACITY_BYTES // length
    assert bench.slots.used_bytes <= CAPACITY_BYTES
    assert bench.backed_bytes() <= CAPACITY_BYTES + MAPS_BYTES
    assert bench.slots.no_space == 2
    places = {(slot.fd, slot.offset) for slot in heads + replicas}
    assert len(places) == len(heads) + len(replicas), "no slot is given twice"


async def test_what_was_small_becomes_large(bench: Bench) -> None:
    small = bench.fill(64 * KIB)
    bench.free(small)
    large = bench.fill(MIB)
    assert len(large) == (CAPACITY_BYTES - bench.slots.reserve_bytes) // MIB
    assert bench.backed_bytes() <= CAPACITY_BYTES + MAPS_BYTES
    bench.free(large)
    assert len(bench.fill(64 * KIB)) == len(small)
    assert bench.backed_bytes() <= CAPACITY_BYTES + MAPS_BYTES


async def test_the_backed_bytes_are_exact(bench: Bench) -> None:
    bench.free(bench.fill(64 * KIB)[::2])
    bench.fill(MIB)
    assert 0 <= bench.backed_bytes() - bench.slots.backed_bytes <= MAPS_BYTES


async def test_a_freed_slot_waits_for_earlier_operations(bench: Bench) -> None:
    slots = bench.fill(MIB, reserve=True)
    buffer = memoryview(bytearray(4096))
    bench.engine.read(slots[0].fd, slots[0].offset, buffer, lambda *_: None, None)
    bench.engine.submit()
    bench.free(slots[:1])
    with pytest.raises(NoSpace):
        bench.slots.allocate(MIB, MIB, reserve=True)
    # What is queued after the freeing does not hold it back, and does not let it go either.
    bench.engine.read(slots[1].fd, slots[1].offset, buffer, lambda *_: None, None)
    with pytest.raises(NoSpace):
        bench.slots.allocate(MIB, MIB, reserve=True)
    assert bench.engine.step() == 1
    again = bench.slots.allocate(MIB, MIB, reserve=True)
    assert (again.fd, again.offset) == (slots[0].fd, slots[0].offset)


async def test_batches_come_back_in_order(bench: Bench) -> None:
    slots = bench.fill(MIB, reserve=True)
    buffer = memoryview(bytearray(4096))
    bench.free(slots[:1])
    bench.engine.read(slots[1].fd, slots[1].offset, buffer, lambda *_: None, None)
    bench.engine.submit()
    bench.free(slots[1:2])
    assert bench.slots.allocate(MIB, MIB, reserve=True).offset == slots[0].offset
    with pytest.raises(NoSpace):
        bench.slots.allocate(MIB, MIB, reserve=True)
    bench.engine.step()
    assert bench.slots.allocate(MIB, MIB, reserve=True).offset == slots[1].offset


async def test_a_full_file_system_below_the_capacity(bench: Bench) -> None:
    bench.disk.free_bytes = 20 * MIB
    slots = bench.fill(64 * KIB)
    assert 12 * MIB <= sum(slot.padded_bytes for slot in slots) <= 20 * MIB
    # Some is left for the index, and to it a replica may go a little further.
    assert bench.disk.free_bytes >= bench.slots.reserve_bytes
    assert bench.fill(64 * KIB, reserve=True)
    assert bench.disk.free_bytes >= bench.slots.reserve_bytes // 4
    bench.free(slots)
    assert len(bench.fill(MIB)) >= 10, "freed space of one class serves another"


async def test_without_fallocate(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "sparse")
    bench.files.preallocates = False
    slots = bench.fill(64 * KIB)
    assert len(slots) == (CAPACITY_BYTES - bench.slots.reserve_bytes) // (64 * KIB)
    bench.free(slots)
    assert len(bench.fill(MIB)) == (CAPACITY_BYTES - bench.slots.reserve_bytes) // MIB
    bench.slots.close()


async def test_without_hole_punching(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "solid")
    bench.files.punches = False
    slots = bench.fill(64 * KIB)
    bench.free(slots)
    assert len(bench.fill(MIB)) <= bench.slots.reserve_bytes // MIB
    assert bench.backed_bytes() <= CAPACITY_BYTES + MAPS_BYTES
    assert bench.fill(64 * KIB), "its own class still takes it"
    bench.slots.close()


async def test_growing_goes_step_by_step(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "large", 4 * GIB)
    bench.slots.allocate(4 * KIB, 4 * KIB, reserve=False)
    assert bench.slots.backed_bytes == 16 * MIB
    bench.slots.allocate(8 * MIB, 8 * MIB, reserve=False)
    assert bench.slots.backed_bytes == 32 * MIB
    bench.slots.allocate(20 * MIB, 20 * MIB, reserve=False)
    assert bench.slots.backed_bytes == 52 * MIB, "one slot, where that is more"
    bench.slots.close()


async def test_a_small_drive_grows_in_small_steps(bench: Bench) -> None:
    bench.slots.allocate(4 * KIB, 4 * KIB, reserve=False)
    assert bench.slots.backed_bytes == CAPACITY_BYTES // 16


async def test_sizes_that_are_no_slots(bench: Bench) -> None:
    with pytest.raises(ValueError, match="does not fit"):
        bench.slots.allocate(MIB + 1, MIB, reserve=False)
    assert bench.slots.used_bytes == 0


async def test_more_used_than_the_capacity_is_said(
    bench: Bench, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    slots = bench.fill(MIB)
    smaller = Slots(bench.files, tmp_path, 16 * MIB, bench.engine)
    for slot in slots:
        assert smaller.claim(slot.pages, slot.number)
    smaller.finish_loading()
    assert "drive holds more than its capacity" in caplog.text
    with pytest.raises(NoSpace):
        smaller.allocate(4096, 4096, reserve=True)
    smaller.close()


STEPS = st.lists(
    st.tuples(st.sampled_from(["put", "put", "free", "read", "step"]), st.integers(0, 2**16)), max_size=120
)
SIZES = (4 * KIB, 64 * KIB, 640 * KIB, MIB, 2 * MIB)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(STEPS)
def test_no_slot_has_two_owners(tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int]]) -> None:
    """Any mixture of puts, removals and slow reads: slots never overlap, budgets hold, nothing leaks."""

    async def run() -> None:
        bench = Bench(tmp_path_factory.mktemp("slots"), 16 * MIB)
        held: list[Slot] = []
        reading: list[tuple[int, int]] = []
        buffer = memoryview(bytearray(4096))
        for step, number in steps:
            if step == "put":
                size = SIZES[number % len(SIZES)]
                try:
                    slot = bench.slots.allocate(size, size, reserve=bool(number & 1))
                except NoSpace:
                    continue
                assert (slot.fd, slot.offset) not in {(each.fd, each.offset) for each in held}
                assert (slot.fd, slot.offset) not in reading, "handed out under a read"
                held.append(slot)
            elif step == "free" and held:
                slot = held.pop(number % len(held))
                reading.append((slot.fd, slot.offset))
                bench.engine.read(
                    slot.fd, slot.offset, buffer, lambda place, _: reading.remove(place), (slot.fd, slot.offset)
                )
                bench.engine.submit()
                bench.free([slot])
            elif step == "step":
                bench.engine.step(1 + number % 3)
            assert bench.slots.used_bytes <= 16 * MIB
            assert bench.backed_bytes() <= 16 * MIB + MAPS_BYTES
        bench.engine.close()
        bench.free(held)
        bench.slots.allocate(4096, 4096, reserve=True)
        assert bench.slots.used_bytes == 4096
        assert bench.slots.used_slots == 1
        assert 0 <= bench.backed_bytes() - bench.slots.backed_bytes <= MAPS_BYTES
        bench.slots.close()

    asyncio.run(run())
