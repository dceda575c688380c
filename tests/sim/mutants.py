"""Replicas, nodes and managers that break one rule each. The simulation must notice every one of them."""

from collections.abc import Callable

import msgspec

from esker.craq.membership import LocalState, Target
from esker.craq.messages import (
    Answer,
    Arrival,
    Create,
    Effect,
    Event,
    Fetch,
    Forward,
    Forwarded,
    ForwardRemove,
    RemoveLocal,
    Stored,
    Sync,
    Written,
)
from esker.craq.operation import Operation
from esker.craq.replica import ChainReplica
from esker.meta.chain_decisions import ChainDecisions
from esker.wire.status import Status
from esker.wire.types import Chain, ChainGoal, Replica, TargetState

from .manager import Manager
from .nodes import Node
from .resyncs import Resync

# Replicas


class AcknowledgesBeforeTheSuccessor(ChainReplica):
    """Takes its own durable copy for enough."""

    def handle(self, event: Event) -> list[Effect]:
        effects = list(super().handle(event))
        if isinstance(event, Written) and not event.failed:
            effects += super().handle(Forwarded(event.op, Status.OK))
        return effects


class _Instead(ChainReplica):
    """Does not do what `_leaves_out` says, and goes on as if the successor had answered `status`."""

    status: Status

    def _leaves_out(self, effect: Effect) -> bool:
        raise NotImplementedError

    def handle(self, event: Event) -> list[Effect]:
        effects: list[Effect] = []
        for effect in super().handle(event):
            if self._leaves_out(effect):
                effects += self.handle(Forwarded(effect.op, self.status))  # type: ignore[union-attr]
            else:
                effects.append(effect)
        return effects


class KeepsItsOwnCopy(_Instead):
    """Lets two contents stand."""

    status = Status.EXISTS

    def _leaves_out(self, effect: Effect) -> bool:
        return isinstance(effect, Fetch)


class RemovesOnlyItsOwn(_Instead):
    """Leaves the copies behind it."""

    status = Status.OK

    def _leaves_out(self, effect: Effect) -> bool:
        return isinstance(effect, ForwardRemove)


class DoesNotConfirm(_Instead):
    """Takes it for granted that the successor has what is here."""

    status = Status.EXISTS

    def _leaves_out(self, effect: Effect) -> bool:
        return isinstance(effect, Forward) and effect.confirm


class DoesNotWaitForTheSyncingOne(_Instead):
    """Acknowledges what the replica that is about to serve may not have."""

    status = Status.OK

    def _leaves_out(self, effect: Effect) -> bool:
        operation = self._operations.get(effect.op) if isinstance(effect, Forward) else None
        return operation is not None and isinstance(operation.event, Create) and self.place.replaces


class LeavesWhatTheSyncingOneHasTooMuch(_Instead):
    """Syncs only what is here."""

    status = Status.NOT_FOUND

    def _leaves_out(self, effect: Effect) -> bool:
        operation = self._operations.get(effect.op) if isinstance(effect, ForwardRemove) else None
        return operation is not None and isinstance(operation.event, Sync)


class TakesOverFromTheSyncingOne(ChainReplica):
    """Lets the successor's copy win also where it is the one that missed something."""

    def _create_settle(self, operation: Operation, create: Create) -> list[Effect]:
        return self._blindly(lambda: super(TakesOverFromTheSyncingOne, self)._create_settle(operation, create))

    def _create_write(self, operation: Operation, create: Create) -> list[Effect]:
        return self._blindly(lambda: super(TakesOverFromTheSyncingOne, self)._create_write(operation, create))

    def _blindly(self, decide: Callable[[], list[Effect]]) -> list[Effect]:
        place, self.place = self.place, self.place._replace(replaces=False)
        try:
            return decide()
        finally:
            self.place = place


class TakesEqualBytesForTheSameChunk(ChainReplica):
    """Lets replicas have different versions, so that a removal that names one leaves copies behind."""

    def _outcome(self, operation: Operation, create: Create, stored: Stored) -> Status:
        if operation.created:
            return Status.OK
        return Status.EXISTS if stored.content == create.content else Status.EXISTS_OTHER


class KeepsWhatTheSuccessorHadNoRoomFor(ChainReplica):
    """Acknowledges what only it has."""

    def handle(self, event: Event) -> list[Effect]:
        effects: list[Effect] = []
        for effect in super().handle(event):
            operation = self._operations.get(effect.op) if isinstance(effect, RemoveLocal) else None
            if operation is not None and operation.status is Status.NO_SPACE:
                effects += self._answer(operation, Status.OK, operation.stored)
            else:
                effects.append(effect)
        return effects


class AnswersTwice(ChainReplica):
    """Repeats an answer."""

    def handle(self, event: Event) -> list[Effect]:
        effects = list(super().handle(event))
        return effects + [effect for effect in effects if isinstance(effect, Answer)]


