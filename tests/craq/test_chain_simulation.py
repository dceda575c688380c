"""A chain keeps its promises under every simulated fault, and the simulation notices replicas that do not."""

import pytest

from esker.craq.messages import (
    Answer,
    Create,
    Effect,
    Event,
    Fetch,
    Forward,
    Forwarded,
    ForwardRemove,
    RemoveLocal,
    Stored,
    Written,
)
from esker.craq.replica import ChainReplica, Operation
from esker.wire.status import Status

from .chain_simulation import ACKNOWLEDGED, Broken, Simulation

SEEDS = 100
SEEDS_UNTIL_CAUGHT = 100


@pytest.mark.parametrize("seeds", [range(first, first + 10) for first in range(0, SEEDS, 10)], ids=str)
def test_the_promises_hold(seeds: range) -> None:
    for seed in seeds:
        Simulation(seed).run()


def test_a_seed_plays_the_same_every_time() -> None:
    def answers() -> list[list[Status]]:
        simulation = Simulation(7)
        simulation.run()
        return [request.answers for request in simulation.requests]

    assert answers() == answers()


def test_the_faults_leave_most_requests_a_definite_answer_and_cause_every_other_kind() -> None:
    seen = dict.fromkeys(Status, 0)
    lost = 0
    for seed in range(20):
        simulation = Simulation(seed)
        simulation.run()
        for request in simulation.requests:
            lost += request.lost
            for status in request.answers:
                seen[status] += 1
    definite = (*ACKNOWLEDGED, Status.NOT_FOUND, Status.CONDITION, Status.NO_SPACE)
    assert all(seen[status] for status in (*definite, Status.UNAVAILABLE, Status.TIMEOUT))
    assert lost
    assert sum(seen[status] for status in definite) > sum(seen.values()) / 2


class AcknowledgesBeforeTheSuccessor(ChainReplica):
    """Takes its own durable copy for enough."""

    def handle(self, event: Event) -> list[Effect]:
        effects = super().handle(event)
        if isinstance(event, Written) and not event.failed:
            effects += super().handle(Forwarded(event.op, Status.OK))
        return effects


class _Instead(ChainReplica):
    """Does not do `left_out`, and goes on as if the successor had answered `status`."""

    left_out: type
    status: Status

    def _leaves_out(self, effect: Effect) -> bool:
        return isinstance(effect, self.left_out)

    def handle(self, event: Event) -> list[Effect]:
        effects: list[Effect] = []
        for effect in super().handle(event):
            if self._leaves_out(effect):
                effects += self.handle(Forwarded(effect.op, self.status))  # type: ignore[union-attr]
            else:
                effects.append(effect)
        return effects


class KeepsItsOwnCopy(_Instead):
    """Lets two contents stand."""

    left_out, status = Fetch, Status.EXISTS


class RemovesOnlyItsOwn(_Instead):
    """Leaves the copies behind it."""

    left_out, status = ForwardRemove, Status.OK


class DoesNotConfirm(_Instead):
    """Takes it for granted that the successor has what is here."""

    left_out, status = Forward, Status.EXISTS

    def _leaves_out(self, effect: Effect) -> bool:
        return isinstance(effect, Forward) and effect.confirm


class TakesEqualBytesForTheSameChunk(ChainReplica):
    """Lets replicas have different versions, so that a removal that names one leaves copies behind."""

    def _outcome(self, operation: Operation, create: Create, stored: Stored) -> Status:
        if operation.created:
            return Status.OK
        return Status.EXISTS if stored.content == create.content else Status.EXISTS_OTHER


class KeepsWhatTheSuccessorHadNoRoomFor(ChainReplica):
    """Acknowledges what only it has."""

    def handle(self, event: Event) -> list[Effect]:
        effects: list[Effect] = []
        for effect in super().handle(event):
            operation = self._operations.get(effect.op) if isinstance(effect, RemoveLocal) else None
            if operation is not None and operation.status is Status.NO_SPACE:
                effects += self._answer(operation, Status.OK, operation.stored)
            else:
                effects.append(effect)
        return effects


class AnswersTwice(ChainReplica):
    """Repeats an answer."""

    def handle(self, event: Event) -> list[Effect]:
        effects = super().handle(event)
        return effects + [effect for effect in effects if isinstance(effect, Answer)]


MUTANTS = [
    AcknowledgesBeforeTheSuccessor,
    KeepsItsOwnCopy,
    RemovesOnlyItsOwn,
    DoesNotConfirm,
    TakesEqualBytesForTheSameChunk,
    KeepsWhatTheSuccessorHadNoRoomFor,
    AnswersTwice,
]


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_replica_that_breaks_a_rule_is_caught(mutant: type[ChainReplica]) -> None:
    caught = None
    for seed in range(SEEDS_UNTIL_CAUGHT):
        try:
            Simulation(seed, mutant).run()
        except Broken as broken:
            caught = broken
            break
    assert caught is not None, f"{SEEDS_UNTIL_CAUGHT} seeds did not notice it"
    assert str(caught).startswith(f"seed {seed}: ")
    assert len(str(caught).splitlines()) > 5
