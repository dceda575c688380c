"""Performs what a repair asks of the drive and of other replicas: verify the copy here, fetch the copy there.

Decides nothing: whose copy is asked for, and whether it may take the damaged one's place, is `craq/upkeep.py`'s. A copy
is handed over only if its record, its data and its checksums agree, and only by a worker that takes part in the same
version of the chain.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Protocol

from esker.chunkserver.engine.io import IoEngine
from esker.chunkserver.engine.record import RECORD_KEY_BYTES, chain_prefix
from esker.chunkserver.engine.slot_class import zero_padding
from esker.chunkserver.engine.store import DriveStore
from esker.chunkserver.forward import Link
from esker.chunkserver.operations import Operation
from esker.chunkserver.pool import Region, WorkerPool
from esker.chunkserver.scan import digest
from esker.chunkserver.verify import BlockSource, Verdict, Verifier
from esker.craq import messages as craq
from esker.craq.replica import ChainReplica
from esker.runtime.logging import get_logger
from esker.wire.admin_messages import SCAN_ROW, Scan, ScanReply
from esker.wire.checksum import checksums
from esker.wire.codec import decode_body
from esker.wire.errors import EskerError, ProtocolError, RequestFailed
from esker.wire.limits import aligned
from esker.wire.messages import READ_EXTENT, READ_RESULT, Method, Read, ReadReply
from esker.wire.rpc_client import Connection
from esker.wire.status import Status

log = get_logger("chunkserver.repair")

SOURCE_TIMEOUT_S = 3.0
"""How long one replica may take to give its copy."""
DAMAGED_MAX = 65536

_NONE_THERE = (Status.NOT_FOUND, Status.CHECKSUM, Status.IO_ERROR)


class Runner(Protocol):
    """What repairs need of the replica runner."""

    damaged: set[bytes]

    def is_current(self, op: int, operation: Operation) -> bool: ...

    def dispatch(self, replica: ChainReplica, event: craq.Event) -> None: ...


class RepairCopies:
    """The hands of the repairs on one drive."""

    def __init__(
        self, store: DriveStore, engine: IoEngine, pool: WorkerPool, runner: Runner, link: Callable[[str], Link]
    ) -> None:
        self._pool = pool
        self._runner = runner
        self._link = link
        self._verifier = Verifier(BlockSource(store), engine.submit)
        self._tasks: set[asyncio.Task[None]] = set()

    def verify(self, operation: Operation, effect: craq.Verify) -> None:
        """Answered with `Verified`. A copy that does not verify is known as damaged from then on."""
        self._begin(self._verify(operation, effect))

    def copy(self, operation: Operation, effect: craq.CopyFrom) -> None:
        """Answered with `Fetched`; the copy is then what the operation is to write."""
        self._begin(self._copy(operation, effect))

    async def aclose(self) -> None:
        """Ends what is under way, without an answer."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _verify(self, operation: Operation, effect: craq.Verify) -> None:
        seen = await self._verifier.look(operation.record_key)
        damaged = self._runner.damaged
        if seen.verdict is not Verdict.DAMAGED:
            damaged.discard(operation.record_key)
        elif len(damaged) < DAMAGED_MAX:
            damaged.add(operation.record_key)
        if self._runner.is_current(effect.op, operation):
            whole = seen.verdict is not Verdict.DAMAGED
            self._runner.dispatch(operation.replica, craq.Verified(effect.op, whole))

    async def _copy(self, operation: Operation, effect: craq.CopyFrom) -> None:
        op = effect.op
        fetched = craq.Fetched(op, None, reached=False)
        region: Region | None = None
        try:
            async with asyncio.timeout(SOURCE_TIMEOUT_S):
                connection = await self._link(effect.drive_id).connected(SOURCE_TIMEOUT_S)
                row, key, sums_digest = await _record_of(connection, operation)
                if row is None:
                    fetched = craq.Fetched(op, None)
                else:
                    region = self._pool.allocate_or_map(row[2])
                    stored = await _data_of(connection, operation, region, row, key, sums_digest)
                    fetched = craq.Fetched(op, stored)
                    operation.created_ms = operation.created_ms or row[6]
            if fetched.stored is not None and region is not None and self._runner.is_current(op, operation):
                _take_over(operation, region, fetched.stored.content)
                region = None
        except (EskerError, TimeoutError) as error:
            log.debug("a replica's copy cannot be had", drive=effect.drive_id, reason=str(error))
        finally:
            if region is not None:
                region.drop()
        if self._runner.is_current(op, operation):
            self._runner.dispatch(operation.replica, fetched)


