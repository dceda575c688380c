"""Performs what the replicas decide about mutable chunks: on the drive, towards successors, for whoever waits.

The protocol's decisions are `craq`'s (`craq/mutable.py`); its events and effects pass through the runner of the
replicas (`runner.py`), one at a time. Every operation has a deadline, is answered once, and ends once; what it holds of
the drive and of memory is let go at its end.

It also sees to it that no image stays pending: whatever an operation, a chain's change or an earlier life of the worker
left so is taken up again until it is committed, a few chunks at a time.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from esker.chunkserver.copy_on_write import Pieces
from esker.chunkserver.engine.errors import CorruptRecord, DriveFailed, NoSpace
from esker.chunkserver.engine.image_record import ChannelRecord
from esker.chunkserver.engine.images import Chunk
from esker.chunkserver.engine.store import DriveStore
from esker.chunkserver.forward import Link
from esker.chunkserver.mutable_operations import MutableOperation, entry_of, image_of, pending_of, stored_image
from esker.chunkserver.mutable_persist import Persist
from esker.chunkserver.mutable_questions import Questions
from esker.chunkserver.mutable_recovery import Recovery
from esker.chunkserver.pool import WorkerPool
from esker.chunkserver.runner import Perform
from esker.chunkserver.update_links import UpdateLinks
from esker.craq import mutable_messages as craq
from esker.craq.messages import Expired, Reserved
from esker.craq.replica import AnyEvent, ChainReplica
from esker.runtime.counters import Counters
from esker.runtime.logging import get_logger
from esker.wire.limits import ALIGN_BYTES, aligned
from esker.wire.status import Status
from esker.wire.types import TargetState

log = get_logger("chunkserver.mutable")

COMMIT_RETRY_S = 0.25
COMMIT_TRIES = 40
"""A commit that only frees room can fail for lack of it, where the index is full to the brim. Then the image stays
pending, to be taken up again: no lack of space takes a drive out of its chains."""


class Runner(Protocol):
    """What is needed of the runner of the replicas."""

    syncs: int

    def new_op(self) -> int: ...

    def queue(self, replica: ChainReplica, event: AnyEvent) -> None: ...

    def dispatch(self, replica: ChainReplica, event: AnyEvent) -> None: ...

    def run(self) -> None: ...

    def adopt(self, perform: Perform, busy: Callable[[], int]) -> None: ...


class MutableRunner:
    """The operations on mutable chunks that are under way on one drive."""

    def __init__(
        self,
        store: DriveStore,
        pool: WorkerPool,
        counters: Counters,
        runner: Runner,
        link: Callable[[str], Link],
        lease_live: Callable[[int, int], bool],
        submit: Callable[[], None],
    ) -> None:
        """`lease_live(chain id, chain version)`: whether this worker's lease for the chain is live at this moment."""
        self._store = store
        self._images = store.images
        self._counters = counters
        self._runner = runner
        self._lease_live = lease_live
        self._loop = asyncio.get_running_loop()
        self._operations: dict[int, MutableOperation] = {}
        self._persist = Persist(store, Pieces(), counters, self, submit)
        self._updates = UpdateLinks(store.images, pool, counters, link, self)
        self._questions = Questions(pool, link, self)
        self.recovery = Recovery(store.images, self)
        self.on_ended: Callable[[ChainReplica], None] = lambda replica: None
        """Told of each end of an operation at a replica that syncs."""
        runner.adopt(
            {
                craq.LookupMutable: self._lookup,
                craq.ReserveImage: self._reserve,
                craq.PersistPending: self._persist_pending,
                craq.RepairImage: self._repair,
                craq.CommitPending: self._commit,
                craq.DiscardPending: self._discard,
                craq.ForwardUpdate: self._forward,
                craq.QueryVersion: self._query,
                craq.ServeImage: self._serve,
                craq.AnswerMutable: self._answer,
                craq.Ended: self._ended,
            },
            lambda: len(self._operations),
        )

    @property
    def busy(self) -> int:
        """Operations under way."""
        return len(self._operations)

    async def aclose(self) -> None:
        """Begins nothing by itself any more; questions under way are given up."""
        self.recovery.close()
        await self._questions.aclose()
        await self._updates.aclose()

    # Beginning

    def register(self, operation: MutableOperation, timeout_s: float) -> int:
        """The operation's number; its time begins now."""
        operation.op = self._runner.new_op()
        operation.deadline = self._loop.time() + timeout_s
        operation.timer = self._loop.call_later(timeout_s, self._expire, operation)
        self._operations[operation.op] = operation
        return operation.op

    def begin(self, operation: MutableOperation, event: craq.MutableArrival) -> None:
        """Hands the operation to its replica with the next `run`."""
        operation.event = event
        self._runner.queue(operation.replica, event)

    def run(self) -> None:
        """Handles what was begun."""
        self._runner.run()

    def is_current(self, operation: MutableOperation) -> bool:
        """Whether the operation has not ended yet."""
        return self._operations.get(operation.op) is operation

    def report(self, operation: MutableOperation, event: AnyEvent) -> None:
        """What came of an effect, later."""
        if self.is_current(operation):
            self._runner.dispatch(operation.replica, event)

    def sync(self, replica: ChainReplica, record_key: bytes, timeout_s: float, ended: Callable[[Status], None]) -> None:
        """Brings `replica`'s syncing successor in line about one chunk; `ended` gets the outcome, later."""
        operation = MutableOperation(replica, record_key)
        outcome: list[Status] = []
        operation.answered = lambda answer: outcome.append(answer.status)
        self._runner.syncs += 1

        def over(_: craq.Ended) -> None:
            self._runner.syncs -= 1
            self._loop.call_soon(ended, outcome[0])

        operation.ended = over
        op = self.register(operation, timeout_s)
        self.begin(operation, craq.SyncMutable(op, replica.chain.version, record_key))
        self.run()

    def recover(
        self, replica: ChainReplica, record_key: bytes, timeout_s: float, ended: Callable[[craq.Ended], None]
    ) -> None:
        """Has what is pending of the chunk committed; `ended` is told when the operation is over."""
        operation = MutableOperation(replica, record_key)
        operation.ended = ended
        op = self.register(operation, timeout_s)
        self.begin(operation, craq.Recover(op, replica.chain.version, record_key))
        self.run()

    def _expire(self, operation: MutableOperation) -> None:
        operation.timer = None
        self.report(operation, Expired(operation.op))

    # The drive

    def _lookup(self, replica: ChainReplica, effect: craq.LookupMutable) -> AnyEvent:
        operation = self._operations[effect.op]
        try:
            chunk, entry = self._stored(operation)
        except DriveFailed:  # the replica knows, and refuses the operation
            chunk, entry = Chunk(None, None, damaged=True), None
        damaged = chunk.damaged
        if isinstance(entry, CorruptRecord):
            log.error("a channel's last write cannot be made out", drive=self._store.drive_id, reason=str(entry))
            entry, damaged = None, True  # whether this write was done before is not known any more
        operation.looked = chunk
        chain = replica.chain
        return craq.Looked(
            effect.op,
            image_of(chunk.committed),
            pending_of(chunk.pending),
            entry_of(entry),
            self._lease_live(chain.chain_id, chain.version),
            damaged,
        )

    def _stored(self, operation: MutableOperation) -> tuple[Chunk, ChannelRecord | CorruptRecord | None]:
        event = operation.event
        if isinstance(event, craq.Update) and event.origin is not None:
            origin = event.origin
            return self._images.chunk_and_channel(operation.record_key, origin.client, origin.channel)
        return self._images.chunk(operation.record_key), None

    def _reserve(self, replica: ChainReplica, effect: craq.ReserveImage) -> AnyEvent:
        operation = self._operations[effect.op]
        size = slot_size(effect.length_bytes, operation.slot_bytes)
        try:
            operation.slot = self._store.allocate(size, size, reserve=effect.use_reserve)
        except NoSpace:
            return Reserved(effect.op, False)
        except DriveFailed:
            return craq.Persisted(effect.op, Status.IO_ERROR)
        return Reserved(effect.op, True)

    def _persist_pending(self, replica: ChainReplica, effect: craq.PersistPending) -> AnyEvent | None:
        try:
            return self._persist.persist(self._operations[effect.op], effect)
        except DriveFailed:
            return craq.Persisted(effect.op, Status.IO_ERROR)

    def _commit(self, replica: ChainReplica, effect: craq.CommitPending) -> None:
        self._settle((self._operations[effect.op], effect, 0))

    def _discard(self, replica: ChainReplica, effect: craq.DiscardPending) -> None:
        self._settle((self._operations[effect.op], effect, 0))

    def _settle(self, token: "_Settling") -> None:
        operation, effect, _ = token
        if isinstance(effect, craq.CommitPending):
            self._images.settle(operation.record_key, effect.version, self._settled, token)
        else:
            self._images.discard(operation.record_key, effect.version, self._settled, token)

    def _settled(self, token: "_Settling", status: Status) -> None:
        operation, effect, tries = token
        if status is Status.NO_SPACE and tries < COMMIT_TRIES:
            self._loop.call_later(COMMIT_RETRY_S, self._settle, (operation, effect, tries + 1))
            return
        no_space = status is Status.NO_SPACE
        if isinstance(effect, craq.CommitPending):
            self.report(operation, craq.Committed(effect.op, status is not Status.OK, no_space))
        else:
            failed = status not in (Status.OK, Status.NOT_FOUND)
            self.report(operation, craq.Discarded(effect.op, failed, no_space))

    # Other replicas

    def _forward(self, replica: ChainReplica, effect: craq.ForwardUpdate) -> AnyEvent | None:
        operation = self._operations[effect.op]
        record = None
        if effect.named.full and not effect.named.image.absent:
            with suppress(DriveFailed):  # as if it were not here
                record = stored_image(self._images.chunk(operation.record_key), effect.named.image.version)
        return self._updates.forward(operation, effect, record)

    def _repair(self, replica: ChainReplica, effect: craq.RepairImage) -> None:
        self._questions.spawn(self._repair_from(self._operations[effect.op], effect))

    async def _repair_from(self, operation: MutableOperation, effect: craq.RepairImage) -> None:
        left_s = max(0.001, operation.deadline - self._loop.time())
        replica, key = operation.replica, operation.record_key
        mended = False
        try:
            mended = await self._mend_from(replica, key, effect.drive, effect.version, left_s)
        finally:
            self.report(operation, craq.Repaired(effect.op, mended))

    async def _mend_from(
        self, replica: ChainReplica, record_key: bytes, drive: str, version: int, timeout_s: float
    ) -> bool:
        whole = await self._questions.whole(replica, record_key, drive, version, timeout_s)
        if whole is None:
            return False
        done: asyncio.Future[bool] = self._loop.create_future()

        def settle(mended: bool) -> None:
            if not done.done():  # else nobody waits any more
                done.set_result(mended)

        self._persist.mend(record_key, version, whole, settle)
        return await done

    async def mend(self, replica: ChainReplica, record_key: bytes, timeout_s: float) -> bool:
        """Puts another serving replica's copies in the place of the images here; whether that came about."""
        chunk = self._images.chunk(record_key)
        versions = [image.version for image in (chunk.committed, chunk.pending) if image is not None and image.length]
        serving = [each for each in replica.chain.replicas if each.state is TargetState.SERVING]
        others = [each.drive_id for each in serving if each.drive_id != self._store.drive_id]
        mended = 0
        for version in versions:
            for other in others:
                if await self._mend_from(replica, record_key, other, version, timeout_s):
                    mended += 1
                    break
        return 0 < mended == len(versions)

    def _query(self, replica: ChainReplica, effect: craq.QueryVersion) -> None:
        self._counters.add("mutable_version_queries")
        self._questions.query(self._operations[effect.op], effect)

    # Answers

    def _serve(self, replica: ChainReplica, effect: craq.ServeImage) -> None:
        operation = self._operations[effect.op]
        record = None
        if effect.image is not None:
            # As it was looked up in this stretch: a commit may have moved it since, but its slot is still what it was.
            assert operation.looked is not None
            record = stored_image(operation.looked, effect.image.version)
            assert record is not None
        assert operation.serve is not None, "only reads are served"
        operation.serve(effect, record)

    def _answer(self, replica: ChainReplica, effect: craq.AnswerMutable) -> None:
        operation = self._operations[effect.op]
        if operation.answered is not None:
            operation.answered(effect)

    def _ended(self, replica: ChainReplica, effect: craq.Ended) -> None:
        operation = self._operations.pop(effect.op)
        if operation.timer is not None:
            operation.timer.cancel()
            operation.timer = None
        if operation.slot is not None:
            self._store.release(operation.slot)
            operation.slot = None
        if operation.region is not None:
            operation.region.drop()
            operation.region = None
        if operation.ended is not None:
            operation.ended(effect)
        if effect.pending:
            self.recovery.left(replica, operation.record_key)
        if replica.syncing:
            self.on_ended(replica)


_Settling = tuple[MutableOperation, craq.CommitPending | craq.DiscardPending, int]


def slot_size(length_bytes: int, slot_bytes: int) -> int:
    """Bytes of the slot for a mutable chunk of `length_bytes`: a power of two, but no more than `slot_bytes`, or than
    what is needed."""
    power = max(ALIGN_BYTES, 1 << max(0, length_bytes - 1).bit_length())
    return min(power, max(slot_bytes, aligned(length_bytes)))
