"""Short and failing I/O, a failing drive, and corrupt records: what the store makes of them."""

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from esker.chunkserver.engine.errors import CorruptRecord, DriveFailed
from esker.chunkserver.engine.record import Record
from esker.wire.limits import MIB
from esker.wire.status import Status

OpenDrive = Callable[..., Any]
MakeKey = Callable[..., bytes]
MakeRecord = Callable[..., Record]


@pytest.mark.parametrize("short", [4096, 8192, 5000, 16384])
async def test_a_short_write_goes_on(open_drive: OpenDrive, make_key: MakeKey, short: int) -> None:
    drive = open_drive()
    data = os.urandom(20_000)
    drive.disk.inject("write", short)
    assert await drive.put(make_key(1), data) is Status.OK
    assert await drive.get(make_key(1)) == data


@pytest.mark.parametrize("result", [0, 100, -errno.EIO, -errno.ENOSPC])
async def test_a_write_that_fails(open_drive: OpenDrive, make_record: MakeRecord, result: int) -> None:
    drive = open_drive()
    slot = drive.store.allocate(8192, MIB, reserve=False)
    drive.disk.inject("write", result)
    buffer = memoryview(bytearray(8192))
    outcome = await drive.call(lambda done: drive.store.write(slot, buffer, done, None))
    assert outcome == (result if result < 0 else -errno.EIO)
    with pytest.raises(AssertionError, match="committed after its write"):
        drive.store.commit_put(b"k" * 28, make_record(slot, 8192), slot, lambda *_: None, None)
    drive.store.release(slot)


async def test_a_released_write_does_not_go_on(open_drive: OpenDrive) -> None:
    """It could run into the chunk that has the slot by then."""
    drive = open_drive(manual=True)
    slot = drive.store.allocate(8192, MIB, reserve=False)
    drive.disk.inject("write", 4096)
    writing = drive.start(lambda done: drive.store.write(slot, memoryview(bytearray(8192)), done, None))
    drive.store.release(slot)
    drive.engine.step()
    assert await writing == -errno.EIO
    assert drive.engine.in_flight == 0


async def test_failing_and_short_reads_are_reported(open_drive: OpenDrive, make_key: MakeKey) -> None:
    drive = open_drive()
    await drive.put(make_key(1), b"x" * 8192)
    for result in (-errno.EIO, 100, 4096):
        drive.disk.inject("read", result)
        with drive.store.reader() as reader:
            record = reader.get(make_key(1))
            buffer = memoryview(bytearray(8192))
            reading = drive.start(lambda done, r=record, b=buffer: drive.store.read_into(r, b, done, None))
        assert await reading == result
    with pytest.raises(AssertionError):
        drive.store.read_into(record, memoryview(bytearray(12288)), lambda *_: None, None)


# A failing drive


async def test_data_that_cannot_be_synced_fails_the_drive(
    open_drive: OpenDrive, make_key: MakeKey, caplog: pytest.LogCaptureFixture
) -> None:
    drive = open_drive()
    await drive.put(make_key(1), b"before")
    reasons: list[str] = []
    drive.store.on_failed(reasons.append)
    drive.disk.inject("sync", -errno.EIO)
    assert await drive.put(make_key(2), b"lost") is Status.IO_ERROR
    assert len(reasons) == 1
    assert "Input/output error" in reasons[0]
    assert drive.store.failed == reasons[0]
    # The kernel reports such an error once; the next sync would succeed and nothing may be believed.
    assert await drive.remove(make_key(1)) is Status.IO_ERROR
    with pytest.raises(DriveFailed):
        drive.store.allocate(1, MIB, reserve=True)
    assert await drive.get(make_key(1)) == b"before", "reads go on"
    assert await drive.get(make_key(2)) is None
    assert len(reasons) == 1
    assert "drive takes no more writes" in caplog.text


async def test_a_commit_that_fails_fails_the_drive(open_drive: OpenDrive, make_key: MakeKey) -> None:
    drive = open_drive()
    drive.disk.inject("commit", -errno.EIO)
    assert await drive.put(make_key(1), b"x") is Status.IO_ERROR
    assert drive.store.failed is not None
    assert await drive.get(make_key(1)) is None


async def test_no_space_for_the_index_fails_its_group_only(open_drive: OpenDrive, make_key: MakeKey) -> None:
    drive = open_drive()
    drive.disk.inject("commit", -errno.ENOSPC)
    assert await drive.put(make_key(1), b"x") is Status.NO_SPACE
    assert drive.store.failed is None
    assert drive.store.counters()["slots"] == 0, "the slot of the failed put is free again"
    assert await drive.put(make_key(1), b"x") is Status.OK
    assert await drive.get(make_key(1)) == b"x"


async def test_a_drive_that_cannot_grow_fails(open_drive: OpenDrive, monkeypatch: pytest.MonkeyPatch) -> None:
    drive = open_drive()

    def refuse(*_: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr("esker.chunkserver.engine.fake_disk.FakeFiles.grow", refuse)
    with pytest.raises(DriveFailed, match="Read-only file system"):
        drive.store.allocate(1, MIB, reserve=True)
    assert drive.store.failed is not None


async def test_a_corrupt_record_is_a_miss(
    open_drive: OpenDrive, make_key: MakeKey, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    drive = open_drive()
    for number in range(3):
        await drive.put(make_key(number), b"x" * 100)
    with drive.store._index.env.begin(write=True, db=drive.store._index.chunks) as txn:
        txn.put(make_key(1), b"damaged" * 20)
    with drive.store.reader() as reader:
        with pytest.raises(CorruptRecord):
            reader.get(make_key(1))
        with pytest.raises(CorruptRecord):
            reader.record(make_key(1))
    assert [key for key, _ in drive.store.scan(None).items] == [make_key(0), make_key(2)]
    assert drive.store.counters()["corrupt_records"] == 3
    assert caplog.text.count("corrupt record, treated as a miss") == 3
    assert await drive.put(make_key(1), b"again") is Status.OK
    assert await drive.get(make_key(1)) == b"again"
