"""The store as a whole: put, read, remove, replace, scan, state and restart."""

import asyncio
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from esker.chunkserver.engine.errors import NoSpace
from esker.chunkserver.engine.io import open_engine
from esker.chunkserver.engine.record import Record
from esker.chunkserver.engine.store import DriveStore
from esker.wire.limits import KIB, MIB
from esker.wire.messages import LOOKUP_KEY
from esker.wire.status import Status

A, B = b"a" * 16, b"b" * 16
OpenDrive = Callable[..., Any]
MakeKey = Callable[..., bytes]
MakeRecord = Callable[..., Record]


async def test_put_and_get(open_drive: OpenDrive, make_key: MakeKey) -> None:
    drive = open_drive()
    for number, length in enumerate((0, 1, 4095, 4096, 4097, 100_000, MIB)):
        data = os.urandom(length)
        assert await drive.put(make_key(number), data) is Status.OK
        assert await drive.get(make_key(number)) == data
    assert await drive.get(make_key(99)) is None


async def test_presence(open_drive: OpenDrive, make_key: MakeKey) -> None:
    drive = open_drive()
    for number in (1, 3):
        await drive.put(make_key(number, chain_id=number), b"x")
    packed = b"".join(
        LOOKUP_KEY.pack(number.to_bytes(16, "big"), chain_id) for number, chain_id in ((1, 1), (2, 2), (3, 3), (3, 1))
    )
    with drive.store.reader() as reader:
        assert reader.present(1, packed) == b"\1\0\1\0"
        assert reader.present(2, packed) == b"\0\0\0\0"
        assert reader.present(1, b"") == b""


async def test_the_whole_record(open_drive: OpenDrive, make_key: MakeKey) -> None:
    drive = open_drive()
    await drive.put(make_key(1), b"x" * 5000, version=9, put_id=A)
    with drive.store.reader() as reader:
        record = reader.record(make_key(1))
        assert reader.record(make_key(2)) is None
    assert record is not None
    assert (record.length, record.version, record.put_id, record.key) == (5000, 9, A, b"key")


async def test_replacing_frees_the_old_slot(open_drive: OpenDrive, make_key: MakeKey) -> None:
    drive = open_drive(capacity_bytes=16 * MIB)
    for _ in range(40):
        assert await drive.put(make_key(1), os.urandom(MIB)) is Status.OK
    assert drive.store.counters()["slots"] == 1
    assert drive.store.used_bytes == MIB
    assert await drive.put(make_key(1), b"last") is Status.OK
    assert await drive.get(make_key(1)) == b"last"


async def test_conditional_removal(open_drive: OpenDrive, make_key: MakeKey) -> None:
    drive = open_drive()
    await drive.put(make_key(1), b"x", version=5, put_id=A)
    assert await drive.remove(make_key(1), 4) is Status.CONDITION
    assert await drive.remove(make_key(1), 5, B) is Status.CONDITION
    assert await drive.get(make_key(1)) == b"x"
    assert await drive.remove(make_key(1), 5, A) is Status.OK
    assert await drive.remove(make_key(1), 5, A) is Status.NOT_FOUND
    assert await drive.get(make_key(1)) is None


async def test_a_read_never_sees_the_next_owner_of_its_slot(open_drive: OpenDrive, make_key: MakeKey) -> None:
    """Removed and the space wanted again while a read is under way: the read gets the bytes it looked up."""
    drive = open_drive(manual=False)
    count = 0
    while True:
        try:
            await drive.put(make_key(count), bytes([count]) * MIB, reserve=True)
        except NoSpace:
            break
        count += 1
    drive.engine.manual = True
    buffer = memoryview(bytearray(MIB))
    with drive.store.reader() as reader:
        record = reader.get(make_key(7))
        assert record is not None
        read = drive.start(lambda done: drive.store.read_into(record, buffer, done, None))
    drive.engine.submit()
    assert await drive.remove(make_key(7)) is Status.OK
    with pytest.raises(NoSpace):
        drive.store.allocate(MIB, MIB, reserve=True)
    drive.engine.step()
    assert await read == MIB
    assert buffer == bytes([7]) * MIB
    drive.engine.manual = False
    assert await drive.put(make_key(1000), b"new" * 1000, slot_bytes=MIB, reserve=True) is Status.OK


async def test_a_released_slot_is_used_again(open_drive: OpenDrive) -> None:
    drive = open_drive()
    first = await drive.written(b"x" * MIB)
    drive.store.release(first)
    second = drive.store.allocate(MIB, MIB, reserve=False)
    assert (second.fd, second.offset) == (first.fd, first.offset)


async def test_a_full_drive_keeps_working(open_drive: OpenDrive, make_key: MakeKey) -> None:
    drive = open_drive(capacity_bytes=16 * MIB)
    data = os.urandom(64 * KIB)
    count = 0
    with suppress(NoSpace):
        while await drive.put(make_key(count), data, slot_bytes=64 * KIB) is Status.OK:
            count += 1
    assert drive.store.counters()["no_space"] == 1
    assert drive.store.failed is None
    assert await drive.get(make_key(count - 1)) == data
    for number in range(count):
        assert await drive.remove(make_key(number)) is Status.OK
    large = os.urandom(MIB)
    for number in range(14):
        assert await drive.put(make_key(number), large) is Status.OK
    assert await drive.get(make_key(13)) == large