def _take_over(operation: Operation, region: Region, content: craq.Content) -> None:
    """Makes the fetched copy what the operation is to write."""
    length = content.length_bytes
    zero_padding(region.view[: max(aligned(length), 1)], length)
    operation.hand_over(region)
    operation.content, operation.length = content, length
    operation.slot_bytes = operation.slot_bytes or aligned(length)


async def _record_of(connection: Connection, operation: Operation) -> tuple[tuple[Any, ...] | None, bytes, bytes]:
    """The row of SCAN_ROW, the block's key, and the digest of the checksums; None: there is no such chunk."""
    wanted, chain = operation.record_key, operation.replica.chain
    after = (int.from_bytes(wanted) - 1).to_bytes(RECORD_KEY_BYTES)
    if not after.startswith(chain_prefix(chain.chain_id)):
        after = b""
    scan = Scan(chain.chain_id, after, 1, chain_version=chain.version, digests=True)
    reply = await connection.call(Method.SCAN, scan, ScanReply, timeout_s=SOURCE_TIMEOUT_S)
    if len(reply.rows) != SCAN_ROW.size:
        return None, b"", b""
    row = SCAN_ROW.unpack(reply.rows)
    return (row if row[0] == wanted else None), reply.keys, reply.digests


async def _data_of(
    connection: Connection,
    operation: Operation,
    region: Region,
    row: tuple[Any, ...],
    key: bytes,
    sums_digest: bytes,
) -> craq.Stored | None:
    """The chunk that `row` (of SCAN_ROW) tells of, with its data in `region`; None: it is damaged there, or another by
    now. Raises `EskerError` where that cannot be told.
    """
    _, version, length, block_bytes, chunk_count, put_id, _, _ = row
    chain_id = operation.replica.chain.chain_id
    extent = READ_EXTENT.pack(operation.object_id, operation.index, chain_id, length, 0)
    read = Read(operation.space, extent, 0, int(SOURCE_TIMEOUT_S * 1000))
    handler = _OneRead(region, asyncio.get_running_loop())
    request_id = connection.start(Method.READ, read, handler)
    try:
        result, sums = await handler.done
    finally:
        connection.forget(request_id)  # from here on nothing lands in `region`
    if result[1] in _NONE_THERE:
        return None
    if result[1] != Status.OK:
        raise EskerError(f"it answers with status {result[1]}")
    same = result[2:] == (length, version, block_bytes, chunk_count, put_id) and digest(sums) == sums_digest
    if not same or checksums(region.view[:length]) != sums:
        return None
    return craq.Stored(version, craq.Content(length, sums, put_id, block_bytes, chunk_count, key))


class _OneRead:
    """Receives one chunk; `done` gets its row of READ_RESULT and its checksums."""

    def __init__(self, region: Region, loop: asyncio.AbstractEventLoop) -> None:
        self.done: asyncio.Future[tuple[tuple[Any, ...], bytes]] = loop.create_future()
        self._region = region
        self._answer: tuple[tuple[Any, ...], bytes] | None = None
        self._landed = False

    def on_reply(self, body: bytes | bytearray, payload_bytes: int) -> Sequence[memoryview] | None:
        """See `ReplyHandler`."""
        try:
            reply = decode_body(ReadReply, body)
        except RequestFailed as error:
            raise ProtocolError(f"a malformed reply to READ: {error}") from error
        if len(reply.results) != READ_RESULT.size:
            raise ProtocolError(f"results of {len(reply.results)} bytes for one chunk")
        row = READ_RESULT.unpack(reply.results)
        if payload_bytes != (row[2] if row[1] == Status.OK else 0) or payload_bytes > self._region.size_bytes:
            raise ProtocolError(f"{payload_bytes} bytes of payload for a chunk of {row[2]} bytes")
        self._answer = row, reply.checksums
        self._landed = not payload_bytes
        return [self._region.view[:payload_bytes]] if payload_bytes else None

    def on_payload(self) -> None:
        """See `ReplyHandler`."""
        self._landed = True

    def on_done(self, error: EskerError | None) -> None:
        """See `ReplyHandler`."""
        if self.done.done():
            return  # nobody waits any more
        if error is not None:
            self.done.set_exception(error)
        elif self._answer is None or not self._landed:
            self.done.set_exception(ProtocolError("a READ ended without its answer"))
        else:
            self.done.set_result(self._answer)
