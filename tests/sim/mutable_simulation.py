"""One chain with mutable chunks through faults: those of `simulation.py`, and

- messages that come twice, or after later ones of the same chunk; replicas that one way do not hear each other;
- workers whose heartbeats arrive while the replies do not, on clocks of other rates, under leases that the real manager
  withholds and the real worker counts;
- bytes that go bad on one drive at a time.

After every step, for all replicas that serve (or may again) in the chain as it is stored:

- an acknowledged write is durable, or one that came after it;
- what a serving replica has committed never goes back to an earlier version;
- a version of a chunk is one image for ever;
- a write is committed in one version only, however often it was sent.

What clients read and wrote is linearizable. When the storm is over every replica is the same, channels included.
"""

from esker.craq import mutable_messages as craq
from esker.craq.replica import ChainReplica
from esker.wire.messages import Heartbeat
from esker.wire.status import Status
from esker.wire.types import Chain, TargetState

from .. import linearizability as lin
from .leasing_manager import LeasingManager
from .manager import CHAIN_ID
from .mutable_clients import Client, Write
from .mutable_nodes import MUTABLE_CHUNKS, MutableNode
from .nodes import Factory, Link, Node
from .simulation import Simulation

CLIENTS = 3
OPERATIONS = 150
KV_PART = 0.15
"""Of requests that are about immutable chunks."""
PARTICIPANTS = (TargetState.SERVING, TargetState.LASTSRV)


