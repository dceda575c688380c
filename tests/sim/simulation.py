"""A chain and its manager under seeded storms: order of everything, crashes, hangs, lost connections, workers that the
manager cannot hear, full and failing drives, deadlines, and maps that reach workers and clients late.

After every step the promises are checked, for all replicas that serve (or may again) in the chain as it is stored:

- an acknowledged create is there, in the same version, until a later removal is asked for;
- an acknowledged removal leaves nothing there until a later create is asked for;
- a version of a chunk names one content for ever, and one that a client offered;
- every operation gets exactly one answer.

When the storm is over every replica becomes serving again, and all are the same.
"""

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NoReturn

from esker.craq import messages as craq
from esker.craq.replica import ChainReplica
from esker.wire.ids import NO_PUT_ID
from esker.wire.limits import HEARTBEAT_INTERVAL_S
from esker.wire.status import Status
from esker.wire.types import Chain, TargetState

from ..craq.replicas import HEAD, MIDDLE, TAIL, content
from .manager import Manager
from .nodes import CHUNKS, Factory, Link, Node

DRIVES = (HEAD, MIDDLE, TAIL)
REQUESTS = 120
STEPS = 4000
STEP_S = 0.01
MANAGER_STEP_S = 0.25
CALM_S = 1000.0
TRANSCRIPT_LINES = 60
ACKNOWLEDGED = (Status.OK, Status.EXISTS, Status.EXISTS_OTHER)


class Broken(AssertionError):
    """A promise was broken; the text ends with what happened last."""


@dataclass
class Request:
    """What a client asks of a head."""

    number: int
    event: craq.Create | craq.Remove
    head: str
    asked: int
    ended: int | None = None
    answers: list[Status] = field(default_factory=list)
    lost: bool = False


