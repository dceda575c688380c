"""Runs the chain replicas of a drive: gives them events and performs their effects on the store and the links.

The protocol's decisions are `craq`'s; here are its hands. One event at a time: what an effect answers at once is
queued behind it, never handled inside it.
"""

import asyncio
import errno
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from esker.chunkserver.catalog_reports import creation, removal
from esker.chunkserver.copies import Copies
from esker.chunkserver.engine.errors import CorruptRecord, DriveFailed, NoSpace
from esker.chunkserver.engine.io import IoEngine
from esker.chunkserver.engine.record import Record
from esker.chunkserver.engine.store import DriveStore
from esker.chunkserver.forward import Item, Link
from esker.chunkserver.operations import Batch, Operation, SyncEnded
from esker.chunkserver.pool import Region, WorkerPool
from esker.chunkserver.repair_copies import RepairCopies
from esker.craq import messages as craq
from esker.craq.replica import AnyEvent, ChainReplica
from esker.runtime.counters import Counters
from esker.runtime.logging import get_logger
from esker.wire.admin_messages import split_record_key
from esker.wire.ids import NO_PUT_ID
from esker.wire.limits import ALIGN_BYTES
from esker.wire.messages import CREATE_RESULT, REMOVE_RESULT, CatalogEntry, CreateReply, Method, RemoveReply
from esker.wire.status import Status

log = get_logger("chunkserver.runner")

Perform = dict[type, Callable[[ChainReplica, Any], AnyEvent | None]]
"""By the kind of an effect: what performs it, and gives its answer where that is known at once."""