class MutableSimulation(Simulation):
    """One seed."""

    nodes: dict[str, MutableNode]  # type: ignore[assignment]

    def __init__(
        self,
        seed: int,
        factory: Factory = ChainReplica,
        node_type: type[MutableNode] = MutableNode,
        manager_type: type[LeasingManager] = LeasingManager,
    ) -> None:
        self.deaf: set[str] = set()
        """Drives whose workers do not hear the manager's replies."""
        self.blocked: set[tuple[str, str]] = set()
        """Pairs of drives of which the second hears nothing of the first."""
        self.history = lin.History(lambda: self._tick)
        self.acknowledged: dict[bytes, int] = {}
        """By chunk: the highest version that was acknowledged."""
        self.reads: dict[Status, int] = {}
        self.writes: dict[Status, int] = {}
        self._images: dict[tuple[bytes, int], craq.Image] = {}
        self._removals: dict[bytes, int] = {}
        """By chunk: the highest version that removed it anywhere."""
        self._committed: dict[craq.Origin, int] = {}
        self._floors: dict[tuple[str, str, bytes], int] = {}
        self._faithful: tuple[str, Chain] | None = None
        self._truncations = 0
        self._counted = 0
        super().__init__(seed, factory, node_type, manager_type)
        self.clients = [Client(f"client {number}", self.history, self.random, self._count) for number in range(CLIENTS)]

    def _count(self) -> int:
        self._counted += 1
        return self._counted

    # What happens

    def _new_request(self) -> None:
        if self.random.random() < KV_PART:
            super()._new_request()
        elif self._counted >= OPERATIONS:
            return
        elif self.random.random() < 0.5:
            self._read(self.random.choice(MUTABLE_CHUNKS))
        else:
            self._write(self.random.choice(self.clients))

    def _write(self, client: Client) -> None:
        """Goes on with the client's write, or begins one."""
        write = client.write
        if write is None:
            if self.random.random() < 0.1:
                self._truncations += 1
            late = self._truncations and self.random.random() < 0.1
            write = client.begin(self.random.choice(MUTABLE_CHUNKS), self._truncations - bool(late))
        elif write.open_attempts and self.random.random() < 0.7:
            return  # it waits
        elif write.attempts > 1 and self.random.random() < 0.1:
            client.give_up()
            return
        self._attempt(client, write)

    def _some_map(self) -> Chain:
        """As a client has it, which may be old."""
        new = not self.faults or self.random.random() < 0.7
        return self._maps[-1] if new else self.random.choice(self._maps[-4:])

    def _attempt(self, client: Client, write: Write) -> None:
        chain = self._some_map()
        head = self._head_of(chain)
        if head is None or head.machine is None:
            return
        write.attempts += 1
        write.open_attempts += 1
        update = craq.Update(0, chain.version, write.chunk, write.patch, write.origin)
        head.arrive(update, lambda status, result: self._written(client, write, head, status, result), write.payload)

    def _written(self, client: Client, write: Write, head: Node, status: Status, result: craq.AnswerMutable) -> None:
        self.writes[status] = self.writes.get(status, 0) + 1
        if status is Status.OK:
            if head.machine is not None and not head.machine.place.enough:
                self.fail(f"{head.drive} acknowledges with too few replicas")
            self.acknowledged[write.chunk] = max(self.acknowledged.get(write.chunk, 0), result.version)
        client.answered(write, status, result.version)

    def _stay_with(self, drive: str) -> None:
        """A reader keeps to this drive, and to the map that it has, until it is told that the chain has changed."""
        self._faithful = (drive, self._maps[-1]) if drive else None

    def _read(self, chunk: bytes, drive: str = "") -> None:
        chain = self._some_map()
        if self._faithful is not None and not drive and self.random.random() < 0.6:
            drive, chain = self._faithful
        serving = [replica.drive_id for replica in chain.replicas if replica.state is TargetState.SERVING]
        if not serving:
            return
        node = self.nodes[drive or self.random.choice(serving)]
        if node.machine is None:
            return
        called = self.history.call()

        def answered(status: Status, data: bytes | None) -> None:
            self.reads[status] = self.reads.get(status, 0) + 1
            if status is Status.CHAIN_VERSION:
                self._faithful = None
            if status is Status.OK:
                self.history.ended(chunk, lin.Read(0, 1 << 20, data), called, by=f"reader at {node.drive}")

        node.arrive(craq.ReadRange(0, chain.version, chunk), answered)

    def _heartbeat(self, node: Node) -> None:
        assert isinstance(node, MutableNode)
        assert node.machine is not None
        if not self.manager.knows(node.drive, node.incarnation):
            self.manager.join(node.drive, node.incarnation)
        resync, lease, version = node.resync, node.lease, node.machine.chain.version
        sent_s = lease.now_s()
        manager = self.manager
        assert isinstance(manager, LeasingManager)
        term, withheld = manager.acknowledge(
            self.now_s,
            Heartbeat(
                node.drive,
                node.incarnation,
                0,
                0,
                1,
                offline_chains=(CHAIN_ID,) if node.machine.offline else (),
                synced=((CHAIN_ID, version),) if resync is not None and resync.synced else (),
                stalled=((CHAIN_ID, version),) if resync is not None and resync.stalled else (),
                term=lease.term,
                stopped=lease.stopped,
            ),
        )
        chain = self.manager.chain

        def told() -> None:
            if node.drive not in self.cut | self.deaf:
                node.told(chain)
                node.renew(lease, sent_s, term, withheld)

        node.later("its heartbeat is answered", told)

    def _fault(self) -> None:
        chance = self.random.random()
        if chance < 0.6:
            super()._fault()
            return
        if chance < 0.65:
            self.note("the operator wants a replica out")
            assert isinstance(self.manager, LeasingManager)
            self._stay_with(self.manager.drop(self.random, self.deaf))
            return
        node, other = self.random.sample(list(self.nodes.values()), 2)
        if chance < 0.72:
            self.note(f"{node.drive}: deaf")
            self.deaf.add(node.drive)
            self._stay_with(node.drive)
        elif chance < 0.8:
            self.note("all hear")
            self.deaf.clear()
            self._unblock()
        elif chance < 0.9:
            self.note(f"{other.drive} does not hear {node.drive}")
            self.blocked.add((node.drive, other.drive))
        else:
            self._corrupt(node)

    def _corrupt(self, node: MutableNode) -> None:
        """Some bytes on the drive go bad, if those on the others are good."""
        if any(slot.damaged for other in self.nodes.values() if other is not node for slot in other.slots()):
            return
        slots = list(node.slots())
        if slots:
            self.note(f"{node.drive}: bytes go bad")
            self.random.choice(slots).go_bad()

    def _unblock(self) -> None:
        """What waited for an answer over a connection that was broken is told so."""
        for source, target in sorted(self.blocked):
            for here, there in ((source, target), (target, source)):
                link = self.nodes[here].links.get(there)
                if link is not None:
                    link.end()
        self.blocked.clear()

    def disturbs(self, link: Link, chunk: bytes) -> bool:
        """Whether the next message of the chunk is not to be delivered now."""
        queue = link.queues[chunk]
        if (link.source.drive, link.target.drive) in self.blocked:
            return True
        if self.faults and chunk in MUTABLE_CHUNKS:
            chance = self.random.random()
            if chance < 0.04:
                queue.append(queue[0])  # it comes once more, later
            elif chance < 0.08:
                queue.rotate(-1)
        return False

    def _crash(self, node: Node) -> None:
        super()._crash(node)
        for client in self.clients:
            if client.write is not None:
                client.write.open_attempts = 0

    def _calm_down(self) -> None:
        self.deaf.clear()
        self._unblock()
        for node in self.nodes.values():
            for slot in node.slots():
                if slot.good is not None:
                    slot.mend(slot.good)
        super()._calm_down()

    def _settled(self) -> bool:
        return super()._settled() and all(
            not node.mutable.pending and not node.operations and node.lease.live(CHAIN_ID, self.manager.chain.version)
            for node in self.nodes.values()
        )

    def _last_words(self) -> None:
        super()._last_words()
        for client in self.clients:
            if client.write is not None:
                self._attempt(client, client.write)
                self._drain()
            if client.write is not None:
                self.fail(f"a calm chain does not settle a write: {client.write}")
        for chunk in MUTABLE_CHUNKS:
            for drive in self.nodes:
                self._read(chunk, drive)
            self._drain()
            write = self.clients[0].begin(chunk, self._truncations)
            self._attempt(self.clients[0], write)
            self._drain()
            if self.clients[0].write is not None:
                self.fail(f"a calm chain does not take a write: {self.writes}")
        drives = [node.mutable for node in self.nodes.values()]
        for drive in drives:
            if drive.pending:
                self.fail(f"a calm chain has pending images: {drive.pending}")
            if drive.committed != drives[0].committed:
                self.fail(f"the replicas differ: {[each.committed for each in drives]}")
            if drive.channels != drives[0].channels:
                self.fail(f"the channels differ: {[each.channels for each in drives]}")
        try:
            lin.require_linearizable(self.history.operations)
        except lin.NotLinearizable as error:
            self.fail(str(error))

    # What is promised

    def persisted(
        self, node: MutableNode, chunk: bytes, image: craq.Image, origin: craq.Origin | None, *, committed: bool
    ) -> None:
        """An image became durable on a drive."""
        if image.absent:
            self._removals[chunk] = max(self._removals.get(chunk, 0), image.version)
        if image.version and self._images.setdefault((chunk, image.version), image) != image:
            self.fail(f"{node.drive} has two images of version {image.version}")
        if committed and origin is not None and self._committed.setdefault(origin, image.version) != image.version:
            self.fail(f"{node.drive} commits {origin} again, in {image.version} after {self._committed[origin]}")

    def _check_promises(self) -> None:
        super()._check_promises()
        for replica in self.manager.chain.replicas:
            if replica.state in PARTICIPANTS:
                self._check_mutable(self.nodes[replica.drive_id], replica.incarnation)

    def _check_mutable(self, node: MutableNode, incarnation: str) -> None:
        for chunk in MUTABLE_CHUNKS:
            slot, held = node.mutable.committed.get(chunk), node.mutable.pending.get(chunk)
            committed = 0 if slot is None else slot.image.version
            durable = max(committed, 0 if held is None else held.slot.image.version)
            promised = self.acknowledged.get(chunk, 0)
            if durable < promised and not (slot is None and self._removed_since(chunk, promised)):
                self.fail(f"{node.drive} has version {durable} of {chunk!r}; acknowledged: {promised}")
            if committed:
                place = (node.drive, incarnation, chunk)
                if committed < self._floors.get(place, 0):
                    self.fail(f"{node.drive} goes back from version {self._floors[place]} to {committed}")
                self._floors[place] = committed

    def _removed_since(self, chunk: bytes, version: int) -> bool:
        return self._removals.get(chunk, 0) >= version
