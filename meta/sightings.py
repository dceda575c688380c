"""What the manager makes of heartbeats: which drives are alive, in which life, and what each says of its chains.

In memory only, on the manager's own clock, which never jumps. Decides nothing about chains.

When may a serving replica that is gone be taken out of its chain while another stays? Only if the other has surely
outlived it: both may have gone down together, and then each of them has to stay a candidate. So one that stays must
have been heard of after the other one's end began to show.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from esker.craq.membership import LocalState, Target, local_state
from esker.meta.heartbeats import Heartbeats, Seen
from esker.wire.limits import HEARTBEAT_INTERVAL_S, WORKER_LEASE_MARGIN_S, WORKER_LEASE_S
from esker.wire.messages import Heartbeat
from esker.wire.types import Chain, Replica, Routing, TargetState

DEAD_AFTER_S = WORKER_LEASE_S + WORKER_LEASE_MARGIN_S
"""Silence for so long is death."""
QUIET_AFTER_S = 2 * HEARTBEAT_INTERVAL_S
"""Whoever is silent for so long may be dead."""


@dataclass(frozen=True, slots=True)
class Sight:
    """One drive."""

    incarnation: str
    since_s: float
    """When this life was first known of here."""
    seen: Seen | None
    """Its last heartbeat."""
    speaks_since_s: float
    """When the row of heartbeats without a gap began that the last one belongs to."""

    @property
    def sign_of_life_s(self) -> float:
        """When it last was surely alive; a life that joined counts as alive then."""
        return self.since_s if self.seen is None else max(self.since_s, self.seen.at_s)

    @property
    def heartbeat(self) -> Heartbeat | None:
        """What it said last."""
        return None if self.seen is None else self.seen.heartbeat

    @property
    def left(self) -> bool:
        """Whether it said that it serves no more."""
        return self.seen is not None and self.seen.heartbeat.leaving


class Sightings:
    """Of all drives of the cluster map that was looked at last."""

    def __init__(self) -> None:
        self._sights: dict[str, Sight] = {}
        self.dead: frozenset[str] = frozenset()
        """Drives whose worker is taken for dead."""

    def look(self, routing: Routing, heartbeats: Heartbeats, now_s: float, *, silence_is_death: bool) -> None:
        """Take in what is known at this moment."""
        before, self._sights = self._sights, {}
        for worker in routing.workers:
            known = before.get(worker.drive_id)
            same = known is not None and known.incarnation == worker.incarnation
            since_s = known.since_s if known is not None and same else now_s
            seen = heartbeats.last(worker.drive_id, worker.incarnation)
            speaks_since_s = _row_began_s(known if same else None, seen, now_s)
            self._sights[worker.drive_id] = Sight(worker.incarnation, since_s, seen, speaks_since_s)
        self.dead = frozenset(
            drive_id
            for drive_id, sight in self._sights.items()
            if sight.left or (silence_is_death and now_s - sight.sign_of_life_s >= DEAD_AFTER_S)
        )

    def forget(self) -> None:
        """Somebody else is the manager: what was known here grows old."""
        self._sights, self.dead = {}, frozenset()

    def of(self, drive_id: str) -> Sight | None:
        """What is known of the drive; None: it never joined."""
        return self._sights.get(drive_id)

    def speaks(self, drive_id: str, now_s: float) -> bool:
        """Whether the drive's worker was heard of a moment ago."""
        sight = self._sights.get(drive_id)
        return sight is not None and sight.seen is not None and now_s - sight.seen.at_s < QUIET_AFTER_S

    def spoke_for_s(self, drive_id: str, now_s: float) -> float:
        """For how long the drive's worker has been heard of without a gap; 0 where it is silent now."""
        return now_s - self._sights[drive_id].speaks_since_s if self.speaks(drive_id, now_s) else 0.0

    def unreachable(self) -> dict[str, tuple[str, ...]]:
        """By drive: the others that its worker says it cannot reach."""
        return {
            drive_id: sight.heartbeat.unreachable
            for drive_id, sight in self._sights.items()
            if sight.heartbeat is not None and sight.heartbeat.unreachable
        }

    def troubled(self) -> set[str]:
        """Drives that are dead, or say that they do not serve all of their chains or cannot reach all others."""
        failing = {
            drive_id
            for drive_id, sight in self._sights.items()
            if sight.heartbeat is not None and (sight.heartbeat.offline_chains or sight.heartbeat.unreachable)
        }
        return failing | self.dead

    def targets(self, chain: Chain) -> dict[str, Target]:
        """The chain's drives, for `next_chain`, but for what resyncs say."""
        targets = {}
        for replica in chain.replicas:
            sight = self._sights.get(replica.drive_id)
            if sight is None:
                continue
            offline = replica.drive_id in self.dead or _failed(sight, chain)
            targets[replica.drive_id] = Target(LocalState.OFFLINE if offline else LocalState.ONLINE, sight.incarnation)
        return targets

    def losses_are_sure(self, chain: Chain, targets: Mapping[str, Target], *, alive: str = "") -> bool:
        """Whether serving replicas that are gone may be taken out: see the module. Nothing of that concerns the drive
        `alive`, which is to be left out for another reason.
        """
        serving = [replica for replica in chain.replicas if replica.state is TargetState.SERVING]
        gone = [replica for replica in serving if local_state(replica, targets) is LocalState.OFFLINE]
        stay = [replica for replica in serving if replica not in gone]
        lost = [replica for replica in gone if replica.drive_id != alive]
        if not lost or not stay:
            return True
        begun_s = max(self._trouble_since_s(replica, chain) for replica in lost)
        return any(self._heard_s(replica) > begun_s for replica in stay)

    def _trouble_since_s(self, replica: Replica, chain: Chain) -> float:
        """When it began to show that this serving replica is gone."""
        sight = self._sights.get(replica.drive_id)
        if sight is None:
            return float("-inf")
        if sight.incarnation != replica.incarnation:
            return sight.since_s
        if replica.drive_id not in self.dead and _failed(sight, chain):
            return float("-inf")  # It says so itself: nothing went down.
        if sight.left and sight.seen is not None:
            return sight.seen.at_s + HEARTBEAT_INTERVAL_S  # All may be about to leave.
        return sight.sign_of_life_s + QUIET_AFTER_S

    def _heard_s(self, replica: Replica) -> float:
        sight = self._sights.get(replica.drive_id)
        return sight.seen.at_s if sight is not None and sight.seen is not None else float("-inf")


def _row_began_s(known: Sight | None, seen: Seen | None, now_s: float) -> float:
    if seen is None:
        return now_s
    if known is None or known.seen is None or seen.at_s - known.seen.at_s >= QUIET_AFTER_S:
        return seen.at_s
    return known.speaks_since_s


def _failed(sight: Sight, chain: Chain) -> bool:
    return sight.heartbeat is not None and chain.chain_id in sight.heartbeat.offline_chains
