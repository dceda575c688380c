"""One replica of one chain, for immutable chunks: create-if-absent and conditional removal through the whole chain.

Pure; `craq/replica.py` is the door to it. Rules:

- operations on one chunk run one after another here, in the order in which they came; so they do on the whole chain;
- a create is acknowledged only when this replica's copy is durable and the successor acknowledged it too; so the
  head's acknowledgement means every serving replica has the chunk, and there are at least `min_replicas`; so has the
  one that is syncing, which is always the last;
- a create that finds the chunk is confirmed down the chain all the same; where contents differ, the successor's copy
  wins and replaces ours; so it does where versions differ, because a removal may name one;
- towards a syncing successor it is the other way round: what is here replaces what it has, and what is absent here is
  removed there, whatever it is;
- no version is drawn before room is reserved, and lack of room changes no membership;
- a version holds the version of the chain in which its head drew it, so no two heads ever draw the same;
- a failed local write takes the target offline: nothing is acknowledged after it;
- what was begun under another version of the chain is neither carried further nor acknowledged: once the chain has
  changed, it ends as soon as this drive has nothing more to report;
- a replica whose worker was started anew takes no part until that life has been admitted;
- once an operation's deadline has passed, nothing but this drive is waited for: it reports for certain.
"""

from collections import deque

from esker.craq.membership import ADMITTED
from esker.craq.messages import (
    Answer,
    Arrival,
    Create,
    DriveFailed,
    Effect,
    Event,
    Expired,
    Fetch,
    Fetched,
    Forward,
    Forwarded,
    ForwardRemove,
    Found,
    Lookup,
    Membership,
    Remove,
    Removed,
    RemoveLocal,
    Repair,
    Reserve,
    Reserved,
    Stored,
    Sync,
    TargetOffline,
    Unreadable,
    Write,
    Written,
)
from esker.craq.operation import ANY_VERSION, CONFIRMED, Operation, Step
from esker.craq.place import place_of
from esker.craq.upkeep import repair_step, sync_step
from esker.craq.versions import first_version
from esker.wire.ids import NO_PUT_ID
from esker.wire.status import Status
from esker.wire.types import Chain, TargetState

QUEUE_PER_CHUNK_MAX = 64


