"""One replica of one chain: the one door to what it does with immutable and with mutable chunks.

Pure: `handle(event)` changes the state and returns what is to be done; the runner does it and reports back with
further events. Both kinds share the chain, the place in it, the versions and the drive, and nothing else: their chunks
have different ids. The rules: `craq/immutable.py`, `craq/mutable.py`.
"""

from esker.craq.immutable import ImmutableReplica
from esker.craq.messages import (
    Effect,
    Event,
    Expired,
    Forwarded,
    Membership,
    Reserved,
    Unreadable,
)
from esker.craq.mutable import MutableChunks
from esker.craq.mutable_messages import (
    Committed,
    Discarded,
    Looked,
    MutableEffect,
    MutableEvent,
    Persisted,
    ReadRange,
    Recover,
    Repaired,
    SyncMutable,
    Update,
    VersionKnown,
    VersionQuery,
)
from esker.wire.types import Chain

AnyEvent = Event | MutableEvent
AnyEffect = Effect | MutableEffect

_MUTABLE = (
    Update,
    ReadRange,
    VersionQuery,
    SyncMutable,
    Recover,
    Looked,
    Persisted,
    Repaired,
    Committed,
    Discarded,
    VersionKnown,
)
_SHARED = (Reserved, Forwarded, Unreadable, Expired)
"""Reports on operations of either kind."""


class ChainReplica(ImmutableReplica):
    """This drive's replica of `chain`, in the life of its worker that `incarnation` names."""

    mutable_type: type[MutableChunks] = MutableChunks

    def __init__(self, chain: Chain, drive_id: str, incarnation: str) -> None:
        super().__init__(chain, drive_id, incarnation)
        self.mutable = self.mutable_type(self)
        self._hop = 0

    def next_hop(self) -> int:
        """The number of the next message about a mutable chunk to the successor."""
        self._hop += 1
        return self._hop

    @property
    def recovers(self) -> bool:
        """Whether what is pending here can be committed: `Recover` is to be begun for it."""
        return self.serving and self.place.enough and not self.offline

    @property
    def busy(self) -> int:
        """How many operations are under way or waiting."""
        return super().busy + self.mutable.busy

    def earlier_chunks(self) -> list[bytes]:
        """Chunks on which operations of an earlier version of the chain are still under way."""
        return super().earlier_chunks() + self.mutable.earlier_chunks()

    def handle(self, event: AnyEvent) -> list[AnyEffect]:
        """The one door: what `event` changes, and what is to be done about it, in order."""
        if isinstance(event, _MUTABLE) or (isinstance(event, _SHARED) and event.op in self.mutable):
            return [*self.mutable.handle(event)]
        if isinstance(event, Membership):
            return [*self.immutable(event), *self.mutable.chain_changed()]
        return [*self.immutable(event)]
