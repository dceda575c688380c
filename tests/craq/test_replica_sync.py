"""A syncing replica and the one before it: what is here replaces what is there, in writes and in syncs."""

import pytest

from esker.craq.messages import (
    Answer,
    Create,
    DriveFailed,
    Effect,
    Event,
    Expired,
    Forward,
    Forwarded,
    ForwardRemove,
    Found,
    Lookup,
    Membership,
    Removed,
    RemoveLocal,
    Reserve,
    Reserved,
    Sync,
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
    play,
    remove,
    replica,
    stored,
    writing,
)

OK, EXISTS, EXISTS_OTHER, NOT_FOUND = Status.OK, Status.EXISTS, Status.EXISTS_OTHER, Status.NOT_FOUND
SYNCING = {TAIL: TargetState.SYNCING}


def before(**fields: object) -> ChainReplica:
    """The last serving replica, with the syncing one behind it."""
    return replica(MIDDLE, states=SYNCING, **fields)


def syncing() -> ChainReplica:
    return replica(TAIL, states=SYNCING)


def sync(op: int = 1, version: int = CHAIN_VERSION) -> Sync:
    return Sync(op, version, CHUNK)


def replace(op: int = 1, number: int = 1, version: int = 9) -> Create:
    return Create(op, CHAIN_VERSION, CHUNK, version, content(number), True, True)


# Writes


def test_a_create_is_sent_on_as_a_replacement_and_waits_for_it() -> None:
    machine = before()
    forward = Forward(1, TAIL, 9, content(1), confirm=False, from_store=False, replace=True)
    assert writing(machine, version=9) == [Write(1, 9), forward]
    assert play(machine, Written(1)) == []
    assert play(machine, Forwarded(1, OK)) == [Answer(1, OK, stored(1))]


def test_replicas_further_up_know_nothing_of_it() -> None:
    assert writing(replica(HEAD, states=SYNCING))[1] == Forward(1, MIDDLE, FIRST_VERSION, content(1), False, False)


@pytest.mark.parametrize("theirs", [NOT_FOUND, EXISTS_OTHER])
@pytest.mark.parametrize(("number", "own"), [(1, True), (2, False)])
def test_what_is_here_wins_over_what_is_there(theirs: Status, number: int, own: bool) -> None:
    machine = before()
    confirm = Forward(1, TAIL, 9, content(1), confirm=True, from_store=False)
    assert play(machine, create(number=number, version=9), Found(1, stored(1))) == [confirm]
    forward = Forward(1, TAIL, 9, content(1), confirm=False, from_store=not own, replace=True)
    assert play(machine, Forwarded(1, theirs)) == [forward]
    assert play(machine, Forwarded(1, OK)) == [Answer(1, EXISTS if own else EXISTS_OTHER, stored(1))]


@pytest.mark.parametrize("status", [Status.UNAVAILABLE, Status.TIMEOUT, Status.CHAIN_VERSION, Status.NO_SPACE])
def test_nothing_is_acknowledged_without_the_syncing_one(status: Status) -> None:
    machine = before()
    play(machine, create(version=9), Found(1, stored(1)))
    assert play(machine, Forwarded(1, status)) == [Answer(1, status)]


@pytest.mark.parametrize(
    ("here", "theirs", "answer"),
    [(True, OK, OK), (True, NOT_FOUND, OK), (False, OK, NOT_FOUND), (False, NOT_FOUND, NOT_FOUND)],
)
def test_a_removal_takes_whatever_the_syncing_one_has(here: bool, theirs: Status, answer: Status) -> None:
    machine = before()
    effects = play(machine, remove(version=9), Found(1, stored(1) if here else None))
    assert effects[-1] == ForwardRemove(1, TAIL, anything=True)
    if here:
        assert effects[0] == RemoveLocal(1, 9)
        play(machine, Removed(1))
    assert play(machine, Forwarded(1, theirs)) == [Answer(1, answer)]


def test_with_too_few_serving_clients_are_refused_and_the_syncing_one_is_brought_up() -> None:
    few = {HEAD: TargetState.OFFLINE, TAIL: TargetState.SYNCING}
    machine = replica(MIDDLE, states=few, drives=(MIDDLE, TAIL, HEAD))
    assert play(machine, create(1)) == [Answer(1, Status.UNAVAILABLE)]
    assert play(machine, sync(2)) == [Lookup(2)]
    other = replica(TAIL, states=few, drives=(MIDDLE, TAIL, HEAD))
    assert play(other, replace(3)) == [Lookup(3)]


# The syncing one


def test_it_stores_a_replacement_where_nothing_is() -> None:
    machine = syncing()
    assert play(machine, replace(), Found(1, None)) == [Reserve(1, use_reserve=True)]
    assert play(machine, Reserved(1, True)) == [Write(1, 9)]
    assert play(machine, Written(1)) == [Answer(1, OK, stored(1))]


@pytest.mark.parametrize("found", [stored(2), stored(1, version=8)])
def test_it_stores_a_replacement_over_anything_else(found: object) -> None:
    machine = syncing()
    assert play(machine, replace(), Found(1, found)) == [Reserve(1, use_reserve=True)]  # type: ignore[arg-type]
    assert play(machine, Reserved(1, True), Written(1)) == [Answer(1, OK, stored(1))]


def test_it_keeps_what_is_the_same() -> None:
    assert play(syncing(), replace(), Found(1, stored(1))) == [Answer(1, EXISTS, stored(1))]


def test_it_confirms_what_it_has() -> None:
    for found, answer in ((stored(1), EXISTS), (stored(2), EXISTS_OTHER), (stored(1, version=8), EXISTS_OTHER)):
        confirm = create(version=9, payload=False)
        assert play(syncing(), confirm, Found(1, found)) == [Answer(1, answer, found)]
    assert play(syncing(), create(version=9, payload=False), Found(1, None)) == [Answer(1, NOT_FOUND)]


