"""What the workers last said of themselves. In memory only: after a start nothing is known until they speak again.

Time is an argument, from a clock that never jumps. Knows nothing of stores or sockets.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from esker.wire.errors import RequestFailed
from esker.wire.messages import Heartbeat, WorkerStatus
from esker.wire.status import Status
from esker.wire.types import Routing, Worker


@dataclass(frozen=True, slots=True)
class Seen:
    """A worker's last heartbeat, and when it came."""

    at_s: float
    heartbeat: Heartbeat


class Heartbeats:
    """Last heartbeat per drive, of the incarnation that the cluster map has."""

    def __init__(self) -> None:
        self._seen: dict[str, Seen] = {}
        self._map: Routing | None = None
        self._workers: dict[str, Worker] = {}
        """Of that map, by drive id."""

    def note(self, heartbeat: Heartbeat, routing: Routing, now_s: float) -> None:
        """Keep `heartbeat`, unless a later one was noted: one that was held up on its way tells nothing any more.

        Raises `RequestFailed`: NOT_FOUND where the drive never joined, FORBIDDEN where another incarnation serves it
        now.
        """
        if routing is not self._map:
            self._map, self._workers = routing, {worker.drive_id: worker for worker in routing.workers}
        worker = self._workers.get(heartbeat.drive_id)
        if worker is None:
            raise RequestFailed(Status.NOT_FOUND, f"drive {heartbeat.drive_id} has not joined this cluster; join first")
        if worker.incarnation != heartbeat.incarnation:
            raise RequestFailed(
                Status.FORBIDDEN,
                f"drive {heartbeat.drive_id} is served by another worker now, at {worker.host}:{worker.port}; stop",
            )
        last = self.last(heartbeat.drive_id, heartbeat.incarnation)
        if last is None or not heartbeat.number or heartbeat.number > last.heartbeat.number:
            self._seen[heartbeat.drive_id] = Seen(now_s, heartbeat)

    def last(self, drive_id: str, incarnation: str) -> Seen | None:
        """The last heartbeat of this life of the drive's worker."""
        seen = self._seen.get(drive_id)
        return seen if seen is not None and seen.heartbeat.incarnation == incarnation else None

    def statuses(self, routing: Routing, now_s: float) -> tuple[WorkerStatus, ...]:
        """Every worker of the cluster map with what is known of it."""
        chains: dict[str, int] = {}
        for chain in routing.chains:
            for replica in chain.replicas:
                chains[replica.drive_id] = chains.get(replica.drive_id, 0) + 1
        return tuple(self._status(worker, chains.get(worker.drive_id, 0), now_s) for worker in routing.workers)

    def _status(self, worker: Worker, chains: int, now_s: float) -> WorkerStatus:
        seen = self.last(worker.drive_id, worker.incarnation)
        if seen is None:
            return WorkerStatus(worker, -1.0, 0, chains)
        beat = seen.heartbeat
        return WorkerStatus(worker, max(0.0, now_s - seen.at_s), beat.used_bytes, chains, beat.catalog)

    def network_note(self, routing: Routing) -> str:
        """Which workers say that they cannot reach others; empty if none does."""
        known = ((worker, self.last(worker.drive_id, worker.incarnation)) for worker in routing.workers)
        return "; ".join(
            f"drive {worker.drive_id} cannot reach {', '.join(seen.heartbeat.unreachable)}"
            for worker, seen in known
            if seen is not None and seen.heartbeat.unreachable
        )


def cluster_note(routing: Routing) -> str:
    """What an operator should know of the cluster map; empty if nothing."""
    return "; ".join(_notes(routing))


def _notes(routing: Routing) -> Iterable[str]:
    if not routing.chains:
        yield missing_drives(routing)
        return
    nodes = {worker.drive_id: worker.node_id for worker in routing.workers}
    shared = sum(
        len({nodes.get(replica.drive_id, replica.drive_id) for replica in chain.replicas}) < len(chain.replicas)
        for chain in routing.chains
    )
    if shared:
        yield (
            f"{shared} of {len(routing.chains)} chains have replicas that share a node, as there are too "
            f"few nodes ({len(set(nodes.values()))}): the loss of a node may make their blocks unreadable"
        )
    held = {replica.drive_id for chain in routing.chains for replica in chain.replicas}
    leaving = {each.drive_id for each in routing.leaving}
    idle = [worker.drive_id for worker in routing.workers if worker.drive_id not in held | leaving]
    if idle:
        yield f"drives without chains: {', '.join(idle)}; run esker admin expand"
    if routing.goals:
        yield f"chains that are getting other drives: {len(routing.goals)}"
    empty = sorted(leaving - held)
    if empty:
        yield f"drained drives that are empty and may be removed: {', '.join(empty)}"


def catalog_note(workers: Iterable[WorkerStatus]) -> str:
    """What an operator should know of the catalog; empty if nothing."""
    due = [status.worker.drive_id for status in workers if status.catalog.check_due]
    if not due:
        return ""
    return (
        f"the catalog may have missed blocks of these drives: {', '.join(due)}; run esker admin catalog check --repair"
    )


def missing_drives(routing: Routing) -> str:
    """Why there are no chains yet."""
    return f"{len(routing.workers)} of {routing.drives_expected} drives have joined"