class ServesWithoutBeingAdmitted(ChainReplica):
    """A worker that was started anew believes what its drive says of its membership."""

    def __init__(self, chain: Chain, drive_id: str, incarnation: str) -> None:
        own = [replica for replica in chain.replicas if replica.drive_id == drive_id]
        super().__init__(chain, drive_id, own[0].incarnation or incarnation)

    def _take(self, chain: Chain) -> None:
        own = [replica for replica in chain.replicas if replica.drive_id == self._drive_id]
        self._incarnation = own[0].incarnation or self._incarnation
        super()._take(chain)


class AcceptsOtherVersionsOfTheChain(ChainReplica):
    """Is not fenced."""

    def _refused(self, event: Arrival) -> Status | None:
        return super()._refused(msgspec.structs.replace(event, chain_version=self.chain.version))

    def _changed(self, chain: Chain) -> list[Effect]:
        self._take(chain)
        return []


class CarriesOnAcrossAChange(ChainReplica):
    """Acknowledges in a later version of the chain what was begun in an earlier one."""

    def _changed(self, chain: Chain) -> list[Effect]:
        self._take(chain)
        return []

    def _refused(self, event: Arrival) -> Status | None:
        if event.op in self._operations:
            event = msgspec.structs.replace(event, chain_version=self.chain.version)
        return super()._refused(event)


class DrawsVersionsThatAnotherHeadMayDraw(ChainReplica):
    """Counts on in whatever chain version."""

    def _take(self, chain: Chain) -> None:
        before = getattr(self, "_next_version", 1 << 20)
        super()._take(chain)
        self._next_version = before


# Nodes


class _HastyResync(Resync):
    def _look(self) -> None:
        self.synced = True


class ReportsBeforeItHasSynced(Node):
    """Says that the successor is up to date when the syncs were sent."""

    resync_type = _HastyResync


class _OneSidedResync(Resync):
    def _read_theirs(self) -> None:
        if not self._target.ready(self.version):
            self._again("the other's records", self._read_theirs)
            return
        self._left |= {chunk for chunk in self._own if self._own[chunk] != self._target.store.get(chunk)}
        for chunk in sorted(self._left):
            self._sync(chunk)
        self._look()


class ComparesOnlyWhatItHas(Node):
    """Does not look for what the successor has too much."""

    resync_type = _OneSidedResync


# Managers


class _Admits(ChainDecisions):
    def _resynced(self, chain: Chain, syncing: Replica, targets: dict[str, Target], now_s: float) -> LocalState:
        return LocalState.UP_TO_DATE


class AdmitsWithoutResync(Manager):
    """Takes whoever is alive for up to date."""

    decisions_type = _Admits


class _BelievesOldReports(ChainDecisions):
    def __init__(self) -> None:
        super().__init__()
        self._once: set[str] = set()

    def _resynced(self, chain: Chain, syncing: Replica, targets: dict[str, Target], now_s: float) -> LocalState:
        state = super()._resynced(chain, syncing, targets, now_s)
        if state is LocalState.UP_TO_DATE:
            self._once.add(syncing.drive_id)
        return LocalState.UP_TO_DATE if syncing.drive_id in self._once else state


class BelievesReportsOfOtherVersions(Manager):
    """Takes a drive for up to date that once was, in an earlier version of the chain."""

    decisions_type = _BelievesOldReports


class _Revives(ChainDecisions):
    def _settled(self, chain: Chain, goal: ChainGoal | None, now_s: float) -> Chain:
        following = super()._settled(chain, goal, now_s)
        if all(replica.state is not TargetState.SERVING for replica in following.replicas):
            targets = self._targets(following, now_s)
            for replica in following.replicas:
                target = targets.get(replica.drive_id)
                if target is not None and target.state is not LocalState.OFFLINE:
                    first = Replica(replica.drive_id, TargetState.SERVING, target.incarnation)
                    others = [
                        Replica(other.drive_id, TargetState.OFFLINE) for other in following.replicas if other != replica
                    ]
                    return msgspec.structs.replace(following, version=following.version + 1, replicas=(first, *others))
        return following


class LetsAnybodyServeWhenNoneDoes(Manager):
    """Does not wait for one of the last that served."""

    decisions_type = _Revives


REPLICAS: list[type[ChainReplica]] = [
    AcknowledgesBeforeTheSuccessor,
    KeepsItsOwnCopy,
    RemovesOnlyItsOwn,
    DoesNotConfirm,
    DoesNotWaitForTheSyncingOne,
    LeavesWhatTheSyncingOneHasTooMuch,
    TakesOverFromTheSyncingOne,
    TakesEqualBytesForTheSameChunk,
    KeepsWhatTheSuccessorHadNoRoomFor,
    AnswersTwice,
    ServesWithoutBeingAdmitted,
    AcceptsOtherVersionsOfTheChain,
    CarriesOnAcrossAChange,
    DrawsVersionsThatAnotherHeadMayDraw,
]
NODES: list[type[Node]] = [
    ReportsBeforeItHasSynced,
    ComparesOnlyWhatItHas,
]
MANAGERS: list[type[Manager]] = [
    AdmitsWithoutResync,
    BelievesReportsOfOtherVersions,
    LetsAnybodyServeWhenNoneDoes,
]
