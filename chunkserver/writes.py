"""CREATE, REPLACE, CONFIRM and REMOVE: takes requests apart into operations of the chain replicas.

Incoming payload is always a snapshot in the pool before its checksum is verified, and only that snapshot is written
and forwarded, so that a client which changes its memory meanwhile changes nothing.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from esker.chunkserver.engine.slot_class import zero_padding
from esker.chunkserver.incoming import Incoming, Piece, check_payload
from esker.chunkserver.memories import ClientMemories
from esker.chunkserver.operations import Batch, Operation
from esker.chunkserver.pool import Region, WorkerPool
from esker.chunkserver.runner import ReplicaRunner
from esker.craq import messages as craq
from esker.craq.replica import ChainReplica
from esker.runtime.counters import Counters
from esker.wire.checksum import checksums
from esker.wire.codec import decode_body
from esker.wire.columns import create_rows, rows
from esker.wire.errors import RequestFailed
from esker.wire.ids import NO_PUT_ID
from esker.wire.limits import ALIGN_BYTES, CHUNK_BYTES_MAX, aligned
from esker.wire.messages import CREATE_RESULT, REMOVE_EXTENT, REMOVE_RESULT, Create, Method, Remove
from esker.wire.rpc_server import Request
from esker.wire.status import Status

OPERATIONS_MAX = 16384
"""Operations under way in this worker before new requests are answered BUSY."""

Extents = Sequence[tuple[tuple[Any, ...], bytes, bytes]]
"""What `create_rows` gives: row, checksums, key."""


class WriteService:
    """Serves CREATE, REPLACE, CONFIRM and REMOVE of one drive. `replicas` is the drive's, by chain id.

    `refresh` is called when a request names a chain, or a version of it, that this worker does not know yet;
    `check_space` raises `RequestFailed` for spaces in which nothing may be created.
    """

    def __init__(
        self,
        runner: ReplicaRunner,
        pool: WorkerPool,
        memories: ClientMemories,
        counters: Counters,
        replicas: dict[int, ChainReplica],
        refresh: Callable[[], None],
        check_space: Callable[[int], None] = lambda space: None,
    ) -> None:
        self._runner = runner
        self._incoming = Incoming(pool, memories)
        self._counters = counters
        self._replicas = replicas
        self._refresh = refresh
        self._check_space = check_space

    def _check_room(self) -> None:
        if self._runner.busy >= OPERATIONS_MAX:
            raise RequestFailed(Status.BUSY, f"{self._runner.busy} writes are under way")

    def create(self, request: Request) -> Sequence[memoryview] | None:
        """Handles CREATE and REPLACE: names pool memory for the payload, or copies it from registered memory."""
        message = decode_body(Create, request.body)
        self._check_space(message.space)
        extents = create_rows(message)
        _check_slot_bytes(message.slot_bytes, extents)
        check_payload(request, sum(row[4] for row, _, _ in extents), message.memory_id)
        self._check_room()
        pieces = []
        at = 0
        for row, _, _ in extents:
            pieces.append((row[5] * ALIGN_BYTES, at, row[4]))
            at += aligned(row[4])
        start = partial(self._start_creates, request, message, extents, pieces)
        return self._incoming.take(request, pieces, at, message.memory_id, message.budget_ms, start)

    def _start_creates(
        self,
        request: Request,
        message: Create,
        extents: Extents,
        pieces: Sequence[Piece],
        region: Region,
    ) -> None:
        if request.connection.stream.closed:
            region.drop()
            return
        batch = Batch(request, len(extents), region)
        deadline = self._runner.begin(batch, message.budget_ms)
        for number, ((row, sums, key), (_, start, length)) in enumerate(zip(extents, pieces, strict=True)):
            view = region.view[start : start + aligned(length)]
            if checksums(view[:length]) != sums:
                self._counters.add("create_checksum")
                self._runner.result(batch, CREATE_RESULT.pack(number, Status.CHECKSUM, 0, 0, NO_PUT_ID))
                continue
            zero_padding(view, length)
            self._start_create(batch, number, message, row, sums, key, deadline, region, start)
        self._runner.run()

    def confirm(self, request: Request) -> None:
        """Handles CONFIRM: a predecessor's create without payload."""
        message = decode_body(Create, request.body)
        self._check_space(message.space)
        extents = create_rows(message)
        _check_slot_bytes(message.slot_bytes, extents)
        self._check_room()
        batch = Batch(request, len(extents), None)
        deadline = self._runner.begin(batch, message.budget_ms)
        for number, (row, sums, key) in enumerate(extents):
            self._start_create(batch, number, message, row, sums, key, deadline, None, 0)
        self._runner.run()

    def _start_create(
        self,
        batch: Batch,
        number: int,
        message: Create,
        row: tuple[Any, ...],
        sums: bytes,
        key: bytes,
        deadline: float,
        region: Region | None,
        at: int,
    ) -> None:
        _, _, chain_id, chain_version, length, _, version, block_bytes, chunk_count, put_id, _ = row
        replica = self._find(chain_id, chain_version)
        if replica is None:
            self._runner.result(batch, CREATE_RESULT.pack(number, Status.CHAIN_VERSION, 0, 0, NO_PUT_ID))
            return
        assert batch.request is not None
        from_worker = self._from_worker(batch.request)
        if replica.takes_part and (replica.is_head == from_worker or (version == 0) == from_worker):
            # Clients talk to heads and know no version; predecessors name one. Anything else saw another chain.
            self._runner.result(batch, CREATE_RESULT.pack(number, Status.CHAIN_VERSION, 0, 0, NO_PUT_ID))
            return
        op = Operation(batch, number, replica, message.space, row)
        op.content = craq.Content(length, sums, put_id, block_bytes, chunk_count, key)
        op.region, op.at, op.length = region, at, length
        op.slot_bytes = message.slot_bytes
        op.deadline = deadline
        if region is not None:
            region.hold()
        op_id = self._runner.register(op)
        replace = batch.request.method is Method.REPLACE
        op.event = craq.Create(op_id, chain_version, op.record_key, version, op.content, region is not None, replace)
        self._runner.queue(replica, op.event)

    def remove(self, request: Request) -> None:
        """Handles REMOVE."""
        message = decode_body(Remove, request.body)
        extents = rows(REMOVE_EXTENT, message.extents)
        self._check_room()
        batch = Batch(request, len(extents), None)
        deadline = self._runner.begin(batch, message.budget_ms)
        from_worker = self._from_worker(request)
        for number, row in enumerate(extents):
            _, _, chain_id, chain_version, version, put_id = row
            replica = self._find(chain_id, chain_version)
            if replica is None or (replica.takes_part and replica.is_head == from_worker):
                self._runner.result(batch, REMOVE_RESULT.pack(number, Status.CHAIN_VERSION))
                continue
            op = Operation(batch, number, replica, message.space, row)
            op.deadline = deadline
            op.event = craq.Remove(self._runner.register(op), chain_version, op.record_key, version, put_id)
            self._runner.queue(replica, op.event)
        self._runner.run()

    def _find(self, chain_id: int, chain_version: int) -> ChainReplica | None:
        replica = self._replicas.get(chain_id)
        if replica is None or replica.chain.version < chain_version:
            self._refresh()
        return replica

    def _from_worker(self, request: Request) -> bool:
        hello = request.connection.hello
        return hello is not None and hello.role == "worker"


def _check_slot_bytes(slot_bytes: int, extents: Extents) -> None:
    if slot_bytes % ALIGN_BYTES or not ALIGN_BYTES <= slot_bytes <= CHUNK_BYTES_MAX:
        raise RequestFailed(
            Status.BAD_REQUEST,
            f"slots of {slot_bytes} bytes; allowed: multiples of {ALIGN_BYTES} up to {CHUNK_BYTES_MAX}",
        )
    longest = max(row[4] for row, _, _ in extents)
    if longest > slot_bytes:
        raise RequestFailed(Status.TOO_LARGE, f"a chunk of {longest} bytes for slots of {slot_bytes}")
