"""READ_RANGE: parts of mutable chunks, as committed, from the drive to clients.

Which image may be given out is the replica's decision, taken for each extent; its read is queued in the same await-free
stretch, so that the slot stays what it was until the read has ended. Over a socket the data passes through the pool;
into registered memory the ring reads directly, and the CPU never touches it. The client verifies it.

A request's extents are taken up a few at a time, and no more of them than its connection takes away. What waits for one
connection never exceeds what is free, so that a peer that takes nothing leaves the pool to others.
"""

import asyncio
import errno
import os
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from weakref import WeakKeyDictionary

from esker.chunkserver.engine.image_record import ImageRecord
from esker.chunkserver.engine.images import Images
from esker.chunkserver.engine.record import record_key
from esker.chunkserver.memories import ClientMemories
from esker.chunkserver.mutable_operations import MutableOperation
from esker.chunkserver.mutable_runner import MutableRunner
from esker.chunkserver.pool import Region, WorkerPool
from esker.craq import mutable_messages as craq
from esker.craq.replica import ChainReplica
from esker.runtime.counters import Counters
from esker.wire.codec import decode_body
from esker.wire.errors import RequestFailed
from esker.wire.ids import FILE_SPACE, chunk_id
from esker.wire.limits import ALIGN_BYTES, CHECKSUM_BLOCK_BYTES, MIB, aligned
from esker.wire.memory import ForeignMemory
from esker.wire.mutable_columns import RangeRow, covered, range_rows
from esker.wire.mutable_messages import READ_RANGE_RESULT, ReadRange, ReadRangeReply
from esker.wire.rpc_server import Request, ServerConnection
from esker.wire.status import Status

JOBS_MAX = 4096
EXTENTS_AT_A_TIME = 64
HELD_BYTES_MAX = 4 * MIB
"""Pool memory that one request may hold: being read, or waiting in its socket."""
REPLY_BYTES_AIM = 512 << 10
"""Finished extents leave once they are this much, or nothing else is under way."""

Extent = tuple[int, RangeRow]
"""Number in the request, and its row."""


class _Peer:
    """What waits for one connection."""

    __slots__ = ("__weakref__", "held_bytes", "wake")

    def __init__(self) -> None:
        self.held_bytes = 0
        """Of the pool: being read for it, or in its socket."""
        self.wake: set[Callable[[], None]] = set()
        """Requests that wait until it has taken some."""


class RangeService:
    """Serves READ_RANGE of one drive. `refresh` is called when a request names a chain or version not known here."""

    def __init__(
        self,
        images: Images,
        runner: MutableRunner,
        pool: WorkerPool,
        memories: ClientMemories,
        counters: Counters,
        replicas: Mapping[int, ChainReplica],
        refresh: Callable[[], None],
    ) -> None:
        self.images = images
        self.runner = runner
        self.pool = pool
        self.memories = memories
        self.counters = counters
        self.jobs = 0
        self._peers: WeakKeyDictionary[ServerConnection, _Peer] = WeakKeyDictionary()
        self._replicas = replicas
        self._refresh = refresh

    def read(self, request: Request) -> None:
        """Handles READ_RANGE."""
        message = decode_body(ReadRange, request.body)
        extents = range_rows(message.extents)
        if self.jobs >= JOBS_MAX:
            raise RequestFailed(Status.BUSY, f"{self.jobs} reads of mutable chunks are under way")
        memory = self.memories.find(request.connection, message.memory_id) if message.memory_id else None
        self.jobs += 1
        peer = self._peers.setdefault(request.connection, _Peer())
        _Job(self, request, peer, extents, memory, message.budget_ms / 1000).go_on()

    def replica(self, chain_id: int, chain_version: int) -> ChainReplica | None:
        """The replica that a request names, if there is one."""
        replica = self._replicas.get(chain_id)
        if replica is None or replica.chain.version < chain_version:
            self._refresh()
        return replica


