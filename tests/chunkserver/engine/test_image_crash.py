"""Power loss at any point while mutable chunks are written: committed and pending images are whole, and what was
acknowledged is there, with the channel's entry that belongs to it.

Several writers take their own chunk through pending, committed and discarded images. The power goes at one event of the
drive; then it is opened again, and every chunk must be in the state before or after the step that was interrupted.
"""

import asyncio
from pathlib import Path
from random import Random
from typing import NamedTuple

import pytest

from esker.chunkserver.copy_on_write import Change, Copy, Pieces
from esker.chunkserver.engine.errors import DriveFailed
from esker.chunkserver.engine.fake import FakeEngine
from esker.chunkserver.engine.fake_disk import FakeDisk, FakeFiles
from esker.chunkserver.engine.image_record import ChannelRecord, ImageRecord, channel_key
from esker.chunkserver.engine.record import record_key
from esker.chunkserver.engine.store import DriveStore
from esker.wire.errors import UserError
from esker.wire.ids import chunk_id
from esker.wire.limits import ALIGN_BYTES, MIB, aligned
from esker.wire.status import Status

CAPACITY_BYTES = 16 * MIB
WRITERS = 3
STEPS = 10
SIZES = (1, 4096, 70_000, 20_000)
CLIENT = b"c" * 16


class State(NamedTuple):
    """What a drive has of a writer's chunk."""

    committed: bytes | None = None
    pending: bytes | None = None
    sequence: int = 0
    """Of the channel's entry; 0: none."""


def key_of(writer: int) -> bytes:
    return record_key(1, chunk_id(0, bytes([writer]) * 16))


class Workload:
    """The writers, and what may be there after a crash."""

    def __init__(self, store: DriveStore, engine: FakeEngine, seed: int) -> None:
        self.store = store
        self.images = store.images
        self.engine = engine
        self.seed = seed
        self.pieces = Pieces()
        self.allowed = [{State()} for _ in range(WRITERS)]
        self.acknowledged = 0

    async def run(self) -> None:
        await asyncio.gather(*(self.writer(number) for number in range(WRITERS)))

    async def writer(self, number: int) -> None:
        random = Random(self.seed * 1000 + number)
        state = State()
        sequence = 0
        for _ in range(STEPS):
            if state.pending is None:
                sequence += 1
                data = random.randbytes(random.choice(SIZES))
                at_once = random.random() < 0.3
                following = State(data if at_once else state.committed, None if at_once else data, sequence)
                step = self.write(number, data, sequence, at_once=at_once)
            elif random.random() < 0.6:
                following = State(state.pending, None, state.sequence)
                step = self.settle(number, sequence)
            else:
                following = State(state.committed, None, sequence - 1)
                step = self.discard(number, sequence)
            self.allowed[number].add(following)
            if not await step:
                return
            if state.pending is not None and following.sequence < sequence:
                sequence -= 1
            state = following
            self.allowed[number] = {state}
            self.acknowledged += 1

    async def write(self, number: int, data: bytes, sequence: int, *, at_once: bool) -> bool:
        """A patch over the whole of the chunk, as a pending image or as a committed one."""
        loop = asyncio.get_running_loop()
        try:
            slot = self.store.allocate(len(data), MIB, reserve=True)
        except DriveFailed:
            return False
        copied: asyncio.Future[tuple[Status, bytes]] = loop.create_future()
        change = Change(self.images.chunk(key_of(number)).committed, len(data), 0, memoryview(data))
        Copy(
            self.images,
            self.pieces,
            change,
            slot,
            self.engine.submit,
            lambda status, sums: copied.set_result((status, sums)),
        ).start()
        status, sums = await copied
        if status is not Status.OK:
            return False
        channel = channel_key(1, CLIENT, number)
        before = self.images.channel(1, CLIENT, number) or ChannelRecord(0, 0, 0)
        image = ImageRecord(
            sequence,
            len(data),
            sums,
            pages=slot.pages,
            slot=slot.number,
            client=CLIENT,
            channel=number,
            sequence=sequence,
            before=before,
        )
        row = (channel, ChannelRecord(sequence, sequence, len(data)))
        done: asyncio.Future[Status] = loop.create_future()
        queue = self.images.replace if at_once else self.images.pend
        queue(key_of(number), image, row, slot, lambda _, status: done.set_result(status), None)
        return await done is Status.OK

    async def settle(self, number: int, version: int) -> bool:
        done: asyncio.Future[Status] = asyncio.get_running_loop().create_future()
        self.images.settle(key_of(number), version, lambda _, status: done.set_result(status), None)
        return await done is Status.OK

    async def discard(self, number: int, version: int) -> bool:
        done: asyncio.Future[Status] = asyncio.get_running_loop().create_future()
        self.images.discard(key_of(number), version, lambda _, status: done.set_result(status), None)
        return await done is Status.OK