class ReplicaRunner:
    """The operations under way on one drive."""

    def __init__(
        self,
        store: DriveStore,
        engine: IoEngine,
        pool: WorkerPool,
        counters: Counters,
        link: Callable[[str], Link],
        report: Callable[[CatalogEntry], None],
        take_offline: Callable[[str], None],
    ) -> None:
        self._store = store
        self._engine = engine
        self._counters = counters
        self._link = link
        self._report = report
        self._take_offline = take_offline
        self._loop = asyncio.get_running_loop()
        self._copies = Copies(store, pool, counters, self)
        self.repair_copies = RepairCopies(store, engine, pool, self, link)
        self.damaged: set[bytes] = set()
        """Chunks whose records are whole and whose data is known not to be: a create takes their place."""
        self._operations: dict[int, Operation] = {}
        self._next_op = 1
        self.syncs = 0
        """How many of the operations under way are syncs and repairs."""
        self._events: deque[tuple[ChainReplica, AnyEvent]] = deque()
        self._running = False
        self._busy_elsewhere: Callable[[], int] = lambda: 0
        self._perform: Perform = {
            craq.Lookup: self._lookup,
            craq.Reserve: self._reserve,
            craq.Write: self._write,
            craq.Forward: self._forward,
            craq.ForwardRemove: self._forward_remove,
            craq.Fetch: self._fetch,
            craq.Verify: self._verify,
            craq.CopyFrom: self._copy_from,
            craq.RemoveLocal: self._remove_local,
            craq.Answer: self._answer,
            craq.TargetOffline: self._offline,
        }

    @property
    def busy(self) -> int:
        """Operations under way."""
        return len(self._operations) + self._busy_elsewhere()

    def adopt(self, perform: Perform, busy: Callable[[], int]) -> None:
        """Has effects of other kinds performed by `perform`; `busy` gives how many such operations are under way."""
        self._perform |= perform
        self._busy_elsewhere = busy

    def new_op(self) -> int:
        """A number for an operation, of whichever kind."""
        op = self._next_op
        self._next_op += 1
        return op

    def under_way(self, space: int) -> int:
        """Operations under way on chunks of the space; 0: of all."""
        if not space:
            return len(self._operations)
        return sum(operation.space == space for operation in self._operations.values())

    def begin(self, batch: Batch, budget_ms: int) -> float:
        """A request's operations follow; they end within `budget_ms`. Returns their deadline (loop time)."""
        delay_s = max(0, budget_ms) / 1000
        batch.timer = self._loop.call_later(delay_s, self._expire, batch)
        return self._loop.time() + delay_s

    def register(self, operation: Operation) -> int:
        """The operation's number."""
        op = self.new_op()
        self._operations[op] = operation
        operation.batch.ops.append(op)
        return op

    def sync(self, replica: ChainReplica, record_key: bytes, timeout_s: float, ended: SyncEnded) -> None:
        """Brings `replica`'s syncing successor in line about one chunk; `ended` gets the outcome, later."""
        self._begin_own(craq.Sync, replica, record_key, timeout_s, ended)

    def repair(self, replica: ChainReplica, record_key: bytes, timeout_s: float, ended: SyncEnded) -> None:
        """Looks at one chunk, and mends it if it is damaged; `ended` gets the outcome (see `craq.Repair`), later."""
        self._begin_own(craq.Repair, replica, record_key, timeout_s, ended)

    def _begin_own(
        self,
        kind: type[craq.Sync] | type[craq.Repair],
        replica: ChainReplica,
        record_key: bytes,
        timeout_s: float,
        ended: SyncEnded,
    ) -> None:
        chain_id, space, object_id, index = split_record_key(record_key)
        batch = Batch(None, 1, None)
        op = Operation(batch, 0, replica, space, (object_id, index, chain_id))
        op.deadline = self.begin(batch, int(timeout_s * 1000))
        op.sync_ended = ended
        op.event = kind(self.register(op), replica.chain.version, record_key)
        self.syncs += 1
        self.dispatch(replica, op.event)

    def is_current(self, op: int, operation: Operation) -> bool:
        """Whether the operation is still under way."""
        return self._operations.get(op) is operation

    def queue(self, replica: ChainReplica, event: AnyEvent) -> None:
        """Has `event` handled by the next `run`."""
        self._events.append((replica, event))

    def dispatch(self, replica: ChainReplica, event: AnyEvent) -> None:
        """Gives `event` to `replica` and performs what follows from it."""
        self._events.append((replica, event))
        self.run()

    def run(self) -> None:
        """Handles queued events until none is left, then hands queued I/O to the drive."""
        if self._running:
            return
        self._running = True
        events = self._events
        perform = self._perform
        try:
            while events:
                replica, event = events.popleft()
                for effect in replica.handle(event):
                    answer = perform[type(effect)](replica, effect)
                    if answer is not None:
                        events.append((replica, answer))
        finally:
            self._running = False
        self._engine.submit()

    def _lookup(self, replica: ChainReplica, effect: craq.Lookup) -> craq.Event:
        op = self._operations[effect.op]
        damaged = False
        try:
            with self._store.reader() as reader:
                record = reader.record(op.record_key)
        except CorruptRecord:
            record, damaged = None, True  # counted and logged by the store; a create puts a whole one in its place
        except DriveFailed:
            record, damaged = None, True  # the replica knows, and refuses the operation
        if record is None:
            return craq.Found(effect.op, None, damaged)
        content = craq.Content(
            record.length, record.checksums, record.put_id, record.block_bytes, record.chunk_count, record.key
        )
        op.replaces = record.version
        if op.record_key in self.damaged and isinstance(op.event, (craq.Create, craq.Sync)):
            return craq.Found(effect.op, None, True)
        if isinstance(op.event, (craq.Sync, craq.Repair)):
            op.length, op.slot_bytes = record.length, record.pages * ALIGN_BYTES
        if isinstance(op.event, craq.Repair):
            op.created_ms, op.chain_version = record.created_ms, record.chain_version
        return craq.Found(effect.op, craq.Stored(record.version, content))

    def _reserve(self, replica: ChainReplica, effect: craq.Reserve) -> craq.Event:
        op = self._operations[effect.op]
        try:
            op.slot = self._store.allocate(op.length, op.slot_bytes, reserve=effect.use_reserve)
        except NoSpace:
            return craq.Reserved(effect.op, False)
        except DriveFailed:
            return craq.Written(effect.op, failed=True)
        return craq.Reserved(effect.op, True)

    def _write(self, replica: ChainReplica, effect: craq.Write) -> None:
        op = self._operations[effect.op]
        assert op.slot is not None
        assert op.region is not None
        op.stored_version = effect.version
        op.region.hold()
        buffer = op.region.view[op.at : op.at + op.slot.padded_bytes]
        self._store.write(op.slot, buffer, self._written, (effect.op, op, op.region))

    def _written(self, token: tuple[int, Operation, Region], result: int) -> None:
        op_id, op, region = token
        region.drop()
        slot, content = op.slot, op.content
        assert slot is not None
        assert content is not None
        op.slot = None
        if result != slot.padded_bytes:
            log.error("a write failed", drive=self._store.drive_id, result=result)
            self._store.release(slot)
            self.dispatch(op.replica, craq.Written(op_id, failed=True, no_space=result == -errno.ENOSPC))
            return
        record = Record(
            length=content.length_bytes,
            version=op.stored_version,
            chain_version=op.chain_version or op.replica.chain.version,
            block_bytes=content.block_bytes,
            chunk_count=content.chunk_count,
            put_id=content.put_id,
            created_ms=op.created_ms or time.time_ns() // 1_000_000,
            checksums=content.checksums,
            key=content.key,
            pages=slot.pages,
            slot=slot.number,
        )
        self._store.commit_put(op.record_key, record, slot, self._committed, (op_id, op, record))

    def _committed(self, token: tuple[int, Operation, Record], status: Status) -> None:
        op_id, op, record = token
        failed = status is not Status.OK
        if not failed:
            self.damaged.discard(op.record_key)
        same = isinstance(op.event, craq.Repair) and op.replaces == record.version  # nothing has happened to the block
        if not failed and op.for_catalog and not same:
            if op.replaces:
                self._report(removal(op.record_key, op.replaces))
            self._report(creation(op.record_key, record))
        self.dispatch(op.replica, craq.Written(op_id, failed, no_space=status is Status.NO_SPACE))

    def _remove_local(self, replica: ChainReplica, effect: craq.RemoveLocal) -> None:
        op = self._operations[effect.op]
        token = (effect.op, op, effect.version)
        self._store.commit_remove(op.record_key, effect.version, NO_PUT_ID, self._removed, token)

    def _removed(self, token: tuple[int, Operation, int], status: Status) -> None:
        op_id, op, version = token
        if status is Status.OK:
            self.damaged.discard(op.record_key)
        if status is Status.OK and op.gone_for_catalog:
            self._report(removal(op.record_key, version))
        failed = status not in (Status.OK, Status.NOT_FOUND, Status.CONDITION)
        self.dispatch(op.replica, craq.Removed(op_id, failed, no_space=status is Status.NO_SPACE))

    def _forward(self, replica: ChainReplica, effect: craq.Forward) -> craq.Event | None:
        operation = self._operations[effect.op]
        if effect.from_store and not effect.confirm:
            return self._copies.forward_stored(operation, effect)
        self.send_on(operation, effect, None if effect.confirm else operation.region, operation.at)
        return None

    def send_on(self, operation: Operation, effect: craq.Forward, region: Region | None, at: int) -> None:
        """Sends a create or confirm to the successor."""
        content = effect.content
        self._link(effect.successor).send(
            Item(
                op=effect.op,
                method=Method.CONFIRM if effect.confirm else Method.REPLACE if effect.replace else Method.CREATE,
                space=operation.space,
                slot_bytes=operation.slot_bytes,
                extent=operation.forward_row(effect.version, content),
                checksums=content.checksums,
                key=content.key,
                region=region,
                at=at,
                deadline=operation.deadline,
            )
        )

    def _fetch(self, replica: ChainReplica, effect: craq.Fetch) -> craq.Event | None:
        return self._copies.fetch(self._operations[effect.op], effect, self._link(effect.successor).connection)

    def _verify(self, replica: ChainReplica, effect: craq.Verify) -> None:
        self.repair_copies.verify(self._operations[effect.op], effect)

    def _copy_from(self, replica: ChainReplica, effect: craq.CopyFrom) -> None:
        self.repair_copies.copy(self._operations[effect.op], effect)

    def _forward_remove(self, replica: ChainReplica, effect: craq.ForwardRemove) -> None:
        op = self._operations[effect.op]
        remove = op.event
        version, put_id = 0, NO_PUT_ID
        if not effect.anything:
            assert isinstance(remove, craq.Remove)
            version, put_id = remove.version, remove.put_id
        chain = replica.chain
        row = (op.object_id, op.index, chain.chain_id, chain.version, version, put_id)
        self._link(effect.successor).send(
            Item(effect.op, Method.REMOVE, op.space, 0, row, b"", b"", None, 0, op.deadline)
        )

    def forwarded(self, op_id: int, status: Status) -> None:
        """A link's answer to what was sent on."""
        op = self._operations.get(op_id)
        if op is not None:
            self.dispatch(op.replica, craq.Forwarded(op_id, status))

    def _offline(self, replica: ChainReplica, effect: craq.TargetOffline) -> None:
        self._take_offline(effect.why)

    # Answers

    def _expire(self, batch: Batch) -> None:
        for op in batch.ops:
            operation = self._operations.get(op)
            if operation is not None:
                self._events.append((operation.replica, craq.Expired(op)))
        self.run()

    def _answer(self, replica: ChainReplica, effect: craq.Answer) -> None:
        op = self._operations.pop(effect.op)
        status = effect.status
        if op.slot is not None:
            self._store.release(op.slot)
            op.slot = None
        if op.region is not None:
            op.region.drop()
            op.region = None
        if isinstance(op.event, (craq.Sync, craq.Repair)):
            self._own_ended(op, status)
        elif isinstance(op.event, craq.Remove):
            self._counters.add(f"remove_{status.name.lower()}")
            self.result(op.batch, REMOVE_RESULT.pack(op.number, status))
        else:
            self._counters.add(f"create_{status.name.lower()}")
            stored = effect.stored
            if stored is None:
                result = CREATE_RESULT.pack(op.number, status, 0, 0, NO_PUT_ID)
            else:
                content = stored.content
                result = CREATE_RESULT.pack(op.number, status, stored.version, content.length_bytes, content.put_id)
            self.result(op.batch, result)

    def _own_ended(self, op: Operation, status: Status) -> None:
        assert op.sync_ended is not None
        assert op.batch.timer is not None
        op.batch.timer.cancel()
        self.syncs -= 1
        self._loop.call_soon(op.sync_ended, status)

    def result(self, batch: Batch, result: bytes) -> None:
        """One extent of the batch is over; results that come together leave together."""
        batch.results.append(result)
        batch.left -= 1
        if not batch.flush_soon:
            batch.flush_soon = True
            self._loop.call_soon(self._flush, batch)

    def _flush(self, batch: Batch) -> None:
        batch.flush_soon = False
        assert batch.request is not None
        results, batch.results = b"".join(batch.results), []
        body = RemoveReply(results) if batch.request.method is Method.REMOVE else CreateReply(results)
        over = batch.left == 0
        batch.request.reply(body, more=not over)
        if over:
            if batch.timer is not None:
                batch.timer.cancel()
            if batch.region is not None:
                batch.region.drop()
                batch.region = None
