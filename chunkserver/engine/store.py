"""The chunk store of one drive: superblock, index, slot files and the committer behind one door.

    superblock      whose drive this is; locked while it is open
    meta.lmdb/      one record per chunk, images of mutable chunks, and the service's own area
    data/           slot files

It belongs to one event loop: every method is called on it and every callback runs on it. It knows nothing of chains
beyond their number in the keys, nor of peers. Bytes of chunks are not looked at here; their checksums are in the
records.

A chunk is written in three steps, `allocate`, `write`, `commit_put`, and exists from the callback of the last on.
Reading is a lookup in a `Reader` and a `read_into` before the next await. What a crash leaves is whole: slots without a
record are free again at the next start, and a record implies that its data is durable.
"""

import asyncio
import errno
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import lmdb

from esker.chunkserver.engine.commit_group import CommitDone, Put, Remove, StatePut
from esker.chunkserver.engine.committer import Committer, Group
from esker.chunkserver.engine.errors import CorruptRecord, DriveFailed
from esker.chunkserver.engine.files import Files
from esker.chunkserver.engine.images import Images
from esker.chunkserver.engine.interface import Done, IoEngine
from esker.chunkserver.engine.opening import OpenDrive, open_drive
from esker.chunkserver.engine.reader import Reader
from esker.chunkserver.engine.record import ReadRecord, Record, chain_prefix, decode_record, encode_record
from esker.chunkserver.engine.slot_files import Slot
from esker.chunkserver.engine.waiting import IdleWaiter
from esker.runtime.logging import get_logger
from esker.wire.limits import ALIGN_BYTES, aligned

_log = get_logger("chunkserver.engine")


class ScanPage(NamedTuple):
    """A page of records in key order."""

    items: list[tuple[bytes, Record]]
    next_after: bytes | None
    """Where the next page begins; None behind the last one."""
    damaged: list[bytes]
    """Keys of records in the page that cannot be read."""