class Simulation:
    """One seed."""

    def __init__(
        self,
        seed: int,
        factory: Factory = ChainReplica,
        node_type: type[Node] = Node,
        manager_type: type[Manager] = Manager,
    ) -> None:
        self.seed = seed
        self.random = random.Random(seed)
        self.factory = factory
        self.faults = True
        self.touched = True
        """A node handled something, or the chain changed, since the promises were checked."""
        self.now_s = 0.0
        self.steps: list[tuple[Node, str, Callable[[], None]]] = []
        self.timers: list[tuple[float, Node, Callable[[], None]]] = []
        self.requests: list[Request] = []
        self.cut: set[str] = set()
        """Drives whose workers the manager does not hear."""
        self.changes = 0
        self._transcript: deque[str] = deque(maxlen=TRANSCRIPT_LINES)
        self._op = self._tick = 0
        self._present: dict[bytes, craq.Stored] = {}
        self._absent: set[bytes] = set()
        self._contents: dict[tuple[bytes, int], craq.Content] = {}
        self._offered: set[tuple[bytes, craq.Content]] = set()
        self.nodes = {drive: node_type(self, drive) for drive in DRIVES}
        lives = {drive: f"{drive}/1" for drive in DRIVES}
        self.manager = manager_type(DRIVES, lives, self.random.choice((1, 1, 2)))
        self._maps: list[Chain] = [self.manager.chain]
        for node in self.nodes.values():
            node.chain = self.manager.chain
            node.start()
        self._beats = dict.fromkeys(DRIVES, 0.0)
        self._managed_s = 0.0

    def next_op(self) -> int:
        self._op += 1
        return self._op

    def note(self, what: str) -> None:
        self._transcript.append(what)

    def fail(self, why: str) -> NoReturn:
        story = "\n  ".join(self._transcript)
        raise Broken(f"seed {self.seed}: {why}\n  {story}")

    # What happens

    def run(self) -> None:
        """Storms, then calm; then every chunk is put once more and must be the same everywhere."""
        for _ in range(STEPS):
            self._step()
            self._check()
        self.faults = False
        self._calm_down()
        self._last_words()

    def _last_words(self) -> None:
        """A calm chain takes everything, and its replicas are the same."""
        for chunk in CHUNKS:
            head = self._head_of(self.manager.chain)
            assert head is not None
            create = craq.Create(0, self.manager.chain.version, chunk, 0, content(1), True)
            self._tick += 1
            last = self._ask(create, head)
            self._drain()
            if last.answers[0] not in ACKNOWLEDGED or chunk not in self._present:
                self.fail(f"a calm chain answers {last.answers[0].name}")
        stores = [node.store for node in self.nodes.values()]
        if any(store != stores[0] for store in stores):
            self.fail(f"the replicas differ: {stores}")
        for request in self.requests:
            if len(request.answers) + request.lost != 1:
                self.fail(f"request {request.number} has the answers {request.answers}")

    def _calm_down(self) -> None:
        """Everything works again: within a bounded time all replicas must serve."""
        self.cut.clear()
        for node in self.nodes.values():
            node.full = node.frozen = node.slow = False
            if node.machine is not None and node.machine.offline:
                self._crash(node)
            if node.machine is None:
                node.start()
        end_s = self.now_s + CALM_S
        self._drain()
        while not self._settled():
            if self.now_s > end_s:
                self.fail(f"the chain does not recover: {self.manager.chain}")
            self.now_s += MANAGER_STEP_S
            self._timers()
            self._drain()

    def _settled(self) -> bool:
        chain = self.manager.chain
        return all(
            replica.state is TargetState.SERVING
            and replica.incarnation == self.nodes[replica.drive_id].incarnation
            and self.nodes[replica.drive_id].chain == chain
            for replica in chain.replicas
        )

    def _drain(self) -> None:
        while self._deliver():
            self._tick += 1
            self._check()

    def _step(self) -> None:
        self._tick += 1
        self.now_s += STEP_S
        self._timers()
        chance = self.random.random()
        if chance < 0.05 and len(self.requests) < REQUESTS:
            self._new_request()
        elif chance < 0.06:
            self._fault()
        elif chance < 0.07:
            node = self.random.choice(list(self.nodes.values()))
            if node.operations and not node.frozen:
                op = self.random.choice(list(node.operations))
                self.note(f"{node.drive}: {op} expires")
                node.handle(craq.Expired(op))
        else:
            self._deliver()

    def _timers(self) -> None:
        due = [timer for timer in self.timers if timer[0] <= self.now_s and not timer[1].frozen]
        self.timers = [timer for timer in self.timers if timer not in due]
        for _, _, run in due:
            run()
        for drive, node in self.nodes.items():
            if self.now_s >= self._beats[drive] and node.machine is not None and not node.frozen:
                self._beats[drive] = self.now_s + HEARTBEAT_INTERVAL_S * (0.9 + 0.2 * self.random.random())
                if drive not in self.cut:
                    self._heartbeat(node)
        if self.now_s >= self._managed_s:
            self._managed_s = self.now_s + MANAGER_STEP_S
            if self.manager.step(self.now_s):
                self.changes += 1
                self.touched = True
                self._maps.append(self.manager.chain)
                self.note(f"manager: {self.manager.chain}")

    def _heartbeat(self, node: Node) -> None:
        assert node.machine is not None
        if not self.manager.knows(node.drive, node.incarnation):
            self.manager.join(node.drive, node.incarnation)
        resync = node.resync
        self.manager.heartbeat(
            self.now_s,
            node.drive,
            node.incarnation,
            offline=bool(node.machine.offline),
            synced=resync.version if resync is not None and resync.synced else 0,
            stalled=resync.version if resync is not None and resync.stalled else 0,
        )

        def told() -> None:
            if node.drive not in self.cut:
                node.told(self.manager.chain)

        node.later("its heartbeat is answered", told)

    def _deliver(self) -> bool:
        links: list[Link] = [
            link
            for node in self.nodes.values()
            for link in node.links.values()
            if link.target.machine is not None and not link.target.frozen
        ]
        messages = [(link, chunk) for link in links for chunk, queue in link.queues.items() if queue]
        steps = [number for number, (node, what, _) in enumerate(self.steps) if node.may(what)]
        if not messages and not steps:
            return False
        choice = self.random.randrange(len(messages) + len(steps))
        if choice < len(messages):
            link, chunk = messages[choice]
            if not self.disturbs(link, chunk):
                link.deliver(chunk)
        else:
            node, what, run = self.steps.pop(steps[choice - len(messages)])
            self.note(f"{node.drive}: {what}")
            run()
        return True

    def disturbs(self, link: Link, chunk: bytes) -> bool:
        """Whether the next message of the chunk is not to be delivered now."""
        return False

    def _fault(self) -> None:
        node = self.random.choice(list(self.nodes.values()))
        kind = self.random.choice(
            (
                *("die", "die all", "freeze", "thaw", "cut", "heal", "full", "slow", "disconnect", "new manager"),
                *("revive",) * 5,
            )
        )
        self.note(f"{node.drive}: {kind}")
        if kind == "die":
            self._crash(node)
        elif kind == "die all" and self.random.random() < 0.3:
            for each in self.nodes.values():
                self._crash(each)
        elif kind in ("freeze", "thaw"):
            node.frozen = kind == "freeze"
        elif kind == "cut":
            self.cut.add(node.drive)
        elif kind == "heal":
            self.cut.discard(node.drive)
        elif kind == "full":
            node.full = not node.full
        elif kind == "slow":
            node.slow = not node.slow
        elif kind == "disconnect":
            for link in node.links.values():
                link.end()
        elif kind == "new manager" and self.random.random() < 0.3:
            self.manager.restart(self.now_s)
        elif kind == "revive":
            node.frozen = node.slow = False
            if node.machine is not None and node.machine.offline:
                self._crash(node)
            if node.machine is None:
                node.start()

    def _crash(self, node: Node) -> None:
        if node.machine is None:
            return
        node.frozen = False
        for other in self.nodes.values():
            if node.drive in other.links:
                other.links[node.drive].end(target_died=True)
        node.crash()
        for request in self.requests:
            if request.head == node.drive and not request.answers and not request.lost:
                request.lost, request.ended = True, self._tick

    # Clients

    def _new_request(self) -> None:
        """Of a client whose map may be old."""
        chain = self._maps[-1] if self.random.random() < 0.7 else self.random.choice(self._maps[-4:])
        head = self._head_of(chain)
        if head is None or head.machine is None:
            return
        chunk = self.random.choice(CHUNKS)
        if self.random.random() < 0.7:
            create = craq.Create(0, chain.version, chunk, 0, content(self.random.randint(1, 3)), True)
            self._ask(create, head)
        else:
            stored = self.random.choice(list(self.nodes.values())).store.get(chunk)
            version = stored.version if stored is not None and self.random.random() < 0.5 else 0
            self._ask(craq.Remove(0, chain.version, chunk, version, NO_PUT_ID), head)

    def _head_of(self, chain: Chain) -> Node | None:
        first = chain.replicas[0]
        return self.nodes[first.drive_id] if first.state is TargetState.SERVING else None

    def _ask(self, event: craq.Create | craq.Remove, head: Node) -> Request:
        request = Request(len(self.requests), event, head.drive, self._tick)
        self.requests.append(request)
        if isinstance(event, craq.Create):
            self._offered.add((event.chunk, event.content))
            self._absent.discard(event.chunk)
        else:
            self._present.pop(event.chunk, None)
        head.arrive(event, lambda status, stored: self._answered(request, status, stored))
        return request

    # What is promised

    def _answered(self, request: Request, status: Status, stored: craq.Stored | None) -> None:
        request.answers.append(status)
        request.ended = self._tick
        event = request.event
        contrary = any(
            other.event.chunk == event.chunk
            and type(other.event) is not type(event)
            and (other.ended is None or other.ended >= request.asked)
            for other in self.requests
        )
        if isinstance(event, craq.Create):
            if status in ACKNOWLEDGED:
                if stored is None or (stored.content == event.content) != (status is not Status.EXISTS_OTHER):
                    self.fail(f"{status.name} for {event}, with {stored}")
                elif not contrary:
                    self._present[event.chunk] = stored
        elif status in (Status.OK, Status.NOT_FOUND) and not contrary:
            self._absent.add(event.chunk)

    def _check(self) -> None:
        """Nothing that was promised changes where no node and no chain did."""
        if self.touched:
            self.touched = False
            self._check_promises()

    def _check_promises(self) -> None:
        for replica in self.manager.chain.replicas:
            if replica.state not in (TargetState.SERVING, TargetState.LASTSRV):
                continue
            node = self.nodes[replica.drive_id]
            for chunk, promised in self._present.items():
                if node.store.get(chunk) != promised:
                    self.fail(f"{node.drive} has {node.store.get(chunk)}; acknowledged: {promised}")
            for chunk in self._absent & node.store.keys():
                self.fail(f"{node.drive} has {node.store[chunk]}, whose removal was acknowledged")
        for node in self.nodes.values():
            for chunk, stored in node.store.items():
                if self._contents.setdefault((chunk, stored.version), stored.content) != stored.content:
                    self.fail(f"{node.drive} has two contents of version {stored.version}")
                if (chunk, stored.content) not in self._offered:
                    self.fail(f"{node.drive} has what nobody put: {stored}")
