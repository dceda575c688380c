"""Operations that hold a mutable chunk: they settle what was left pending, and bring an image down the chain. Pure.

A replica sends on only what is durable here as pending, and commits it once the successor has confirmed it; the last
serving replica that has no syncing one behind it commits by itself. An answer with success means that every replica
behind has the image durable and the last serving one has committed it.

What the successor answers is definite in two cases. OK: it has the image. NO_SPACE of an image that was drawn in this
very version of the chain: no replica behind has it, or ever acknowledged it, so it is discarded. Anything else says
nothing: the image stays pending, is never acknowledged by this operation and never discarded.
"""

from abc import abstractmethod

from esker.craq.messages import Forwarded, Unreadable
from esker.craq.mutable_messages import (
    CommitPending,
    Committed,
    Discarded,
    DiscardPending,
    ForwardUpdate,
    Image,
    Looked,
    LookupMutable,
    MutableArrival,
    MutableEffect,
    MutableEvent,
    Named,
    Pending,
    Repaired,
    RepairImage,
)
from esker.craq.mutable_operation import Member, MutableOperation, Waits, is_last_serving
from esker.craq.place import Place
from esker.craq.versions import drawn_before
from esker.wire.status import Status
from esker.wire.types import TargetState


class LockedOperation(MutableOperation):
    """Base of the kinds that hold their chunk. `_begin` is reached once nothing is pending here."""

    def __init__(self, member: Member, event: MutableArrival) -> None:
        super().__init__(member, event)
        self._pending: Pending | None = None
        """What is pending here, whoever began it."""
        self._own = False
        """It is this operation's."""
        self._sent_full = False
        self._sent: Image | None = None
        self._discarded = 0
        """The version of what this operation has discarded."""
        self._mended = False
        """What is stored here was taken from another replica, which is tried once."""

    def begin(self) -> list[MutableEffect]:
        self.waits = Waits.NOTHING
        return [LookupMutable(self.event.op)]

    def _refused_here(self, place: Place) -> Status | None:
        if place.state is not TargetState.SERVING:
            return Status.UNAVAILABLE
        return None if place.enough else Status.UNAVAILABLE

    def _leaves_pending(self) -> bool:
        return self._pending is not None

    def _step(self, event: MutableEvent) -> list[MutableEffect]:
        if isinstance(event, (Committed, Discarded)) and event.failed:
            if event.no_space:
                return self._finish(self.refused() or Status.UNAVAILABLE)  # it stays pending until there is room
            return self._go_offline("a commit failed" if isinstance(event, Committed) else "a discard failed")
        if isinstance(event, Committed):
            return self._committed()
        if isinstance(event, Discarded):
            return self._has_discarded()
        if isinstance(event, Forwarded):
            return self._forwarded(event.status)
        if isinstance(event, Unreadable):
            assert self._sent is not None, "nothing else was to be read"
            return self._mend(self._sent.version)
        if isinstance(event, Repaired):
            return self._has_mended(event.done)
        assert isinstance(event, Looked)
        self._pending = event.pending
        refused = self.refused()
        if refused is not None:
            return self._finish(refused)
        if event.damaged:
            return self._damaged(event)
        if event.pending is not None and self._settles():
            return self._bring_down(True)  # its patch is long gone
        return self._begin(event)

    @abstractmethod
    def _begin(self, looked: Looked) -> list[MutableEffect]:
        """What is stored here is known, and nothing else is under way on the chunk."""

    def _damaged(self, looked: Looked) -> list[MutableEffect]:
        """What is stored here cannot be made out."""
        return self._finish(Status.CHECKSUM)

    def _settles(self) -> bool:
        """Whether what is pending must be committed before anything else is done."""
        return True

    @property
    def _place(self) -> Place:
        return self._member.place

    def _bring_down(self, full: bool) -> list[MutableEffect]:
        """Has what is pending here committed: behind this replica first, if any is behind it."""
        pending = self._pending
        assert pending is not None
        if self._place.successor is None:
            return self._commit()
        return self._send(pending.previous, pending.image, pending, full)

    def _send(self, previous: int, image: Image, pending: Pending | None, full: bool) -> list[MutableEffect]:
        successor = self._place.successor
        assert successor is not None
        self.waits = Waits.SUCCESSOR
        self._sent, self._sent_full = image, full
        named = Named(previous, image, full, self._member.next_hop())
        origin = None if pending is None else pending.origin
        return [ForwardUpdate(self.event.op, successor, origin, named)]

    def _forwarded(self, status: Status) -> list[MutableEffect]:
        pending = self._pending
        assert pending is not None
        refused = self.refused()
        if refused is not None:
            return self._finish(refused)
        if status is Status.OK:
            return self._confirmed(pending)
        if status is Status.NO_SPACE and not drawn_before(pending.image.version, self._member.chain):
            self.waits = Waits.DRIVE
            return [DiscardPending(self.event.op, pending.image.version)]
        if status is Status.CHECKSUM and not self._sent_full:
            return self._bring_down(True)  # its base is damaged: it gets all of the image
        return self._finish(unconfirmed(status))

    def _mend(self, version: int) -> list[MutableEffect]:
        """The image of `version` here is damaged. Whoever is in front has it; so has who is behind, once it is
        committed; a syncing replica is not asked.
        """
        place = self._place
        source = place.predecessor or (None if place.replaces else place.successor)
        refused = self.refused()
        if refused is not None or self._expired or self._mended or source is None:
            return self._finish(refused or self._unmended)
        self._mended = True
        self.waits = Waits.DRIVE
        return [RepairImage(self.event.op, source, version)]

    def _has_mended(self, done: bool) -> list[MutableEffect]:
        refused = self.refused()
        if refused is not None or self._expired:
            return self._finish(refused or Status.TIMEOUT)
        return self._after_mending() if done else self._finish(self._unmended)

    @property
    def _unmended(self) -> Status:
        """CHECKSUM would say that nothing came of it, but what is pending may be committed yet."""
        return Status.CHECKSUM if self._pending is None else Status.UNAVAILABLE

    def _after_mending(self) -> list[MutableEffect]:
        sent = self._sent
        assert sent is not None
        return self._send(0 if self._pending is None else self._pending.previous, sent, self._pending, True)

    def _confirmed(self, pending: Pending) -> list[MutableEffect]:
        """All replicas behind have it. The last serving one is asked what is committed, so it commits first."""
        effects: list[MutableEffect] = []
        if self._own and not is_last_serving(self._place):
            effects += self._answer(Status.OK, pending.image.version, pending.image.length_bytes)
        return effects + self._commit()

    def _commit(self) -> list[MutableEffect]:
        assert self._pending is not None
        self.waits = Waits.DRIVE
        return [CommitPending(self.event.op, self._pending.image.version)]

    def _committed(self) -> list[MutableEffect]:
        pending, self._pending = self._pending, None
        assert pending is not None
        refused = self.refused()
        if refused is not None:
            return self._finish(refused)
        if self._own:
            return self._finish(Status.OK, pending.image.version, pending.image.length_bytes)
        return self._settled(pending)

    def _settled(self, pending: Pending) -> list[MutableEffect]:
        """What was left pending is committed."""
        return self._finish(Status.TIMEOUT) if self._expired else self.begin()

    def _has_discarded(self) -> list[MutableEffect]:
        pending, self._pending = self._pending, None
        assert pending is not None
        if self._own:
            return self._finish(Status.NO_SPACE)
        self._discarded = pending.image.version
        refused = self.refused()
        if refused is not None:
            return self._finish(refused)
        return self._finish(Status.TIMEOUT) if self._expired else self.begin()


