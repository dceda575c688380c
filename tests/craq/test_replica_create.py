"""Create-if-absent at one replica: what is done for each thing found, and what is answered when."""

import pytest

from esker.craq.messages import (
    Answer,
    Create,
    Effect,
    Event,
    Fetch,
    Fetched,
    Forward,
    Forwarded,
    Found,
    Lookup,
    Removed,
    RemoveLocal,
    Reserve,
    Reserved,
    Unreadable,
    Write,
    Written,
)
from esker.wire.status import Status

from .replicas import FIRST_VERSION, HEAD, MIDDLE, TAIL, content, create, holding, play, replica, stored, writing

CONFIRMATIONS = (Status.OK, Status.EXISTS)
OK, EXISTS, EXISTS_OTHER = Status.OK, Status.EXISTS, Status.EXISTS_OTHER
V = FIRST_VERSION


def test_a_create_looks_first_and_then_takes_room() -> None:
    head = replica()
    assert play(head, create()) == [Lookup(1)]
    assert play(head, Found(1, None)) == [Reserve(1, use_reserve=False)]


@pytest.mark.parametrize("drive", [MIDDLE, TAIL])
def test_replicas_behind_the_head_may_use_the_drives_reserve(drive: str) -> None:
    assert play(replica(drive), create(version=9), Found(1, None)) == [Reserve(1, use_reserve=True)]


def test_the_head_draws_a_version_writes_and_forwards_at_once() -> None:
    write, forward = writing(replica())
    assert write == Write(1, V)
    assert forward == Forward(1, MIDDLE, V, content(1), confirm=False, from_store=False)


def test_versions_are_drawn_one_after_another() -> None:
    head = replica()
    for number in range(3):
        effects = play(head, create(number, chunk=bytes([number]) * 24), Found(number, None), Reserved(number, True))
        assert effects[0] == Write(number, V + number)


def test_a_replica_behind_the_head_takes_the_version_it_is_given() -> None:
    effects = writing(replica(MIDDLE), version=77)
    assert effects == [Write(1, 77), Forward(1, TAIL, 77, content(1), confirm=False, from_store=False)]


def test_no_version_is_drawn_where_there_is_no_room() -> None:
    head = replica()
    assert play(head, create(), Found(1, None), Reserved(1, False)) == [Answer(1, Status.NO_SPACE)]
    assert writing(head, 2)[0] == Write(2, V)
    assert not head.offline


@pytest.mark.parametrize("status", CONFIRMATIONS)
@pytest.mark.parametrize("written_first", [True, False])
def test_the_answer_waits_for_the_drive_and_for_the_successor(status: Status, written_first: bool) -> None:
    head = replica()
    writing(head)
    first, second = (Written(1), Forwarded(1, status)) if written_first else (Forwarded(1, status), Written(1))
    assert play(head, first) == []
    assert play(head, second) == [Answer(1, OK, stored(1, V))]
    assert head.busy == 0


def test_the_tail_answers_when_it_is_durable() -> None:
    tail = replica(TAIL)
    assert writing(tail, version=5) == [Write(1, 5)]
    assert play(tail, Written(1)) == [Answer(1, OK, stored(1, 5))]


def test_a_chunk_that_is_there_is_confirmed_down_the_chain_before_the_answer() -> None:
    head = replica()
    effects = play(head, create(), Found(1, stored(1)))
    assert effects == [Forward(1, MIDDLE, 9, content(1), confirm=True, from_store=False)]
    assert play(head, Forwarded(1, EXISTS)) == [Answer(1, EXISTS, stored(1))]


def test_other_content_that_is_there_is_confirmed_as_it_is_and_stays() -> None:
    head = replica()
    effects = play(head, create(number=2), Found(1, stored(1)))
    assert effects == [Forward(1, MIDDLE, 9, content(1), confirm=True, from_store=False)]
    assert play(head, Forwarded(1, EXISTS)) == [Answer(1, EXISTS_OTHER, stored(1))]


@pytest.mark.parametrize(
    ("event", "answer"),
    [
        (create(version=9), EXISTS),
        (create(version=9, payload=False), EXISTS),
        (create(number=2, version=9), EXISTS_OTHER),
        (create(version=8), EXISTS_OTHER),  # equal bytes of another version: a removal that names one must hit all
        (create(version=0), EXISTS),  # clients know no version
    ],
)
def test_the_tail_compares_what_it_has(event: Create, answer: Status) -> None:
    assert play(replica(TAIL), event, Found(1, stored(1))) == [Answer(1, answer, stored(1))]


def test_a_confirmation_of_what_is_not_here_takes_no_room() -> None:
    assert play(replica(MIDDLE), create(version=9, payload=False), Found(1, None)) == [Answer(1, Status.NOT_FOUND)]


@pytest.mark.parametrize(
    ("event", "from_store"),
    [
        (create(number=1), False),  # the client's own bytes are the same: no need to read
        (create(number=2), True),
        (create(number=1, version=9, payload=False), True),
    ],
)
def test_a_successor_without_the_chunk_is_given_it(event: Create, from_store: bool) -> None:
    machine = replica(HEAD if event.version == 0 else MIDDLE)
    effects = play(machine, event, Found(1, stored(1)), Forwarded(1, Status.NOT_FOUND))
    successor = MIDDLE if event.version == 0 else TAIL
    assert effects == [Forward(1, successor, 9, content(1), confirm=False, from_store=from_store)]
    [answer] = play(machine, Forwarded(1, OK))
    assert answer == Answer(1, EXISTS if event.content == content(1) else EXISTS_OTHER, stored(1))


