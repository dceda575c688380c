"""Which chains the manager wants changed: from the cluster map, heartbeats and the time, without any I/O.

Owns what is believed of drives, of resyncs and of the network between workers (`cuts.py`), and for how long a replica
whose resync came to nothing is left out (`holds.py`). What follows for a chain is `craq/membership.py`'s; where nothing
does, its goal is asked (`craq/goals.py`).
"""

from collections.abc import Iterable, Sequence

from esker.craq.goals import step_toward, timely
from esker.craq.membership import LocalState, Target, local_state, next_chain
from esker.meta.cuts import Cuts
from esker.meta.heartbeats import Heartbeats
from esker.meta.holds import Holds
from esker.meta.sightings import Sightings
from esker.wire.types import Chain, ChainGoal, Replica, Routing, TargetState

STEPS_AT_ONCE = 8
CHAINS_PER_DRIVE_AT_ONCE = 8
"""Chains that a drive is added to at the same time."""

Change = tuple[Chain, Chain]
"""A chain as it is stored, and as it shall be."""


class ChainDecisions:
    """Of one manager. Times are in seconds on its clock, by which heartbeats were noted."""

    def __init__(self) -> None:
        self._sightings = Sightings()
        self._index = _Index.empty()
        self._holds = Holds()
        self._cuts = Cuts()

    def forget(self) -> None:
        """Somebody else is the manager: what was known here grows old."""
        self._sightings.forget()

    def look(self, routing: Routing, heartbeats: Heartbeats, now_s: float, *, silence_is_death: bool) -> list[Change]:
        """What has to change now, given the cluster map as it is stored."""
        self._sightings.look(routing, heartbeats, now_s, silence_is_death=silence_is_death)
        self._cuts.begin(self._sightings, now_s)
        if self._index.version != routing.version:
            self._index = _Index.of(routing)
        changes = []
        for chain in self._index.restless(self._sightings.troubled()):
            following = self._settled(chain, self._index.goals.get(chain.chain_id), now_s)
            if following is not chain:
                changes.append((chain, following))
        return changes

    def _settled(self, chain: Chain, goal: ChainGoal | None, now_s: float) -> Chain:
        """The chain after as many steps as there are to take at this moment."""
        for _ in range(STEPS_AT_ONCE):
            targets = self._targets(chain, now_s)
            cut = self._cuts.look(chain, self._sightings, targets, now_s)
            if cut:
                targets[cut] = targets[cut]._replace(state=LocalState.OFFLINE)
            if not self._sightings.losses_are_sure(chain, targets, alive=cut):
                break
            following = next_chain(chain, targets)
            if following is chain and goal is not None:
                following = step_toward(chain, goal, targets)
            if following is chain:
                break
            chain = following
        return chain

    def _targets(self, chain: Chain, now_s: float) -> dict[str, Target]:
        """The chain's drives, with what the predecessor of a syncing one says of it in this very chain version."""
        targets = self._sightings.targets(chain)
        held = self._holds
        for replica in chain.replicas:
            target = targets.get(replica.drive_id)
            if target is None or target.state is LocalState.OFFLINE or replica.state is TargetState.SERVING:
                continue
            state: LocalState = target.state
            if replica.state is TargetState.SYNCING:
                state = self._resynced(chain, replica, targets, now_s)
            elif held.holds(chain, replica.drive_id, target.incarnation, now_s) or self._cuts.holds(
                chain, replica.drive_id, target.incarnation, now_s
            ):
                state = LocalState.OFFLINE
            targets[replica.drive_id] = target._replace(state=state)
        return targets

    def _resynced(self, chain: Chain, syncing: Replica, targets: dict[str, Target], now_s: float) -> LocalState:
        serving = [replica for replica in chain.replicas if replica.state is TargetState.SERVING]
        if not serving or local_state(serving[-1], targets) is LocalState.OFFLINE:
            return LocalState.ONLINE
        sight = self._sightings.of(serving[-1].drive_id)
        heartbeat = None if sight is None else sight.heartbeat
        this = (chain.chain_id, chain.version)
        if heartbeat is not None and this in heartbeat.stalled:
            self._holds.hold(chain, syncing.drive_id, syncing.incarnation, now_s)
            return LocalState.OFFLINE
        if heartbeat is not None and this in heartbeat.synced:
            self._holds.release(chain, syncing.drive_id, syncing.incarnation)
            return LocalState.UP_TO_DATE
        return LocalState.ONLINE


class _Index:
    """Which chains of a cluster map have to be looked at."""

    def __init__(
        self,
        version: int,
        unsettled: Sequence[Chain],
        by_drive: dict[str, list[Chain]],
        goals: dict[int, ChainGoal],
    ) -> None:
        self.version = version
        self.goals = goals
        """By chain id."""
        self._unsettled = unsettled
        self._by_drive = by_drive

    @classmethod
    def empty(cls) -> "_Index":
        """Of no map."""
        return cls(-1, [], {}, {})

    @classmethod
    def of(cls, routing: Routing) -> "_Index":
        lives = {worker.drive_id: worker.incarnation for worker in routing.workers}
        goals = timely(routing.chains, routing.goals, CHAINS_PER_DRIVE_AT_ONCE) if routing.goals else {}
        unsettled = []
        by_drive: dict[str, list[Chain]] = {}
        for chain in routing.chains:
            settled = True
            for replica in chain.replicas:
                by_drive.setdefault(replica.drive_id, []).append(chain)
                serves = replica.state is TargetState.SERVING
                settled = settled and serves and replica.incarnation == lives.get(replica.drive_id)
            if not settled or chain.chain_id in goals:
                unsettled.append(chain)
        return cls(routing.version, unsettled, by_drive, goals)

    def restless(self, troubled: Iterable[str]) -> list[Chain]:
        """Chains in which something may have to change, given the drives that are in trouble."""
        found = {chain.chain_id: chain for chain in self._unsettled}
        for drive_id in troubled:
            found |= {chain.chain_id: chain for chain in self._by_drive.get(drive_id, ())}
        return list(found.values())