class DriveStore:
    """See the module."""

    def __init__(self, drive: OpenDrive, engine: IoEngine, loop: asyncio.AbstractEventLoop) -> None:
        """Takes over an open drive; `DriveStore.open` is the way in."""
        self.cluster_id = drive.superblock.cluster_id
        self.drive_id = drive.superblock.drive_id
        self.direct = drive.files.direct
        self.failed: str | None = None
        """Why the drive takes no more writes. Where its index cannot be read any more, `DriveFailed` is raised by every
        method that looks something up.
        """
        self._drive = drive
        self._index = drive.index
        self._slots = drive.slots
        self._classes = drive.slots.classes
        self._engine = engine
        self._idle = IdleWaiter(loop)
        self._committer = Committer(drive.index, drive.files, loop, self._on_group, self._idle.notify)
        self.images = Images(drive.index, drive.slots, self._committer, engine, drive.pending, self._note_corrupt)
        """Mutable chunks."""
        self._index.unreadable = self._unreadable
        self._on_failed: Callable[[str], None] | None = None
        self._corrupt_records = drive.corrupt_records
        self._commits = 0
        self._commit_records = 0
        self._commit_us = 0
        self._data_sync_us = 0
        self._closed = False

    @classmethod
    def open(
        cls,
        directory: str | Path,
        *,
        cluster_id: str,
        capacity_bytes: int,
        engine: IoEngine,
        drive_id: str = "",
        files: Files | None = None,
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> "DriveStore":
        """Opens the drive in `directory`, making one if it is empty or absent; takes as long as reading its index.

        `cluster_id` must be the drive's ("" takes the drive's word, and makes none); so must `drive_id`, if given; a
        fresh drive without one draws it. Raises `UserError`, in one line that says what to do.
        """
        loop = loop or asyncio.get_running_loop()
        drive = open_drive(
            Path(directory),
            cluster_id=cluster_id,
            drive_id=drive_id,
            capacity_bytes=capacity_bytes,
            engine=engine,
            files=files,
        )
        return cls(drive, engine, loop)

    @property
    def capacity_bytes(self) -> int:
        return self._slots.capacity_bytes

    @property
    def used_bytes(self) -> int:
        """Slots that are taken, in flight or on their way back."""
        self._slots.take_back()
        return self._slots.used_bytes

    def on_failed(self, callback: Callable[[str], None]) -> None:
        """`callback(reason)` runs once, when the drive stops taking writes."""
        self._on_failed = callback

    # Reading

    def reader(self) -> Reader:
        """A snapshot for one batch of lookups; never hold it across an await."""
        return Reader(self._index, self._note_corrupt)

    def read_into(self, record: ReadRecord, buffer: memoryview, done: Done, token: Any) -> None:
        """`read_run` of one chunk."""
        self.read_run((record,), buffer, done, token)

    def read_run(self, records: Sequence[ReadRecord], buffer: memoryview, done: Done, token: Any) -> None:
        """Queues the read of chunks in slots that follow each other, padded: `buffer` must have exactly their size.

        Of one chunk that is `aligned(length)`; all but the last must fill their slots. In the same await-free stretch
        as the lookup. A result of `len(buffer)` is success; anything else is a failed read, whatever it moved.
        """
        length, pages, number, _, _ = records[0]
        owner = self._classes[pages]
        assert len(buffer) == (len(records) - 1) * owner.slot_bytes + aligned(records[-1][0]), (len(buffer), length)
        last = number + len(records) - 1
        if last < owner.per_segment:
            self._engine.read(owner.fds[0], number * owner.slot_bytes, buffer, done, token)
            return
        fd, offset = owner.place(number)
        fd_of_last, _ = owner.place(last)
        if fd == fd_of_last:
            self._engine.read(fd, offset, buffer, done, token)
        else:
            self._engine.read(fd, offset, buffer[: owner.slot_bytes], done, token)  # short: the caller reads singly

    def read_part(self, record: ReadRecord, at: int, buffer: memoryview, done: Done, token: Any) -> None:
        """Queues the read of a part of one chunk, padded: from `at`, a multiple of 4 KiB as the buffer's length is.

        In the same await-free stretch as the lookup, as for `read_run`.
        """
        owner = self._classes[record[1]]
        assert at + len(buffer) <= owner.slot_bytes, (at, len(buffer), owner.slot_bytes)
        fd, offset = owner.place(record[2])
        self._engine.read(fd, offset + at, buffer, done, token)

    def scan(self, chain_id: int | None, after: bytes = b"", limit: int = 1000) -> ScanPage:
        """Up to `limit` records of a chain (None: of all) whose keys follow `after`. Corrupt ones are told apart."""
        prefix = b"" if chain_id is None else chain_prefix(chain_id)
        items: list[tuple[bytes, Record]] = []
        damaged: list[bytes] = []
        seen = 0
        with self._index.snapshot(self._index.chunks) as txn:
            cursor = txn.cursor()
            # The successor of a key is the key with a zero byte behind it.
            found = cursor.set_range(after + b"\0" if after else prefix)
            while found:
                key = cursor.key()
                if not key.startswith(prefix):
                    break
                if seen == limit:
                    return ScanPage(items, after, damaged)
                seen += 1
                after = key
                if not cursor.value():
                    damaged.append(key)  # emptied, and told of, at a start
                    found = cursor.next()
                    continue
                try:
                    items.append((key, decode_record(key, cursor.value())))
                except CorruptRecord as error:
                    damaged.append(key)
                    self._note_corrupt(key, error)
                found = cursor.next()
        return ScanPage(items, None, damaged)

    def state_get(self, name: str) -> bytes | None:
        """What `state_put` stored last under `name`."""
        with self._index.snapshot(self._index.state) as txn:
            return txn.get(name.encode())

    # Writing

    def allocate(self, length: int, slot_bytes: int, *, reserve: bool) -> Slot:
        """A slot for a chunk of `length` bytes of a namespace whose chunks have up to `slot_bytes`.

        With `reserve` (replicas behind the head) the last of the capacity may be used. Raises `NoSpace`, `DriveFailed`,
        and `ValueError` for sizes out of range.
        """
        if self.failed is not None:
            raise DriveFailed(self.failed)
        try:
            return self._slots.allocate(length, slot_bytes, reserve=reserve)
        except OSError as error:
            self._fail(f"cannot make room: {error}")
            raise DriveFailed(str(error)) from error

    def write(self, slot: Slot, buffer: memoryview, done: Done, token: Any) -> None:
        """Queues the write of a chunk: `buffer` must have `slot.padded_bytes` bytes, its padding zeroed.

        A short write goes on by itself. A result of `slot.padded_bytes` is success, anything else a negative errno.
        """
        assert len(buffer) == slot.padded_bytes, (len(buffer), slot.padded_bytes)
        self._engine.write(slot.fd, slot.offset, buffer, _written, (slot, buffer, 0, done, token, self._engine))

    def release(self, slot: Slot) -> None:
        """Gives back a slot that will not be committed; a write of it may still be under way."""
        slot.released = True
        self._slots.give_back([(slot.pages, slot.number)])

    def commit_put(self, record_key: bytes, record: Record, slot: Slot, done: CommitDone, token: Any) -> None:
        """Makes a written chunk exist, in place of what is there under its key. The slot is the store's from here on.

        Outcomes: OK; NO_SPACE, when the index is full; IO_ERROR, when the drive failed.
        """
        assert slot.written, "a chunk is committed after its write has succeeded"
        assert (record.pages, record.slot) == (slot.pages, slot.number), "the record names another slot"
        self._committer.queue(Put(record_key, encode_record(record_key, record), slot, done, token))

    def commit_remove(self, record_key: bytes, version: int, put_id: bytes, done: CommitDone, token: Any) -> None:
        """Removes a chunk, if it has this version (0: any) and this put id (zeros: any).

        Outcomes: OK; NOT_FOUND; CONDITION, when it is another; NO_SPACE; IO_ERROR.
        """
        self._committer.queue(Remove(record_key, version, put_id, done, token))

    def state_put(self, name: str, value: bytes, done: CommitDone, token: Any) -> None:
        """Stores `value` for `state_get`. Outcomes: OK, NO_SPACE, IO_ERROR."""
        self._committer.queue(StatePut(name.encode(), value, done, token))

    # The whole

    def counters(self) -> dict[str, int]:
        """Figures of this moment, and totals since the start. Mean group: `commit_records / commits`."""
        slots = self._slots
        slots.take_back()
        return {
            "backed_bytes": slots.backed_bytes,
            "capacity_bytes": slots.capacity_bytes,
            "commit_records": self._commit_records,
            "commit_us": self._commit_us,
            "commits": self._commits,
            "corrupt_records": self._corrupt_records,
            "data_sync_us": self._data_sync_us,
            "index_bytes": self._drive.index_bytes(),
            "no_space": slots.no_space,
            "slots": slots.used_slots,
            "used_bytes": slots.used_bytes,
        }

    def check_place(self) -> None:
        """Fails the drive when its directory has vanished or was replaced under it; cheap, for once a second."""
        if self.failed is None:
            lost = self._drive.lost_part()
            if lost:
                self._fail(lost)

    async def drain(self, timeout_s: float) -> bool:
        """Waits until all I/O of the engine and all commits are done; false when it took longer than that."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        while self._engine.in_flight or self._committer.pending:
            if not await self._engine.drain(max(0.0, deadline - loop.time())):
                return False
            if not await self._idle.wait(lambda: self._committer.pending == 0, max(0.0, deadline - loop.time())):
                return False
        return True

    def close(self) -> None:
        """Commits what is queued, then closes and unlocks the drive. The engine stays open, with nothing of ours."""
        if self._closed:
            return
        self._closed = True
        self._committer.close()
        self._drive.close()

    def _on_group(self, group: Group) -> None:
        self._slots.give_back(group.freed)
        self._commits += 1
        self._commit_records += len(group.operations)
        self._commit_us += group.commit_us
        self._data_sync_us += group.data_sync_us
        if group.failure is not None:
            self._fail(group.failure)

    def _fail(self, reason: str) -> None:
        if self.failed is None:
            self.failed = reason
            _log.error("drive takes no more writes", drive_id=self.drive_id, reason=reason)
            if self._on_failed is not None:
                self._on_failed(reason)

    def _unreadable(self, error: lmdb.Error) -> DriveFailed:
        self._fail(f"its index cannot be read: {type(error).__name__}: {error}")
        return DriveFailed(self.failed or str(error))

    def _note_corrupt(self, record_key: bytes, error: CorruptRecord) -> None:
        self._corrupt_records += 1
        _log.error("corrupt record, treated as a miss", record_key=record_key.hex(), reason=str(error))


_WriteToken = tuple[Slot, memoryview, int, Done, Any, IoEngine]


def _written(token: _WriteToken, result: int) -> None:
    """Ends a write, or continues a short one."""
    slot, buffer, before, done, caller_token, engine = token
    if result <= 0:
        done(caller_token, result or -errno.EIO)
        return
    moved = before + result
    if moved == slot.padded_bytes:
        slot.written = True
        done(caller_token, moved)
        return
    # Direct I/O continues at a page; what lies before it is written once more.
    moved &= -ALIGN_BYTES
    if slot.released or moved <= before:
        # A released slot may belong to another chunk by the time that more could be written.
        done(caller_token, -errno.EIO)
        return
    engine.write(
        slot.fd, slot.offset + moved, buffer[moved:], _written, (slot, buffer, moved, done, caller_token, engine)
    )
