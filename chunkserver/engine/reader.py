"""Looking records up: one short LMDB snapshot per batch, used and closed without an await in between.

A snapshot that is held while groups commit keeps their old pages alive and makes the index grow for good. The same
await-free stretch is what the slot fence relies on: a read that is queued in it comes before the freeing of any slot
that this snapshot still names.
"""

import struct
from collections.abc import Callable
from typing import Any, TypeVar

import lmdb

from esker.chunkserver.engine.committer import Index
from esker.chunkserver.engine.errors import CorruptRecord
from esker.chunkserver.engine.record import decode_for_read, decode_record
from esker.wire.messages import LOOKUP_KEY

_BLOCK_KEY = struct.Struct(">II16sI")
"""A record key whose chunk id is spelled out: chain id, space, object, index."""

EMPTIED = "the record was corrupt at an earlier start"

OnCorrupt = Callable[[bytes, CorruptRecord], None]
R = TypeVar("R")


def _lookup(decode: Callable[[bytes, bytes], R]) -> "Callable[[Reader, bytes], R | None]":
    """A method: what `decode` makes of the record under a key.

    Raises `CorruptRecord`, which is logged and counted already: the chunk is lost here. Raises `DriveFailed`.
    """

    def look_up(self: "Reader", record_key: bytes) -> R | None:
        try:
            value = self._get(record_key)
        except lmdb.Error as error:
            raise self._unreadable(error) from error
        if value is None:
            return None
        if not value:
            raise CorruptRecord(EMPTIED)
        try:
            return decode(record_key, value)
        except CorruptRecord as error:
            self._on_corrupt(record_key, error)
            raise

    return look_up


class Reader:
    """A context manager; see the module."""

    __slots__ = ("_get", "_on_corrupt", "_txn", "_unreadable")

    def __init__(self, index: Index, on_corrupt: OnCorrupt) -> None:
        """Raises `DriveFailed`."""
        self._unreadable = index.unreadable
        try:
            self._txn = index.env.begin(db=index.chunks)
        except lmdb.Error as error:
            raise index.unreadable(error) from error
        self._get = self._txn.get
        self._on_corrupt = on_corrupt

    def __enter__(self) -> "Reader":
        return self

    def __exit__(self, *exc_info: Any) -> None:
        self._txn.abort()

    get = _lookup(decode_for_read)
    """What a read needs."""
    record = _lookup(decode_record)
    """All of the record."""

    def present(self, space: int, packed_keys: bytes | memoryview) -> bytes:
        """For packed (object, chain) keys of chunk 0 in `space`: a byte each, 1 where there is a record.

        Records are not verified here; reading a corrupt one is a miss. Raises `DriveFailed`.
        """
        get, pack = self._get, _BLOCK_KEY.pack
        keys = LOOKUP_KEY.iter_unpack(packed_keys)
        try:
            return bytes([bool(get(pack(chain, space, object_id, 0))) for object_id, chain in keys])
        except lmdb.Error as error:
            raise self._unreadable(error) from error
