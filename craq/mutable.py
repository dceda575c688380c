"""The mutable chunks of one replica: CRAQ with durable pending images. Pure.

`handle(event)` changes the state and returns what is to be done, as `ChainReplica.handle` does, which is the door to
it. Rules:

- what changes a chunk holds it: such operations run one after another, in the order in which they came; reads and
  version queries hold nothing;
- an image is durable here as pending before it is sent on, so a chunk is known to be dirty before anybody behind may
  have committed it;
- of the predecessor's messages about a chunk, none takes effect twice or after a later one;
- what was begun under another version of the chain is neither carried further nor acknowledged; what it left pending
  is settled in the new version by whoever next takes the chunk: a recovery, a write, a resync.

The kinds of operations: `craq/mutable_update.py`, `craq/mutable_locked.py`, `craq/mutable_read.py`.
"""

from collections import deque
from collections.abc import Mapping

from esker.craq.hops import HopOrder
from esker.craq.messages import Expired
from esker.craq.mutable_locked import LockedOperation, RecoverOperation, SyncOperation
from esker.craq.mutable_messages import (
    AnswerMutable,
    Ended,
    MutableArrival,
    MutableEffect,
    MutableEvent,
    ReadRange,
    Recover,
    SyncMutable,
    Update,
    VersionQuery,
)
from esker.craq.mutable_operation import Member, MutableOperation
from esker.craq.mutable_read import QueryOperation, ReadOperation
from esker.craq.mutable_update import UpdateOperation
from esker.wire.status import Status

QUEUE_PER_CHUNK_MAX = 64


class MutableChunks:
    """All operations on mutable chunks that are under way or waiting at one replica."""

    kinds: Mapping[type, type[MutableOperation]] = {
        Update: UpdateOperation,
        ReadRange: ReadOperation,
        VersionQuery: QueryOperation,
        SyncMutable: SyncOperation,
        Recover: RecoverOperation,
    }
    """What arrives, and the operation that it begins."""

    def __init__(self, member: Member) -> None:
        self._member = member
        self._operations: dict[int, MutableOperation] = {}
        self._chunks: dict[bytes, deque[int]] = {}
        self._hops = HopOrder()

    @property
    def busy(self) -> int:
        """How many operations are under way or waiting."""
        return len(self._operations)

    def __contains__(self, op: int) -> bool:
        return op in self._operations

    def earlier_chunks(self) -> list[bytes]:
        """Chunks on which operations of an earlier version of the chain are still under way."""
        version = self._member.chain.version
        return [chunk for chunk, ops in self._chunks.items() if self._operations[ops[0]].event.chain_version != version]

    def handle(self, event: MutableEvent) -> list[MutableEffect]:
        """What `event` changes, and what is to be done about it, in order."""
        if isinstance(event, (Update, ReadRange, VersionQuery, SyncMutable, Recover)):
            return self._arrived(event)
        operation = self._operations.get(event.op)
        if operation is None:
            return []  # answered already: its deadline passed, or the chain changed
        if isinstance(event, Expired) and self._waits_for_another(operation):
            self._chunks[operation.event.chunk].remove(event.op)
            return self._refuse(event.op, Status.TIMEOUT)
        return self._after(operation, operation.handle(event))

    def chain_changed(self) -> list[MutableEffect]:
        """The chain has another version: ends what was begun before, but for what the drive is still to report of."""
        self._hops = HopOrder()
        effects: list[MutableEffect] = []
        for operation in list(self._operations.values()):
            if operation.event.op in self._operations and not self._waits_for_another(operation):
                effects += self._after(operation, operation.chain_changed())
        return effects

    def _arrived(self, event: MutableArrival) -> list[MutableEffect]:
        operation = self.kinds[type(event)](self._member, event)
        refused = operation.refused()
        if refused is None and isinstance(event, Update) and event.named is not None:
            refused = None if self._hops.take(event.chunk, event.named.hop) else Status.CONDITION
        if refused is not None:
            return self._refuse(event.op, refused)
        if isinstance(operation, LockedOperation):
            waiting = self._chunks.get(event.chunk)
            if waiting is not None:
                if len(waiting) >= QUEUE_PER_CHUNK_MAX:
                    return self._refuse(event.op, Status.BUSY)
                self._operations[event.op] = operation
                waiting.append(event.op)
                return []
            self._chunks[event.chunk] = deque((event.op,))
        self._operations[event.op] = operation
        return self._after(operation, operation.begin())

    def _waits_for_another(self, operation: MutableOperation) -> bool:
        waiting = self._chunks.get(operation.event.chunk) if isinstance(operation, LockedOperation) else None
        return waiting is not None and waiting[0] != operation.event.op

    def _refuse(self, op: int, status: Status) -> list[MutableEffect]:
        self._operations.pop(op, None)
        return [AnswerMutable(op, status), Ended(op)]

    def _after(self, operation: MutableOperation, effects: list[MutableEffect]) -> list[MutableEffect]:
        """Once an operation has ended, the next one on its chunk begins."""
        if not operation.ended:
            return effects
        event = operation.event
        del self._operations[event.op]
        if not isinstance(operation, LockedOperation):
            return effects
        waiting = self._chunks[event.chunk]
        assert waiting[0] == event.op, "only the first operation on a chunk is under way"
        waiting.popleft()
        while waiting:
            following = self._operations[waiting[0]]
            refused = following.refused()
            if refused is None:
                return effects + following.begin()
            effects += self._refuse(waiting.popleft(), refused)
        del self._chunks[event.chunk]
        return effects
