"""Operations, replicas, drives and resyncs that break one rule of mutable chunks each; the simulation must notice all.

Beside each stands a seed from which on it is noticed soon.
"""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from esker.craq import mutable_messages as craq
from esker.craq.hops import HopOrder
from esker.craq.mutable import MutableChunks
from esker.craq.mutable_locked import LockedOperation, RecoverOperation
from esker.craq.mutable_messages import Looked, MutableEffect, MutableEvent, Pending, Persisted
from esker.craq.mutable_operation import MutableOperation
from esker.craq.mutable_read import ReadOperation
from esker.craq.mutable_update import UpdateOperation
from esker.craq.place import Place
from esker.craq.replica import ChainReplica
from esker.wire.status import Status
from esker.wire.types import Chain

from .mutable_drive import ChannelKey, Slot
from .mutable_nodes import MutableNode, MutableResync
from .mutants import ServesWithoutBeingAdmitted

# Operations


class ReadsWithoutAsking(ReadOperation):
    """Takes what it has committed for what the chain has."""

    def _chosen(self, looked: Looked) -> list[MutableEffect]:
        return self._serve(looked, pending=False)


class ReadsWhatIsPending(ReadOperation):
    """Gives out what nobody has committed yet."""

    def _chosen(self, looked: Looked) -> list[MutableEffect]:
        return self._serve(looked, pending=looked.pending is not None)


class ReadsWithoutLease(ReadOperation):
    """Goes on serving when it may have been taken out."""

    def _step(self, event: MutableEvent) -> list[MutableEffect]:
        return super()._step(msgspec.structs.replace(event, lease_live=True) if isinstance(event, Looked) else event)


class ReadsWhatIsUndecided(ReadOperation):
    """The same, of its own reads."""

    def _undecided(self, looked: Looked) -> bool:
        return False


class WritesAgain(UpdateOperation):
    """Does not look whether it did this already."""

    def _begin_at_head(self, looked: Looked) -> list[MutableEffect]:
        return super()._begin_at_head(msgspec.structs.replace(looked, channel=None))


class AcknowledgesWhatItOnlyNoted(UpdateOperation):
    """Answers a write that is sent again from the table, committed or not."""

    def _step(self, event: MutableEvent) -> list[MutableEffect]:
        origin = self.event.origin
        if isinstance(event, Looked) and self.event.named is None and origin is not None:
            entry = event.channel
            if entry is not None and entry.sequence == origin.sequence and self.refused() is None:
                return self._finish(Status.OK, entry.version, entry.length_bytes)
        return super()._step(event)


class LetsLateWritesThrough(UpdateOperation):
    """Forgets that the chunk was truncated since."""

    def _begin_at_head(self, looked: Looked) -> list[MutableEffect]:
        base = looked.committed
        if base is not None and base.truncate_version > self.event.patch.truncate_version:
            patch = msgspec.structs.replace(self.event.patch, truncate_version=base.truncate_version)
            self.event = msgspec.structs.replace(self.event, patch=patch)
        return super()._begin_at_head(looked)


class AppliesToWhateverIsThere(UpdateOperation):
    """Does not compare the version before."""

    def _begin_behind(self, looked: Looked, named: craq.Named) -> list[MutableEffect]:
        previous = 0 if looked.committed is None else looked.committed.version
        return super()._begin_behind(looked, msgspec.structs.replace(named, previous=previous))


class AcknowledgesBeforeTheSuccessor(UpdateOperation):
    """Takes its own durable image for enough."""

    def _bring_down(self, full: bool) -> list[MutableEffect]:
        pending = self._pending
        assert pending is not None
        answer = self._answer(Status.OK, pending.image.version, pending.image.length_bytes) if self._own else []
        return [*answer, *super()._bring_down(full)]


class AcknowledgesWithTooFew(UpdateOperation):
    """Does not count the replicas that serve."""

    def _refused_here(self, place: Place) -> Status | None:
        return super()._refused_here(place._replace(enough=True))