@pytest.mark.parametrize(("theirs", "answer"), [(stored(2, 5), EXISTS_OTHER), (stored(1, 5), EXISTS)])
def test_the_successors_copy_wins_over_the_one_just_written(theirs: object, answer: Status) -> None:
    head = replica()
    holding(head)
    assert play(head, Forwarded(1, EXISTS_OTHER)) == [Fetch(1, MIDDLE)]
    assert play(head, Fetched(1, theirs)) == [Write(1, 5, fetched=True)]  # type: ignore[arg-type]
    assert play(head, Written(1)) == [Answer(1, answer, theirs)]  # type: ignore[arg-type]


def test_the_successors_copy_wins_over_one_found_here() -> None:
    head = replica()
    assert play(head, create(), Found(1, stored(1)), Forwarded(1, EXISTS_OTHER)) == [Fetch(1, MIDDLE)]
    assert play(head, Fetched(1, stored(2, 5)), Written(1)) == [Answer(1, EXISTS_OTHER, stored(2, 5))]


def test_the_successors_copy_is_not_fetched_before_ours_is_settled() -> None:
    head = replica()
    writing(head)
    assert play(head, Forwarded(1, EXISTS_OTHER)) == []
    assert play(head, Written(1)) == [Fetch(1, MIDDLE)]


def test_a_middle_that_took_the_successors_copy_tells_its_predecessor_so() -> None:
    middle = replica(MIDDLE)
    holding(middle, version=9)
    play(middle, Forwarded(1, EXISTS_OTHER), Fetched(1, stored(1, 5)))
    assert play(middle, Written(1)) == [Answer(1, EXISTS_OTHER, stored(1, 5))]


def test_a_successors_copy_that_cannot_be_had_acknowledges_nothing() -> None:
    head = replica()
    holding(head)
    play(head, Forwarded(1, EXISTS_OTHER))
    assert play(head, Fetched(1, None)) == [Answer(1, Status.UNAVAILABLE)]


def test_no_space_at_the_successor_discards_what_was_written_here() -> None:
    head = replica()
    holding(head)
    assert play(head, Forwarded(1, Status.NO_SPACE)) == [RemoveLocal(1, V)]
    assert play(head, Removed(1)) == [Answer(1, Status.NO_SPACE)]
    assert not head.offline


def test_a_discard_for_which_the_index_has_no_room_changes_no_membership() -> None:
    head = replica()
    holding(head)
    play(head, Forwarded(1, Status.NO_SPACE))
    assert play(head, Removed(1, failed=True, no_space=True)) == [Answer(1, Status.NO_SPACE)]
    assert not head.offline


def test_no_space_at_the_successor_discards_nothing_that_was_here_before() -> None:
    effects = play(
        replica(),
        create(),
        Found(1, stored(1)),
        Forwarded(1, Status.NOT_FOUND),
        Forwarded(1, Status.NO_SPACE),
    )
    assert effects == [Answer(1, Status.NO_SPACE)]


def test_no_space_found_by_the_write_itself_is_no_fault_of_the_drive() -> None:
    head = replica()
    writing(head)
    assert play(head, Written(1, failed=True, no_space=True)) == []
    assert play(head, Forwarded(1, OK)) == [Answer(1, Status.NO_SPACE)]
    assert not head.offline


def test_no_space_for_the_successors_copy() -> None:
    head = replica()
    holding(head)
    play(head, Forwarded(1, EXISTS_OTHER), Fetched(1, stored(2, 5)))
    assert play(head, Written(1, failed=True, no_space=True)) == [Answer(1, Status.NO_SPACE)]
    assert not head.offline


@pytest.mark.parametrize("status", [Status.UNAVAILABLE, Status.TIMEOUT, Status.BUSY, Status.CHAIN_VERSION])
def test_what_the_successor_did_not_do_is_answered_as_it_says(status: Status) -> None:
    head = replica()
    holding(head)
    assert play(head, Forwarded(1, status)) == [Answer(1, status)]


UNREADABLE: list[Event] = [Found(1, stored(1)), Forwarded(1, Status.NOT_FOUND), Unreadable(1)]


def test_an_unreadable_stored_copy_is_replaced_by_the_creates_own_bytes() -> None:
    head = replica()
    assert play(head, create(number=2), *UNREADABLE) == [Reserve(1, use_reserve=False)]
    effects: list[Effect] = [Write(1, V), Forward(1, MIDDLE, V, content(2), confirm=False, from_store=False)]
    assert play(head, Reserved(1, True)) == effects
    assert play(head, Forwarded(1, OK), Written(1)) == [Answer(1, OK, stored(2, V))]


def test_an_unreadable_stored_copy_without_bytes_to_replace_it_is_as_good_as_none() -> None:
    effects = play(replica(MIDDLE), create(number=1, version=9, payload=False), *UNREADABLE)
    assert effects == [Answer(1, Status.NOT_FOUND)]


def test_an_unreadable_copy_stays_where_there_is_no_room_for_another() -> None:
    assert play(replica(), create(number=2), *UNREADABLE, Reserved(1, False)) == [Answer(1, Status.NO_SPACE)]
