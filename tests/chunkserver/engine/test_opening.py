"""Opening a drive: every way that it can fail, and what becomes of records that cannot be true."""

import asyncio
import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lmdb
import pytest

from esker.chunkserver.engine.errors import CorruptRecord
from esker.chunkserver.engine.fake_disk import FakeDisk
from esker.chunkserver.engine.io import open_engine
from esker.chunkserver.engine.record import decode_record, encode_record
from esker.chunkserver.engine.store import DriveStore
from esker.chunkserver.engine.superblock import DriveLock
from esker.wire.errors import UserError
from esker.wire.limits import GIB, MIB
from esker.wire.status import Status

OpenDrive = Callable[..., Any]
MakeKey = Callable[..., bytes]


@pytest.fixture
async def made(open_drive: OpenDrive, make_key: MakeKey, tmp_path: Path) -> Path:
    """A closed drive with three chunks."""
    drive = open_drive()
    for number in range(3):
        await drive.put(make_key(number), bytes([number]) * 100)
    drive.store.close()
    return tmp_path / "drive"


def open_real(directory: Path, **changes: Any) -> DriveStore:
    loop = asyncio.get_running_loop()
    options = {"cluster_id": "cluster-1", "capacity_bytes": 64 * MIB, **changes}
    engine = open_engine("threads", loop=loop)
    engine.close()
    return DriveStore.open(directory, engine=engine, **options)


async def test_another_cluster_is_named(made: Path) -> None:
    with pytest.raises(UserError, match="belongs to cluster cluster-1, not to cluster-2; choose another"):
        open_real(made, cluster_id="cluster-2")
    open_real(made, cluster_id="").close()


async def test_another_drive_is_named(made: Path) -> None:
    with pytest.raises(UserError, match=r"holds drive \w+, not mine; choose another directory"):
        open_real(made, drive_id="mine")