class ImmutableReplica:
    """This drive's replica of `chain`, in the life of its worker that `incarnation` names."""

    def __init__(self, chain: Chain, drive_id: str, incarnation: str) -> None:
        self._drive_id = drive_id
        self._incarnation = incarnation
        self._operations: dict[int, Operation] = {}
        self._chunks: dict[bytes, deque[int]] = {}
        self.offline = ""
        """Why this target serves nothing; empty: it serves."""
        self._take(chain)

    def _take(self, chain: Chain) -> None:
        self.chain = chain
        self.place = place_of(chain, self._drive_id, self._incarnation)
        self.successor = self.place.successor
        self._next_version = first_version(chain)

    def draw_version(self) -> int:
        """A version that no chunk of the chain had or will have."""
        self._next_version += 1
        return self._next_version - 1

    @property
    def is_head(self) -> bool:
        """Whether clients write here."""
        return self.place.is_head

    @property
    def serving(self) -> bool:
        """Whether this replica has everything that was acknowledged."""
        return self.place.state is TargetState.SERVING

    @property
    def takes_part(self) -> bool:
        """Whether writes pass through this replica."""
        return self.place.state in ADMITTED

    @property
    def syncing(self) -> bool:
        """Whether this replica is being brought up to date."""
        return self.place.state is TargetState.SYNCING

    @property
    def resyncs(self) -> str | None:
        """The drive that this replica has to bring up to date, if there is one."""
        return self.successor if self.place.replaces and not self.offline else None

    @property
    def busy(self) -> int:
        """How many operations are under way or waiting."""
        return len(self._operations)

    def earlier_chunks(self) -> list[bytes]:
        """Chunks on which operations of an earlier version of the chain are still under way."""
        version = self.chain.version
        return [chunk for chunk, ops in self._chunks.items() if self._operations[ops[0]].event.chain_version != version]

    def immutable(self, event: Event) -> list[Effect]:
        """What `event` changes of immutable chunks, and what is to be done about it, in order."""
        if isinstance(event, (Create, Remove, Sync, Repair)):
            return self._arrived(event)
        if isinstance(event, Membership):
            return self._changed(event.chain)
        if isinstance(event, DriveFailed):
            self.offline = self.offline or event.why
            return []
        operation = self._operations.get(event.op)
        if operation is None:
            return []  # answered already: its deadline passed, or the chain changed
        if isinstance(event, Expired):
            return self._expired(operation)
        if isinstance(event, Forwarded):
            operation.forwarded = event
        if isinstance(operation.event, Create):
            return self._create(operation, operation.event, event)
        if isinstance(operation.event, Remove):
            return self._remove(operation, operation.event, event)
        if isinstance(operation.event, Sync):
            return self._sync(operation, operation.event, event)
        return self._repair(operation, operation.event, event)

    def _arrived(self, event: Arrival) -> list[Effect]:
        refused = self._refused(event)
        if refused is not None:
            return [Answer(event.op, refused)]
        waiting = self._chunks.get(event.chunk)
        if waiting is not None and len(waiting) >= QUEUE_PER_CHUNK_MAX:
            return [Answer(event.op, Status.BUSY)]
        self._operations[event.op] = Operation(event)
        if waiting is None:
            self._chunks[event.chunk] = deque((event.op,))
            return [Lookup(event.op)]
        waiting.append(event.op)
        return []

    def _refused(self, event: Arrival) -> Status | None:
        """Why nothing can be acknowledged to `event` at present; None: something can."""
        if self.offline:
            return Status.UNAVAILABLE
        if event.chain_version != self.chain.version:
            return Status.CHAIN_VERSION
        if not self.takes_part:
            return Status.UNAVAILABLE
        if isinstance(event, Sync):
            return None if self.place.replaces else Status.BAD_REQUEST
        if isinstance(event, Repair):
            return Status.UNAVAILABLE if self.syncing else None  # whoever brings it up to date replaces what differs
        if self.syncing:
            return None  # whoever sent it saw to it that enough others serve, or brings this one up to date
        if isinstance(event, Create) and event.replace:
            return Status.BAD_REQUEST
        return None if self.place.enough else Status.UNAVAILABLE

    def _changed(self, chain: Chain) -> list[Effect]:
        """Ends what was begun under the chain as it was, but for what the drive is still to report of."""
        assert chain.version > self.chain.version, "a chain's version only grows"
        self._take(chain)
        effects: list[Effect] = []
        for waiting in list(self._chunks.values()):
            operation = self._operations[waiting[0]]
            refused = self._refused(operation.event)
            assert refused is not None, "it names the version before"
            if operation.local is not Step.PENDING:
                effects += self._answer(operation, refused)
        return effects

    # Create

    def _create(self, operation: Operation, create: Create, event: Event) -> list[Effect]:
        if isinstance(event, Written):
            if event.failed and not event.no_space:
                return self._go_offline(operation, "a write failed")
            operation.local = Step.FAILED if event.failed else Step.DURABLE
        elif isinstance(event, Removed):
            if event.failed and not event.no_space:
                return self._go_offline(operation, "a removal failed")
            assert operation.status is not None, "only what is to be answered afterwards is discarded"
            return self._answer(operation, operation.status)
        refused = self._refused(create)
        if refused is not None and operation.local is not Step.PENDING:
            return self._answer(operation, refused)
        if isinstance(event, Found):
            return self._create_found(operation, create, event.stored)
        if isinstance(event, Reserved):
            return self._create_write(operation, create) if event.granted else self._answer(operation, Status.NO_SPACE)
        if isinstance(event, Unreadable):
            return self._create_again(operation, create)
        if isinstance(event, Fetched):
            return self._create_fetched(operation, create, event.stored)
        return self._create_settle(operation, create)

    def _create_found(self, operation: Operation, create: Create, stored: Stored | None) -> list[Effect]:
        if create.replace and stored != Stored(create.version, create.content):
            stored = None
        if stored is None:
            if create.has_payload:
                return [Reserve(create.op, not self.is_head)]
            return self._answer(operation, Status.NOT_FOUND)
        operation.stored = stored
        operation.local = Step.DURABLE
        if self.successor is None:
            return self._create_settle(operation, create)
        return [Forward(create.op, self.successor, stored.version, stored.content, True, False)]

    def _create_write(self, operation: Operation, create: Create) -> list[Effect]:
        version = create.version
        if not version:
            version = self.draw_version()
        operation.stored = Stored(version, create.content)
        operation.local = Step.PENDING
        operation.created = True
        effects: list[Effect] = [Write(create.op, version)]
        if self.successor is not None:
            replace = self.place.replaces
            effects.append(Forward(create.op, self.successor, version, create.content, False, False, replace))
        return effects

    def _create_again(self, operation: Operation, create: Create) -> list[Effect]:
        """The copy stored here is unreadable: the create's own content takes its place."""
        operation.stored = None
        operation.local = Step.NONE
        if create.has_payload:
            return [Reserve(create.op, not self.is_head)]
        return self._answer(operation, Status.NOT_FOUND)

    def _create_settle(self, operation: Operation, create: Create) -> list[Effect]:
        """Decides once both the local copy and the successor have reported."""
        forwarded = operation.forwarded
        if operation.local is Step.PENDING or (self.successor is not None and forwarded is None):
            return []
        if operation.local is Step.FAILED:
            return self._answer(operation, Status.NO_SPACE)
        stored = operation.stored
        assert stored is not None
        if forwarded is None or forwarded.status in CONFIRMED:
            return self._answer(operation, self._outcome(operation, create, stored), stored)
        assert self.successor is not None
        operation.forwarded = None
        if forwarded.status is Status.NO_SPACE and operation.created:
            operation.status = Status.NO_SPACE
            operation.local = Step.PENDING
            return [RemoveLocal(create.op, stored.version)]
        if forwarded.status not in (Status.NOT_FOUND, Status.EXISTS_OTHER):
            return self._answer(operation, forwarded.status)
        if operation.expired:
            return self._answer(operation, Status.TIMEOUT)
        replace = self.place.replaces
        if forwarded.status is Status.EXISTS_OTHER and not replace:
            return [Fetch(create.op, self.successor)]
        own = create.has_payload and create.content == stored.content
        return [Forward(create.op, self.successor, stored.version, stored.content, False, not own, replace)]

    def _create_fetched(self, operation: Operation, create: Create, stored: Stored | None) -> list[Effect]:
        if stored is None:
            return self._answer(operation, Status.UNAVAILABLE)
        operation.stored = stored
        operation.created = False
        operation.local = Step.PENDING
        operation.forwarded = Forwarded(create.op, Status.EXISTS)
        return [Write(create.op, stored.version, fetched=True)]

    def _outcome(self, operation: Operation, create: Create, stored: Stored) -> Status:
        if operation.created:
            return Status.OK
        same = stored.content == create.content and create.version in (0, stored.version)
        return Status.EXISTS if same else Status.EXISTS_OTHER

    # Remove

    def _remove(self, operation: Operation, remove: Remove, event: Event) -> list[Effect]:
        if isinstance(event, Removed):
            if event.failed:
                if event.no_space:
                    return self._answer(operation, Status.NO_SPACE)
                return self._go_offline(operation, "a removal failed")
            operation.local = Step.DURABLE
        refused = self._refused(remove)
        if refused is not None and operation.local is not Step.PENDING:
            return self._answer(operation, refused)
        if isinstance(event, Found):
            return self._remove_found(operation, remove, event)
        forwarded = operation.forwarded
        if operation.local is Step.PENDING or (self.successor is not None and forwarded is None):
            return []
        if forwarded is not None and forwarded.status not in (Status.OK, Status.NOT_FOUND):
            return self._answer(operation, forwarded.status)
        # What only a syncing successor had was no part of the chain.
        behind = forwarded is not None and forwarded.status is Status.OK and not self.place.replaces
        gone = operation.created or behind
        return self._answer(operation, Status.OK if gone else Status.NOT_FOUND)

    def _remove_found(self, operation: Operation, remove: Remove, found: Found) -> list[Effect]:
        effects: list[Effect] = []
        stored = found.stored
        if found.damaged and not remove.version and remove.put_id == NO_PUT_ID:
            operation.local = Step.PENDING
            effects.append(RemoveLocal(remove.op, ANY_VERSION))
        if stored is not None:
            other_version = remove.version and remove.version != stored.version
            other_put = remove.put_id != NO_PUT_ID and remove.put_id != stored.content.put_id
            if other_version or other_put:
                return self._answer(operation, Status.CONDITION, stored)
            operation.local = Step.PENDING
            operation.created = True  # something was here to be removed
            effects.append(RemoveLocal(remove.op, stored.version))
        if self.successor is not None:
            effects.append(ForwardRemove(remove.op, self.successor, anything=self.place.replaces))
        return effects or self._answer(operation, Status.NOT_FOUND)

    # Sync and repair

    def _sync(self, operation: Operation, sync: Sync, event: Event) -> list[Effect]:
        refused = self._refused(sync)
        if refused is not None:
            return self._answer(operation, refused)
        assert self.successor is not None, "else it would have been refused"
        return self._next(operation, sync_step(operation, sync, event, self.successor))

    def _repair(self, operation: Operation, repair: Repair, event: Event) -> list[Effect]:
        if isinstance(event, (Written, Removed)):
            operation.local = Step.DURABLE
            if event.failed and not event.no_space:
                return self._go_offline(operation, "a repair could not be written")
        refused = self._refused(repair) if operation.local is Step.NONE else None
        if refused is not None:
            return self._answer(operation, refused)
        return self._next(operation, repair_step(operation, repair, event, self.chain, self._drive_id))

    def _next(self, operation: Operation, step: list[Effect] | Status) -> list[Effect]:
        return self._answer(operation, step) if isinstance(step, Status) else step

    # Ending

    def _expired(self, operation: Operation) -> list[Effect]:
        op = operation.event.op
        waiting = self._chunks[operation.event.chunk]
        if waiting[0] != op:
            waiting.remove(op)
            del self._operations[op]
            return [Answer(op, Status.TIMEOUT)]
        operation.expired = True
        if operation.local is Step.NONE:
            return self._answer(operation, Status.TIMEOUT)  # this drive has nothing to report
        if operation.forwarded is not None or (self.successor is None and operation.local is Step.PENDING):
            return []  # only the drive's report is awaited
        return self.immutable(Forwarded(op, Status.TIMEOUT))

    def _go_offline(self, operation: Operation, why: str) -> list[Effect]:
        self.offline = self.offline or why
        return [TargetOffline(why), *self._answer(operation, Status.UNAVAILABLE)]

    def _answer(self, operation: Operation, status: Status, stored: Stored | None = None) -> list[Effect]:
        """Ends the operation and starts the next one on its chunk."""
        event = operation.event
        del self._operations[event.op]
        waiting = self._chunks[event.chunk]
        assert waiting[0] == event.op, "only the first operation on a chunk is under way"
        waiting.popleft()
        effects: list[Effect] = [Answer(event.op, status, stored)]
        while waiting:
            following = self._operations[waiting[0]].event
            refused = self._refused(following)
            if refused is None:
                effects.append(Lookup(following.op))
                return effects
            del self._operations[waiting.popleft()]
            effects.append(Answer(following.op, refused))
        del self._chunks[event.chunk]
        return effects