class _Job:
    """A READ_RANGE under way."""

    def __init__(
        self,
        service: RangeService,
        request: Request,
        peer: _Peer,
        rows: list[RangeRow],
        memory: ForeignMemory | None,
        budget_s: float,
    ) -> None:
        self._service = service
        self._request = request
        self._peer = peer
        self._memory = memory
        if memory is not None:
            memory.users += 1
        self._loop = asyncio.get_running_loop()
        self._deadline = self._loop.time() + budget_s
        self._waiting: deque[Extent] = deque(enumerate(rows))
        self._unsettled = len(rows)
        self._under_way = 0
        self._held_bytes = 0
        self._planned_bytes = 0
        """What the extents may take whose image is not chosen yet."""
        self._ready_bytes = 0
        self._results: list[bytes] = []
        self._sums: list[bytes] = []
        self._payload: list[memoryview] = []
        self._regions: list[Region] = []
        self._soon = False

    def go_on(self) -> None:
        """Takes up extents while there is room, and sends what is finished."""
        self._soon = False
        runner = self._service.runner
        while self._waiting and self._under_way < EXTENTS_AT_A_TIME and self._may_hold_more():
            number, row = self._waiting.popleft()
            left_s = self._deadline - self._loop.time()
            if self._request.cancelled or left_s <= 0:
                self._settle(number, Status.CANCELLED if self._request.cancelled else Status.TIMEOUT)
                continue
            replica = self._service.replica(row.chain_id, row.chain_version)
            if replica is None:
                self._settle(number, Status.CHAIN_VERSION)
                continue
            key = record_key(row.chain_id, chunk_id(FILE_SPACE, row.object_id, row.chunk_index))
            operation = MutableOperation(replica, key)
            operation.serve = partial(self._serve, number, row)
            operation.answered = partial(self._refused, number, row)
            self._under_way += 1
            self._planned_bytes += row.room
            op = runner.register(operation, left_s)
            runner.begin(operation, craq.ReadRange(op, row.chain_version, key))
        runner.run()
        if self._results and (self._under_way == 0 or self._ready_bytes >= REPLY_BYTES_AIM):
            self._flush()

    def _may_hold_more(self) -> bool:
        return self._memory is not None or self._held_bytes + self._planned_bytes < HELD_BYTES_MAX

    def _later(self) -> None:
        if not self._soon:
            self._soon = True
            self._loop.call_soon(self.go_on)

    def _refused(self, number: int, row: RangeRow, answer: craq.AnswerMutable) -> None:
        self._under_way -= 1
        self._planned_bytes -= row.room
        self._settle(number, answer.status)

    def _serve(self, number: int, row: RangeRow, effect: craq.ServeImage, image: ImageRecord | None) -> None:
        """Reads the extent from the image that was chosen."""
        self._planned_bytes -= row.room
        start, end = (0, 0) if image is None else covered(row.offset, row.length, image.length)
        if image is None or start == end:
            self._under_way -= 1
            self._settle(number, Status.NOT_FOUND if image is None else Status.OK, image)
            return
        size = aligned(end - start)
        region: Region | None = None
        if self._memory is None:
            region = self._allocate(size)
            if region is None:
                self._no_memory(number, row)
                return
            buffer = region.view[:size]
        else:
            if row.memory_at % ALIGN_BYTES or not self._memory.holds(row.memory_at, size):
                self._under_way -= 1
                self._settle(number, Status.BAD_MEMORY)
                return
            buffer = self._memory.view[row.memory_at : row.memory_at + size]
        self._service.images.read_part(image, start, buffer, self._read, (number, image, start, end, region))

    def _allocate(self, size_bytes: int) -> Region | None:
        pool, held_bytes = self._service.pool, self._peer.held_bytes
        if held_bytes and held_bytes + size_bytes > pool.free_bytes:
            return None
        region = pool.allocate(size_bytes)
        if region is not None:
            self._held_bytes += region.size_bytes
            self._peer.held_bytes += region.size_bytes
        return region

    def _give_back(self, region: Region) -> None:
        self._held_bytes -= region.size_bytes
        self._peer.held_bytes -= region.size_bytes
        region.drop()

    def _no_memory(self, number: int, row: RangeRow) -> None:
        """The extent waits for what is held for its own connection; nobody waits for others."""
        self._under_way -= 1
        if not self._peer.held_bytes:
            self._settle(number, Status.BUSY)
            return
        self._waiting.appendleft((number, row))
        self._peer.wake.add(self._later)

    def _read(self, token: tuple[int, ImageRecord, int, int, Region | None], result: int) -> None:
        number, image, start, end, region = token
        self._under_way -= 1
        if result != aligned(end - start):
            if region is not None:
                self._give_back(region)
                self._wake()
            self._settle(number, self._failure(result))
            return
        if region is not None:
            self._payload.append(region.view[: end - start])
            self._regions.append(region)
        self._ready_bytes += end - start
        self._settle(number, Status.OK, image, start, end)

    def _failure(self, result: int) -> Status:
        memory = self._memory
        if memory is not None and (result == -errno.EFAULT or os.fstat(memory.fd).st_size < memory.length_bytes):
            self._service.memories.distrust(self._request.connection, "a read into it failed")
            return Status.BAD_MEMORY
        if result == -errno.ECANCELED:
            return Status.CANCELLED
        self._service.counters.add("read_errors")
        return Status.IO_ERROR

    def _settle(
        self, number: int, status: Status, image: ImageRecord | None = None, start: int = 0, end: int = 0
    ) -> None:
        self._service.counters.add(f"mutable_read_{status.name.lower()}")
        version, length = (0, 0) if image is None else (image.version, image.length)
        self._results.append(READ_RANGE_RESULT.pack(number, status, version, length, start, end - start))
        if image is not None and start < end:
            step = CHECKSUM_BLOCK_BYTES
            self._sums.append(image.checksums[start // step * 8 : (end + step - 1) // step * 8])
        self._unsettled -= 1
        self._later()

    def _flush(self) -> None:
        """Sends what is finished; the last of it ends the request."""
        over = self._unsettled == 0
        regions = self._regions
        body = ReadRangeReply(b"".join(self._results), b"".join(self._sums))
        payload = self._payload
        self._results, self._sums, self._payload, self._regions = [], [], [], []
        self._ready_bytes = 0
        if over:
            self._service.jobs -= 1
            if self._memory is not None:
                self._memory.leave()
        self._request.reply(body, payload, more=not over, on_sent=partial(self._sent, regions) if regions else None)

    def _sent(self, regions: list[Region]) -> None:
        for region in regions:
            self._give_back(region)
        if self._waiting:
            self._later()
        self._wake()

    def _wake(self) -> None:
        wake, self._peer.wake = self._peer.wake, set()
        for later in wake:
            later()