@pytest.mark.parametrize("drive", [HEAD, MIDDLE])
def test_replacements_are_for_the_syncing_one_only(drive: str) -> None:
    assert play(replica(drive, states=SYNCING), replace()) == [Answer(1, Status.BAD_REQUEST)]


def test_another_life_of_its_worker_takes_no_part() -> None:
    for state in (TargetState.SERVING, TargetState.SYNCING):
        machine = ChainReplica(chain(states={TAIL: state}), TAIL, "another life")
        assert not machine.takes_part
        assert play(machine, replace()) == [Answer(1, Status.UNAVAILABLE)]


# Syncs


def test_what_is_the_same_is_left() -> None:
    machine = before()
    assert play(machine, sync()) == [Lookup(1)]
    assert play(machine, Found(1, stored(1))) == [Forward(1, TAIL, 9, content(1), confirm=True, from_store=False)]
    assert play(machine, Forwarded(1, EXISTS)) == [Answer(1, EXISTS)]


@pytest.mark.parametrize("theirs", [NOT_FOUND, EXISTS_OTHER])
def test_what_differs_is_replaced(theirs: Status) -> None:
    machine = before()
    play(machine, sync(), Found(1, stored(1)))
    forward = Forward(1, TAIL, 9, content(1), confirm=False, from_store=True, replace=True)
    assert play(machine, Forwarded(1, theirs)) == [forward]
    assert play(machine, Forwarded(1, OK)) == [Answer(1, OK)]
    assert machine.busy == 0


@pytest.mark.parametrize("theirs", [OK, NOT_FOUND])
def test_what_is_not_here_is_removed_there(theirs: Status) -> None:
    machine = before()
    assert play(machine, sync(), Found(1, None)) == [ForwardRemove(1, TAIL, anything=True)]
    assert play(machine, Forwarded(1, theirs)) == [Answer(1, OK)]


@pytest.mark.parametrize("status", [Status.UNAVAILABLE, Status.BUSY, Status.NO_SPACE, Status.CHAIN_VERSION])
@pytest.mark.parametrize(
    "events",
    [[Found(1, None)], [Found(1, stored(1))], [Found(1, stored(1)), Forwarded(1, NOT_FOUND)]],
)
def test_what_did_not_work_is_told(events: list[Event], status: Status) -> None:
    machine = before()
    play(machine, sync(), *events)
    assert play(machine, Forwarded(1, status)) == [Answer(1, status)]


def test_a_replacement_that_is_not_found_ends_the_sync() -> None:
    machine = before()
    play(machine, sync(), Found(1, stored(1)), Forwarded(1, NOT_FOUND))
    assert play(machine, Forwarded(1, NOT_FOUND)) == [Answer(1, NOT_FOUND)]


@pytest.mark.parametrize(
    "events", [[Found(1, None, damaged=True)], [Found(1, stored(1)), Forwarded(1, NOT_FOUND), Unreadable(1)]]
)
def test_what_is_damaged_here_is_left_alone_there(events: list[Event]) -> None:
    machine = before()
    assert play(machine, sync(), *events) == [Answer(1, Status.CHECKSUM)]


def test_syncs_and_writes_of_one_chunk_wait_for_each_other() -> None:
    machine = before()
    writing(machine, 1, version=9)
    assert play(machine, sync(2)) == []
    assert play(machine, Written(1), Forwarded(1, OK)) == [Answer(1, OK, stored(1)), Lookup(2)]
    assert play(machine, create(3, version=9)) == []
    assert play(machine, Found(2, stored(1)), Forwarded(2, EXISTS)) == [Answer(2, EXISTS), Lookup(3)]


@pytest.mark.parametrize("events", [[], [Found(1, None)], [Found(1, stored(1)), Forwarded(1, NOT_FOUND)]])
def test_a_sync_ends_at_its_deadline_and_with_the_chain_version(events: list[Event]) -> None:
    machine = before()
    play(machine, sync(), *events)
    assert play(machine, Expired(1)) == [Answer(1, Status.TIMEOUT)]
    machine = before()
    play(machine, sync(), *events)
    newer = Membership(chain(version=CHAIN_VERSION + 1, states=SYNCING))
    assert play(machine, newer) == [Answer(1, Status.CHAIN_VERSION)]
    assert machine.busy == 0


@pytest.mark.parametrize("drive", [HEAD, TAIL])
def test_syncs_are_for_the_replica_before(drive: str) -> None:
    assert play(replica(drive, states=SYNCING), sync()) == [Answer(1, Status.BAD_REQUEST)]
    assert play(replica(drive), sync()) == [Answer(1, Status.BAD_REQUEST)]


def test_a_sync_for_another_version_and_on_a_failed_drive_is_refused() -> None:
    machine = before()
    assert play(machine, sync(1, CHAIN_VERSION - 1)) == [Answer(1, Status.CHAIN_VERSION)]
    play(machine, DriveFailed("read-only"))
    assert machine.resyncs is None
    assert play(machine, sync(2)) == [Answer(2, Status.UNAVAILABLE)]


# Damaged records


def test_a_removal_of_anything_clears_a_damaged_record_too() -> None:
    machine = replica(TAIL)
    effects: list[Effect] = [RemoveLocal(1, 0)]
    assert play(machine, remove(), Found(1, None, damaged=True)) == effects
    assert play(machine, Removed(1)) == [Answer(1, NOT_FOUND)]
    assert play(machine, remove(2, version=9), Found(2, None, damaged=True)) == [Answer(2, NOT_FOUND)]
