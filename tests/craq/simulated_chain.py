"""Replicas with their drives, and the connections between them, in one thread: whoever holds them gives the order.

They keep to what the runner and the links keep to: messages between two replicas arrive in order chunk by chunk (other
chunks overtake), a newer connection ends what was still on its way on the older one, what a drive has reported survives
a crash, what it has not reported may or may not.
"""

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol

from esker.craq import messages as craq
from esker.craq.replica import ChainReplica
from esker.wire.status import Status

from .replicas import CHAIN_VERSION, chain

CHUNKS = tuple(bytes([number]) * 24 for number in range(3))

Factory = Callable[..., ChainReplica]


class World(Protocol):
    """What nodes need of whoever gives the order."""

    random: random.Random
    factory: Factory
    faults: bool
    steps: list[tuple[str, Callable[[], None]]]

    def next_op(self) -> int: ...

    def note(self, what: str) -> None: ...

    def fail(self, why: str) -> NoReturn: ...


@dataclass
class Operation:
    """An operation under way at a replica, and who asked for it."""

    event: craq.Create | craq.Remove
    answer: Callable[[Status, craq.Stored | None], None]
    fetched: craq.Stored | None = None
    write: craq.Stored | None = None
    removes: bool = False


class Link:
    """The connection of a replica to its successor."""

    def __init__(self, world: World, source: "Node", target: "Node") -> None:
        self._world = world
        self._source = source
        self.target = target
        self._connection = 1
        self._heard = 1
        self.queues: dict[bytes, deque[tuple[int, int, craq.Create | craq.Remove]]] = {
            chunk: deque() for chunk in CHUNKS
        }
        self._awaited: dict[int, int] = {}

    def send(self, op: int, event: craq.Create | craq.Remove) -> None:
        if self.target.machine is None:
            self._report(op, Status.UNAVAILABLE)
        else:
            self._awaited[op] = self._connection
            self.queues[event.chunk].append((self._connection, op, event))

    def deliver(self, chunk: bytes) -> None:
        connection, op, event = self.queues[chunk].popleft()
        if connection > self._heard:
            self._heard = connection
            for queued, waiting in self.queues.items():
                self.queues[queued] = deque(message for message in waiting if message[0] >= connection)
        self.target.arrive(event, lambda status, stored: self._answered(connection, op, status))

    def _answered(self, connection: int, op: int, status: Status) -> None:
        if self._awaited.get(op) == connection:
            del self._awaited[op]
            self._report(op, status)

    def _report(self, op: int, status: Status) -> None:
        self._source.later(f"successor says {status.name} of {op}", lambda: craq.Forwarded(op, status))

    def end(self, *, target_died: bool = False) -> None:
        """The connection ends. What is on its way may still arrive, unless nobody is there to hear it."""
        self._connection += 1
        awaited, self._awaited = self._awaited, {}
        for op in awaited:
            self._report(op, Status.UNAVAILABLE)
        if target_died:
            for waiting in self.queues.values():
                waiting.clear()


class Node:
    """A drive with its replica. The store survives a crash, everything else does not."""

    def __init__(self, world: World, drive: str) -> None:
        self._world = world
        self._random = world.random
        self.drive = drive
        self.store: dict[bytes, craq.Stored] = {}
        self.machine: ChainReplica | None = None
        self.life = 0
        self.operations: dict[int, Operation] = {}
        self.link: Link | None = None
        self.full = False

    def start(self) -> None:
        self.life += 1
        self.machine = self._world.factory(chain(), self.drive, self.life << 16)

    def crash(self) -> None:
        """Whatever the drive has not reported may have become durable all the same."""
        for operation in self.operations.values():
            if operation.write is not None and self._random.random() < 0.5:
                self.store[operation.event.chunk] = operation.write
            elif operation.removes and self._random.random() < 0.5:
                self.store.pop(operation.event.chunk, None)
        self.life += 1
        self.machine = None
        self.operations.clear()

    def later(self, what: str, event: Callable[[], craq.Event | None]) -> None:
        """Has the event handled at some later step, if this life lasts until then."""
        life = self.life

        def run() -> None:
            if self.life == life:
                happened = event()
                if happened is not None:
                    self.handle(happened)

        self._world.steps.append((f"{self.drive}: {what}", run))

    def arrive(self, event: Any, answer: Callable[[Status, craq.Stored | None], None]) -> None:
        op = self._world.next_op()
        names = {slot: getattr(event, slot) for slot in event.__slots__}
        own = type(event)(**{**names, "op": op})
        self.operations[op] = Operation(own, answer)
        self._world.note(f"{self.drive}: {own}")
        self.handle(own)

    def handle(self, event: craq.Event) -> None:
        assert self.machine is not None
        for effect in self.machine.handle(event):
            getattr(self, f"_{type(effect).__name__}")(effect)
        if self.machine.busy != len(self.operations):
            self._world.fail(f"{self.drive} counts {self.machine.busy} operations of {len(self.operations)}")

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
        if self._world.faults and self._random.random() < 0.01:
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
        event = self.operations[effect.op].event
        assert self.link is not None
        assert isinstance(event, craq.Create)
        payload = self.store[event.chunk].content if effect.from_store else event.content
        if not effect.confirm and payload != effect.content:
            self._world.fail(f"{self.drive} sends other bytes on than it says")
        version, own = effect.version, effect.content
        self.link.send(effect.op, craq.Create(0, CHAIN_VERSION, event.chunk, version, own, not effect.confirm))

    def _ForwardRemove(self, effect: craq.ForwardRemove) -> None:
        event = self.operations[effect.op].event
        assert self.link is not None
        assert isinstance(event, craq.Remove)
        self.link.send(effect.op, craq.Remove(0, CHAIN_VERSION, event.chunk, event.version, event.put_id))

    def _Fetch(self, effect: craq.Fetch) -> None:
        assert self.link is not None
        operation, target = self.operations[effect.op], self.link.target
        life = target.life

        def fetched() -> craq.Event:
            operation.fetched = target.store.get(operation.event.chunk) if target.life == life else None
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
