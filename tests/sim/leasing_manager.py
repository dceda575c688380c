"""The manager in simulation with leases: nobody loses SERVING before its lease has ended."""

import random
from collections.abc import Iterable

import msgspec

from esker.craq.lease import DEATHS_FROM_S
from esker.meta.chain_decisions import Change
from esker.meta.fences import Fences, Term
from esker.wire.messages import Heartbeat
from esker.wire.types import Replica, TargetState

from .manager import Manager

Withheld = tuple[tuple[int, int], ...]


class LeasingManager(Manager):
    """Owns the one chain and the fences. Time is an argument."""

    fences_type: type[Fences] = Fences

    def __init__(self, drives: Iterable[str], incarnations: dict[str, str], min_replicas: int) -> None:
        super().__init__(drives, incarnations, min_replicas)
        self._fences = self.fences_type()
        self.term = 1
        self._since_s = 0.0
        self._dropped = ""
        """A drive that is alive and shall not serve."""

    def drop(self, chance: random.Random, rather: set[str]) -> str:
        """A replica that serves is to be taken out, though it is well: one of `rather`, if one of them serves.

        Its drive; empty if none can be spared.
        """
        serving = [replica.drive_id for replica in self.chain.replicas if replica.state is TargetState.SERVING]
        if len(serving) > 1:
            self._dropped = chance.choice([drive for drive in serving if drive in rather] or serving)
        return self._dropped

    def _wanted(self, now_s: float) -> list[Change]:
        """All changes that are wanted now."""
        chain, dropped = self.chain, self._dropped
        deaths = now_s - self._since_s >= DEATHS_FROM_S
        changes = self._decisions.look(self.routing, self._heartbeats, now_s, silence_is_death=deaths)
        serving = [replica.drive_id for replica in chain.replicas if replica.state is TargetState.SERVING]
        if changes or len(serving) < 2 or dropped not in serving:
            self._dropped = ""
            return changes
        stay = tuple(replica for replica in chain.replicas if replica.drive_id != dropped)
        after = msgspec.structs.replace(
            chain, version=chain.version + 1, replicas=(*stay, Replica(dropped, TargetState.OFFLINE))
        )
        return [(chain, after)]

    def acknowledge(self, now_s: float, heartbeat: Heartbeat) -> tuple[int, Withheld]:
        """A worker's heartbeat has come: the term and what is withheld, as its reply says."""
        self._heartbeats.note(heartbeat, self.routing, now_s)
        return self.term, self._fences.withheld(heartbeat.drive_id)

    def step(self, now_s: float) -> bool:
        """Whether the chain was changed."""
        changes = self._wanted(now_s)
        ready = self._fences.put_up(changes, self.routing, self._heartbeats, Term(self.term, self._since_s, now_s))
        self._fences.begin(ready)
        for before, after in ready:
            assert before == self.chain
            self._change(chains=(after,))
        self._fences.settled(ready)
        return bool(ready)

    def restart(self, now_s: float) -> None:
        """Another server is the manager: it begins with the chain as it is stored."""
        super().restart(now_s)
        self._fences = self.fences_type()
        self.term += 1
        self._since_s = now_s
