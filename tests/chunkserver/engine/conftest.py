"""Fixtures of the engine's tests: engines of each kind, drives on the fake disk, aligned memory."""

import asyncio
import mmap
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from esker.chunkserver.engine.fake import FakeEngine
from esker.chunkserver.engine.fake_disk import FakeDisk, FakeFiles
from esker.chunkserver.engine.io import IoEngine, open_engine
from esker.chunkserver.engine.record import Record, record_key
from esker.chunkserver.engine.slot_class import zero_padding
from esker.chunkserver.engine.slot_files import Slot
from esker.chunkserver.engine.store import DriveStore
from esker.wire.errors import UserError
from esker.wire.ids import NO_PUT_ID, chunk_id
from esker.wire.limits import MIB, aligned, checksum_blocks
from esker.wire.status import Status

CAPACITY_BYTES = 64 * MIB


@pytest.fixture(params=["io_uring", "threads", "fake"])
async def engine(request: pytest.FixtureRequest) -> AsyncIterator[IoEngine]:
    """An engine of each kind, closed at the end."""
    if request.param == "fake":
        made: IoEngine = FakeEngine(FakeDisk(seed=1))
    else:
        try:
            made = open_engine(request.param)
        except UserError as error:
            pytest.skip(str(error))
    yield made
    made.close()
    assert made.in_flight == 0


@pytest.fixture
def pages() -> Iterator[Callable[[int], memoryview]]:
    """Makes page-aligned memory of so many bytes."""
    made: list[mmap.mmap] = []

    def make(length: int) -> memoryview:
        made.append(mmap.mmap(-1, max(1, length)))
        return memoryview(made[-1])[:length]

    yield make
    made.clear()


def new_record(slot: Slot, length: int, *, version: int = 1, put_id: bytes = NO_PUT_ID) -> Record:
    return Record(
        length=length,
        version=version,
        chain_version=1,
        block_bytes=length,
        chunk_count=1,
        put_id=put_id,
        created_ms=0,
        checksums=bytes(8 * checksum_blocks(length)),
        key=b"key",
        pages=slot.pages,
        slot=slot.number,
    )


@pytest.fixture
def make_record() -> Callable[..., Record]:
    """Records of a written slot: `make_record(slot, length, version=, put_id=)`."""
    return new_record


class Drive:
    """A store on the fake disk, with awaitable steps."""

    def __init__(self, store: DriveStore, engine: FakeEngine, disk: FakeDisk) -> None:
        self.store = store
        self.engine = engine
        self.disk = disk

    async def written(self, data: bytes, slot_bytes: int = MIB, *, reserve: bool = False) -> Slot:
        """Allocates and writes; the slot."""
        slot = self.store.allocate(len(data), slot_bytes, reserve=reserve)
        buffer = memoryview(bytearray(slot.padded_bytes))
        buffer[: len(data)] = data
        zero_padding(buffer, len(data))
        result = await self.call(lambda done: self.store.write(slot, buffer, done, None))
        assert result == slot.padded_bytes, result
        return slot

    async def put(
        self,
        key: bytes,
        data: bytes,
        *,
        slot_bytes: int = MIB,
        version: int = 1,
        put_id: bytes = NO_PUT_ID,
        reserve: bool = False,
    ) -> Status:
        slot = await self.written(data, slot_bytes, reserve=reserve)
        record = new_record(slot, len(data), version=version, put_id=put_id)
        return Status(await self.call(lambda done: self.store.commit_put(key, record, slot, done, None)))

    async def remove(self, key: bytes, version: int = 0, put_id: bytes = NO_PUT_ID) -> Status:
        return Status(await self.call(lambda done: self.store.commit_remove(key, version, put_id, done, None)))

    async def get(self, key: bytes) -> bytes | None:
        """The bytes stored under a record key."""
        with self.store.reader() as reader:
            record = reader.get(key)
            if record is None:
                return None
            buffer = memoryview(bytearray(aligned(record[0])))
            waiting = self.start(lambda done: self.store.read_into(record, buffer, done, None))
        assert await waiting == len(buffer)
        return bytes(buffer[: record[0]])

    def start(self, queue: Callable[[Callable[[Any, int], None]], None]) -> "asyncio.Future[int]":
        """Queues something, submits, and gives its result as a future."""
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        queue(lambda _, result: future.set_result(result))
        self.engine.submit()
        return future

    async def call(self, queue: Callable[[Callable[[Any, int], None]], None]) -> int:
        async with asyncio.timeout(10):
            return await self.start(queue)


@pytest.fixture
def make_key() -> Callable[..., bytes]:
    """Record keys by number."""

    def make(number: int, chain_id: int = 1) -> bytes:
        return record_key(chain_id, chunk_id(1, number.to_bytes(16, "big")))

    return make


@pytest.fixture
def open_drive(tmp_path: Path) -> Iterator[Callable[..., Drive]]:
    """Opens drives on the fake disk, by default the one in `tmp_path / "drive"`; all are closed at the end."""
    drives: list[Drive] = []

    def make(
        disk: FakeDisk | None = None,
        *,
        capacity_bytes: int = CAPACITY_BYTES,
        manual: bool = False,
        directory: str = "drive",
    ) -> Drive:
        disk = disk or FakeDisk()
        engine = FakeEngine(disk, manual=manual)
        store = DriveStore.open(
            tmp_path / directory,
            cluster_id="cluster-1",
            capacity_bytes=capacity_bytes,
            engine=engine,
            files=FakeFiles(disk),
        )
        drives.append(Drive(store, engine, disk))
        return drives[-1]

    yield make
    for drive in drives:
        drive.engine.close()
        drive.store.close()
