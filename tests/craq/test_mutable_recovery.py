"""What becomes of images that were left pending, and how a syncing replica is brought in line."""

import pytest

from esker.craq.messages import Forwarded, Membership, Unreadable
from esker.craq.mutable_messages import (
    AnswerMutable,
    ChannelsCleared,
    CommitPending,
    Committed,
    Discarded,
    DiscardPending,
    Ended,
    ForwardUpdate,
    Image,
    LookupMutable,
    Named,
    Recover,
    Repaired,
    RepairImage,
    SyncMutable,
)
from esker.craq.replica import AnyEffect
from esker.wire.status import Status
from esker.wire.types import TargetState

from .mutables import OLD, ORIGIN, V, gone, image, looked, named, pending, update
from .replicas import CHAIN_VERSION, CHUNK, HEAD, MIDDLE, TAIL, chain, play, replica

RECOVER = Recover(1, CHAIN_VERSION, CHUNK)
SYNC = SyncMutable(1, CHAIN_VERSION, CHUNK)
LEFT = looked(committed=image(OLD - 1), held=pending(image(OLD), OLD - 1))
SYNCING_TAIL = {TAIL: TargetState.SYNCING}
ALONE = {MIDDLE: TargetState.OFFLINE, TAIL: TargetState.SYNCING}


def ended(status: Status, *, left: bool = False) -> list[AnyEffect]:
    """An answer and the end."""
    return [AnswerMutable(1, status), Ended(1, left)]


def test_a_new_tail_commits_what_it_holds() -> None:
    tail = replica(TAIL)
    assert play(tail, RECOVER, LEFT) == [CommitPending(1, OLD)]
    assert play(tail, Committed(1)) == [LookupMutable(1)]
    assert play(tail, looked(committed=image(OLD))) == ended(Status.OK)


@pytest.mark.parametrize("drive", [HEAD, MIDDLE])
def test_others_send_it_on_again_whole_and_commit_once_it_is_confirmed(drive: str) -> None:
    machine = replica(drive)
    assert machine.successor is not None
    again = ForwardUpdate(1, machine.successor, ORIGIN, Named(OLD - 1, image(OLD), True, 1))
    assert play(machine, RECOVER, LEFT) == [again]
    assert play(machine, Forwarded(1, Status.OK)) == [CommitPending(1, OLD)]


def test_a_write_settles_what_it_finds_pending_before_it_looks_at_anything() -> None:
    head = replica()
    assert play(head, update(), LEFT) == [ForwardUpdate(1, MIDDLE, ORIGIN, Named(OLD - 1, image(OLD), True, 1))]
    play(head, Forwarded(1, Status.OK))
    assert play(head, Committed(1)) == [LookupMutable(1)]


@pytest.mark.parametrize("said", [Status.NO_SPACE, Status.UNAVAILABLE, Status.CONDITION, Status.CHECKSUM])
def test_what_may_have_been_acknowledged_is_never_discarded(said: Status) -> None:
    head = replica()
    play(head, RECOVER, LEFT)
    assert play(head, Forwarded(1, said)) == ended(Status.UNAVAILABLE, left=True)


def test_what_was_drawn_in_this_version_is_discarded_for_want_of_room() -> None:
    head = replica()
    play(head, RECOVER, looked(committed=image(OLD), held=pending(image(), OLD)))
    assert play(head, Forwarded(1, Status.NO_SPACE)) == [DiscardPending(1, V)]
    assert play(head, Discarded(1)) == [LookupMutable(1)]
    assert play(head, looked(committed=image(OLD))) == ended(Status.NO_SPACE)


def test_below_the_least_number_of_replicas_what_is_pending_stays() -> None:
    head = replica(states={MIDDLE: TargetState.OFFLINE, TAIL: TargetState.OFFLINE})
    assert not head.recovers
    assert play(head, RECOVER) == ended(Status.UNAVAILABLE)


def test_a_recovery_of_an_earlier_version_does_not_commit() -> None:
    head = replica()
    play(head, RECOVER, LEFT)
    assert play(head, Membership(chain((HEAD, TAIL), version=4))) == ended(Status.CHAIN_VERSION, left=True)


def test_what_cannot_be_read_is_mended_from_the_one_in_front() -> None:
    middle = replica(MIDDLE)
    play(middle, RECOVER, LEFT)
    assert play(middle, Unreadable(1)) == [RepairImage(1, HEAD, OLD)]
    assert play(middle, Repaired(1, True)) == [ForwardUpdate(1, TAIL, ORIGIN, Named(OLD - 1, image(OLD), True, 2))]
    assert play(middle, Unreadable(1)) == ended(Status.UNAVAILABLE, left=True)


@pytest.mark.parametrize("committed", [image(OLD), None])
def test_a_sync_sends_what_is_committed_or_that_nothing_is(committed: Image | None) -> None:
    middle = replica(MIDDLE, states=SYNCING_TAIL)
    sent = committed or Image(0, absent=True)
    assert play(middle, SYNC, looked(committed=committed)) == [ForwardUpdate(1, TAIL, None, Named(0, sent, True, 1))]
    assert play(middle, Forwarded(1, Status.OK)) == ended(Status.OK)


@pytest.mark.parametrize("held", [image(OLD), gone(OLD)])
def test_a_sync_settles_what_is_pending_and_is_done(held: Image) -> None:
    middle = replica(MIDDLE, states=SYNCING_TAIL)
    effects = play(middle, SYNC, looked(committed=image(OLD - 1), held=pending(held, OLD - 1)))
    assert effects == [ForwardUpdate(1, TAIL, ORIGIN, Named(OLD - 1, held, True, 1))]
    assert play(middle, Forwarded(1, Status.OK)) == [CommitPending(1, OLD)]
    assert play(middle, Committed(1)) == ended(Status.OK)


def test_with_too_few_replicas_a_sync_sends_what_is_pending_and_leaves_it_so() -> None:
    head = replica(states=ALONE)
    play(head, SYNC, LEFT)
    assert play(head, Forwarded(1, Status.OK)) == ended(Status.OK, left=True)


def test_what_cannot_be_read_is_not_taken_for_brought_in_line() -> None:
    head = replica(states=ALONE)
    play(head, SYNC, looked(committed=image(OLD)))
    assert play(head, Unreadable(1)) == ended(Status.CHECKSUM)
    assert play(head, SYNC, looked(damaged=True)) == ended(Status.CHECKSUM)


@pytest.mark.parametrize("said", [Status.UNAVAILABLE, Status.NO_SPACE, Status.CHAIN_VERSION])
def test_a_sync_tells_why_it_came_to_nothing(said: Status) -> None:
    head = replica(states=ALONE)
    play(head, SYNC, looked(committed=image(OLD)))
    assert play(head, Forwarded(1, said)) == ended(said)


def test_only_the_last_serving_replica_syncs() -> None:
    assert play(replica(states=SYNCING_TAIL), SYNC) == ended(Status.BAD_REQUEST)


@pytest.mark.parametrize("of", [image(), Image(0, absent=True)])
def test_a_syncing_replica_replaces_what_it_cannot_make_out(of: Image) -> None:
    tail = replica(TAIL, states=SYNCING_TAIL)
    effects = play(tail, ChannelsCleared(CHAIN_VERSION), named(of=of, full=True), looked(damaged=True))
    assert type(effects[0]).__name__ == ("PersistPending" if of.absent else "ReserveImage")
