"""Opening a drive: its parts in the right order, the free map from the records, and every way that this can fail.

A fresh drive is filled in the order data directory, index, superblock, so that a filled superblock means that the rest
stands. The free map is never stored: it follows from the records, read page by page in short snapshots, and so cannot
disagree with them. A record that is corrupt, or claims a slot that an earlier one has, is emptied before the drive
serves anything: an empty one says that a chunk was here and is lost, so that no replica takes it for absent and lets
other copies go. A whole record whose slot lies beyond the data files is another matter: no crash leaves one, so files
are missing or were cut, and the drive is refused as it is, for what is missing may come back.
"""

import secrets
import shutil
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import lmdb

from esker.chunkserver.engine.committer import Index
from esker.chunkserver.engine.errors import CorruptRecord, NotNow
from esker.chunkserver.engine.files import Files, LocalFiles
from esker.chunkserver.engine.image_record import IMAGE_KEY_BYTES, PENDING, decode_image
from esker.chunkserver.engine.interface import IoEngine
from esker.chunkserver.engine.record import decode_for_read
from esker.chunkserver.engine.slots import Slots
from esker.chunkserver.engine.superblock import DriveLock, Superblock, directory_error
from esker.runtime.lmdb_length import missing_bytes
from esker.runtime.logging import get_logger
from esker.runtime.sizes import format_size
from esker.wire.errors import UserError
from esker.wire.limits import GIB, MIB

CAPACITY_BYTES_MIN = 16 * MIB
INDEX_MAP_BYTES_MIN = 16 * GIB
INDEX_SHARE = 4
"""The index may grow to this part of the capacity; at 4 KiB chunks a record takes about a sixth of its chunk."""
SCAN_PAGE = 2000
LOGGED_RECORDS_MAX = 20
_MEND = "restore it from a backup, or remove the whole drive directory so that the drive is made anew"

_log = get_logger("chunkserver.engine")


class OpenDrive:
    """The parts of an open drive."""

    def __init__(self, lock: DriveLock, superblock: Superblock, files: Files, index: Index, slots: Slots) -> None:
        self.superblock = superblock
        self.files = files
        self.index = index
        self.slots = slots
        self.corrupt_records = 0
        self.pending: list[bytes] = []
        """Record keys of the mutable chunks that have a pending image."""
        self._lock = lock
        self._index_file = lock.directory / "meta.lmdb" / "data.mdb"
        places = (lock.directory / "superblock", lock.directory / "data", self._index_file)
        self._places = {path: _identity(path) for path in places}

    def index_bytes(self) -> int:
        """Length of the index file; 0 when it has vanished."""
        try:
            return self._index_file.stat().st_size
        except FileNotFoundError:
            return 0

    def lost_part(self) -> str:
        """Why the drive is no longer where it was opened; empty while it is there. A few microseconds."""
        for path, identity in self._places.items():
            try:
                if _identity(path) != identity:
                    return f"{path} was replaced while the drive is open; restart the worker"
            except OSError as error:
                return f"{path} has vanished while the drive is open ({error.strerror}); bring the drive directory back"
        return ""

    def close(self) -> None:
        self.slots.close()
        self.index.env.close()
        self._lock.release()


def _identity(path: Path) -> tuple[int, int]:
    state = path.stat()
    return state.st_dev, state.st_ino


def open_drive(
    directory: Path, *, cluster_id: str, drive_id: str, capacity_bytes: int, engine: IoEngine, files: Files | None
) -> OpenDrive:
    """See `DriveStore.open`."""
    if capacity_bytes < CAPACITY_BYTES_MIN:
        raise UserError(
            f"capacity of {directory} is {capacity_bytes} bytes; at least {CAPACITY_BYTES_MIN} are needed: raise it"
        )
    files = files or LocalFiles()
    with ExitStack() as undo:
        lock = DriveLock(directory)
        undo.callback(lock.release)
        try:
            superblock = lock.superblock
            if superblock is not None:
                _check_identity(directory, superblock, cluster_id, drive_id)
            elif not cluster_id:
                raise UserError(f"{directory} holds no drive; name the cluster that a new one is for")
            index, slots = _open_parts(directory, superblock, capacity_bytes, engine, files, undo)
            if superblock is None:
                map_bytes = index.env.info()["map_size"]
                superblock = Superblock(cluster_id, drive_id or secrets.token_hex(8), capacity_bytes, map_bytes)
                lock.fill(superblock)
            drive = OpenDrive(lock, superblock, files, index, slots)
            drive.corrupt_records = _Loading(index, slots, directory, drive.pending).run()
        except OSError as error:
            raise directory_error(directory, error) from error
        except lmdb.DiskError as error:
            raise NotNow(f"no space left for drive {directory}; free some space on its file system") from error
        except lmdb.Error as error:
            raise UserError(
                f"index of drive {directory} cannot be opened: {error}; "
                f"check the drive, or replace it with an empty directory"
            ) from error
        undo.pop_all()
        return drive


