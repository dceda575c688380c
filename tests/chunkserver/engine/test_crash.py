"""Power loss at any point, on the fake drive: acknowledged chunks are there and whole, all others whole or absent.

Several writers put, replace and remove a few keys. The power goes at one event of the drive (a write, the growing of
a file, a sync, a commit, or right after a commit and before anyone hears of it); unsynced sectors end up old, new or
torn. Then the drive is opened again and every key must hold one of the values that its history allows.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from esker.chunkserver.engine.errors import DriveFailed
from esker.chunkserver.engine.fake import FakeEngine
from esker.chunkserver.engine.fake_disk import FakeDisk, FakeFiles
from esker.chunkserver.engine.record import Record, record_key
from esker.chunkserver.engine.store import DriveStore
from esker.wire.errors import UserError
from esker.wire.ids import chunk_id
from esker.wire.limits import MIB, aligned
from esker.wire.status import Status

KEYS = [record_key(1, chunk_id(1, bytes([number]) * 16)) for number in range(6)]
SIZES = (100, 4096, 20_000, 70_000)
CAPACITY_BYTES = 16 * MIB
WRITERS = 3
STEPS = 8

MakeRecord = Callable[..., Record]


class Workload:
    """Writers with a key set each, and what may be there after a crash."""

    def __init__(self, store: DriveStore, engine: FakeEngine, make_record: MakeRecord, seed: int) -> None:
        self.store = store
        self.engine = engine
        self.make_record = make_record
        self.seed = seed
        self.allowed: dict[bytes, set[bytes | None]] = {key: {None} for key in KEYS}
        self.acknowledged = 0

    async def run(self) -> None:
        await asyncio.gather(*(self.writer(number) for number in range(WRITERS)))

    async def writer(self, number: int) -> None:
        random = Random(self.seed * 1000 + number)
        for _ in range(STEPS):
            key = random.choice(KEYS[number::WRITERS])
            value = None if random.random() < 0.25 else random.randbytes(random.choice(SIZES))
            # Until it is acknowledged, the new value may be there or not.
            self.allowed[key].add(value)
            if not await (self.remove(key) if value is None else self.put(key, value)):
                return
            self.allowed[key] = {value}
            self.acknowledged += 1

    async def put(self, key: bytes, value: bytes) -> bool:
        loop = asyncio.get_running_loop()
        try:
            slot = self.store.allocate(len(value), MIB, reserve=False)
        except DriveFailed:
            return False
        buffer = memoryview(bytearray(value.ljust(slot.padded_bytes, b"\0")))
        written: asyncio.Future[int] = loop.create_future()
        self.store.write(slot, buffer, lambda _, result: written.set_result(result), None)
        self.engine.submit()
        if await written != slot.padded_bytes:
            return False
        committed: asyncio.Future[Status] = loop.create_future()
        record = self.make_record(slot, len(value))
        self.store.commit_put(key, record, slot, lambda _, status: committed.set_result(status), None)
        return await committed is Status.OK

    async def remove(self, key: bytes) -> bool:
        committed: asyncio.Future[Status] = asyncio.get_running_loop().create_future()
        self.store.commit_remove(key, 0, bytes(16), lambda _, status: committed.set_result(status), None)
        return await committed in (Status.OK, Status.NOT_FOUND)


async def stored(directory: Path) -> dict[bytes, bytes | None]:
    """What a drive holds when it is opened after the crash."""
    disk = FakeDisk()
    engine = FakeEngine(disk)
    store = DriveStore.open(
        directory, cluster_id="c", capacity_bytes=CAPACITY_BYTES, engine=engine, files=FakeFiles(disk)
    )
    try:
        assert store.counters()["corrupt_records"] == 0
        found: dict[bytes, bytes | None] = {}
        for key in KEYS:
            with store.reader() as reader:
                record = reader.get(key)
                if record is None:
                    found[key] = None
                    continue
                buffer = memoryview(bytearray(aligned(record[0])))
                results: list[int] = []
                store.read_into(record, buffer, lambda _, result, results=results: results.append(result), None)
            assert await engine.drain(10)
            assert results == [len(buffer)], "a record names a place that can be read"
            found[key] = bytes(buffer[: record[0]])
        return found
    finally:
        store.close()
        engine.close()


async def crash_and_compare(
    directory: Path,
    make_record: MakeRecord,
    seed: int,
    crash_at: int | None,
    keep: bool | None,
    crash_event: str = "",
) -> FakeDisk:
    """One history. Raises `AssertionError` when the drive holds what it must not, or lacks what it must hold."""
    disk = FakeDisk(seed)
    engine = FakeEngine(disk)
    store = DriveStore.open(
        directory, cluster_id="c", capacity_bytes=CAPACITY_BYTES, engine=engine, files=FakeFiles(disk)
    )
    disk.events.clear()
    disk.crash_at, disk.crash_event = crash_at, crash_event
    workload = Workload(store, engine, make_record, seed)
    async with asyncio.timeout(20):
        await workload.run()
    disk.crash()
    engine.close()
    store.close()
    disk.settle(keep=keep)
    for key, value in (await stored(directory)).items():
        assert value in workload.allowed[key], (
            f"seed {seed}, crash at {crash_at}, keep {keep}: key {KEYS.index(key)} holds "
            f"{'nothing' if value is None else len(value)}; {workload.acknowledged} acknowledged; {disk.events}"
        )
    return disk


@pytest.mark.parametrize("keep", [False, True, None], ids=["all lost", "all kept", "mixed and torn"])
@pytest.mark.parametrize("seed", range(12))
async def test_a_crash_anywhere(tmp_path: Path, make_record: MakeRecord, seed: int, keep: bool | None) -> None:
    crash_at = Random(seed).randrange(60)
    await crash_and_compare(tmp_path / "drive", make_record, seed, crash_at, keep)


async def test_without_a_crash_the_whole_workload_is_done(tmp_path: Path, make_record: MakeRecord) -> None:
    """So that the crashes below have something to interrupt."""
    disk = await crash_and_compare(tmp_path / "drive", make_record, 1, None, False)
    assert disk.events.count("commit") == disk.events.count("committed") > 0
    assert {event.partition(" ")[0] for event in disk.events} == {"grow", "write", "sync", "commit", "committed"}


async def test_a_crash_right_after_a_commit(tmp_path: Path, make_record: MakeRecord) -> None:
    """Durable and not acknowledged: there, and whole."""
    disk = await crash_and_compare(tmp_path / "first", make_record, 2, None, False)
    for number in range(0, disk.events.count("committed") // 2, 3):
        crashed = await crash_and_compare(tmp_path / f"drive-{number}", make_record, 2, number, False, "committed")
        assert crashed.events.count("committed") == number


async def seeds_that_notice(tmp_path: Path, make_record: MakeRecord) -> int:
    """How many of thirty histories end in a wrong state."""
    noticed = 0
    for seed in range(30):
        try:
            await crash_and_compare(tmp_path / f"drive-{seed}", make_record, seed, 20 + seed, False)
        except (AssertionError, UserError):  # a drive that lacks the slots of its records is refused
            noticed += 1
    return noticed


async def test_a_commit_without_its_sync_would_be_noticed(
    tmp_path: Path, make_record: MakeRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FakeFiles, "data_sync", lambda self, fd: None)
    assert await seeds_that_notice(tmp_path, make_record) > 0


async def test_a_slot_reused_before_its_freeing_is_durable_would_be_noticed(
    tmp_path: Path, make_record: MakeRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A replacement whose old slot is written to while its own commit is still to come."""
    queue_put = DriveStore.commit_put

    def hasty_put(self: DriveStore, key: bytes, record: Record, slot: object, *rest: object) -> None:
        with self.reader() as reader:
            old = reader.get(key)
        if old is not None:
            self._classes[old[1]].map.free.append(old[2])
        queue_put(self, key, record, slot, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(DriveStore, "commit_put", hasty_put)
    assert await seeds_that_notice(tmp_path, make_record) > 0