class AcknowledgesWhatItCouldNotWrite(UpdateOperation):
    """Takes no notice of a drive that fails."""

    def _persisted(self, persisted: Persisted) -> list[MutableEffect]:
        if persisted.status is Status.IO_ERROR:
            return self._finish(Status.OK, self._version, 0)
        return super()._persisted(persisted)


class AnswersBeforeItHasCommitted(UpdateOperation):
    """The last serving replica, which is asked what is committed, says so too early."""

    def _confirmed(self, pending: Pending) -> list[MutableEffect]:
        return [
            *self._answer(Status.OK, pending.image.version, pending.image.length_bytes),
            *super()._confirmed(pending),
        ]


class DoesNotWaitForTheSyncingOne(UpdateOperation):
    """Leaves out the replica that is about to serve."""

    def _bring_down(self, full: bool) -> list[MutableEffect]:
        return self._commit() if self._place.replaces else super()._bring_down(full)


class DiscardsWhatIsUnknown(UpdateOperation):
    """Takes silence for a refusal."""

    def _forwarded(self, status: Status) -> list[MutableEffect]:
        return super()._forwarded(Status.NO_SPACE if status is Status.UNAVAILABLE else status)


class ConfirmsWithoutNoting(UpdateOperation):
    """A syncing replica that has the image already takes no note of who wrote it."""

    def _noted(self, looked: Looked) -> bool:
        return True


class _Unfenced(LockedOperation):
    def refused(self) -> Status | None:
        refused = super().refused()
        return None if refused is Status.CHAIN_VERSION else refused

    def chain_changed(self) -> list[MutableEffect]:
        return []


class TakesWritesOfOtherVersions(_Unfenced, UpdateOperation):
    """Is not fenced by the chain's version."""


class RecoversAcrossVersions(_Unfenced, RecoverOperation):
    """The same, for what was left pending."""


class NeverRecovers(RecoverOperation):
    """Leaves pending what is pending."""

    def _settles(self) -> bool:
        return False


OPERATIONS: list[tuple[type, type[MutableOperation], int]] = [
    (craq.ReadRange, ReadsWithoutAsking, 1),
    (craq.ReadRange, ReadsWhatIsPending, 0),
    (craq.ReadRange, ReadsWithoutLease, 14),
    (craq.ReadRange, ReadsWhatIsUndecided, 56),
    (craq.Update, WritesAgain, 0),
    (craq.Update, AcknowledgesWhatItOnlyNoted, 2),
    (craq.Update, LetsLateWritesThrough, 0),
    (craq.Update, AcknowledgesBeforeTheSuccessor, 0),
    (craq.Update, AcknowledgesWithTooFew, 8),
    (craq.Update, AcknowledgesWhatItCouldNotWrite, 0),
    (craq.Update, AnswersBeforeItHasCommitted, 37),
    (craq.Update, DoesNotWaitForTheSyncingOne, 1),
    (craq.Update, DiscardsWhatIsUnknown, 12),
    (craq.Update, ConfirmsWithoutNoting, 57),
    (craq.Update, TakesWritesOfOtherVersions, 2),
    (craq.Recover, RecoversAcrossVersions, 42),
    (craq.Recover, NeverRecovers, 7),
]


def replica_with(arrival: type, operation: type[MutableOperation]) -> type[ChainReplica]:
    """A replica that begins another operation for what arrives."""

    class Chunks(MutableChunks):
        kinds: Mapping[type, type[MutableOperation]] = {**MutableChunks.kinds, arrival: operation}

    class Replica(ChainReplica):
        mutable_type = Chunks

    return Replica


# Replicas


class _Everything(HopOrder):
    def take(self, chunk: bytes, hop: int) -> bool:
        return True


class _TakesEverything(MutableChunks):
    @property
    def _hops(self) -> HopOrder:
        return _Everything()

    @_hops.setter
    def _hops(self, hops: HopOrder) -> None:
        pass


class TakesMessagesTwiceAndLate(ChainReplica):
    """Does not look at the order of its predecessor's messages."""

    mutable_type = _TakesEverything


