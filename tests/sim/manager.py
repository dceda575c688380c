"""The manager in simulation: the real decisions, over heartbeats and joins that arrive late or not at all."""

from collections.abc import Iterable

import msgspec

from esker.meta.chain_decisions import ChainDecisions
from esker.meta.heartbeats import Heartbeats
from esker.wire.messages import Heartbeat
from esker.wire.types import Chain, Replica, Routing, TargetState, Worker

CHAIN_ID = 7


class Manager:
    """Owns the one chain. Time is an argument."""

    decisions_type: type[ChainDecisions] = ChainDecisions

    def __init__(self, drives: Iterable[str], incarnations: dict[str, str], min_replicas: int) -> None:
        self._decisions = self.decisions_type()
        self._heartbeats = Heartbeats()
        replicas = tuple(Replica(drive, TargetState.SERVING, incarnations[drive]) for drive in drives)
        self.routing = Routing(
            cluster_id="c",
            version=1,
            workers=tuple(_worker(drive, incarnations[drive]) for drive in drives),
            chains=(Chain(CHAIN_ID, 1, replicas, min_replicas),),
            tables=(),
            drives_expected=len(incarnations),
            replicas=len(incarnations),
        )

    @property
    def chain(self) -> Chain:
        """As it is stored."""
        return self.routing.chains[0]

    def knows(self, drive: str, incarnation: str) -> bool:
        """Whether that life has joined."""
        return any((each.drive_id, each.incarnation) == (drive, incarnation) for each in self.routing.workers)

    def join(self, drive: str, incarnation: str) -> None:
        """A worker was started anew."""
        workers = tuple(
            _worker(drive, incarnation) if each.drive_id == drive else each for each in self.routing.workers
        )
        self._change(workers=workers)

    def heartbeat(
        self, now_s: float, drive: str, incarnation: str, *, offline: bool, synced: int, stalled: int
    ) -> None:
        """`synced` and `stalled`: the chain version in which the drive's resync has ended so; 0: it has not."""
        self._heartbeats.note(
            Heartbeat(
                drive,
                incarnation,
                0,
                0,
                1,
                offline_chains=(CHAIN_ID,) if offline else (),
                synced=((CHAIN_ID, synced),) if synced else (),
                stalled=((CHAIN_ID, stalled),) if stalled else (),
            ),
            self.routing,
            now_s,
        )

    def step(self, now_s: float) -> bool:
        """Whether the chain was changed."""
        changes = self._decisions.look(self.routing, self._heartbeats, now_s, silence_is_death=True)
        for before, after in changes:
            assert before == self.chain
            self._change(chains=(after,))
        return bool(changes)

    def restart(self, now_s: float) -> None:
        """Another server is the manager: it begins with the chain as it is stored."""
        self._decisions = self.decisions_type()
        self._heartbeats = Heartbeats()

    def _change(self, **fields: object) -> None:
        self.routing = msgspec.structs.replace(self.routing, version=self.routing.version + 1, **fields)


def _worker(drive: str, incarnation: str) -> Worker:
    return Worker(drive, "node", "host", 1, "", "boot", incarnation, 1)
