"""WRITE and UPDATE: takes requests apart into operations on mutable chunks.

Incoming payload is always a snapshot in the pool before anything is made of it; a client's is verified there against
its checksums. What a predecessor sends is verified by what comes of it: the image must have the checksums that the
predecessor names.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Protocol

from esker.chunkserver.engine.record import record_key
from esker.chunkserver.incoming import Incoming, check_payload
from esker.chunkserver.memories import ClientMemories
from esker.chunkserver.mutable_operations import MutableBatch, MutableOperation
from esker.chunkserver.mutable_runner import MutableRunner
from esker.chunkserver.pool import Region, WorkerPool
from esker.craq import mutable_messages as craq
from esker.craq.replica import ChainReplica
from esker.runtime.counters import Counters
from esker.wire.checksum import checksums
from esker.wire.codec import decode_body
from esker.wire.errors import RequestFailed
from esker.wire.ids import FILE_SPACE, chunk_id
from esker.wire.mutable_columns import UpdateRow, WriteRow, update_rows, write_rows
from esker.wire.mutable_messages import (
    NO_CLIENT,
    UPDATE_RESULT,
    WRITE_RESULT,
    PatchKind,
    Update,
    UpdateReply,
    Write,
    WriteReply,
)
from esker.wire.rpc_server import Request
from esker.wire.status import Status

POOL_SHARE = 2
"""A chunk may be one part in this many of the pool: it must pass whole, to a replica that is brought up to date."""
OPERATIONS_MAX = 16384
"""Operations under way in this worker before new requests are answered BUSY."""


class Busy(Protocol):
    """The runner of the replicas."""

    @property
    def busy(self) -> int: ...


class MutableWriteService:
    """Serves one drive. `replicas` is the drive's, by chain id.

    `refresh` is called when a request names a chain, or a version of it, that this worker does not know yet.
    """

    def __init__(
        self,
        runner: MutableRunner,
        all_operations: Busy,
        pool: WorkerPool,
        memories: ClientMemories,
        counters: Counters,
        replicas: Mapping[int, ChainReplica],
        refresh: Callable[[], None],
    ) -> None:
        self._runner = runner
        self._all = all_operations
        self._pool = pool
        self._incoming = Incoming(pool, memories)
        self._counters = counters
        self._replicas = replicas
        self._refresh = refresh

    def write(self, request: Request) -> Sequence[memoryview] | None:
        """Handles WRITE."""
        message = decode_body(Write, request.body)
        extents = write_rows(message)
        rows = [row for row, _ in extents]
        start = partial(self._start_writes, request, message, extents)
        return self._receive(request, rows, message.memory_id, message.budget_ms, start)

    def update(self, request: Request) -> Sequence[memoryview] | None:
        """Handles UPDATE, from the predecessor."""
        message = decode_body(Update, request.body)
        extents = update_rows(message)
        rows = [row for row, _ in extents]
        start = partial(self._start_updates, request, message, extents)
        return self._receive(request, rows, message.memory_id, message.budget_ms, start)

    def _receive(
        self,
        request: Request,
        rows: Sequence[WriteRow | UpdateRow],
        memory_id: int,
        budget_ms: int,
        start: Callable[[Region | None], None],
    ) -> Sequence[memoryview] | None:
        """Has the payloads of `rows` in the pool, one behind the other, when `start` is called with them."""
        total = sum(row.payload_bytes for row in rows)
        check_payload(request, total, memory_id)
        if self._all.busy >= OPERATIONS_MAX:
            raise RequestFailed(Status.BUSY, f"{self._all.busy} writes are under way")
        if total == 0:
            start(None)
            return None
        pieces = []
        at = 0
        for row in rows:
            if row.payload_bytes or memory_id:
                pieces.append((row.memory_at, at, row.payload_bytes))
            at += row.payload_bytes
        return self._incoming.take(request, pieces, total, memory_id, budget_ms, start)

    # WRITE

    def _start_writes(
        self, request: Request, message: Write, extents: Sequence[tuple[WriteRow, bytes]], region: Region | None
    ) -> None:
        batch = MutableBatch(
            request, len(extents), region, lambda results, more: request.reply(WriteReply(results), more=more)
        )
        at = 0
        for number, (row, sums) in enumerate(extents):
            start, at = at, at + row.payload_bytes
            if region is not None and row.payload_bytes and checksums(region.view[start:at]) != sums:
                self._write_answered(batch, number, craq.AnswerMutable(0, Status.CHECKSUM))
                continue
            if row.slot_bytes > self._pool.arena.size_bytes // POOL_SHARE:
                self._write_answered(batch, number, craq.AnswerMutable(0, Status.TOO_LARGE))
                continue
            operation = self._operation(row, region, start)
            if operation is None:
                self._write_answered(batch, number, craq.AnswerMutable(0, Status.CHAIN_VERSION))
                continue
            operation.answered = partial(self._write_answered, batch, number)
            op = self._runner.register(operation, message.budget_ms / 1000)
            origin = craq.Origin(message.client, row.channel, row.sequence)
            patch = craq.Patch(craq.PatchKind(row.kind), row.offset, row.length, row.truncate_version)
            event = craq.Update(op, row.chain_version, operation.record_key, patch, origin)
            self._runner.begin(operation, event)
        self._runner.run()

    def _write_answered(self, batch: MutableBatch, number: int, answer: craq.AnswerMutable) -> None:
        self._counters.add(f"mutable_write_{answer.status.name.lower()}")
        batch.result(WRITE_RESULT.pack(number, answer.status, answer.version, answer.length_bytes))

    # UPDATE

    def _start_updates(
        self, request: Request, message: Update, extents: Sequence[tuple[UpdateRow, bytes]], region: Region | None
    ) -> None:
        batch = MutableBatch(
            request, len(extents), region, lambda results, more: request.reply(UpdateReply(results), more=more)
        )
        hello = request.connection.hello
        sender = hello.peer_id if hello is not None and hello.role == "worker" else ""
        at = 0
        for number, (row, sums) in enumerate(extents):
            start, at = at, at + row.payload_bytes
            operation = self._operation(row, region, start)
            if operation is None or sender != operation.replica.place.predecessor:
                self._drop(operation)
                self._update_answered(batch, number, craq.AnswerMutable(0, Status.CHAIN_VERSION))
                continue
            operation.answered = partial(self._update_answered, batch, number)
            op = self._runner.register(operation, message.budget_ms / 1000)
            self._runner.begin(operation, _update_event(op, operation, row, sums))
        self._runner.run()

    def _update_answered(self, batch: MutableBatch, number: int, answer: craq.AnswerMutable) -> None:
        self._counters.add(f"mutable_update_{answer.status.name.lower()}")
        batch.result(UPDATE_RESULT.pack(number, answer.status, answer.version))

    def _operation(self, row: WriteRow | UpdateRow, region: Region | None, at: int) -> MutableOperation | None:
        """An operation on the row's chunk; None: this worker has no part in its chain."""
        replica = self._replicas.get(row.chain_id)
        if replica is None or replica.chain.version < row.chain_version:
            self._refresh()
        if replica is None:
            return None
        operation = MutableOperation(
            replica, record_key(row.chain_id, chunk_id(FILE_SPACE, row.object_id, row.chunk_index))
        )
        operation.slot_bytes = row.slot_bytes
        operation.payload_bytes = row.payload_bytes
        if region is not None and row.payload_bytes:
            operation.region, operation.at = region, at
            region.hold()
        return operation

    def _drop(self, operation: MutableOperation | None) -> None:
        if operation is not None and operation.region is not None:
            operation.region.drop()
            operation.region = None


def _update_event(op: int, operation: MutableOperation, row: UpdateRow, sums: bytes) -> craq.Update:
    patch = craq.Patch(craq.PatchKind(row.kind), row.offset, row.length, row.truncate_version)
    image = craq.Image(
        row.version, row.image_bytes, sums, row.image_truncate_version, absent=row.kind == PatchKind.REMOVE
    )
    origin = None if row.client == NO_CLIENT else craq.Origin(row.client, row.channel, row.sequence)
    named = craq.Named(row.previous, image, bool(row.full), row.hop)
    return craq.Update(op, row.chain_version, operation.record_key, patch, origin, named)
