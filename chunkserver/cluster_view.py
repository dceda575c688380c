"""What a worker knows of the cluster: routing, its own chain replicas, and links to successors.

What concerns this worker of the last routing is kept on the drive, so that a restarted worker answers reads also while
no metadata server does. It takes no part in writes before this life of it has been admitted.
"""

from collections.abc import Callable, Sequence

import msgspec

from esker.chunkserver.engine.store import DriveStore
from esker.chunkserver.forward import Answered, Link
from esker.chunkserver.pool import WorkerPool
from esker.chunkserver.spaces import Spaces
from esker.craq.messages import DriveFailed, Event, Membership
from esker.craq.replica import ChainReplica
from esker.runtime.logging import get_logger
from esker.wire.status import Status
from esker.wire.types import Routing, Worker

log = get_logger("chunkserver.cluster")

ROUTING_STATE = "routing"
LIFE_STATE = "life"
Dispatch = Callable[[ChainReplica, Event], None]


class ClusterView:
    """Routing as this worker has it. Give it `own` and `answered` before the first `take`."""

    def __init__(
        self, store: DriveStore, pool: WorkerPool, own: Worker, answered: Answered, dispatch: Dispatch
    ) -> None:
        """`dispatch` hands events to replicas and sees to what follows; `answered` is told how forwards ended."""
        self._store = store
        self._pool = pool
        self._own = own
        self._answered = answered
        self._dispatch = dispatch
        self.on_chains: Sequence[Callable[[], None]] = ()
        """Called, in order, after chains of this worker may have changed."""
        self.routing: Routing | None = None
        self.replicas: dict[int, ChainReplica] = {}
        self.offline_chains: set[int] = set()
        self.unsure_chains: set[int] = set()
        """In which this worker does not serve at present: what it does not have, others may."""
        self.spaces = Spaces()
        self._workers: dict[str, Worker] = {}
        self._links: dict[str, Link] = {}
        self.lacks_room = False
        """The drive has no room to keep `life`, which must not be used then."""
        self.life = self._next_life()
        """Of this worker: above those of its earlier ones."""
        self._failed = ""

    def _next_life(self) -> int:
        """This life's number, above all earlier ones."""
        kept = self._store.state_get(LIFE_STATE)
        life = (int.from_bytes(kept, "little") if kept else 0) + 1
        self._store.state_put(LIFE_STATE, life.to_bytes(8, "little"), self._kept, LIFE_STATE)
        return life

    def _kept(self, name: str, status: Status) -> None:
        if status is Status.NO_SPACE and name == ROUTING_STATE:
            log.warning("no room to keep the cluster map; a restart begins with an older one", drive=self._own.drive_id)
        elif status is Status.NO_SPACE:
            self.lacks_room = True
        elif status is not Status.OK:
            self.fail_drive(f"cannot keep {name} on the drive: {status.name}")

    def load(self) -> bool:
        """Takes the routing kept on the drive. False: there is none."""
        kept = self._store.state_get(ROUTING_STATE)
        if kept is None:
            return False
        try:
            self._adopt(msgspec.msgpack.decode(kept, type=Routing))
        except msgspec.DecodeError as error:
            log.warning("the routing kept on the drive is unreadable", reason=str(error))
            return False
        return True

    def take(self, routing: Routing) -> None:
        """Adopts and keeps `routing`, if it is newer than what is known."""
        if self.routing is not None and routing.version <= self.routing.version:
            return
        self._adopt(routing)
        own = msgspec.msgpack.encode(self._own_part(routing))
        self._store.state_put(ROUTING_STATE, own, self._kept, ROUTING_STATE)

    def _own_part(self, routing: Routing) -> Routing:
        """What this worker needs of the map: its chains, and who else is in them."""
        own_id = self._own.drive_id
        chains = tuple(chain for chain in routing.chains if any(each.drive_id == own_id for each in chain.replicas))
        near = {replica.drive_id for chain in chains for replica in chain.replicas}
        workers = tuple(worker for worker in routing.workers if worker.drive_id in near)
        return msgspec.structs.replace(routing, chains=chains, workers=workers, tables=(), goals=(), leaving=())

    def _adopt(self, routing: Routing) -> None:
        self.routing = routing
        self.spaces.take(routing)
        before, self._workers = self._workers, {worker.drive_id: worker for worker in routing.workers}
        for drive_id, link in self._links.items():
            if self._workers.get(drive_id) != before.get(drive_id):
                link.try_at_once()
        own_id = self._own.drive_id
        for chain in routing.chains:
            known = self.replicas.get(chain.chain_id)
            if known is None and all(replica.drive_id != own_id for replica in chain.replicas):
                continue  # One that this drive was taken out of goes on to be followed: late requests must be refused.
            if known is None:
                known = self.replicas[chain.chain_id] = ChainReplica(chain, own_id, self._own.incarnation)
                if self._failed:
                    known.handle(DriveFailed(self._failed))
                    self.offline_chains.add(chain.chain_id)
            elif chain.version > known.chain.version:
                self._dispatch(known, Membership(chain))
            if known.serving:
                self.unsure_chains.discard(chain.chain_id)
            else:
                self.unsure_chains.add(chain.chain_id)
        for look in self.on_chains:
            look()

    def ready(self, chain_id: int, chain_version: int) -> bool:
        """Whether this worker takes part in the chain in that version, with nothing of an earlier one under way."""
        replica = self.replicas.get(chain_id)
        return (
            replica is not None
            and replica.chain.version == chain_version
            and replica.takes_part
            and not replica.earlier_chunks()
        )

    @property
    def routing_version(self) -> int:
        """Of the routing; 0: there is none."""
        return self.routing.version if self.routing is not None else 0

    def worker(self, drive_id: str) -> Worker | None:
        """The worker that serves a drive."""
        return self._workers.get(drive_id)

    def link(self, drive_id: str) -> Link:
        """The link to a successor, made at its first use."""
        link = self._links.get(drive_id)
        if link is None:
            assert self.routing is not None
            link = self._links[drive_id] = Link(
                drive_id, self.worker, self._own, self.routing.cluster_id, self._pool, self._answered
            )
        return link

    def fail_drive(self, why: str) -> None:
        """The drive failed a write: every target on it stops serving."""
        if self._failed:
            return
        self._failed = why
        log.error("the drive failed; its targets go offline", drive=self._own.drive_id, reason=why)
        for chain_id, replica in self.replicas.items():
            replica.handle(DriveFailed(why))
            self.offline_chains.add(chain_id)

    def unreachable(self) -> tuple[str, ...]:
        """Drives to which operations are sent on and that could not be reached for a while."""
        return tuple(sorted(drive_id for drive_id, link in self._links.items() if link.unreachable()))

    def used_links(self) -> list[Link]:
        """Every link that was made."""
        return list(self._links.values())
