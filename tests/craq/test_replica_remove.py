"""Removal at one replica: what its condition decides, and what is answered when."""

import pytest

from esker.craq.messages import Answer, Effect, Event, Forwarded, ForwardRemove, Found, Lookup, Removed, RemoveLocal
from esker.wire.status import Status

from .replicas import HEAD, MIDDLE, TAIL, play, remove, replica, stored

PUT, OTHER_PUT = b"p" * 16, b"q" * 16
OK, NOT_FOUND, CONDITION = Status.OK, Status.NOT_FOUND, Status.CONDITION
HERE = stored(1, version=9, put_id=PUT)


@pytest.mark.parametrize(("version", "put_id"), [(0, bytes(16)), (9, bytes(16)), (0, PUT), (9, PUT)])
def test_a_condition_that_holds_removes_here_and_behind(version: int, put_id: bytes) -> None:
    head = replica()
    assert play(head, remove(version=version, put_id=put_id)) == [Lookup(1)]
    effects: list[Effect] = [RemoveLocal(1, 9), ForwardRemove(1, MIDDLE)]
    assert play(head, Found(1, HERE)) == effects
    assert play(head, Forwarded(1, OK)) == []
    assert play(head, Removed(1)) == [Answer(1, OK)]
    assert head.busy == 0


@pytest.mark.parametrize(("version", "put_id"), [(8, bytes(16)), (0, OTHER_PUT), (8, PUT), (9, OTHER_PUT)])
@pytest.mark.parametrize("drive", [HEAD, TAIL])
def test_a_condition_that_does_not_hold_removes_nothing(version: int, put_id: bytes, drive: str) -> None:
    effects = play(replica(drive), remove(version=version, put_id=put_id), Found(1, HERE))
    assert effects == [Answer(1, CONDITION, HERE)]


def test_the_answer_waits_for_the_drive_and_for_the_successor() -> None:
    head = replica()
    play(head, remove(), Found(1, HERE))
    assert play(head, Removed(1)) == []
    assert play(head, Forwarded(1, NOT_FOUND)) == [Answer(1, OK)]


@pytest.mark.parametrize(("theirs", "answer"), [(OK, OK), (NOT_FOUND, NOT_FOUND), (CONDITION, CONDITION)])
def test_what_is_absent_here_may_still_be_behind(theirs: Status, answer: Status) -> None:
    head = replica()
    assert play(head, remove(), Found(1, None)) == [ForwardRemove(1, MIDDLE)]
    assert play(head, Forwarded(1, theirs)) == [Answer(1, answer)]


def test_the_tail_answers_by_itself() -> None:
    assert play(replica(TAIL), remove(), Found(1, None)) == [Answer(1, NOT_FOUND)]
    assert play(replica(TAIL), remove(), Found(1, HERE)) == [RemoveLocal(1, 9)]
    assert play(replica(TAIL), remove(), Found(1, HERE), Removed(1)) == [Answer(1, OK)]


@pytest.mark.parametrize("status", [Status.UNAVAILABLE, Status.TIMEOUT, Status.BUSY, CONDITION])
def test_a_removal_that_the_successor_did_not_make_is_not_acknowledged(status: Status) -> None:
    head = replica()
    play(head, remove(), Found(1, HERE))
    assert play(head, Forwarded(1, status)) == []
    assert play(head, Removed(1)) == [Answer(1, status)]


@pytest.mark.parametrize("behind", [[], [Forwarded(1, OK)]])
def test_a_removal_for_which_the_index_has_no_room_changes_no_membership(behind: list[Event]) -> None:
    head = replica()
    play(head, remove(), Found(1, HERE), *behind)
    assert play(head, Removed(1, failed=True, no_space=True)) == [Answer(1, Status.NO_SPACE)]
    assert not head.offline
    assert head.busy == 0