async def states(directory: Path) -> list[State]:
    """What a drive holds when it is opened after the crash; all its slots are accounted for."""
    disk = FakeDisk()
    engine = FakeEngine(disk)
    store = DriveStore.open(
        directory, cluster_id="c", capacity_bytes=CAPACITY_BYTES, engine=engine, files=FakeFiles(disk)
    )

    async def content(image: ImageRecord | None) -> bytes | None:
        if image is None:
            return None
        buffer = memoryview(bytearray(max(ALIGN_BYTES, aligned(image.length))))
        results: list[int] = []
        store.images.read_part(image, 0, buffer, lambda _, result: results.append(result), None)
        assert await engine.drain(10)
        assert results == [len(buffer)], "an image names a place that can be read"
        return bytes(buffer[: image.length])

    try:
        assert store.counters()["corrupt_records"] == 0
        found = []
        slots = 0
        for writer in range(WRITERS):
            chunk = store.images.chunk(key_of(writer))
            assert not chunk.damaged
            entry = store.images.channel(1, CLIENT, writer)
            slots += (chunk.committed is not None) + (chunk.pending is not None)
            assert (key_of(writer) in store.images.pending_of(1)) is (chunk.pending is not None)
            found.append(
                State(
                    await content(chunk.committed),
                    await content(chunk.pending),
                    0 if entry is None else entry.sequence,
                )
            )
        assert store.counters()["slots"] == slots
        return found
    finally:
        store.close()
        engine.close()


async def crash_and_compare(directory: Path, seed: int, crash_at: int | None, keep: bool | None) -> Workload:
    """One history. Raises `AssertionError` where the drive holds what it must not, or lacks what it must hold."""
    disk = FakeDisk(seed)
    engine = FakeEngine(disk)
    store = DriveStore.open(
        directory, cluster_id="c", capacity_bytes=CAPACITY_BYTES, engine=engine, files=FakeFiles(disk)
    )
    disk.events.clear()
    disk.crash_at = crash_at
    workload = Workload(store, engine, seed)
    async with asyncio.timeout(20):
        await workload.run()
    disk.crash()
    engine.close()
    store.close()
    disk.settle(keep=keep)
    for writer, state in enumerate(await states(directory)):
        allowed = workload.allowed[writer]
        assert state in allowed, f"seed {seed}, crash at {crash_at}, keep {keep}: writer {writer}, {disk.events}"
    return workload


@pytest.mark.parametrize("keep", [False, None], ids=["all lost", "mixed and torn"])
@pytest.mark.parametrize("seed", range(12))
async def test_a_crash_anywhere(tmp_path: Path, seed: int, keep: bool | None) -> None:
    await crash_and_compare(tmp_path / "drive", seed, Random(seed).randrange(60), keep)


async def test_without_a_crash_the_whole_workload_is_done(tmp_path: Path) -> None:
    """So that the crashes have something to interrupt."""
    workload = await crash_and_compare(tmp_path / "drive", 1, None, False)
    assert workload.acknowledged == WRITERS * STEPS


async def test_a_commit_without_its_sync_would_be_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeFiles, "data_sync", lambda self, fd: None)
    noticed = 0
    for seed in range(10):
        try:
            await crash_and_compare(tmp_path / f"drive-{seed}", seed, 20 + seed, False)
        except (AssertionError, UserError):  # a drive that lacks the slots of its records is refused
            noticed += 1
    assert noticed > 0
