"""Reads of mutable chunks, and the last serving replica's word on what is committed. Pure; they hold no chunk.

Whatever was acknowledged, or read, in this version of the chain or before is committed at its last serving replica, or
pending there since an earlier version of the chain; such a pending image is committed before anything is said of the
chunk. So any serving replica may answer: with what it has committed if nothing is pending, else with what the last
serving replica says. The version of the chain and the lease are looked at when the image is chosen: then no other
replica has been told to serve in this one's place.
"""

from abc import abstractmethod

from esker.craq.mutable_messages import (
    Looked,
    LookupMutable,
    MutableArrival,
    MutableEffect,
    MutableEvent,
    QueryVersion,
    ServeImage,
    VersionKnown,
)
from esker.craq.mutable_operation import Member, MutableOperation, is_last_serving, last_serving
from esker.craq.place import Place
from esker.craq.versions import drawn_before
from esker.wire.status import Status
from esker.wire.types import TargetState


class _Reading(MutableOperation):
    """What reads and queries share."""

    def begin(self) -> list[MutableEffect]:
        return [LookupMutable(self.event.op)]

    def _step(self, event: MutableEvent) -> list[MutableEffect]:
        assert isinstance(event, Looked)
        refused = self.refused()
        if refused is None and not event.lease_live:
            refused = Status.UNAVAILABLE
        if refused is None and event.damaged:
            refused = Status.CHECKSUM
        return self._chosen(event) if refused is None else self._finish(refused)

    @abstractmethod
    def _chosen(self, looked: Looked) -> list[MutableEffect]:
        """An answer may be given: which image it is of."""

    def _undecided(self, looked: Looked) -> bool:
        """At the last serving replica: whether something is pending that may have been acknowledged before."""
        pending = looked.pending
        return pending is not None and drawn_before(pending.image.version, self._member.chain)


class ReadOperation(_Reading):
    """One read."""

    def __init__(self, member: Member, event: MutableArrival) -> None:
        super().__init__(member, event)
        self._committed: int | None = None
        """The version that is committed at the last serving replica; 0: the chunk is absent. None: it was not asked."""

    def _refused_here(self, place: Place) -> Status | None:
        return None if place.state is TargetState.SERVING else Status.UNAVAILABLE

    def _step(self, event: MutableEvent) -> list[MutableEffect]:
        if isinstance(event, VersionKnown):
            refused = self.refused()
            if refused is not None or event.status is not Status.OK:
                return self._finish(refused or event.status)
            self._committed = event.version
            return self.begin()  # much may have happened meanwhile
        return super()._step(event)

    def _chosen(self, looked: Looked) -> list[MutableEffect]:
        pending, committed = looked.pending, looked.committed
        if pending is None and self._committed is None:
            return self._serve(looked, pending=False)
        if is_last_serving(self._member.place):
            return self._finish(Status.BUSY) if self._undecided(looked) else self._serve(looked, pending=False)
        if self._committed is None:
            return [QueryVersion(self.event.op, last_serving(self._member.chain))]
        if pending is not None and self._committed == (0 if pending.image.absent else pending.image.version):
            return self._serve(looked, pending=True)
        if self._committed > (0 if committed is None else committed.version):
            return self._finish(Status.BUSY)  # it has been removed since
        return self._serve(looked, pending=False)

    def _serve(self, looked: Looked, *, pending: bool) -> list[MutableEffect]:
        image = looked.committed
        if pending:
            assert looked.pending is not None
            image = None if looked.pending.image.absent else looked.pending.image
        return [ServeImage(self.event.op, image, pending), *self._served()]

    def _served(self) -> list[MutableEffect]:
        self._answered = True
        return self._finish(Status.OK)


class QueryOperation(_Reading):
    """One question of a replica in front. Version 0 in the answer: the chunk is absent."""

    def _refused_here(self, place: Place) -> Status | None:
        return None if is_last_serving(place) else Status.UNAVAILABLE

    def _chosen(self, looked: Looked) -> list[MutableEffect]:
        if self._undecided(looked):
            return self._finish(Status.BUSY)
        committed = looked.committed
        return (
            self._finish(Status.OK)
            if committed is None
            else self._finish(Status.OK, committed.version, committed.length_bytes)
        )
