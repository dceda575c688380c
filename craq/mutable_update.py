"""A write, truncation or removal of a mutable chunk, from a client or from the predecessor. Pure.

The head decides whether it takes effect: exactly once for each sequence of a channel, in the order of truncate
versions, where there is room. It draws the version after room is reserved. A replica behind it applies an update only
if the version that it has committed is the one that the update names as the previous one; one that has the named
version already confirms it. A syncing replica takes whatever its predecessor sends in the place of what it has.
"""

from esker.craq import patches
from esker.craq.messages import Reserved
from esker.craq.mutable_locked import LockedOperation
from esker.craq.mutable_messages import (
    Image,
    Looked,
    MutableEffect,
    MutableEvent,
    Named,
    PatchKind,
    Pending,
    Persisted,
    PersistPending,
    ReserveImage,
    Update,
)
from esker.craq.mutable_operation import Member, Waits
from esker.craq.place import Place
from esker.wire.status import Status
from esker.wire.types import TargetState


class UpdateOperation(LockedOperation):
    """One update."""

    event: Update

    def __init__(self, member: Member, event: Update) -> None:
        super().__init__(member, event)
        self._previous: Image | None = None
        self._version = 0
        """What was drawn, or named."""
        self._commits = False
        """It becomes durable as committed: nobody is behind."""
        self._replaces_damage = False

    def _refused_here(self, place: Place) -> Status | None:
        if self.event.named is not None and place.state is TargetState.SYNCING:
            # Whoever sent it saw to it that enough others serve, or brings this one up to date.
            return None if self._member.channels_cleared else Status.UNAVAILABLE
        if (self.event.named is None) is not place.is_head:
            return Status.CHAIN_VERSION  # whoever sent it saw another chain
        return super()._refused_here(place)

    def _settles(self) -> bool:
        return self._place.state is TargetState.SERVING

    def _step(self, event: MutableEvent) -> list[MutableEffect]:
        if isinstance(event, Reserved):
            return self._reserved(event.granted)
        if isinstance(event, Persisted):
            return self._persisted(event)
        return super()._step(event)

    def _begin(self, looked: Looked) -> list[MutableEffect]:
        self._previous = looked.committed
        if self.event.named is None:
            return self._begin_at_head(looked)
        return self._begin_behind(looked, self.event.named)

    def _begin_at_head(self, looked: Looked) -> list[MutableEffect]:
        entry, origin = looked.channel, self.event.origin
        if not looked.lease_live:
            return self._finish(Status.UNAVAILABLE)
        if entry is not None and origin is not None and entry.sequence >= origin.sequence:
            if entry.sequence > origin.sequence:
                return self._finish(Status.CONDITION)
            return self._finish(Status.OK, entry.version, entry.length_bytes)  # nothing is pending: it is committed
        status = patches.refused(looked.committed, self.event.patch)
        if status is not None:
            return self._finish(status)
        if self.event.patch.kind is PatchKind.REMOVE:
            return self._persist()
        return self._reserve(patches.resulting_length(looked.committed, self.event.patch), use_reserve=False)

    def _begin_behind(self, looked: Looked, named: Named) -> list[MutableEffect]:
        image, committed = named.image, looked.committed
        if self._place.state is TargetState.SYNCING:
            if not named.full:
                return self._finish(Status.BAD_REQUEST)
            same = committed == image or (committed is None and image.absent)
            if looked.pending is None and same and self._noted(looked):
                return self._finish(Status.OK, image.version, image.length_bytes)
        else:
            if self._discarded == image.version:
                return self._finish(Status.NO_SPACE)
            if committed == image or (committed is None and image.absent):
                return self._finish(Status.OK, image.version, image.length_bytes)
            if named.previous != (0 if committed is None else committed.version):
                return self._finish(Status.CONDITION)
        if image.absent:
            return self._persist()
        return self._reserve(image.length_bytes, use_reserve=True)

    def _noted(self, looked: Looked) -> bool:
        """Whether the table of channels here, which began empty with the resync, has this write."""
        origin, entry = self.event.origin, looked.channel
        return origin is None or (entry is not None and entry.sequence >= origin.sequence)

    def _damaged(self, looked: Looked) -> list[MutableEffect]:
        named = self.event.named
        if named is None or not named.full:
            return self._finish(Status.CHECKSUM)
        self._replaces_damage = True  # the predecessor knows what it was
        return self._persist() if named.image.absent else self._reserve(named.image.length_bytes, use_reserve=True)

    def _reserve(self, length_bytes: int, *, use_reserve: bool) -> list[MutableEffect]:
        self.waits = Waits.NOTHING
        return [ReserveImage(self.event.op, length_bytes, use_reserve)]

    def _reserved(self, granted: bool) -> list[MutableEffect]:
        refused = self.refused()
        if refused is not None:
            return self._finish(refused)
        return self._persist() if granted else self._finish(Status.NO_SPACE)

    def _persist(self) -> list[MutableEffect]:
        named = self.event.named
        if self._version == 0:
            self._version = self._member.draw_version() if named is None else named.image.version
        syncing = self._place.state is TargetState.SYNCING
        self._commits = self._place.successor is None
        self.waits = Waits.DRIVE
        return [
            PersistPending(
                self.event.op,
                self._version,
                0 if self._previous is None else self._previous.version,
                commit=self._commits,
                replace=syncing or self._replaces_damage,
                full=named is not None and named.full,
                expected=None if named is None else named.image,
            )
        ]

    def _persisted(self, persisted: Persisted) -> list[MutableEffect]:
        if persisted.status is Status.CHECKSUM:
            return self._base_damaged()
        if persisted.status is Status.NO_SPACE:
            return self._finish(Status.NO_SPACE)
        image = persisted.image
        if persisted.status is not Status.OK or image is None:
            return self._go_offline("a write failed")
        if self._commits:
            self._pending = None
        else:
            before = 0 if self._previous is None else self._previous.version
            self._pending, self._own = Pending(image, before, self.event.origin), True
        refused = self.refused()
        if refused is not None:
            return self._finish(refused)
        if self._commits:
            return self._finish(Status.OK, image.version, image.length_bytes)
        if self._expired:
            return self._finish(Status.TIMEOUT)
        return self._bring_down(self._place.replaces)

    def _base_damaged(self) -> list[MutableEffect]:
        """What is stored here does not verify, or (from the predecessor) the result is not what it should be."""
        if self.event.named is not None or self._previous is None:
            return self._finish(self.refused() or Status.CHECKSUM)  # the predecessor will send all of the image
        return self._mend(self._previous.version)

    def _after_mending(self) -> list[MutableEffect]:
        return self._persist() if self._pending is None else super()._after_mending()
