"""READ: from records and the drive to clients.

A request's extents are taken up a few at a time, so that lookups and other clients never wait behind a long batch;
replies leave as the drive completes extents. Over a socket the data passes through the worker's pool; into
registered memory the ring reads directly, and the CPU never touches it. What is read is not verified here: the
client does, end to end.

Await-free: a record is looked up and its read queued without giving way in between (the store's read fence).
"""

import asyncio
import errno
import os
import struct
from collections import deque
from collections.abc import Callable, Set
from weakref import WeakKeyDictionary

from esker.chunkserver.engine.errors import CorruptRecord, DriveFailed
from esker.chunkserver.engine.io import IoEngine
from esker.chunkserver.engine.record import ReadRecord
from esker.chunkserver.engine.store import DriveStore
from esker.chunkserver.memories import ClientMemories
from esker.chunkserver.pool import Region, WorkerPool
from esker.chunkserver.read_job import ReadJob, Share
from esker.chunkserver.read_run import Run
from esker.runtime.counters import Counters
from esker.wire.codec import decode_body
from esker.wire.columns import check_rows
from esker.wire.errors import RequestFailed
from esker.wire.messages import READ_EXTENT, READ_RESULT, Read, ReadReply
from esker.wire.rpc_server import Request, ServerConnection
from esker.wire.status import Status

SLICE_EXTENTS = 64
IN_FLIGHT_MAX = 256
"""Ring operations under way before more extents are taken up."""
QUEUED_JOBS_MAX = 4096
REPLY_BYTES_AIM = 512 << 10
"""Finished extents leave once they are this much, or the last: a reply for each would cost a wake-up for each."""
SEND_AHEAD_BYTES = 2 << 20
"""What one connection may have waiting in its socket before it must take some."""
ALARM_MIN_S = 0.001

_RECORD_KEY = struct.Struct(">II16sI")
_HEAD = struct.Struct("<HH")
_NOTHING = bytes(READ_RESULT.size - _HEAD.size)


