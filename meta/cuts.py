"""Replicas that nobody can send to, although they are alive: the network between two workers is broken, while both
speak to the manager.

Every write of such a chain would wait for ever for the one that cannot be reached. So it is left out, and tried again
later, longer each time that it happens again. Which of the two is to blame cannot be known here; the one behind goes,
because the one before it has every write that was begun. None is left out that a chain cannot do without: at least
`min_replicas` go on serving.
"""

import itertools
from collections.abc import Mapping

from esker.craq.membership import ADMITTED, LocalState, Target, local_state
from esker.meta.holds import Holds
from esker.meta.sightings import Sightings
from esker.wire.types import Chain, Replica, TargetState


class Cuts:
    """Of one manager."""

    def __init__(self) -> None:
        self._holds = Holds()

    def look(self, chain: Chain, sightings: Sightings, targets: Mapping[str, Target], now_s: float) -> str:
        """The drive that has to be left out now; empty: none. One at a time, as the one behind it may well be reached
        from the one before it.
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
            if behind.state is TargetState.SERVING and serving - 1 < chain.min_replicas:
                continue
            self._holds.hold(chain, behind.drive_id, behind.incarnation, now_s)
            return behind.drive_id
        return ""

    def holds(self, chain: Chain, drive_id: str, incarnation: str, now_s: float) -> bool:
        """Whether a replica that was left out is not to be tried yet."""
        return self._holds.holds(chain, drive_id, incarnation, now_s)

    def _cut(self, before: Replica, behind: Replica, sightings: Sightings, now_s: float) -> bool:
        sight = sightings.of(before.drive_id)
        if sight is None or sight.heartbeat is None or behind.drive_id not in sight.heartbeat.unreachable:
            return False
        return sightings.speaks(before.drive_id, now_s) and sightings.speaks(behind.drive_id, now_s)
