"""Replicas with their drives, and the connections between them, in one thread: whoever holds them gives the order.

They keep to what workers and their links keep to: messages between two replicas arrive in order chunk by chunk (other
chunks overtake), a newer connection ends what was still on its way on the older one, what a drive has reported survives
a crash, what it has not reported may or may not. A node keeps the newest chain that it was told on its drive.
"""

import random
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol

from esker.craq import messages as craq
from esker.craq.replica import AnyEvent, ChainReplica
from esker.wire.ids import NO_PUT_ID
from esker.wire.status import Status
from esker.wire.types import Chain

from .resyncs import Resync

CHUNKS = tuple(bytes([number]) * 24 for number in range(3))

RESYNC_PACE = 0.05
DRIVE_STEPS = ("writes", "removes")

Factory = Callable[[Chain, str, str], ChainReplica]
Answered = Callable[[Status, Any], None]
Reports = Callable[..., Any]
Message = tuple[int, int, Any, bytes]
"""Connection, operation, event, payload."""


class World(Protocol):
    """What nodes need of whoever gives the order."""

    random: random.Random
    factory: Factory
    faults: bool
    touched: bool
    steps: "list[tuple[Node, str, Callable[[], None]]]"
    now_s: float
    timers: "list[tuple[float, Node, Callable[[], None]]]"
    nodes: "dict[str, Node]"

    def next_op(self) -> int: ...

    def note(self, what: str) -> None: ...

    def fail(self, why: str) -> NoReturn: ...


@dataclass
class Operation:
    """An operation under way at a replica, and who asked for it."""

    event: Any
    answer: Answered
    fetched: craq.Stored | None = None
    write: craq.Stored | None = None
    removes: bool = False
    payload: bytes = b""


class Link:
    """The connection of a replica to a successor."""

    def __init__(self, source: "Node", target: "Node") -> None:
        self.source = source
        self.target = target
        self._connection = 1
        self._heard = 1
        self.queues: dict[bytes, deque[Message]] = defaultdict(deque, {chunk: deque() for chunk in CHUNKS})
        self._awaited: dict[int, tuple[int, Reports]] = {}

    def send(self, op: int, event: Any, payload: bytes = b"", reports: Reports = craq.Forwarded) -> None:
        """`reports` makes the source's event of the answer."""
        if self.target.machine is None:
            self._report(op, Status.UNAVAILABLE, None, reports)
        else:
            self._awaited[op] = self._connection, reports
            self.queues[event.chunk].append((self._connection, op, event, payload))

    def deliver(self, chunk: bytes) -> None:
        connection, op, event, payload = self.queues[chunk].popleft()
        if connection > self._heard:
            self._heard = connection
            for queued, waiting in self.queues.items():
                self.queues[queued] = deque(message for message in waiting if message[0] >= connection)
        self.target.arrive(event, lambda status, result: self._answered(connection, op, status, result), payload)

    def _answered(self, connection: int, op: int, status: Status, result: Any) -> None:
        if self.source.misses(self.target.drive):
            return
        awaited = self._awaited.get(op)
        if awaited is not None and awaited[0] == connection:
            del self._awaited[op]
            self._report(op, status, result, awaited[1])

    def _report(self, op: int, status: Status, result: Any, reports: Reports) -> None:
        event = reports(op, status) if reports is craq.Forwarded else reports(op, status, result)
        self.source.later(f"successor says {status.name} of {op}", lambda: event)

    def end(self, *, target_died: bool = False) -> None:
        """The connection ends. What is on its way may still arrive, unless nobody is there to hear it."""
        self._connection += 1
        awaited, self._awaited = self._awaited, {}
        for op, (_, reports) in awaited.items():
            self._report(op, Status.UNAVAILABLE, None, reports)
        if target_died:
            for waiting in self.queues.values():
                waiting.clear()


