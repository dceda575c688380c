"""Replicas that nobody can send to, although they are alive: the network between two workers is broken, while both
speak to the manager.

Every write of such a chain would wait for ever for the one that cannot be reached. So one of the two is left out, and
tried again later, longer each time that it happens again. It is the one that has trouble with more others: a worker
that reaches nobody must not have all the others left out. Where that tells nothing, the one behind goes. None is left
out that a chain cannot do without: at least `min_replicas` go on serving.
"""

import itertools
from collections import Counter
from collections.abc import Mapping

from esker.craq.membership import ADMITTED, LocalState, Target, local_state
from esker.meta.holds import Holds
from esker.meta.sightings import Sightings
from esker.wire.types import Chain, Replica, TargetState

BELIEVED_AFTER_S = 5.0
"""Nobody reached a worker that was silent, and says so for up to three seconds after. Until this one has been heard of
for so long, that tells nothing of the network."""


class Cuts:
    """Of one manager."""

    def __init__(self) -> None:
        self._holds = Holds()
        self._trouble: Counter[str] = Counter()

    def begin(self, sightings: Sightings, now_s: float) -> None:
        """A look at all chains begins: with how many others has each drive trouble?"""
        pairs = {
            (drive_id, other)
            for drive_id, others in sightings.unreachable().items()
            for other in others
            if sightings.speaks(drive_id, now_s) and sightings.speaks(other, now_s)
        }
        self._trouble = Counter(drive_id for pair in {frozenset(pair) for pair in pairs} for drive_id in pair)

    def look(self, chain: Chain, sightings: Sightings, targets: Mapping[str, Target], now_s: float) -> str:
        """The drive that has to be left out now; empty: none. One at a time, as its neighbours may well reach each
        other.
        """
        line = [
            replica
            for replica in chain.replicas
            if replica.state in ADMITTED and local_state(replica, targets) is not LocalState.OFFLINE
        ]
        serving = sum(replica.state is TargetState.SERVING for replica in line)
        for before, behind in itertools.pairwise(line):
            if not self._cut(before, behind, sightings, now_s):
                continue
            goes = before if self._trouble[before.drive_id] > self._trouble[behind.drive_id] else behind
            if goes.state is TargetState.SERVING and serving - 1 < chain.min_replicas:
                continue
            self._holds.hold(chain, goes.drive_id, goes.incarnation, now_s)
            return goes.drive_id
        return ""

    def holds(self, chain: Chain, drive_id: str, incarnation: str, now_s: float) -> bool:
        """Whether a replica that was left out is not to be tried yet."""
        return self._holds.holds(chain, drive_id, incarnation, now_s)

    def _cut(self, before: Replica, behind: Replica, sightings: Sightings, now_s: float) -> bool:
        sight = sightings.of(before.drive_id)
        if sight is None or sight.heartbeat is None or behind.drive_id not in sight.heartbeat.unreachable:
            return False
        spoke_s = sightings.spoke_for_s(behind.drive_id, now_s)
        return sightings.speaks(before.drive_id, now_s) and spoke_s >= BELIEVED_AFTER_S
