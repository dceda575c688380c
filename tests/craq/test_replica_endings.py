"""How operations end early or not at all: queues, deadlines, failed drives, other versions of the chain."""

from collections.abc import Callable

import pytest

from esker.craq.immutable import QUEUE_PER_CHUNK_MAX
from esker.craq.messages import (
    Answer,
    Create,
    DriveFailed,
    Effect,
    Event,
    Expired,
    Fetched,
    Forward,
    Forwarded,
    Found,
    Lookup,
    Membership,
    Remove,
    Removed,
    RemoveLocal,
    Reserved,
    TargetOffline,
    Unreadable,
    Write,
    Written,
)
from esker.craq.replica import ChainReplica
from esker.wire.status import Status
from esker.wire.types import TargetState

from .replicas import (
    CHAIN_VERSION,
    CHUNK,
    FIRST_VERSION,
    HEAD,
    MIDDLE,
    TAIL,
    chain,
    content,
    create,
    holding,
    play,
    remove,
    replica,
    stored,
    writing,
)

TIMEOUT, UNAVAILABLE, OLD_CHAIN = Status.TIMEOUT, Status.UNAVAILABLE, Status.CHAIN_VERSION
Arrival = Callable[[int], Create | Remove]
both = pytest.mark.parametrize("arrival", [create, remove])


# Queues


def test_operations_on_one_chunk_run_one_after_another_as_they_came() -> None:
    head = replica()
    holding(head, 1)
    assert play(head, remove(2)) == []
    assert play(head, create(3, 2)) == []
    assert play(head, Forwarded(1, Status.OK)) == [Answer(1, Status.OK, stored(1, FIRST_VERSION)), Lookup(2)]
    assert play(head, Found(2, None), Forwarded(2, Status.NOT_FOUND)) == [Answer(2, Status.NOT_FOUND), Lookup(3)]


def test_operations_on_other_chunks_do_not_wait() -> None:
    head = replica()
    assert play(head, create(1), create(2, chunk=b"d" * 24)) == [Lookup(2)]


@both
def test_a_full_queue_answers_busy_and_takes_more_when_it_has_moved(arrival: Arrival) -> None:
    head = replica()
    for op in range(QUEUE_PER_CHUNK_MAX):
        play(head, remove(op))
    assert play(head, arrival(1000)) == [Answer(1000, Status.BUSY)]
    assert head.busy == QUEUE_PER_CHUNK_MAX
    play(head, Found(0, None), Forwarded(0, Status.NOT_FOUND))
    assert play(head, arrival(1001)) == []


def test_reports_for_an_operation_that_was_answered_change_nothing() -> None:
    head = replica()
    holding(head)
    play(head, Expired(1))
    for late in (Forwarded(1, Status.OK), Written(1), Removed(1), Fetched(1, None), Unreadable(1), Expired(1)):
        assert play(head, late) == []


# Deadlines


def test_what_waits_its_turn_ends_at_its_deadline_and_keeps_the_others_places() -> None:
    head = replica()
    play(head, create(1), remove(2), remove(3))
    assert play(head, Expired(2)) == [Answer(2, TIMEOUT)]
    assert play(head, Found(1, stored(1)), Forwarded(1, Status.OK))[1:] == [Lookup(3)]


@both
@pytest.mark.parametrize("drive", [HEAD, TAIL])
def test_what_has_not_begun_ends_at_its_deadline(arrival: Arrival, drive: str) -> None:
    machine = replica(drive)
    assert play(machine, arrival(1), Expired(1)) == [Answer(1, TIMEOUT)]
    assert play(machine, Found(1, None)) == []


def test_the_next_one_may_have_expired_together_with_the_one_before() -> None:
    head = replica()
    holding(head, 1)
    play(head, create(2))
    assert play(head, Expired(1)) == [Answer(1, TIMEOUT), Lookup(2)]
    assert play(head, Expired(2)) == [Answer(2, TIMEOUT)]
    assert play(head, Found(2, stored(1))) == []
    assert head.busy == 0


def test_what_takes_room_ends_at_its_deadline() -> None:
    assert play(replica(), create(), Found(1, None), Expired(1)) == [Answer(1, TIMEOUT)]


@pytest.mark.parametrize(
    "before",
    [
        [create(), Found(1, None), Reserved(1, True), Written(1)],  # the successor's answer is awaited
        [create(), Found(1, stored(1))],  # its confirmation
        [create(), Found(1, stored(1)), Forwarded(1, Status.NOT_FOUND)],  # its answer to our copy
        [create(), Found(1, stored(1)), Forwarded(1, Status.EXISTS_OTHER)],  # its copy
        [create(number=2), Found(1, stored(1)), Forwarded(1, Status.NOT_FOUND), Unreadable(1)],  # room
        [remove(), Found(1, None)],
        [remove(), Found(1, stored(1)), Removed(1)],
    ],
)
def test_what_awaits_the_successor_ends_at_its_deadline(before: list[Event]) -> None:
    head = replica()
    play(head, *before)
    assert play(head, Expired(1)) == [Answer(1, TIMEOUT)]
    assert head.busy == 0


