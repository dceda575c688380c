"""A chain under seeded storms: order of everything, crashes, lost connections, full and failing drives, deadlines.

After every step the promises are checked:

- an acknowledged create is on every drive, in the same version, until a later removal reaches the head;
- an acknowledged removal leaves the chunk on no drive until a later create reaches the head;
- a version of a chunk names one content for ever, and one that a client offered;
- every operation gets exactly one answer.
"""

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NoReturn

from esker.craq import messages as craq
from esker.craq.replica import ChainReplica
from esker.wire.ids import NO_PUT_ID
from esker.wire.status import Status

from .replicas import CHAIN_VERSION, HEAD, MIDDLE, TAIL, content
from .simulated_chain import CHUNKS, Factory, Link, Node

DRIVES = (HEAD, MIDDLE, TAIL)
REQUESTS = 40
STEPS = 1200
TRANSCRIPT_LINES = 40
ACKNOWLEDGED = (Status.OK, Status.EXISTS, Status.EXISTS_OTHER)


class Broken(AssertionError):
    """A promise was broken; the text ends with what happened last."""


@dataclass
class Request:
    """What a client asks of the head."""

    number: int
    event: craq.Create | craq.Remove
    answers: list[Status] = field(default_factory=list)
    lost: bool = False


class Simulation:
    """One seed."""

    def __init__(self, seed: int, factory: Factory = ChainReplica) -> None:
        self.seed = seed
        self.random = random.Random(seed)
        self.factory = factory
        self.faults = True
        self.steps: list[tuple[str, Callable[[], None]]] = []
        self.requests: list[Request] = []
        self._transcript: deque[str] = deque(maxlen=TRANSCRIPT_LINES)
        self._op = 0
        self._present: dict[bytes, craq.Stored] = {}
        self._absent: set[bytes] = set()
        self._contents: dict[tuple[bytes, int], craq.Content] = {}
        self._offered: set[tuple[bytes, craq.Content]] = set()
        self.nodes = [Node(self, drive) for drive in DRIVES]
        for source, target in zip(self.nodes, self.nodes[1:], strict=False):
            source.link = Link(self, source, target)
        for node in self.nodes:
            node.start()

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
        for node in self.nodes:
            node.full = False
            if node.machine is not None and node.machine.offline:
                self._crash(node)
            if node.machine is None:
                node.start()
        self._drain()
        for chunk in CHUNKS:
            last = self._ask(craq.Create(0, CHAIN_VERSION, chunk, 0, content(1), True))
            self._drain()
            if last.answers[0] not in ACKNOWLEDGED or chunk not in self._present:
                self.fail(f"a calm chain answers {last.answers[0].name}")
        for request in self.requests:
            if len(request.answers) + request.lost != 1:
                self.fail(f"request {request.number} has the answers {request.answers}")

    def _drain(self) -> None:
        while self._deliver():
            self._check()

    def _step(self) -> None:
        chance = self.random.random()
        head = self.nodes[0]
        if chance < 0.06 and len(self.requests) < REQUESTS and head.machine is not None:
            self._ask(self._new_request())
        elif chance < 0.08:
            self._fault()
        elif chance < 0.10:
            node = self.random.choice(self.nodes)
            if node.operations:
                op = self.random.choice(list(node.operations))
                self.note(f"{node.drive}: {op} expires")
                node.handle(craq.Expired(op))
        else:
            self._deliver()

    def _deliver(self) -> bool:
        links = [node.link for node in self.nodes if node.link is not None and node.link.target.machine is not None]
        messages = [(link, chunk) for link in links for chunk, queue in link.queues.items() if queue]
        if not messages and not self.steps:
            return False
        choice = self.random.randrange(len(messages) + len(self.steps))
        if choice < len(messages):
            link, chunk = messages[choice]
            link.deliver(chunk)
        else:
            what, run = self.steps.pop(choice - len(messages))
            self.note(what)
            run()
        return True

    def _fault(self) -> None:
        node = self.random.choice(self.nodes)
        kind = self.random.choice(("die", "full", "disconnect", "revive", "revive"))
        self.note(f"{node.drive}: {kind}")
        if kind == "die" and node.machine is not None:
            self._crash(node)
        elif kind == "full":
            node.full = not node.full
        elif kind == "disconnect" and node.link is not None:
            node.link.end()
        elif kind == "revive":
            if node.machine is None:
                node.start()
            elif node.machine.offline:
                self._crash(node)

    def _crash(self, node: Node) -> None:
        if node.link is not None:
            node.link.end()
        for before in self.nodes:
            if before.link is not None and before.link.target is node:
                before.link.end(target_died=True)
        node.crash()
        if node is self.nodes[0]:
            for request in self.requests:
                request.lost = request.lost or not request.answers

    def _new_request(self) -> craq.Create | craq.Remove:
        chunk = self.random.choice(CHUNKS)
        if self.random.random() < 0.7:
            return craq.Create(0, CHAIN_VERSION, chunk, 0, content(self.random.randint(1, 2)), True)
        stored = self.random.choice(self.nodes).store.get(chunk)
        version = stored.version if stored is not None and self.random.random() < 0.5 else 0
        return craq.Remove(0, CHAIN_VERSION, chunk, version, NO_PUT_ID)

    def _ask(self, event: craq.Create | craq.Remove) -> Request:
        request = Request(len(self.requests), event)
        self.requests.append(request)
        if isinstance(event, craq.Create):
            self._offered.add((event.chunk, event.content))
            self._absent.discard(event.chunk)
        else:
            self._present.pop(event.chunk, None)
        self.nodes[0].arrive(event, lambda status, stored: self._answered(request, status, stored))
        return request

    # What is promised

    def _answered(self, request: Request, status: Status, stored: craq.Stored | None) -> None:
        request.answers.append(status)
        event = request.event
        behind = [type(o.event) for o in self.nodes[0].operations.values() if o.event.chunk == event.chunk]
        if isinstance(event, craq.Create):
            if status in ACKNOWLEDGED:
                if stored is None or (stored.content == event.content) != (status is not Status.EXISTS_OTHER):
                    self.fail(f"{status.name} for {event}, with {stored}")
                elif craq.Remove not in behind:
                    self._present[event.chunk] = stored
        elif status in (Status.OK, Status.NOT_FOUND) and craq.Create not in behind:
            self._absent.add(event.chunk)

    def _check(self) -> None:
        for node in self.nodes:
            for chunk, promised in self._present.items():
                if node.store.get(chunk) != promised:
                    self.fail(f"{node.drive} has {node.store.get(chunk)}; acknowledged: {promised}")
            for chunk in self._absent & node.store.keys():
                self.fail(f"{node.drive} has {node.store[chunk]}, whose removal was acknowledged")
            for chunk, stored in node.store.items():
                if self._contents.setdefault((chunk, stored.version), stored.content) != stored.content:
                    self.fail(f"{node.drive} has two contents of version {stored.version}")
                if (chunk, stored.content) not in self._offered:
                    self.fail(f"{node.drive} has what nobody put: {stored}")