class ReadService:
    """Serves READ of one drive."""

    def __init__(
        self,
        store: DriveStore,
        engine: IoEngine,
        pool: WorkerPool,
        memories: ClientMemories,
        counters: Counters,
        offline_chains: set[int],
        check_space: Callable[[int], None] = lambda space: None,
        unsure_chains: Set[int] = frozenset(),
    ) -> None:
        """`check_space` raises `RequestFailed` for spaces that are not served.

        Of `unsure_chains` what is here is given out, as its bytes are verified, but nothing is said to be absent: this
        replica may have missed it.
        """
        self._store = store
        self._engine = engine
        self._pool = pool
        self._memories = memories
        self._counters = counters
        self._offline = offline_chains
        self._unsure = unsure_chains
        self._check_space = check_space
        self._loop = asyncio.get_running_loop()
        self._jobs: deque[ReadJob] = deque()
        self._starved: list[ReadJob] = []
        self._touched: list[ReadJob] = []
        self.suspect: Callable[[bytes], None] = lambda record_key: None
        """Called for chunks whose record, or whose data, cannot be read."""
        self._shares: WeakKeyDictionary[ServerConnection, Share] = WeakKeyDictionary()
        self._in_flight = 0
        self._pump_soon = False
        self._pumping = False
        pool.on_free = self._memory_freed
        engine.after_batch(self._after_batch)

    @property
    def busy(self) -> bool:
        """Whether any client waits for reads."""
        return self._in_flight > 0 or bool(self._jobs)

    def read(self, request: Request) -> None:
        """Handles READ."""
        message = decode_body(Read, request.body)
        self._check_space(message.space)
        count = check_rows(READ_EXTENT, message.extents)
        queued = len(self._jobs) + len(self._starved)
        if queued >= QUEUED_JOBS_MAX:
            raise RequestFailed(Status.BUSY, f"{queued} reads are queued")
        memory = self._memories.find(request.connection, message.memory_id) if message.memory_id else None
        self._counters.add("read_extents", count)
        deadline = self._loop.time() + message.budget_ms / 1000
        job = ReadJob(request, message, count, memory, self._share_of(request.connection), deadline)
        if memory is not None:
            memory.users += 1
        self._jobs.append(job)
        if not self._pump_soon:
            self._pump()

    def _share_of(self, connection: ServerConnection) -> Share:
        share = self._shares.get(connection)
        if share is None:
            share = self._shares[connection] = Share()
        return share

    def _pump(self) -> None:
        """Takes up extents, a slice of each job in turn, while the ring has room."""
        self._pump_soon = False
        if self._pumping:
            return
        self._pumping = True
        jobs = self._jobs
        try:
            if jobs and self._in_flight < IN_FLIGHT_MAX:
                job = jobs.popleft()
                if self._take_up(job):
                    if job.stalled:
                        self._starve(job)
                    else:
                        jobs.append(job)
                else:
                    job.queued = False
                self._engine.submit()
        finally:
            self._pumping = False
        self._flush_touched()
        if jobs and self._in_flight < IN_FLIGHT_MAX:
            self._pump_later()

    def _starve(self, job: ReadJob) -> None:
        """The job waits for memory; it is looked at again when some came back, at its deadline, and when cancelled."""
        self._starved.append(job)
        if job.results and not job.touched:
            job.touched = True  # what it holds already may be the memory that it waits for
            self._touched.append(job)
        job.request.on_cancel = self._memory_freed
        if job.alarm is None:
            left_s = max(ALARM_MIN_S, job.deadline - self._loop.time())
            job.alarm = self._loop.call_later(left_s, self._starved_to_deadline, job)

    def _starved_to_deadline(self, job: ReadJob) -> None:
        job.alarm = None
        self._memory_freed()

    def _pump_later(self) -> None:
        if not self._pump_soon:
            self._pump_soon = True
            self._loop.call_soon(self._pump)

    def _take_up(self, job: ReadJob) -> bool:
        """Queues up to a slice of the job's extents. Returns whether some are left."""
        pack_key = _RECORD_KEY.pack
        space = job.space
        memory = job.memory
        if job.request.cancelled or self._loop.time() >= job.deadline:
            self._refuse_rest(job, Status.CANCELLED if job.request.cancelled else Status.TIMEOUT)
            return False
        job.stalled = False
        run = Run()
        try:
            reader = self._store.reader()
        except DriveFailed:
            self._refuse_rest(job, Status.UNAVAILABLE)
            return False
        with reader:
            get = reader.get
            for _ in range(SLICE_EXTENTS):
                item = next(job.extents, None)
                if item is None:
                    self._read(job, run)
                    return job.stalled
                number, (object_id, index, chain_id, room, offset) = item
                if chain_id in self._offline:
                    self._settle(job, number, Status.UNAVAILABLE)
                    continue
                try:
                    record = get(pack_key(chain_id, space, object_id, index))
                except CorruptRecord:
                    self._settle(job, number, Status.CHECKSUM)
                    self.suspect(pack_key(chain_id, space, object_id, index))
                    continue
                except DriveFailed:
                    job.put_back((*run.extents, item))
                    self._refuse_rest(job, Status.UNAVAILABLE)
                    return False
                if record is None:
                    unsure = chain_id in self._unsure
                    self._settle(job, number, Status.UNAVAILABLE if unsure else Status.NOT_FOUND)
                    continue
                length = record[0]
                padded = (length + 4095) & -4096
                if (length if memory is None else padded) > room:
                    self._settle(job, number, Status.TOO_LARGE, record)
                    continue
                if memory is not None and (offset & 4095 or offset + padded > memory.length_bytes):
                    self._settle(job, number, Status.BAD_MEMORY)
                    continue
                if job.singly or not run.takes(item, record, padded, None if memory is None else offset):
                    self._read(job, run)
                    if job.stalled:
                        job.put_back((item,))
                        return True
                    run = Run()
                    run.begin(item, record, padded, offset)
            self._read(job, run)
        return True

    def _read(self, job: ReadJob, run: Run) -> None:
        """Queues one read for the chunks of `run`. Without memory for them the job is stalled; they are its next."""
        if not run.extents:
            return
        region = None
        if job.memory is None:
            region = self._allocate(job, run.size_bytes)
            if region is None:
                job.stalled = True
                job.put_back(run.extents)
                return
            buffer = region.view[: run.size_bytes]
        else:
            buffer = job.memory.view[run.offset : run.offset + run.size_bytes]
        self._in_flight += 1
        self._store.read_run(run.records, buffer, self._read_done, (job, run, region))

    def _allocate(self, job: ReadJob, size_bytes: int) -> Region | None:
        """Memory of the pool, unless the peer takes what it asked for too slowly.

        What waits for one connection never exceeds what is free, so that however many peers take nothing, there is
        some left for one that does.
        """
        if job.request.connection.stream.queued_bytes >= SEND_AHEAD_BYTES:
            return None
        held_bytes = job.share.held_bytes
        if held_bytes and held_bytes + size_bytes > self._pool.free_bytes:
            return None
        region = self._pool.allocate(size_bytes)
        if region is not None:
            job.share.held_bytes = held_bytes + region.size_bytes
        return region

    def _refuse_rest(self, job: ReadJob, status: Status) -> None:
        job.stalled = False
        for number, _ in job.extents:
            self._settle(job, number, status)

    def _settle(self, job: ReadJob, number: int, status: Status, record: ReadRecord | None = None) -> None:
        """An extent that needs no I/O, or got no data."""
        job.unsettled -= 1
        job.results.append(_HEAD.pack(number, status) + (_NOTHING if record is None else record[3]))
        if not job.touched:
            job.touched = True
            self._touched.append(job)

    def _read_done(self, token: tuple[ReadJob, Run, Region | None], result: int) -> None:
        job, run, region = token
        self._in_flight -= 1
        if result != run.size_bytes:
            self._read_failed(job, run, region, result)
            return
        at = 0
        results, sums = job.results, job.checksums
        job.unsettled -= len(run.extents)
        for (number, _), record in zip(run.extents, run.records, strict=True):
            results.append(_HEAD.pack(number, 0) + record[3])
            sums.append(record[4])
            if region is not None:
                job.payload.append(region.view[at : at + record[0]])
                at += (record[0] + 4095) & -4096
        job.ready_bytes += run.size_bytes
        if region is not None:
            job.regions.append(region)
        if not job.touched:
            job.touched = True
            self._touched.append(job)

    def _read_failed(self, job: ReadJob, run: Run, region: Region | None, result: int) -> None:
        if region is not None:
            job.share.held_bytes -= region.size_bytes
            region.drop()
        memory = job.memory
        status = Status.IO_ERROR
        if memory is not None and (result == -errno.EFAULT or os.fstat(memory.fd).st_size < memory.length_bytes):
            status = Status.BAD_MEMORY
            self._memories.distrust(job.request.connection, "a read into it failed")
        elif len(run.extents) > 1 and result != -errno.ECANCELED:
            job.singly = True
            job.put_back(run.extents)
            if not job.queued:
                job.queued = True
                self._jobs.append(job)
            self._pump_later()
            return
        elif result != -errno.ECANCELED:
            self._counters.add("read_errors")
            (object_id, index, chain_id, _, _) = run.extents[0][1]
            self.suspect(_RECORD_KEY.pack(chain_id, job.space, object_id, index))
        for number, _ in run.extents:
            self._settle(job, number, status)

    def _flush_touched(self) -> None:
        touched, self._touched = self._touched, []
        for job in touched:
            job.touched = False
            if job.unsettled == 0 or job.ready_bytes >= REPLY_BYTES_AIM or job.stalled:
                self._flush(job)

    def _flush(self, job: ReadJob) -> None:
        """Sends what is finished of the job; ends it when nothing is left."""
        over = job.unsettled == 0
        results = job.results
        regions = job.regions
        released = None
        if regions:
            share = job.share

            def released() -> None:
                for region in regions:
                    share.held_bytes -= region.size_bytes
                    region.drop()

        payload = job.payload
        self._counters.add("read_results", len(results))
        job.request.reply(
            ReadReply(b"".join(results), b"".join(job.checksums)), payload, more=not over, on_sent=released
        )
        job.results, job.checksums, job.payload, job.regions = [], [], [], []
        job.ready_bytes = 0
        if over:
            if job.alarm is not None:
                job.alarm.cancel()
            if job.memory is not None:
                job.memory.leave()

    def _after_batch(self) -> None:
        self._flush_touched()
        if self._jobs and not self._pumping:
            self._pump_later()

    def _memory_freed(self) -> None:
        if self._starved:
            self._jobs.extend(self._starved)
            self._starved.clear()
            self._pump_later()