def _check_identity(directory: Path, superblock: Superblock, cluster_id: str, drive_id: str) -> None:
    if cluster_id and superblock.cluster_id != cluster_id:
        raise UserError(
            f"drive {directory} belongs to cluster {superblock.cluster_id}, not to {cluster_id}; "
            f"choose another directory, or connect to its own cluster"
        )
    if drive_id and superblock.drive_id != drive_id:
        raise UserError(f"{directory} holds drive {superblock.drive_id}, not {drive_id}; choose another directory")


def _open_parts(
    directory: Path,
    superblock: Superblock | None,
    capacity_bytes: int,
    engine: IoEngine,
    files: Files,
    undo: ExitStack,
) -> tuple[Index, Slots]:
    """The index and the slot files; made first where the drive is fresh."""
    data, meta = directory / "data", directory / "meta.lmdb"
    fresh = superblock is None
    free_bytes = files.free_bytes(directory)
    if fresh:
        if free_bytes < CAPACITY_BYTES_MIN:
            raise NotNow(
                f"only {format_size(free_bytes)} are free for drive {directory}, at least "
                f"{format_size(CAPACITY_BYTES_MIN)} are needed: free some space on its file system"
            )
        # Whatever an interrupted creation left of the index is empty, for no chunk can have been stored.
        shutil.rmtree(meta, ignore_errors=True)
        data.mkdir(exist_ok=True)
        meta.mkdir()
        map_bytes = max(INDEX_MAP_BYTES_MIN, capacity_bytes // INDEX_SHARE // GIB * GIB)
    else:
        assert superblock is not None
        map_bytes = superblock.index_map_bytes
        for path in (data, meta / "data.mdb"):
            if not path.exists():
                raise UserError(f"{path} is missing; {_MEND}")
        _check_index_file(meta / "data.mdb")
    files.probe(data)
    env = files.open_index(meta, map_bytes, create=fresh)
    undo.callback(env.close)
    index = Index(env, create=fresh)
    slots = Slots(files, data, capacity_bytes, engine)
    undo.callback(slots.close)
    return index, slots


def _check_index_file(path: Path) -> None:
    """LMDB would take an empty file for a new index, and a truncated one would kill the process."""
    if path.stat().st_size == 0:
        raise UserError(f"{path} is empty; {_MEND}")
    missing = missing_bytes(path)
    if missing:
        raise UserError(f"{path} is truncated, at least {missing} bytes are missing at its end; {_MEND}")


class _Loading:
    """Claims the slot of every record and image, and empties those that cannot be true."""

    def __init__(self, index: Index, slots: Slots, directory: Path, pending: list[bytes]) -> None:
        """`pending` gets the record keys of chunks that have a pending image."""
        self._index = index
        self._slots = slots
        self._directory = directory
        self._pending = pending
        self._bad: list[tuple[Any, bytes]] = []
        self._missing = 0
        self._missing_file = directory

    def run(self) -> int:
        """How many were emptied. Raises `UserError`, with nothing emptied, when data files lack the slots of whole
        records.
        """
        index, directory = self._index, self._directory
        self._scan(index.chunks, self._claim_record)
        self._scan(index.images, self._claim_image)
        if self._missing:
            raise UserError(
                f"{self._missing_file} is missing or truncated: {self._missing} chunks of drive {directory} lie "
                f"beyond its data files; {_MEND}"
            )
        if self._bad:
            _log.error(
                "corrupt records emptied at start, their chunks are lost", directory=directory, records=len(self._bad)
            )
            with index.env.begin(write=True) as txn:
                for database, key in self._bad:
                    txn.put(key, b"", db=database)
        self._slots.finish_loading()
        return len(self._bad)

    def _scan(self, database: Any, claim: Callable[[bytes, bytes], str | Path]) -> None:
        """`claim` gives why a record cannot be true, or the file that should hold its slot, or nothing."""
        after = b""
        seen = SCAN_PAGE
        while seen == SCAN_PAGE:
            seen = 0
            with self._index.env.begin(db=database) as txn:
                cursor = txn.cursor()
                found = cursor.set_range(after + b"\0" if after else b"")
                while found and seen < SCAN_PAGE:
                    after, value = cursor.item()
                    seen += 1
                    reason = claim(after, value) if value else ""
                    if isinstance(reason, Path):
                        self._missing_file = self._missing_file if self._missing else reason
                        self._missing += 1
                    elif reason:
                        self._bad.append((database, after))
                        if len(self._bad) <= LOGGED_RECORDS_MAX:
                            _log.error("corrupt record emptied", record_key=after.hex(), reason=reason)
                    found = cursor.next()

    def _claim_record(self, key: bytes, value: bytes) -> str | Path:
        try:
            _, pages, number, _, _ = decode_for_read(key, value)
        except CorruptRecord as error:
            return str(error)
        return self._claim(pages, number)

    def _claim_image(self, key: bytes, value: bytes) -> str | Path:
        try:
            image = decode_image(key, value)
        except CorruptRecord as error:
            return str(error)
        reason = "" if image.absent else self._claim(image.pages, image.slot)
        if not reason and len(key) == IMAGE_KEY_BYTES and key.endswith(PENDING):
            self._pending.append(key[:-1])
        return reason

    def _claim(self, pages: int, number: int) -> str | Path:
        if self._slots.claim(pages, number):
            return ""
        return self._slots.missing_file(pages, number) or f"an earlier record has slot {number} of {pages} pages"
