"""Clients of mutable chunks in simulation: one write at a time for each channel, tried again until it is settled.

They record what they saw as a history for the checker of linearizability. A write that was refused definitely is left
out only if it was never sent before: an earlier attempt may still take effect, or have taken it.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass

from esker.craq import mutable_messages as craq
from esker.craq.mutable_messages import PatchKind
from esker.wire.status import Status

from .. import linearizability as lin

PIECE_BYTES = 2
PIECES = 3
NOT_DONE = (Status.NO_SPACE, Status.TOO_LARGE, Status.CONDITION, Status.NOT_FOUND)
"""Answers which say that this very attempt changed nothing."""


@dataclass
class Write:
    """A write that is not settled yet."""

    number: int
    chunk: bytes
    patch: craq.Patch
    payload: bytes
    origin: craq.Origin
    called: float
    attempts: int = 0
    open_attempts: int = 0
    """Attempts without an answer."""
    version: int = 0
    """That it was acknowledged with."""

    @property
    def action(self) -> lin.Action:
        """As the checker knows it."""
        patch = self.patch
        if patch.kind is PatchKind.REMOVE:
            return lin.Remove()
        if patch.kind is PatchKind.TRUNCATE:
            return lin.Truncate(patch.length_bytes, patch.truncate_version)
        return lin.Write(patch.offset, self.payload, patch.truncate_version)


class Client:
    """One channel of one client's life."""

    def __init__(self, name: str, history: lin.History, chance: random.Random, count: Callable[[], int]) -> None:
        self.name = name
        self._history = history
        self._random = chance
        self._count = count
        self._sequence = 0
        self.write: Write | None = None

    def begin(self, chunk: bytes, truncate_version: int) -> Write:
        """A new write. Every one has bytes of its own."""
        assert self.write is None
        self._sequence += 1
        number = self._count()
        offset = PIECE_BYTES * self._random.randrange(PIECES)
        chance = self._random.random()
        payload = b""
        if chance < 0.1:
            patch = craq.Patch(PatchKind.REMOVE)
        elif chance < 0.25:
            length = self._random.randrange(PIECE_BYTES * PIECES)
            patch = craq.Patch(PatchKind.TRUNCATE, 0, length, truncate_version)
        else:
            payload = number.to_bytes(PIECE_BYTES, "big")
            patch = craq.Patch(PatchKind.WRITE, offset, PIECE_BYTES, truncate_version)
        origin = craq.Origin(self.name.encode().ljust(16), 1, self._sequence)
        self.write = Write(number, chunk, patch, payload, origin, self._history.call())
        return self.write

    def answered(self, write: Write, status: Status, version: int) -> None:
        """An answer to one of its attempts."""
        write.open_attempts -= 1
        if self.write is not write:
            return
        if status is Status.OK:
            write.version = version
            self._settled(lin.Outcome.OK)
        elif status in NOT_DONE and write.attempts == 1:
            self._not_done(write, status)
        elif status in NOT_DONE:
            self.give_up()

    def _not_done(self, write: Write, status: Status) -> None:
        if status is Status.CONDITION:
            self._settled(lin.Outcome.STALE)
        elif status is Status.NOT_FOUND:
            self.write = None
            self._history.ended(write.chunk, lin.Read(0, 1, None), write.called, by=self.name)
        else:
            self.write = None

    def give_up(self) -> None:
        """Nobody knows whether it took effect."""
        self._settled(lin.Outcome.UNKNOWN)

    def _settled(self, outcome: lin.Outcome) -> None:
        write = self.write
        assert write is not None
        self.write = None
        self._history.ended(write.chunk, write.action, write.called, outcome, self.name)
