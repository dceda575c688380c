"""One replica of one chain: the one door to what it does with immutable and with mutable chunks.

Pure: `handle(event)` changes the state and returns what is to be done; the runner does it and reports back with
further events. Both kinds share the chain, the place in it, the versions and the drive, and nothing else: their chunks
have different ids. The rules: `craq/immutable.py`, `craq/mutable.py`.
"""

from collections.abc import Sequence
from typing import Any

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
    ChannelsCleared,
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

AnyEvent = Event | MutableEvent | ChannelsCleared
AnyEffect = Effect | MutableEffect

_MUTABLE = frozenset(
    (
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
)
_SHARED = frozenset((Reserved, Forwarded, Unreadable, Expired))
"""Reports on operations of either kind."""


class ChainReplica(ImmutableReplica):
    """This drive's replica of `chain`, in the life of its worker that `incarnation` names."""

    mutable_type: type[MutableChunks] = MutableChunks

    def __init__(self, chain: Chain, drive_id: str, incarnation: str) -> None:
        super().__init__(chain, drive_id, incarnation)
        self.mutable = self.mutable_type(self)
        self._hop = 0
        self._cleared_in = 0

    def next_hop(self) -> int:
        """The number of the next message about a mutable chunk to the successor."""
        self._hop += 1
        return self._hop

    @property
    def recovers(self) -> bool:
        """Whether what is pending here can be committed: `Recover` is to be begun for it."""
        return self.serving and self.place.enough and not self.offline

    @property
    def channels_cleared(self) -> bool:
        """Whether the table of channels began empty in this version of the chain."""
        return self._cleared_in == self.chain.version

    @property
    def clears_channels(self) -> bool:
        """Whether the table of the chain's channels here has to be emptied now, which `ChannelsCleared` reports.

        So it is for a syncing replica, in each version of the chain, and before any update of that version is taken: a
        write that was begun in an earlier one and never acknowledged must not pass for done. To be looked at after the
        chain has changed and after every end of an operation: as long as one of an earlier version is under way, its
        entry may still be written.
        """
        return self.syncing and not self.channels_cleared and not self.offline and not self.mutable.earlier_chunks()

    @property
    def busy(self) -> int:
        """How many operations are under way or waiting."""
        return super().busy + self.mutable.busy

    def earlier_chunks(self) -> list[bytes]:
        """Chunks on which operations of an earlier version of the chain are still under way."""
        return super().earlier_chunks() + self.mutable.earlier_chunks()

    def handle(self, event: AnyEvent) -> Sequence[AnyEffect]:
        """The one door: what `event` changes, and what is to be done about it, in order."""
        kind = type(event)  # looked up, not compared with one after another: every event of every chunk passes here
        known: Any = event
        if kind in _MUTABLE or (kind in _SHARED and known.op in self.mutable):
            return self.mutable.handle(known)
        if kind is Membership:
            return [*self.immutable(known), *self.mutable.chain_changed()]
        if kind is ChannelsCleared:
            self._cleared_in = max(self._cleared_in, known.chain_version)
            return []
        return self.immutable(known)
