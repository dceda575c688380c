"""A replica mends its own copy: whose copy may take its place, and what happens where none does."""

import pytest

from esker.craq.messages import (
    Answer,
    CopyFrom,
    Create,
    Expired,
    Fetched,
    Found,
    Lookup,
    Membership,
    Removed,
    RemoveLocal,
    Repair,
    Reserve,
    Reserved,
    Stored,
    TargetOffline,
    Verified,
    Verify,
    Write,
    Written,
)
from esker.craq.replica import ChainReplica
from esker.craq.upkeep import sources
from esker.wire.status import Status
from esker.wire.types import TargetState

from .replicas import CHAIN_VERSION, CHUNK, HEAD, MIDDLE, TAIL, chain, content, create, play, replica, stored

REPAIR = Repair(1, CHAIN_VERSION, CHUNK)
S, Y, W, O = TargetState.SERVING, TargetState.SYNCING, TargetState.WAITING, TargetState.OFFLINE  # noqa: E741


def damaged(machine: ChainReplica) -> list[object]:
    """The repair of a copy that has been seen to fail; returns what that brings about."""
    return list(play(machine, REPAIR, Found(1, stored(1)), Verified(1, False)))


def test_a_whole_copy_stays() -> None:
    machine = replica(MIDDLE)
    assert play(machine, REPAIR) == [Lookup(1)]
    assert play(machine, Found(1, stored(1))) == [Verify(1)]
    assert play(machine, Verified(1, True)) == [Answer(1, Status.EXISTS)]


def test_nothing_here_is_nothing_to_repair() -> None:
    assert play(replica(MIDDLE), REPAIR, Found(1, None)) == [Answer(1, Status.NOT_FOUND)]


def test_a_damaged_copy_is_replaced_by_one_of_the_same_version_and_content() -> None:
    machine = replica(MIDDLE)
    assert damaged(machine) == [CopyFrom(1, HEAD)]
    assert play(machine, Fetched(1, stored(1))) == [Reserve(1, True)]
    assert play(machine, Reserved(1, True)) == [Write(1, 9, fetched=True)]
    assert play(machine, Written(1)) == [Answer(1, Status.OK)]
    assert machine.busy == 0


@pytest.mark.parametrize("other", [stored(1, version=10), stored(2), None])
def test_any_other_copy_is_passed_over(other: Stored | None) -> None:
    machine = replica(MIDDLE)
    damaged(machine)
    assert play(machine, Fetched(1, other)) == [CopyFrom(1, TAIL)]
    assert play(machine, Fetched(1, other)) == [Answer(1, Status.CHECKSUM)], "nothing has been changed"


def test_who_could_not_be_asked_may_have_it() -> None:
    machine = replica(MIDDLE)
    damaged(machine)
    assert play(machine, Fetched(1, None, reached=False)) == [CopyFrom(1, TAIL)]
    assert play(machine, Fetched(1, None)) == [Answer(1, Status.UNAVAILABLE)]


def test_a_lost_record_takes_any_serving_replicas_word() -> None:
    machine = replica(MIDDLE)
    assert play(machine, REPAIR, Found(1, None, damaged=True)) == [CopyFrom(1, HEAD)]
    assert play(machine, Fetched(1, stored(4, version=12))) == [Reserve(1, True)]
    assert play(machine, Reserved(1, True)) == [Write(1, 12, fetched=True)]


@pytest.mark.parametrize(
    ("states", "known", "unknown"),
    [
        ((S, S, S), [HEAD, TAIL], [HEAD, TAIL]),
        ((S, S, Y), [HEAD, TAIL], [HEAD]),
        ((O, S, Y), [TAIL], []),
        ((O, S, W), [], []),
        ((O, S, O), [], []),
    ],
)
def test_sources(states: tuple[TargetState, ...], known: list[str], unknown: list[str]) -> None:
    made = chain(states=dict(zip((HEAD, MIDDLE, TAIL), states, strict=True)))
    assert sources(made, MIDDLE, record_known=True)[::-1] == known
    assert sources(made, MIDDLE, record_known=False)[::-1] == unknown


def test_a_copy_stays_while_another_replica_may_come_back_with_a_whole_one() -> None:
    machine = replica(MIDDLE, states={HEAD: O, TAIL: O}, min_replicas=1)
    assert damaged(machine) == [Answer(1, Status.UNAVAILABLE)]


