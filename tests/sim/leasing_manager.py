"""The manager in simulation with leases: nobody loses SERVING before its lease has ended."""

from collections.abc import Iterable

from esker.craq.lease import DEATHS_FROM_S
from esker.meta.fences import Fences, Term
from esker.wire.messages import Heartbeat

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

    def acknowledge(self, now_s: float, heartbeat: Heartbeat) -> tuple[int, Withheld]:
        """A worker's heartbeat has come: the term and what is withheld, as its reply says."""
        self._heartbeats.note(heartbeat, self.routing, now_s)
        return self.term, self._fences.withheld(heartbeat.drive_id)

    def step(self, now_s: float) -> bool:
        """Whether the chain was changed."""
        deaths = now_s - self._since_s >= DEATHS_FROM_S
        changes = self._decisions.look(self.routing, self._heartbeats, now_s, silence_is_death=deaths)
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
