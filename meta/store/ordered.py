"""One LMDB database as an ordered map whose keys may be longer than LMDB's 511 bytes.

A key of up to 510 bytes is stored as it is. Longer keys with the same first 510 bytes P share one bucket, stored under
P + 0x00 (511 bytes, so it cannot meet a short key): a sorted MessagePack list of (rest of the key, value). All keys of
a bucket sort right after P and before whatever follows P in the other keys, so walking the database in LMDB's order
and opening the buckets gives every key in order.
"""

from bisect import bisect_left
from collections.abc import Iterator
from typing import Any, cast

import lmdb
import msgspec

from esker.meta.store.base import KeyValue

DIRECT_BYTES_MAX = 510
Bucket = list[tuple[bytes, bytes]]
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Bucket).decode


class OrderedMap:
    """Works inside the caller's LMDB transaction; holds nothing but the database handle."""

    def __init__(self, database: Any) -> None:
        self._database = database

    def get(self, txn: lmdb.Transaction, key: bytes) -> bytes | None:
        if len(key) <= DIRECT_BYTES_MAX:
            return cast("bytes | None", txn.get(key, db=self._database))
        bucket = self._bucket(txn, key)
        at = _find(bucket, key)
        return bucket[at][1] if at < len(bucket) and bucket[at][0] == key[DIRECT_BYTES_MAX:] else None

    def put(self, txn: lmdb.Transaction, key: bytes, value: bytes) -> None:
        if len(key) <= DIRECT_BYTES_MAX:
            txn.put(key, value, db=self._database)
            return
        bucket = self._bucket(txn, key)
        at = _find(bucket, key)
        rest = key[DIRECT_BYTES_MAX:]
        bucket[at : at + (at < len(bucket) and bucket[at][0] == rest)] = [(rest, value)]
        txn.put(_bucket_key(key), _encode(bucket), db=self._database)

    def delete(self, txn: lmdb.Transaction, key: bytes) -> None:
        if len(key) <= DIRECT_BYTES_MAX:
            txn.delete(key, db=self._database)
            return
        bucket = self._bucket(txn, key)
        rest = key[DIRECT_BYTES_MAX:]
        self._store(txn, _bucket_key(key), [entry for entry in bucket if entry[0] != rest])

    def delete_range(self, txn: lmdb.Transaction, begin: bytes, end: bytes) -> None:
        last = _bound(end)
        with txn.cursor(db=self._database) as cursor:
            found = _seek(cursor, _bound(begin))
            while found:
                stored = bytes(cursor.key())
                if stored > last or stored == end:
                    return
                if len(stored) <= DIRECT_BYTES_MAX:
                    found = cursor.delete()
                    continue
                prefix = stored[:DIRECT_BYTES_MAX]
                bucket = _decode(cursor.value())
                kept = [entry for entry in bucket if not begin <= prefix + entry[0] < end]
                if kept:
                    if len(kept) < len(bucket):
                        txn.put(stored, _encode(kept), db=self._database)
                    found = _seek(cursor, stored) and cursor.next()
                else:
                    found = cursor.delete()

    def get_range(self, txn: lmdb.Transaction, begin: bytes, end: bytes, limit: int, reverse: bool) -> list[KeyValue]:
        found: list[KeyValue] = []
        with txn.cursor(db=self._database) as cursor:
            for key, value in _walk_back(cursor, begin, end) if reverse else _walk(cursor, begin, end):
                found.append((key, value))
                if len(found) == limit:
                    break
        return found

    def _bucket(self, txn: lmdb.Transaction, key: bytes) -> Bucket:
        stored = txn.get(_bucket_key(key), db=self._database)
        return _decode(stored) if stored is not None else []

    def _store(self, txn: lmdb.Transaction, bucket_key: bytes, bucket: Bucket) -> None:
        if bucket:
            txn.put(bucket_key, _encode(bucket), db=self._database)
        else:
            txn.delete(bucket_key, db=self._database)


def _bucket_key(key: bytes) -> bytes:
    return key[:DIRECT_BYTES_MAX] + b"\x00"


def _bound(key: bytes) -> bytes:
    """Where the stored form of `key` is, or would be."""
    return key if len(key) <= DIRECT_BYTES_MAX else _bucket_key(key)


def _find(bucket: Bucket, key: bytes) -> int:
    return bisect_left(bucket, key[DIRECT_BYTES_MAX:], key=lambda entry: entry[0])


def _seek(cursor: lmdb.Cursor, key: bytes) -> bool:
    return cursor.set_range(key) if key else cursor.first()


def _walk(cursor: lmdb.Cursor, begin: bytes, end: bytes) -> Iterator[KeyValue]:
    if not _seek(cursor, _bound(begin)):
        return
    last = _bound(end)
    for stored, value in cast("Iterator[KeyValue]", cursor.iternext(keys=True, values=True)):
        if len(stored) <= DIRECT_BYTES_MAX:
            if stored >= end:
                return
            yield stored, value
        elif stored > last:
            return
        else:
            prefix = stored[:DIRECT_BYTES_MAX]
            yield from ((prefix + rest, held) for rest, held in _decode(value) if begin <= prefix + rest < end)


def _walk_back(cursor: lmdb.Cursor, begin: bytes, end: bytes) -> Iterator[KeyValue]:
    last = _bound(end)
    found = _seek(cursor, last)
    if not found:
        found = cursor.last()
    elif bytes(cursor.key()) > last or len(last) <= DIRECT_BYTES_MAX:
        found = cursor.prev()
    if not found:
        return
    first = _bound(begin)
    for stored, value in cast("Iterator[KeyValue]", cursor.iterprev(keys=True, values=True)):
        if stored < first:
            return
        if len(stored) <= DIRECT_BYTES_MAX:
            yield stored, value
        else:
            prefix = stored[:DIRECT_BYTES_MAX]
            for rest, held in reversed(_decode(value)):
                if begin <= prefix + rest < end:
                    yield prefix + rest, held