def test_a_write_under_way_is_waited_for_beyond_the_deadline() -> None:
    head = replica()
    writing(head)
    assert play(head, Expired(1)) == []
    assert play(head, Written(1)) == [Answer(1, TIMEOUT)]


def test_a_write_at_the_tail_ends_well_however_late() -> None:
    tail = replica(TAIL)
    writing(tail, version=9)
    assert play(tail, Expired(1)) == []
    assert play(tail, Written(1)) == [Answer(1, Status.OK, stored(1, 9))]


def test_the_write_of_the_successors_copy_is_waited_for_beyond_the_deadline() -> None:
    head = replica()
    holding(head)
    play(head, Forwarded(1, Status.EXISTS_OTHER), Fetched(1, stored(2, 5)))
    assert play(head, Expired(1)) == []
    assert play(head, Written(1)) == [Answer(1, Status.EXISTS_OTHER, stored(2, 5))]


def test_a_removal_under_way_is_waited_for_beyond_the_deadline() -> None:
    head = replica()
    play(head, remove(), Found(1, stored(1)))
    assert play(head, Expired(1)) == []
    assert play(head, Removed(1)) == [Answer(1, TIMEOUT)]


def test_a_discard_under_way_is_waited_for_so_that_nothing_is_confirmed_upon_what_is_being_removed() -> None:
    head = replica()
    holding(head)
    assert play(head, Forwarded(1, Status.NO_SPACE)) == [RemoveLocal(1, FIRST_VERSION)]
    assert play(head, create(2)) == []
    assert play(head, Expired(1)) == []
    assert play(head, Removed(1)) == [Answer(1, Status.NO_SPACE), Lookup(2)]


@pytest.mark.parametrize("status", [Status.NOT_FOUND, Status.EXISTS_OTHER])
def test_after_its_deadline_an_operation_begins_nothing_more_with_the_successor(status: Status) -> None:
    head = replica()
    writing(head)
    play(head, Expired(1), Forwarded(1, status))
    assert play(head, Written(1)) == [Answer(1, TIMEOUT)]


# Failed drives


def test_a_failed_write_takes_the_target_offline() -> None:
    head = replica()
    writing(head)
    assert play(head, Written(1, failed=True)) == [TargetOffline("a write failed"), Answer(1, UNAVAILABLE)]
    assert head.offline == "a write failed"


@pytest.mark.parametrize(
    "before",
    [
        [remove(), Found(1, stored(1))],
        [create(), Found(1, None), Reserved(1, True), Written(1), Forwarded(1, Status.NO_SPACE)],
    ],
)
def test_a_failed_removal_takes_the_target_offline(before: list[Event]) -> None:
    head = replica()
    play(head, *before)
    effects: list[Effect] = [TargetOffline("a removal failed"), Answer(1, UNAVAILABLE)]
    assert play(head, Removed(1, failed=True)) == effects


@both
def test_an_offline_target_refuses_what_arrives(arrival: Arrival) -> None:
    head = replica()
    play(head, DriveFailed("read-only"))
    assert play(head, arrival(1)) == [Answer(1, UNAVAILABLE)]


@pytest.mark.parametrize(
    ("before", "last"),
    [
        ([create(), Found(1, None), Reserved(1, True), Written(1)], Forwarded(1, Status.OK)),
        ([create(), Found(1, None), Reserved(1, True), Forwarded(1, Status.OK)], Written(1)),
        ([create(), Found(1, stored(1))], Forwarded(1, Status.EXISTS)),
        ([create()], Found(1, stored(1))),
        ([create(), Found(1, None)], Reserved(1, True)),
        ([create(), Found(1, stored(1)), Forwarded(1, Status.EXISTS_OTHER)], Fetched(1, stored(2))),
        ([remove(), Found(1, stored(1)), Removed(1)], Forwarded(1, Status.OK)),
        ([remove(), Found(1, stored(1)), Forwarded(1, Status.OK)], Removed(1)),
        ([remove()], Found(1, None)),
    ],
)
@pytest.mark.parametrize(
    ("change", "answer"),
    [
        (DriveFailed("read-only"), UNAVAILABLE),
        (Membership(chain(version=CHAIN_VERSION + 1)), OLD_CHAIN),
        (Membership(chain((HEAD,), version=CHAIN_VERSION + 1, min_replicas=1)), OLD_CHAIN),
        (Membership(chain((MIDDLE, TAIL), version=CHAIN_VERSION + 1)), OLD_CHAIN),
    ],
)
def test_nothing_is_acknowledged_or_begun_after_the_drive_failed_or_the_chain_changed(
    before: list[Event], last: Event, change: Event, answer: Status
) -> None:
    head = replica()
    play(head, *before)
    assert play(head, change) + play(head, last) == [Answer(1, answer)]
    assert head.busy == 0


def test_what_waits_its_turn_is_refused_together_with_what_failed() -> None:
    head = replica()
    writing(head)
    play(head, create(2), remove(3))
    effects: list[Effect] = [TargetOffline("a write failed"), *(Answer(op, UNAVAILABLE) for op in (1, 2, 3))]
    assert play(head, Written(1, failed=True)) == effects
    assert head.busy == 0