class RecoverOperation(LockedOperation):
    """Commits what was left pending."""

    def _begin(self, looked: Looked) -> list[MutableEffect]:
        return self._finish(Status.NO_SPACE if self._discarded else Status.OK)


class SyncOperation(LockedOperation):
    """Brings the syncing successor's copy in line with this one, whatever it has.

    Where too few replicas serve, what is pending here is sent as it is and stays pending: it is committed once the
    successor serves too.
    """

    def _refused_here(self, place: Place) -> Status | None:
        if place.state is not TargetState.SERVING:
            return Status.UNAVAILABLE
        return None if place.replaces else Status.BAD_REQUEST

    def _confirmed(self, pending: Pending) -> list[MutableEffect]:
        return self._commit() if self._place.enough else self._finish(Status.OK)

    def _settled(self, pending: Pending) -> list[MutableEffect]:
        return self._finish(Status.OK)  # the successor has it

    def _begin(self, looked: Looked) -> list[MutableEffect]:
        return self._send(0, looked.committed or Image(0, absent=True), None, True)

    def _forwarded(self, status: Status) -> list[MutableEffect]:
        if self._pending is not None:
            return super()._forwarded(status)
        return self._finish(self.refused() or status)


def unconfirmed(status: Status) -> Status:
    """What is answered where the successor answered `status`, which says nothing of what is pending."""
    return status if status in (Status.TIMEOUT, Status.CHAIN_VERSION) else Status.UNAVAILABLE
