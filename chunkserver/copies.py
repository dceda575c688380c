"""Whole copies between replicas: a stored chunk sent on to a successor, and a successor's chunk fetched.

Only bytes that verify against their checksums are passed on or taken over.
"""

import asyncio
from collections.abc import Sequence
from typing import Any, Protocol

from esker.chunkserver.engine.errors import CorruptRecord, DriveFailed, NoSpace
from esker.chunkserver.engine.slot_class import zero_padding
from esker.chunkserver.engine.store import DriveStore
from esker.chunkserver.operations import Operation
from esker.chunkserver.pool import Region, WorkerPool
from esker.craq import messages as craq
from esker.craq.replica import ChainReplica
from esker.runtime.counters import Counters
from esker.runtime.logging import get_logger
from esker.wire.checksum import checksums
from esker.wire.codec import decode_body
from esker.wire.errors import EskerError
from esker.wire.limits import aligned
from esker.wire.messages import READ_EXTENT, READ_RESULT, Method, Read, ReadReply
from esker.wire.rpc_client import Connection
from esker.wire.status import Status

log = get_logger("chunkserver.copies")


class Runner(Protocol):
    """What copies need of the replica runner."""

    def is_current(self, op: int, operation: Operation) -> bool: ...

    def dispatch(self, replica: ChainReplica, event: craq.Event) -> None: ...

    def send_on(self, operation: Operation, effect: craq.Forward, region: Region | None, at: int) -> None: ...


class Copies:
    """Reads chunks for successors and from them."""

    def __init__(self, store: DriveStore, pool: WorkerPool, counters: Counters, runner: Runner) -> None:
        self._store = store
        self._pool = pool
        self._counters = counters
        self._runner = runner
        self._loop = asyncio.get_running_loop()

    def forward_stored(self, operation: Operation, effect: craq.Forward) -> craq.Event | None:
        """Sends on the copy stored here, once it has been read and verified."""
        length = effect.content.length_bytes
        region = self._pool.allocate(length)
        if region is None:
            return craq.Forwarded(effect.op, Status.BUSY)
        try:
            with self._store.reader() as reader:
                record = reader.get(operation.record_key)
        except (CorruptRecord, DriveFailed):
            record = None
        if record is None or record[4] != effect.content.checksums:
            region.drop()
            return craq.Unreadable(effect.op)
        self._store.read_into(record, region.view[: aligned(length)], self._stored_read, (operation, effect, region))
        return None

    def _stored_read(self, token: tuple[Operation, craq.Forward, Region], result: int) -> None:
        operation, effect, region = token
        content = effect.content
        length = content.length_bytes
        if not self._runner.is_current(effect.op, operation):
            region.drop()
        elif result == aligned(length) and checksums(region.view[:length]) == content.checksums:
            operation.hand_over(region)
            self._runner.send_on(operation, effect, region, 0)
        else:
            region.drop()
            self._counters.add("stored_copy_corrupt")
            log.warning("a stored copy does not verify; it is not passed on", drive=self._store.drive_id)
            self._runner.dispatch(operation.replica, craq.Unreadable(effect.op))

    def fetch(self, operation: Operation, effect: craq.Fetch, connection: Connection | None) -> craq.Event | None:
        """Reads the successor's copy over its link."""
        room = operation.slot_bytes
        region = self._pool.allocate(room) if connection is not None else None
        if connection is None or region is None:
            return craq.Fetched(effect.op, None)
        extent = READ_EXTENT.pack(operation.object_id, operation.index, operation.replica.chain.chain_id, room, 0)
        budget_ms = max(1, int((operation.deadline - self._loop.time()) * 1000))
        read = Read(operation.space, extent, 0, budget_ms)
        connection.start(Method.READ, read, _Fetch(self, effect.op, operation, region))
        return None

    def fetched(self, op: int, operation: Operation, region: Region, row: tuple[Any, ...] | None, sums: bytes) -> None:
        """The successor's copy has landed in `region`, or cannot be had (`row` None)."""
        if not self._runner.is_current(op, operation):
            region.drop()
            return
        stored = None if row is None else self._take_over(operation, region, row, sums)
        if stored is None:
            region.drop()
        self._runner.dispatch(operation.replica, craq.Fetched(op, stored))

    def _take_over(self, operation: Operation, region: Region, row: tuple[Any, ...], sums: bytes) -> craq.Stored | None:
        """Makes the fetched copy what the operation is to write; None if it does not verify or finds no room."""
        _, _, length, version, block_bytes, chunk_count, put_id = row
        view = region.view[: aligned(length)]
        if checksums(view[:length]) != sums:
            return None
        try:
            operation.slot = self._store.allocate(length, operation.slot_bytes, reserve=True)
        except (NoSpace, DriveFailed):
            return None
        zero_padding(view, length)
        operation.hand_over(region)
        operation.length = length
        assert operation.content is not None, "only creates fetch"
        key = operation.content.key  # of the same chunk, so of the same block
        operation.content = craq.Content(length, sums, put_id, block_bytes, chunk_count, key)
        self._counters.add("copies_replaced")
        return craq.Stored(version, operation.content)


class _Fetch:
    """Receives the successor's copy of one chunk."""

    __slots__ = ("_copies", "_op", "_operation", "_region", "_row", "_sums", "_whole")

    def __init__(self, copies: Copies, op: int, operation: Operation, region: Region) -> None:
        self._copies = copies
        self._op = op
        self._operation = operation
        self._region = region
        self._row: tuple[Any, ...] | None = None
        self._sums = b""
        self._whole = False

    def on_reply(self, body: bytes | bytearray, payload_bytes: int) -> Sequence[memoryview] | None:
        reply = decode_body(ReadReply, body)
        if len(reply.results) == READ_RESULT.size:
            row = READ_RESULT.unpack(reply.results)
            if row[1] == Status.OK and row[2] == payload_bytes <= self._region.size_bytes:
                self._row, self._sums = row, reply.checksums
                return [self._region.view[:payload_bytes]]
        return None

    def on_payload(self) -> None:
        self._whole = True

    def on_done(self, error: EskerError | None) -> None:
        self._copies.fetched(self._op, self._operation, self._region, self._row if self._whole else None, self._sums)