class Node:
    """A drive with its replica. The store and the newest chain survive a crash, everything else does not."""

    resync_type: type[Resync] = Resync

    def __init__(self, world: World, drive: str) -> None:
        self._world = world
        self._random = world.random
        self.drive = drive
        self.store: dict[bytes, craq.Stored] = {}
        self.chain: Chain
        self.machine: ChainReplica | None = None
        self.lives = 0
        self.operations: dict[int, Operation] = {}
        self.links: dict[str, Link] = {}
        self.full = False
        self.slow = False
        """Its drive keeps what it is given, and reports nothing for now."""
        self.frozen = False
        """It makes no move, and nobody can tell that from a slow one."""
        self.resync: Resync | None = None
        """The job that brings this node's successor up to date."""

    @property
    def incarnation(self) -> str:
        """Of the present life."""
        return f"{self.drive}/{self.lives}"

    def start(self) -> None:
        """A new life, with what the drive knows."""
        self.lives += 1
        self.machine = self._world.factory(self.chain, self.drive, self.incarnation)

    def crash(self) -> None:
        """Whatever the drive has not reported may have become durable all the same."""
        self._world.touched = True
        for operation in self.operations.values():
            if operation.write is not None and self._random.random() < 0.5:
                self.store[operation.event.chunk] = operation.write
            elif operation.removes and self._random.random() < 0.5:
                self.store.pop(operation.event.chunk, None)
        for link in self.links.values():
            link.end()
        self.lives += 1  # what this life still had to do is dropped
        self.machine = None
        self.resync = None
        self.operations.clear()

    def told(self, chain: Chain) -> None:
        """The manager's answer to a heartbeat has arrived."""
        assert self.machine is not None
        if chain.version <= self.chain.version:
            return
        self._world.note(f"{self.drive}: takes part in version {chain.version}")
        self.chain = chain
        self.handle(craq.Membership(chain))
        self.look_for_resyncs()

    def look_for_resyncs(self) -> None:
        """Begins what the chain asks for, and ends what it no longer does."""
        machine = self.machine
        assert machine is not None
        drive, version = machine.resyncs, machine.chain.version
        if self.resync is not None and (drive is None or self.resync.version != version):
            self.resync = None
        if drive is not None and self.resync is None:
            self.resync = self.resync_type(self, self._world.nodes[drive], version, machine.earlier_chunks())

    def ready(self, version: int) -> bool:
        """See `ClusterView.ready`."""
        machine = self.machine
        return (
            machine is not None
            and machine.chain.version == version
            and machine.takes_part
            and not machine.earlier_chunks()
        )

    def may(self, what: str) -> bool:
        """Whether a step called so may be taken now."""
        if self.frozen or (self.slow and what.startswith(DRIVE_STEPS)):
            return False
        # Resyncs are slower than anything else, so that much happens beside them.
        return not (self._world.faults and what.startswith("resync")) or self._random.random() < RESYNC_PACE

    def later(self, what: str, event: Callable[[], Any]) -> None:
        """Has the event, if there is one, handled at some later step, if this life lasts until then."""
        life = self.lives

        def run() -> None:
            if self.lives == life:
                self._world.touched = True
                happened = event()
                if happened is not None:
                    self.handle(happened)

        self._world.steps.append((self, what, run))

    def after(self, delay_s: float, run: Callable[[], None]) -> None:
        """Has `run` called when so much time has passed, if this life lasts until then."""
        life = self.lives

        def in_this_life() -> None:
            if self.lives == life:
                run()

        self._world.timers.append((self._world.now_s + delay_s, self, in_this_life))

    def arrive(self, event: Any, answer: Answered, payload: bytes = b"") -> None:
        op = self._world.next_op()
        names = {slot: getattr(event, slot) for slot in event.__slots__}
        own = type(event)(**{**names, "op": op})
        self.operations[op] = Operation(own, answer, payload=payload)
        self._world.note(f"{self.drive}: {own}")
        self.handle(own)

    def handle(self, event: AnyEvent) -> None:
        assert self.machine is not None
        self._world.touched = True
        for effect in self.machine.handle(event):
            getattr(self, f"_{type(effect).__name__}")(effect)
        if self.machine.busy != len(self.operations):
            self._world.fail(f"{self.drive} counts {self.machine.busy} operations of {len(self.operations)}")

    def misses(self, drive: str) -> bool:
        """Whether what `drive` answers gets lost on its way here."""
        return False

    def _link(self, drive: str) -> Link:
        link = self.links.get(drive)
        if link is None:
            link = self.links[drive] = Link(self, self._world.nodes[drive])
        return link

    def _Lookup(self, effect: craq.Lookup) -> None:
        chunk = self.operations[effect.op].event.chunk
        self.later(f"looks for {effect.op}", lambda: craq.Found(effect.op, self.store.get(chunk)))

    def _Reserve(self, effect: craq.Reserve) -> None:
        self.later(f"reserves for {effect.op}", lambda: craq.Reserved(effect.op, not self.full))

    def _Write(self, effect: craq.Write) -> None:
        operation = self.operations[effect.op]
        if effect.fetched:
            assert operation.fetched is not None
            operation.write = operation.fetched
        else:
            assert isinstance(operation.event, craq.Create)
            operation.write = craq.Stored(effect.version, operation.event.content)
        self.later(f"writes {effect.op}", lambda: self._written(effect.op, operation))

    def _written(self, op: int, operation: Operation) -> craq.Event:
        assert operation.write is not None
        written, operation.write = operation.write, None
        if self.full and self._random.random() < 0.2:
            return craq.Written(op, failed=True, no_space=True)
        if self._world.faults and self._random.random() < 0.005:
            return craq.Written(op, failed=True)
        self.store[operation.event.chunk] = written
        return craq.Written(op)

    def _RemoveLocal(self, effect: craq.RemoveLocal) -> None:
        operation = self.operations[effect.op]
        operation.removes = True

        def removed() -> craq.Event:
            operation.removes = False
            if self.full and self._random.random() < 0.2:
                return craq.Removed(effect.op, failed=True, no_space=True)
            stored = self.store.get(operation.event.chunk)
            if stored is not None and stored.version == effect.version:
                del self.store[operation.event.chunk]
            return craq.Removed(effect.op)

        self.later(f"removes for {effect.op}", removed)

    def _Forward(self, effect: craq.Forward) -> None:
        assert self.machine is not None
        version = self.machine.chain.version

        def send() -> None:
            operation = self.operations.get(effect.op)
            if operation is None:
                return  # answered while the copy was being read
            event = operation.event
            stored = self.store.get(event.chunk)
            if effect.from_store:
                payload = None if stored is None else stored.content
            else:
                payload = effect.content if effect.confirm else event.content
            if payload != effect.content:
                self._world.fail(f"{self.drive} sends other bytes on than it says")
            own = craq.Create(
                0, version, event.chunk, effect.version, effect.content, not effect.confirm, effect.replace
            )
            self._link(effect.successor).send(effect.op, own)

        if effect.from_store and not effect.confirm:
            self.later(f"reads for {effect.op}", send)
        else:
            send()

    def _ForwardRemove(self, effect: craq.ForwardRemove) -> None:
        assert self.machine is not None
        event = self.operations[effect.op].event
        condition = (0, NO_PUT_ID) if effect.anything else (event.version, event.put_id)
        removal = craq.Remove(0, self.machine.chain.version, event.chunk, *condition)
        self._link(effect.successor).send(effect.op, removal)

    def _Fetch(self, effect: craq.Fetch) -> None:
        operation, target = self.operations[effect.op], self._world.nodes[effect.successor]
        life = target.lives

        def fetched() -> craq.Event:
            operation.fetched = target.store.get(operation.event.chunk) if target.lives == life else None
            return craq.Fetched(effect.op, operation.fetched)

        self.later(f"fetches for {effect.op}", fetched)

    def _Answer(self, effect: craq.Answer) -> None:
        operation = self.operations.pop(effect.op, None)
        if operation is None:
            self._world.fail(f"{self.drive} answers {effect.op} twice")
        self._world.note(f"{self.drive}: {effect}")
        operation.answer(effect.status, effect.stored)

    def _TargetOffline(self, effect: craq.TargetOffline) -> None:
        self._world.note(f"{self.drive}: {effect}")