def test_the_only_copy_there_could_be_is_removed() -> None:
    machine = replica(HEAD, drives=(HEAD,), min_replicas=1)
    assert damaged(machine) == [RemoveLocal(1, 9)]
    assert play(machine, Removed(1)) == [Answer(1, Status.CONDITION)]
    assert play(machine, REPAIR, Found(1, None, damaged=True)) == [RemoveLocal(1, 0)]
    assert play(machine, Removed(1, failed=True, no_space=True)) == [Answer(1, Status.NO_SPACE)]


def test_writes_of_the_chunk_wait_for_its_repair() -> None:
    machine = replica(MIDDLE)
    damaged(machine)
    assert play(machine, create(2, version=9)) == []
    play(machine, Fetched(1, stored(1)), Reserved(1, True))
    assert play(machine, Written(1)) == [Answer(1, Status.OK), Lookup(2)]


def test_a_repair_waits_for_writes_of_the_chunk() -> None:
    machine = replica(TAIL)
    play(machine, create(2, version=9), Found(2, None), Reserved(2, True))
    assert play(machine, REPAIR) == []
    assert play(machine, Written(2)) == [Answer(2, Status.OK, stored(1)), Lookup(1)]


def test_no_room() -> None:
    machine = replica(MIDDLE)
    damaged(machine)
    play(machine, Fetched(1, stored(1)))
    assert play(machine, Reserved(1, False)) == [Answer(1, Status.NO_SPACE)]
    damaged(machine)
    play(machine, Fetched(1, stored(1)), Reserved(1, True))
    assert play(machine, Written(1, failed=True, no_space=True)) == [Answer(1, Status.NO_SPACE)]
    assert not machine.offline


def test_a_drive_that_cannot_be_mended_goes_offline() -> None:
    machine = replica(MIDDLE)
    damaged(machine)
    play(machine, Fetched(1, stored(1)), Reserved(1, True))
    why = "a repair could not be written"
    assert play(machine, Written(1, failed=True)) == [TargetOffline(why), Answer(1, Status.UNAVAILABLE)]
    assert machine.offline == why


def test_a_copy_that_comes_after_the_chain_changed_is_not_taken() -> None:
    machine = replica(MIDDLE)
    damaged(machine)
    changed = Membership(chain(version=CHAIN_VERSION + 1, states={HEAD: O}))
    assert play(machine, changed) == [Answer(1, Status.CHAIN_VERSION)]
    assert play(machine, Fetched(1, stored(1))) == []
    assert play(machine, REPAIR) == [Answer(1, Status.CHAIN_VERSION)]


def test_what_the_drive_is_writing_when_the_chain_changes_is_waited_for() -> None:
    machine = replica(MIDDLE)
    damaged(machine)
    play(machine, Fetched(1, stored(1)), Reserved(1, True))
    assert play(machine, Membership(chain(version=CHAIN_VERSION + 1, states={HEAD: O}))) == []
    assert play(machine, Written(1)) == [Answer(1, Status.OK)]


def test_a_deadline() -> None:
    machine = replica(MIDDLE)
    damaged(machine)
    assert play(machine, Expired(1)) == [Answer(1, Status.TIMEOUT)]
    damaged(machine)
    play(machine, Fetched(1, stored(1)), Reserved(1, True))
    assert play(machine, Expired(1)) == [], "the drive reports for certain"
    assert play(machine, Written(1)) == [Answer(1, Status.OK)]


def test_a_replica_that_is_brought_up_to_date_does_not_mend_itself() -> None:
    assert play(replica(TAIL, states={TAIL: Y}), REPAIR) == [Answer(1, Status.UNAVAILABLE)]
    assert play(replica(TAIL, states={TAIL: O}), REPAIR) == [Answer(1, Status.UNAVAILABLE)]


def test_below_min_replicas_a_copy_can_be_mended() -> None:
    machine = replica(MIDDLE, states={HEAD: O, TAIL: Y}, min_replicas=2)
    assert play(machine, Create(2, CHAIN_VERSION, CHUNK, 0, content(1), True)) == [Answer(2, Status.UNAVAILABLE)]
    assert damaged(machine) == [CopyFrom(1, TAIL)]
