"""What a replica does of its own accord with one chunk: brings its syncing successor in line, mends its own copy.

Pure steps of `ChainReplica`, which holds the chunk's lock meanwhile, refuses what belongs to another version of the
chain, and gives the answer: a step returns the effects to perform next, or the status with which the operation ends.

A copy is replaced only by one of the same version and content. Where the record itself is lost, nobody knows what it
said, and only a serving replica's copy may take its place: under the chunk's lock, in one version of the chain, that is
what was acknowledged, or is about to be. What a syncing replica has may be of old.

Nothing is removed for being damaged, unless the chain has no other replica that could ever give it back.
"""

from esker.craq.messages import (
    CopyFrom,
    Effect,
    Event,
    Fetched,
    Forward,
    Forwarded,
    ForwardRemove,
    Found,
    Removed,
    RemoveLocal,
    Repair,
    Reserve,
    Reserved,
    Sync,
    Unreadable,
    Verified,
    Verify,
    Write,
    Written,
)
from esker.craq.operation import ANY_VERSION, CONFIRMED, Operation, Step
from esker.wire.status import Status
from esker.wire.types import Chain, TargetState


def sync_step(operation: Operation, sync: Sync, event: Event, successor: str) -> list[Effect] | Status:
    """OK: the successor's was brought in line; EXISTS: it was; else why it could not be."""
    if isinstance(event, Unreadable) or (isinstance(event, Found) and event.damaged):
        return Status.CHECKSUM  # what is here is lost; what the successor has may be the last good copy
    if isinstance(event, Found):
        operation.local = Step.DURABLE
        operation.stored = event.stored
        if event.stored is None:
            return [ForwardRemove(sync.op, successor, anything=True)]
        return [Forward(sync.op, successor, event.stored.version, event.stored.content, True, False)]
    forwarded, stored = operation.forwarded, operation.stored
    assert forwarded is not None, "nothing else is awaited"
    if stored is None:
        return Status.OK if forwarded.status in (Status.OK, Status.NOT_FOUND) else forwarded.status
    if operation.replacing or forwarded.status not in (Status.NOT_FOUND, Status.EXISTS_OTHER):
        done = operation.replacing and forwarded.status in CONFIRMED
        return Status.OK if done else forwarded.status
    operation.replacing = True
    operation.forwarded = None
    return [Forward(sync.op, successor, stored.version, stored.content, False, True, True)]


def repair_step(
    operation: Operation, repair: Repair, event: Event, chain: Chain, drive_id: str
) -> list[Effect] | Status:
    """See `Repair` for the statuses. A failed write is for the caller to see to."""
    op = repair.op
    if isinstance(event, Found):
        operation.stored = event.stored
        operation.sources = sources(chain, drive_id, record_known=event.stored is not None)
        if event.stored is not None:
            return [Verify(op)]
        return _next_source(operation, repair, chain) if event.damaged else Status.NOT_FOUND
    if isinstance(event, Verified):
        return Status.EXISTS if event.whole else _next_source(operation, repair, chain)
    if isinstance(event, Fetched):
        if event.stored is None or operation.stored not in (None, event.stored):
            operation.unreached = operation.unreached or not event.reached
            return _next_source(operation, repair, chain)
        operation.stored = event.stored
        return [Reserve(op, use_reserve=True)]
    if isinstance(event, Reserved):
        if not event.granted:
            return Status.NO_SPACE
        assert operation.stored is not None, "room is taken for a copy that is here"
        operation.local = Step.PENDING
        return [Write(op, operation.stored.version, fetched=True)]
    if isinstance(event, Written):
        return Status.NO_SPACE if event.failed else Status.OK
    if isinstance(event, Removed):
        return Status.NO_SPACE if event.failed else Status.CONDITION
    assert isinstance(event, Forwarded), "nothing else is told of a repair"
    return []  # its deadline passed while the drive is at work, which reports for certain


def sources(chain: Chain, drive_id: str, *, record_known: bool) -> list[str]:
    """The drives whose copies may take the place of a damaged one on `drive_id`, the ones to ask first last."""
    states = [TargetState.SERVING]
    if record_known:
        states.append(TargetState.SYNCING)
    others = [replica for replica in chain.replicas if replica.drive_id != drive_id]
    return [replica.drive_id for state in states for replica in others if replica.state is state][::-1]


def _next_source(operation: Operation, repair: Repair, chain: Chain) -> list[Effect] | Status:
    if operation.expired:
        return Status.TIMEOUT
    if operation.sources:
        return [CopyFrom(repair.op, operation.sources.pop())]
    if len(chain.replicas) == 1:
        operation.local = Step.PENDING
        return [RemoveLocal(repair.op, operation.stored.version if operation.stored is not None else ANY_VERSION)]
    # Whoever does not serve at present may have a whole copy, and come back.
    all_asked = all(replica.state is TargetState.SERVING for replica in chain.replicas)
    return Status.CHECKSUM if all_asked and not operation.unreached else Status.UNAVAILABLE