def test_the_first_reason_for_being_offline_is_kept() -> None:
    head = replica()
    writing(head)
    play(head, DriveFailed("read-only"))
    play(head, Written(1, failed=True))
    assert head.offline == "read-only"


# Other versions of the chain


@both
@pytest.mark.parametrize("version", [CHAIN_VERSION - 1, CHAIN_VERSION + 1])
def test_another_version_of_the_chain_is_refused(arrival: Arrival, version: int) -> None:
    head = replica(version=version)
    assert play(head, arrival(1)) == [Answer(1, OLD_CHAIN)]
    assert head.busy == 0


def test_what_waits_its_turn_is_refused_once_the_chain_has_changed() -> None:
    head = replica()
    holding(head)
    answers: list[Effect] = [Answer(op, OLD_CHAIN) for op in (1, 2, 3)]
    assert play(head, create(2), remove(3), Membership(chain(version=CHAIN_VERSION + 1))) == answers
    assert play(head, Create(4, CHAIN_VERSION + 1, CHUNK, 0, content(1), True)) == [Lookup(4)]
    assert play(head, Forwarded(1, Status.OK)) == []


def test_a_write_is_waited_for_while_the_chain_changes() -> None:
    head = replica()
    writing(head)
    assert head.earlier_chunks() == []
    assert play(head, Membership(chain(version=CHAIN_VERSION + 1)), Forwarded(1, Status.NOT_FOUND)) == []
    assert head.earlier_chunks() == [CHUNK]
    assert play(head, Create(2, CHAIN_VERSION + 1, CHUNK, 0, content(1), True)) == []
    assert play(head, Written(1)) == [Answer(1, OLD_CHAIN), Lookup(2)]
    assert head.earlier_chunks() == []


@pytest.mark.parametrize("status", [Status.NOT_FOUND, Status.EXISTS_OTHER, Status.NO_SPACE, Status.UNAVAILABLE])
def test_the_answer_of_a_former_successor_begins_nothing(status: Status) -> None:
    head = replica()
    writing(head)
    play(head, Membership(chain((HEAD,), version=CHAIN_VERSION + 1, min_replicas=1)))
    assert play(head, Forwarded(1, status)) == []
    assert play(head, Written(1)) == [Answer(1, OLD_CHAIN)]


def test_a_former_successors_answer_is_not_waited_for() -> None:
    head = replica()
    holding(head)
    assert play(head, Membership(chain((HEAD,), version=CHAIN_VERSION + 1, min_replicas=1))) == [Answer(1, OLD_CHAIN)]


def test_membership_gives_head_successor_and_serving() -> None:
    machine = replica(MIDDLE)
    assert (machine.serving, machine.is_head, machine.successor) == (True, False, TAIL)
    play(machine, Membership(chain((MIDDLE, TAIL), version=4)))
    assert (machine.serving, machine.is_head, machine.successor) == (True, True, TAIL)
    play(machine, Membership(chain(version=5, states={TAIL: TargetState.OFFLINE})))
    assert (machine.serving, machine.is_head, machine.successor) == (True, False, None)
    play(machine, Membership(chain(version=6, states={TAIL: TargetState.SYNCING})))
    assert (machine.serving, machine.is_head, machine.successor, machine.resyncs) == (True, False, TAIL, TAIL)
    play(machine, Membership(chain(version=7, states={MIDDLE: TargetState.SYNCING})))
    assert (machine.serving, machine.syncing, machine.successor, machine.resyncs) == (False, True, None, None)
    play(machine, Membership(chain((HEAD, TAIL), version=8)))
    assert (machine.serving, machine.is_head, machine.successor) == (False, False, None)


@pytest.mark.parametrize("state", [TargetState.WAITING, TargetState.LASTSRV, TargetState.OFFLINE])
@both
def test_a_target_that_is_not_serving_refuses(arrival: Arrival, state: TargetState) -> None:
    machine: ChainReplica = replica(MIDDLE, states={MIDDLE: state})
    assert not machine.serving
    assert play(machine, arrival(1)) == [Answer(1, UNAVAILABLE)]


@both
def test_too_few_serving_replicas_acknowledge_nothing(arrival: Arrival) -> None:
    few = {MIDDLE: TargetState.OFFLINE, TAIL: TargetState.WAITING}
    assert play(replica(states=few), arrival(1)) == [Answer(1, UNAVAILABLE)]
    assert play(replica(states=few, min_replicas=1), arrival(1)) == [Lookup(1)]


def test_a_chain_of_one_is_head_and_tail() -> None:
    machine = replica(drives=(HEAD,), min_replicas=1)
    assert writing(machine) == [Write(1, FIRST_VERSION)]
    assert play(machine, Written(1)) == [Answer(1, Status.OK, stored(1, FIRST_VERSION))]


def test_forwarding_skips_replicas_that_do_not_serve() -> None:
    effects = writing(replica(states={MIDDLE: TargetState.WAITING}))
    assert effects[1] == Forward(1, TAIL, FIRST_VERSION, content(1), confirm=False, from_store=False)
