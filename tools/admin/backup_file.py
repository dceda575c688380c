"""The file of a metadata backup: written once, in order, read only when it is whole.

    magic 8 bytes | frames, each: kind u8, number u32, body length u32, body, XXH3-64 u64 of everything before it in
    the frame, all little-endian

Frame 0 is the header (JSON: who, when, of what). Frames with rows follow (MessagePack: an array of [key, value]), those
of the snapshot before those of the catalog. The last frame says how many frames and rows there were. A file without it
was cut short; a wrong number or checksum is damage. Nothing is believed before the whole file was read once.
"""

import contextlib
import os
import struct
from collections.abc import Iterator, Sequence
from enum import IntEnum
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

import msgspec
from xxhash import xxh3_64_intdigest

from esker.wire.admin_messages import MetaRow
from esker.wire.errors import UserError

MAGIC = b"eskermb1"
FORMAT = 1
_HEAD = struct.Struct("<BII")
_SUM = struct.Struct("<Q")
BODY_BYTES_MAX = 64 << 20
_MODE = 0o600


class Kind(IntEnum):
    """Of a frame."""

    HEADER = 1
    SNAPSHOT = 2
    CATALOG = 3
    END = 4


class BackupHeader(msgspec.Struct, frozen=True):
    """What the backup is of."""

    format: int
    esker: str
    """Version that wrote it."""
    cluster_id: str
    created_ms: int
    snapshot_version: int
    """Of the store, that all rows but the catalog's have."""


class BackupEnd(msgspec.Struct, frozen=True):
    """The last frame."""

    frames: int
    rows: int


class BackupWriter:
    """Writes a backup to `path`, which appears when it is whole, at the end of a `with` block.

    Raises `UserError` where the file cannot be written, or is there already.
    """

    def __init__(self, path: Path, header: BackupHeader) -> None:
        self._path = path
        self._header = header
        self._partial = path.parent / (path.name + ".partial")
        self._number = 0
        self.rows = 0
        self.size_bytes = 0

    def __enter__(self) -> "BackupWriter":
        try:
            if self._path.exists():
                raise UserError(f"{self._path} is there already; choose another file")
            fd = os.open(self._partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, _MODE)
        except OSError as error:
            raise UserError(f"cannot write {self._path}: {error.strerror}") from error
        self._file: BinaryIO = os.fdopen(fd, "wb")
        self._write(MAGIC)
        self._frame(Kind.HEADER, msgspec.json.encode(self._header))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None:
                self._finish()
        finally:
            # What matters was flushed in `_finish`; the rest of a failed backup may find no space, and is removed.
            with contextlib.suppress(OSError):
                self._file.close()
            self._partial.unlink(missing_ok=True)

    def add(self, kind: Kind, rows: Sequence[MetaRow]) -> None:
        """Rows, in key order."""
        self.rows += len(rows)
        self._frame(kind, msgspec.msgpack.encode(rows))

    def _finish(self) -> None:
        self._frame(Kind.END, msgspec.json.encode(BackupEnd(self._number, self.rows)))
        try:
            self._file.flush()
            os.fsync(self._file.fileno())
            os.rename(self._partial, self._path)
            directory = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(directory)
            finally:
                os.close(directory)
        except OSError as error:
            raise UserError(f"cannot write {self._path}: {error.strerror}") from error

    def _frame(self, kind: Kind, body: bytes) -> None:
        assert len(body) <= BODY_BYTES_MAX, len(body)
        frame = _HEAD.pack(kind, self._number, len(body)) + body
        self._write(frame + _SUM.pack(xxh3_64_intdigest(frame)))
        self._number += 1

    def _write(self, data: bytes) -> None:
        try:
            self._file.write(data)
        except OSError as error:
            raise UserError(f"cannot write {self._path}: {error.strerror}") from error
        self.size_bytes += len(data)


def read_backup(path: Path) -> Iterator[tuple[Kind, list[MetaRow]]]:
    """The rows of a backup, frame by frame. Read `checked_header` first: it tells whether the file is whole."""
    for kind, body in _frames(path):
        if kind in (Kind.SNAPSHOT, Kind.CATALOG):
            yield kind, _decoded(path, body)


def checked_header(path: Path) -> tuple[BackupHeader, int]:
    """The header of a backup that is whole, and its number of rows. Raises `UserError` for any other file."""
    header: BackupHeader | None = None
    end: BackupEnd | None = None
    frames = rows = 0
    for kind, body in _frames(path):
        if end is not None:
            raise UserError(f"{path} goes on after its end; it is damaged")
        if (kind is Kind.HEADER) != (frames == 0):
            raise UserError(f"{path} is damaged: its header is not at the begin")
        if kind is Kind.HEADER:
            header = _header(path, body)
        elif kind is Kind.END:
            end = _end(path, body)
        else:
            rows += len(_decoded(path, body))
        frames += 1
    if header is None or end is None:
        raise UserError(f"{path} was cut short: take another backup")
    if (end.frames, end.rows) != (frames - 1, rows):
        raise UserError(f"{path} is damaged: it has {rows} rows of {end.rows}")
    return header, rows


def _header(path: Path, body: bytes) -> BackupHeader:
    try:
        header = msgspec.json.decode(body, type=BackupHeader)
    except msgspec.DecodeError as error:
        raise UserError(f"{path} has a header that this esker cannot read: {error}") from error
    if header.format != FORMAT:
        raise UserError(f"{path} has format {header.format}, this esker reads {FORMAT}; use esker {header.esker}")
    return header


def _end(path: Path, body: bytes) -> BackupEnd:
    try:
        return msgspec.json.decode(body, type=BackupEnd)
    except msgspec.DecodeError as error:
        raise UserError(f"{path} is damaged at its end: {error}") from error


def _decoded(path: Path, body: bytes) -> list[MetaRow]:
    try:
        return msgspec.msgpack.decode(body, type=list[MetaRow])
    except msgspec.DecodeError as error:
        raise UserError(f"{path} is damaged: {error}") from error


def _frames(path: Path) -> Iterator[tuple[Kind, bytes]]:
    try:
        with path.open("rb") as file:
            if file.read(len(MAGIC)) != MAGIC:
                raise UserError(f"{path} is no backup of esker's metadata")
            number = 0
            while head := file.read(_HEAD.size):
                yield _frame(path, file, head, number)
                number += 1
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error


def _frame(path: Path, file: BinaryIO, head: bytes, number: int) -> tuple[Kind, bytes]:
    if len(head) < _HEAD.size:
        raise UserError(f"{path} was cut short: take another backup")
    kind, said, length = _HEAD.unpack(head)
    if said != number or length > BODY_BYTES_MAX or kind not in list(Kind):
        raise UserError(f"{path} is damaged at frame {number}")
    body = file.read(length)
    stored = file.read(_SUM.size)
    if len(body) < length or len(stored) < _SUM.size:
        raise UserError(f"{path} was cut short: take another backup")
    if _SUM.unpack(stored)[0] != xxh3_64_intdigest(head + body):
        raise UserError(f"{path} is damaged at frame {number}: its checksum does not match")
    return Kind(kind), body
