"""One operation on a mutable chunk: what all kinds have in common. Pure.

An operation is handed events and returns effects. It is answered once and ends once; whoever holds it sees `ended`.
What it waits for decides how it ends early: the drive's report is always waited for, nothing else is.
"""

from abc import ABC, abstractmethod
from enum import Enum, auto
from typing import Protocol

from esker.craq.messages import Expired, TargetOffline
from esker.craq.mutable_messages import AnswerMutable, Ended, MutableArrival, MutableEffect, MutableEvent
from esker.craq.place import Place
from esker.wire.status import Status
from esker.wire.types import Chain, TargetState


class Member(Protocol):
    """The replica, as its operations see it."""

    chain: Chain
    place: Place
    offline: str

    @property
    def channels_cleared(self) -> bool:
        """Of a syncing replica: whether its table of channels began empty in this version of the chain."""

    def draw_version(self) -> int:
        """A version that no chunk of the chain had or will have."""

    def next_hop(self) -> int:
        """The number of the next message to the successor."""


class Waits(Enum):
    """What an operation waits for."""

    NOTHING = auto()
    """What changes nothing: a lookup, room, another replica's word."""
    DRIVE = auto()
    """A change of what is durable here, which is reported for certain."""
    SUCCESSOR = auto()


class MutableOperation(ABC):
    """Base of all kinds."""

    def __init__(self, member: Member, event: MutableArrival) -> None:
        self._member = member
        self.event = event
        self.waits = Waits.NOTHING
        self.ended = False
        self._answered = False
        self._expired = False

    @abstractmethod
    def begin(self) -> list[MutableEffect]:
        """The first effects."""

    def refused(self) -> Status | None:
        """Why nothing can be answered with success at present; None: something can."""
        member = self._member
        if member.offline:
            return Status.UNAVAILABLE
        if self.event.chain_version != member.chain.version:
            return Status.CHAIN_VERSION
        return self._refused_here(member.place)

    @abstractmethod
    def _refused_here(self, place: Place) -> Status | None:
        """The same, for what this kind asks of the replica's place."""

    def handle(self, event: MutableEvent) -> list[MutableEffect]:
        """A report, or the end of the operation's time."""
        if isinstance(event, Expired):
            self._expired = True
            return [] if self.waits is Waits.DRIVE else self._finish(Status.TIMEOUT)
        return self._step(event)

    @abstractmethod
    def _step(self, event: MutableEvent) -> list[MutableEffect]:
        """What follows from a report."""

    def chain_changed(self) -> list[MutableEffect]:
        """The chain has another version now."""
        if self.waits is Waits.DRIVE:
            return []
        refused = self.refused()
        assert refused is not None, "it names the version before"
        return self._finish(refused)

    def _leaves_pending(self) -> bool:
        """Whether an image that is not known to be committed stays here."""
        return False

    def _answer(self, status: Status, version: int = 0, length_bytes: int = 0) -> list[MutableEffect]:
        if self._answered:
            return []
        self._answered = True
        return [AnswerMutable(self.event.op, status, version, length_bytes)]

    def _finish(self, status: Status, version: int = 0, length_bytes: int = 0) -> list[MutableEffect]:
        """Answers, unless that has been done, and ends."""
        assert not self.ended
        self.ended = True
        effects = self._answer(status, version, length_bytes)
        effects.append(Ended(self.event.op, self._leaves_pending()))
        return effects

    def _go_offline(self, why: str) -> list[MutableEffect]:
        self._member.offline = self._member.offline or why
        return [TargetOffline(why), *self._finish(Status.UNAVAILABLE)]


def is_last_serving(place: Place) -> bool:
    """Whether what this replica has committed is what the chain has committed."""
    return place.state is TargetState.SERVING and (place.successor is None or place.replaces)


def last_serving(chain: Chain) -> str:
    """The drive of the last replica that serves. There must be one."""
    return [replica.drive_id for replica in chain.replicas if replica.state is TargetState.SERVING][-1]