class DrawsTheNextVersion(ChainReplica):
    """Counts on in whatever version of the chain."""

    def _take(self, chain: Chain) -> None:
        before = getattr(self, "_next_version", 1 << 20)
        super()._take(chain)
        self._next_version = before


class _AppliesEverything(_TakesEverything):
    kinds: Mapping[type, type[MutableOperation]] = {**MutableChunks.kinds, craq.Update: AppliesToWhateverIsThere}


class AppliesWhateverComes(ChainReplica):
    """Neither looks at the order of messages nor at the version before."""

    mutable_type = _AppliesEverything


REPLICAS: list[tuple[type[ChainReplica], int]] = [
    (TakesMessagesTwiceAndLate, 165),
    (AppliesWhateverComes, 165),
    (DrawsTheNextVersion, 1),
    (ServesWithoutBeingAdmitted, 99),
]

# Nodes


class ReportsBeforeItIsDurable(MutableNode):
    """Says that an image is durable while the last write may still be lost."""

    _unsynced: Any = None

    def _transaction(
        self,
        what: str,
        apply: Callable[[], None],
        report: Callable[[], Any],
        fails: Callable[[], Any] = lambda: None,
    ) -> None:
        def applied() -> None:
            drive = self.mutable
            self._unsynced = dict(drive.committed), dict(drive.pending), dict(drive.channels)
            apply()

        super()._transaction(what, applied, report, fails)

    def crash(self) -> None:
        if self._unsynced is not None and self._random.random() < 0.5:
            self.mutable.committed, self.mutable.pending, self.mutable.channels = self._unsynced
            self._transactions.clear()
        self._unsynced = None
        super().crash()


class LaundersBadBytes(MutableNode):
    """Gives bytes that it did not verify a fresh checksum."""

    def _verifies(self, base: Slot) -> bool:
        return True


class ForgetsChannelsTooEarly(MutableNode):
    """Empties its table while a write of before is still on its way into it."""

    def told(self, chain: Chain) -> None:
        machine = self.machine
        assert machine is not None
        was_syncing = machine.syncing
        super().told(chain)
        if machine.syncing and not was_syncing:
            self.mutable.channels.clear()

    def _clear_channels(self) -> None:
        machine = self.machine
        assert machine is not None
        machine.handle(craq.ChannelsCleared(machine.chain.version))


class ForgetsWhoWrote(MutableNode):
    """A replica behind the head does not keep the table of channels."""

    def _PersistPending(self, effect: craq.PersistPending) -> None:
        operation = self.operations[effect.op]
        if operation.event.named is not None:
            operation.event = msgspec.structs.replace(operation.event, origin=None)
        super()._PersistPending(effect)


class _KeepsChannels(MutableResync):
    def _channels(self) -> dict[ChannelKey, craq.ChannelEntry]:
        return {}


class SyncsNoChannels(MutableNode):
    """A replica that was brought up to date does not know what was written before."""

    resync_type = _KeepsChannels


class _Hurries(MutableResync):
    def _read_own(self) -> None:
        self._early = super()._channels()
        super()._read_own()

    def _channels(self) -> dict[ChannelKey, craq.ChannelEntry]:
        return self._early


class SyncsChannelsFirst(MutableNode):
    """Misses what was under way when the chain changed."""

    resync_type = _Hurries


class _Overlooks(MutableResync):
    def _mutable_synced(self, chunk: bytes, status: Status) -> None:
        self._synced(chunk, status)


class SyncsWhatItCannotRead(MutableNode):
    """Takes a chunk that it cannot read for brought in line."""

    resync_type = _Overlooks


NODES: list[tuple[type[MutableNode], int]] = [
    (ReportsBeforeItIsDurable, 0),
    (LaundersBadBytes, 14),
    (ForgetsChannelsTooEarly, 227),
    (ForgetsWhoWrote, 0),
    (SyncsNoChannels, 0),
    (SyncsChannelsFirst, 253),
    (SyncsWhatItCannotRead, 14),
]
