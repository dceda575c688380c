"""Who has to have stopped before a chain may change, and what heartbeats' replies withhold meanwhile.

A worker answers reads of mutable chunks for as long as its lease runs (`chunkserver/lease.py`). So a change that takes
SERVING from a replica is put up here first. From then on no reply renews that worker's lease of that chain, and the
change may be committed only once the lease has surely ended:

- the worker said, after the change was put up and in this manager's term, that it stopped; or
- nothing was acknowledged for a lease and a margin: its silence covers that (also before the change was put up, but
  not before the term began), or all replies withheld it for so long; or
- that life of the worker has ended: another one joined, it said that it is leaving, or that its drive failed.

A change that is not wanted any more is put down, and replies renew again, unless its commit was begun and its outcome
is not known: it may still take effect. Such a chain stays withheld until the manager has settled what became of it.

In memory only and of one term: a new manager begins with none, because whatever its predecessor began has taken effect
or never will once the new term is recorded. Time is an argument, on the clock by which heartbeats were noted.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from esker.craq.lease import worker_lease_over
from esker.meta.chain_decisions import Change
from esker.meta.heartbeats import Heartbeats
from esker.wire.types import Chain, Replica, Routing, TargetState


class Term(NamedTuple):
    """When this is, in the life of a manager."""

    number: int
    since_s: float
    """Nothing that an earlier manager acknowledged came later."""
    now_s: float


@dataclass(slots=True)
class _Fence:
    """One chain that is to change."""

    chain: Chain
    """As it is stored."""
    since_s: dict[str, float] = field(default_factory=dict)
    """By drive that loses SERVING: since when its lease is withheld."""
    begun: bool = False
    """A commit was begun, and nobody knows yet what became of it."""


class Fences:
    """Of one manager, in one term."""

    def __init__(self) -> None:
        self._fences: dict[int, _Fence] = {}
        self._by_drive: dict[str, list[tuple[int, int]]] | None = {}
        """What is withheld; None: it has to be made anew."""

    def forget(self) -> None:
        """Another term begins."""
        self._fences, self._by_drive = {}, {}

    def withheld(self, drive_id: str) -> tuple[tuple[int, int], ...]:
        """(chain id, chain version) for which no reply may renew the lease of the drive's worker now."""
        if self._by_drive is None:
            self._by_drive = {}
            for fence in self._fences.values():
                for loser in fence.since_s:
                    self._by_drive.setdefault(loser, []).append((fence.chain.chain_id, fence.chain.version))
        return tuple(sorted(self._by_drive.get(drive_id, ())))

    def put_up(self, changes: Sequence[Change], routing: Routing, heartbeats: Heartbeats, term: Term) -> list[Change]:
        """The changes that may be committed now. `changes` are all that are wanted at this moment; `routing` is the
        newest map that this server's replies are made from.
        """
        if not changes and not self._fences:
            return []
        self._by_drive = None
        lives = {worker.drive_id: worker.incarnation for worker in routing.workers}
        versions = {chain.chain_id: chain.version for chain in routing.chains}
        before, self._fences = self._fences, {}
        for chain_id, old in before.items():
            if old.begun and versions.get(chain_id) == old.chain.version:
                self._fences[chain_id] = old
        ready = []
        for chain, following in changes:
            if chain.chain_id in self._fences:
                continue  # What was begun comes first.
            earlier = before.get(chain.chain_id)
            since_s = earlier.since_s if earlier is not None and earlier.chain == chain else {}
            lost = losers(chain, following)
            fence = _Fence(chain, {each.drive_id: since_s.get(each.drive_id, term.now_s) for each in lost})
            self._fences[chain.chain_id] = fence
            if all(
                _over(each, chain, fence.since_s[each.drive_id], lives.get(each.drive_id, ""), heartbeats, term)
                for each in lost
            ):
                ready.append((chain, following))
        return ready

    def begin(self, changes: Iterable[Change]) -> None:
        """These are being committed."""
        for chain, _ in changes:
            self._fences[chain.chain_id].begun = True

    def settled(self, changes: Iterable[Change]) -> None:
        """What became of these commits is known, and stands in the map from which replies are made."""
        for chain, _ in changes:
            fence = self._fences.get(chain.chain_id)
            if fence is not None and fence.chain == chain:
                fence.begun = False

    def unsettled(self) -> list[Chain]:
        """Chains whose commit was begun with an unknown outcome, as they were before it."""
        return [fence.chain for fence in self._fences.values() if fence.begun]

    def put_down(self, chains: Iterable[Chain]) -> None:
        """What was begun with these has not taken effect and never will."""
        self._by_drive = None
        for chain in chains:
            self._fences.pop(chain.chain_id, None)


def losers(before: Chain, after: Chain) -> list[Replica]:
    """The replicas that lose SERVING, in the lives in which they have it."""
    serving = {(each.drive_id, each.incarnation) for each in after.replicas if each.state is TargetState.SERVING}
    named = {drive_id for drive_id, _ in serving}
    return [
        each
        for each in before.replicas
        if each.state is TargetState.SERVING
        # A life that was not told before is only filled in.
        and ((each.drive_id, each.incarnation) not in serving if each.incarnation else each.drive_id not in named)
    ]


def _over(
    replica: Replica, chain: Chain, withheld_since_s: float, life: str, heartbeats: Heartbeats, term: Term
) -> bool:
    """Whether the lease of this replica's worker has surely ended, for this chain. `life`: the one that joined last."""
    if worker_lease_over(withheld_since_s, term.now_s):
        return True
    if not life:
        return False
    if replica.incarnation and replica.incarnation != life:
        return True
    seen = heartbeats.last(replica.drive_id, life)
    if seen is None:
        return worker_lease_over(term.since_s, term.now_s)
    if worker_lease_over(max(seen.at_s, term.since_s), term.now_s):
        return True
    beat = seen.heartbeat
    if beat.leaving or chain.chain_id in beat.offline_chains:
        return True
    stopped = (chain.chain_id, chain.version) in beat.stopped
    return stopped and beat.term == term.number and seen.at_s > withheld_since_s