async def test_a_fresh_drive_needs_a_cluster(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds no drive; name the cluster"):
        open_real(tmp_path / "fresh", cluster_id="")
    store = open_real(tmp_path / "fresh", drive_id="mine")
    assert (store.cluster_id, store.drive_id) == ("cluster-1", "mine")
    store.close()


async def test_a_running_owner(open_drive: OpenDrive, tmp_path: Path) -> None:
    open_drive()
    with pytest.raises(UserError, match=rf"already owned by a running worker with pid {os.getpid()}"):
        open_real(tmp_path / "drive")


async def test_a_capacity_that_is_too_small(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"capacity of .* is 1048576 bytes; at least 16777216 are needed: raise it"):
        open_real(tmp_path / "small", capacity_bytes=MIB)
    assert not (tmp_path / "small").exists()


async def test_a_full_file_system(open_drive: OpenDrive, tmp_path: Path) -> None:
    disk = FakeDisk()
    disk.free_bytes = MIB
    with pytest.raises(UserError, match=r"only 1 ?MiB are free for drive .*: free some space"):
        open_drive(disk)
    disk.free_bytes = None
    open_drive(disk)


async def test_an_interrupted_creation_starts_over(
    tmp_path: Path, open_drive: OpenDrive, make_key: MakeKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At its last moment: everything stands but the superblock."""

    def interrupted(*_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patched:
        patched.setattr(DriveLock, "fill", interrupted)
        with pytest.raises(UserError, match=r"cannot be opened: .*Input/output error"):
            open_drive()
    assert (tmp_path / "drive" / "meta.lmdb" / "data.mdb").exists()
    drive = open_drive()
    await drive.put(make_key(1), b"x")
    assert await drive.get(make_key(1)) == b"x"


@pytest.mark.parametrize("part", ["data", "meta.lmdb/data.mdb"])
async def test_a_missing_part(made: Path, part: str) -> None:
    (made / part).rename(made / "elsewhere")
    with pytest.raises(UserError, match=f"{part} is missing; restore it from a backup"):
        open_real(made)


async def test_a_damaged_index(made: Path) -> None:
    (made / "meta.lmdb" / "data.mdb").write_bytes(b"no index at all" * 1000)
    with pytest.raises(UserError, match=r"index of drive .* cannot be opened: .*check the drive"):
        open_real(made)


async def test_an_open_that_failed_leaves_nothing_open(made: Path) -> None:
    before = os.listdir("/proc/self/fd")
    os.truncate(made / "superblock", 100)
    with pytest.raises(UserError, match="is truncated"):
        open_real(made)
    (made / "superblock").unlink()
    with pytest.raises(UserError, match="superblock is missing"):
        open_real(made)
    assert len(os.listdir("/proc/self/fd")) == len(before)


def edit_index(directory: Path, edit: Callable[[lmdb.Transaction], None]) -> None:
    with (
        lmdb.open(str(directory / "meta.lmdb"), max_dbs=2, map_size=16 * GIB) as env,
        env.begin(write=True, db=env.open_db(b"chunks")) as txn,
    ):
        edit(txn)


async def test_corrupt_records_are_emptied_at_the_start(
    made: Path, open_drive: OpenDrive, make_key: MakeKey, caplog: pytest.LogCaptureFixture
) -> None:
    def damage(txn: lmdb.Transaction) -> None:
        value = bytearray(txn.get(make_key(1)))
        value[30] ^= 1
        txn.put(make_key(1), bytes(value))

    edit_index(made, damage)
    drive = open_drive()
    with pytest.raises(CorruptRecord, match="at an earlier start"):
        await drive.get(make_key(1))
    assert [key for key, _ in drive.store.scan(None).items] == [make_key(0), make_key(2)]
    assert await drive.get(make_key(2)) == bytes([2]) * 100
    assert drive.store.counters()["corrupt_records"] == 1
    assert drive.store.counters()["slots"] == 2
    assert "fails its checksum" in caplog.text
    drive.store.close()
    again = open_drive()
    assert again.store.counters()["corrupt_records"] == 0
    with again.store.reader() as reader, pytest.raises(CorruptRecord):
        reader.record(make_key(1))
    assert await again.put(make_key(1), b"new") is Status.OK
    assert await again.get(make_key(1)) == b"new"


async def test_two_records_on_one_slot(made: Path, open_drive: OpenDrive, make_key: MakeKey) -> None:
    def alias(txn: lmdb.Transaction) -> None:
        record = decode_record(make_key(0), txn.get(make_key(0)))
        txn.put(make_key(5), encode_record(make_key(5), record))
        txn.put(make_key(6), encode_record(make_key(6), record))

    edit_index(made, alias)
    drive = open_drive()
    assert drive.store.counters()["corrupt_records"] == 2
    assert await drive.get(make_key(0)) == bytes(100)
    for number in (5, 6):
        with pytest.raises(CorruptRecord):
            await drive.get(make_key(number))


@pytest.mark.parametrize("what", [{"slot": 1_000_000}, {"pages": 77}], ids=["a slot behind the end", "no such class"])
async def test_a_whole_record_beyond_the_files_means_missing_files(
    made: Path, make_key: MakeKey, what: dict[str, int]
) -> None:
    def beyond(txn: lmdb.Transaction) -> None:
        record = decode_record(make_key(0), txn.get(make_key(0)))
        txn.put(make_key(6), encode_record(make_key(6), record._replace(**what)))

    edit_index(made, beyond)
    for _ in range(2):
        with pytest.raises(UserError, match=r"\.slots is missing or truncated: 1 chunks of drive .*; restore it"):
            open_real(made)


@pytest.mark.parametrize("cut", ["removed", "truncated"])
async def test_missing_data_files_cost_no_record(
    made: Path, open_drive: OpenDrive, make_key: MakeKey, cut: str
) -> None:
    (path,) = (made / "data").glob("*.slots")
    content = path.read_bytes()
    if cut == "removed":
        path.unlink()
    else:
        os.truncate(path, 0)
    with pytest.raises(UserError, match=f"{path.name} is missing or truncated: 3 chunks of drive"):
        open_real(made)
    path.write_bytes(content)
    drive = open_drive()
    assert await drive.get(make_key(2)) == bytes([2]) * 100
    assert drive.store.counters()["corrupt_records"] == 0


async def test_an_empty_index(made: Path) -> None:
    os.truncate(made / "meta.lmdb" / "data.mdb", 0)
    for _ in range(2):
        with pytest.raises(UserError, match=r"data\.mdb is empty; restore it from a backup, or remove the whole drive"):
            open_real(made)


async def test_an_index_without_our_tables(made: Path) -> None:
    for path in (made / "meta.lmdb").iterdir():
        path.unlink()
    lmdb.open(str(made / "meta.lmdb"), max_dbs=2, lib_version=0).close()
    with pytest.raises(UserError, match=r"index of drive .* cannot be opened"):
        open_real(made)


async def test_a_truncated_index(made: Path) -> None:
    path = made / "meta.lmdb" / "data.mdb"
    os.truncate(path, 2 * 4096)
    with pytest.raises(UserError, match=r"data\.mdb is truncated, at least \d+ bytes are missing at its end; restore"):
        open_real(made)


@pytest.mark.parametrize("part", ["", "superblock", "data", "meta.lmdb/data.mdb"])
async def test_a_drive_that_vanishes_takes_no_more_writes(open_drive: OpenDrive, tmp_path: Path, part: str) -> None:
    store = open_drive().store
    reasons: list[str] = []
    store.on_failed(reasons.append)
    store.check_place()
    assert not reasons
    (tmp_path / "drive" / part).rename(tmp_path / "elsewhere")
    store.check_place()
    store.check_place()
    assert len(reasons) == 1
    assert "has vanished while the drive is open" in reasons[0]
    assert store.counters()["slots"] == 0


async def test_a_drive_that_is_replaced_takes_no_more_writes(open_drive: OpenDrive, tmp_path: Path) -> None:
    store = open_drive().store
    (tmp_path / "drive").rename(tmp_path / "elsewhere")
    open_drive()
    store.check_place()
    assert store.failed is not None
    assert "was replaced while the drive is open" in store.failed