async def test_scanning(open_drive: OpenDrive, make_key: MakeKey) -> None:
    drive = open_drive()
    keys = sorted(make_key(number, chain_id) for number in range(7) for chain_id in (1, 2, 300))
    for key in keys:
        await drive.put(key, b"x")

    def scanned(chain_id: int | None, limit: int) -> list[bytes]:
        found: list[bytes] = []
        after: bytes | None = b""
        while after is not None:
            page = drive.store.scan(chain_id, after, limit)
            assert len(page.items) <= limit
            found += [key for key, _ in page.items]
            after = page.next_after
        return found

    for limit in (1, 3, 7, 1000):
        assert scanned(None, limit) == keys
        assert scanned(2, limit) == [key for key in keys if key[:4] == (2).to_bytes(4, "big")]
    assert scanned(3, 10) == []


async def test_state(open_drive: OpenDrive) -> None:
    drive = open_drive()
    assert drive.store.state_get("routing") is None
    for value in (b"1", b"2" * 100_000):
        status = await drive.call(lambda done, value=value: drive.store.state_put("routing", value, done, None))
        assert status == Status.OK
        assert drive.store.state_get("routing") == value
    assert drive.store.scan(None).items == []
    drive.store.close()
    assert open_drive().store.state_get("routing") == b"2" * 100_000


async def test_a_restart_finds_everything(open_drive: OpenDrive, make_key: MakeKey) -> None:
    drive = open_drive()
    data = {make_key(number): os.urandom(1 + number * 5000) for number in range(40)}
    for key, value in data.items():
        await drive.put(key, value)
    for key in list(data)[::3]:
        await drive.remove(key)
        del data[key]
    drive_id = drive.store.drive_id
    await drive.store.drain(10)
    drive.store.close()
    drive.store.close()
    again = open_drive()
    assert again.store.drive_id == drive_id
    assert again.store.counters()["slots"] == len(data)
    for key, value in data.items():
        assert await again.get(key) == value
    for number in range(100, 140):
        assert await again.put(make_key(number), os.urandom(5000)) is Status.OK
    for key, value in data.items():
        assert await again.get(key) == value, "no slot of an old record was given away"


async def test_groups_gather_while_one_commits(
    open_drive: OpenDrive, make_key: MakeKey, make_record: MakeRecord
) -> None:
    drive = open_drive()
    slots = [await drive.written(b"x") for _ in range(100)]
    done = [
        drive.start(
            lambda done, number=number, slot=slot: drive.store.commit_put(
                make_key(number), make_record(slot, 1), slot, done, None
            )
        )
        for number, slot in enumerate(slots)
    ]
    assert set(await asyncio.gather(*done)) == {Status.OK}
    counters = drive.store.counters()
    assert counters["commit_records"] == 100
    assert counters["commits"] == 1, "what one turn of the loop queues is one group"
    assert await drive.store.drain(1)


async def test_close_commits_what_is_queued(open_drive: OpenDrive, make_key: MakeKey) -> None:
    drive = open_drive()
    results: list[Status] = []
    drive.store.state_put("name", b"value", lambda _, status: results.append(status), None)
    drive.store.close()
    assert results == [Status.OK]
    assert open_drive().store.state_get("name") == b"value"


async def test_a_callback_that_raises_harms_no_other(open_drive: OpenDrive, caplog: pytest.LogCaptureFixture) -> None:
    drive = open_drive()

    def bad(*_: object) -> None:
        raise RuntimeError("on purpose")

    drive.store.state_put("a", b"", bad, None)
    assert await drive.call(lambda done: drive.store.state_put("b", b"", done, None)) == Status.OK
    assert "commit callback failed" in caplog.text


async def test_on_the_real_engine_and_files(
    tmp_path: Path, make_key: MakeKey, make_record: MakeRecord, pages: Callable[[int], memoryview]
) -> None:
    engine = open_engine()
    store = DriveStore.open(tmp_path / "drive", cluster_id="cluster-1", capacity_bytes=64 * MIB, engine=engine)
    source, target = pages(16 * 65536), pages(16 * 65536)
    source[:] = os.urandom(len(source))
    statuses: list[Status] = []

    def written(token: Any, result: int) -> None:
        number, slot = token
        assert result == 65536
        store.commit_put(make_key(number), make_record(slot, 65536), slot, committed, None)

    def committed(_: object, status: Status) -> None:
        statuses.append(status)

    for number in range(16):
        slot = store.allocate(65536, 65536, reserve=False)
        store.write(slot, source[number * 65536 : (number + 1) * 65536], written, (number, slot))
    engine.submit()
    assert await store.drain(30)
    assert statuses == [Status.OK] * 16
    results: list[int] = []
    with store.reader() as reader:
        for number in range(16):
            record = reader.get(make_key(number))
            assert record is not None
            part = target[number * 65536 : (number + 1) * 65536]
            store.read_into(record, part, lambda _, result: results.append(result), None)
    engine.submit()
    assert await store.drain(30)
    assert results == [65536] * 16
    assert target == source
    store.close()
    engine.close()
