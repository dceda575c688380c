"""Writes of mutable chunks at one replica: what is done for each thing found, and what is answered when."""

import pytest

from esker.craq.messages import Expired, Forwarded, Membership, Reserved, TargetOffline, Unreadable
from esker.craq.mutable_messages import (
    AnswerMutable,
    ChannelEntry,
    ChannelsCleared,
    CommitPending,
    Committed,
    Discarded,
    DiscardPending,
    Ended,
    ForwardUpdate,
    LookupMutable,
    Named,
    Patch,
    PatchKind,
    Persisted,
    PersistPending,
    Repaired,
    RepairImage,
    ReserveImage,
)
from esker.craq.replica import ChainReplica
from esker.wire.limits import CHUNK_BYTES_MAX
from esker.wire.status import Status
from esker.wire.types import TargetState

from .mutables import (
    OLD,
    ORIGIN,
    REMOVE,
    V,
    gone,
    image,
    looked,
    named,
    pending,
    persisted,
    sent_on,
    update,
    writing,
)
from .replicas import CHAIN_VERSION, HEAD, MIDDLE, TAIL, chain, play, replica

SYNCING_TAIL = {TAIL: TargetState.SYNCING}


def answered(status: Status, op: int = 1, *, left: bool = False) -> list[object]:
    """An answer without a version, at the operation's end."""
    return [AnswerMutable(op, status), Ended(op, left)]


def test_a_head_takes_room_then_draws_a_version_and_sends_on_only_what_is_durable() -> None:
    head = replica()
    assert play(head, update()) == [LookupMutable(1)]
    assert play(head, looked(committed=image(OLD, 4))) == [ReserveImage(1, 10, use_reserve=False)]
    persist = PersistPending(1, V, OLD, commit=False, replace=False, full=False, expected=None)
    assert play(head, Reserved(1, True)) == [persist]
    forward = ForwardUpdate(1, MIDDLE, ORIGIN, Named(OLD, image(), False, 1))
    assert play(head, persisted()) == [forward]


def test_the_answer_comes_with_the_successors_and_the_end_with_the_commit() -> None:
    head = replica()
    sent_on(head)
    assert play(head, Forwarded(1, Status.OK)) == [AnswerMutable(1, Status.OK, V, 10), CommitPending(1, V)]
    assert head.busy == 1
    assert play(head, Committed(1)) == [Ended(1)]
    assert head.busy == 0


def test_the_next_write_of_the_chunk_begins_when_the_commit_is_durable() -> None:
    head = replica()
    sent_on(head)
    assert play(head, update(2)) == []
    assert play(head, Forwarded(1, Status.OK))[-1] == CommitPending(1, V)
    assert play(head, Committed(1)) == [Ended(1), LookupMutable(2)]


@pytest.mark.parametrize("drive", [MIDDLE, TAIL])
def test_replicas_behind_the_head_may_use_the_reserve_and_the_tail_commits_at_once(drive: str) -> None:
    machine = replica(drive)
    assert play(machine, named(previous=OLD), looked(committed=image(OLD))) == [ReserveImage(1, 10, use_reserve=True)]
    last = drive == TAIL
    persist = PersistPending(1, V, OLD, commit=last, replace=False, full=False, expected=image())
    assert play(machine, Reserved(1, True)) == [persist]
    effects = play(machine, persisted())
    if last:
        assert effects == [AnswerMutable(1, Status.OK, V, 10), Ended(1)]
    else:
        assert effects == [ForwardUpdate(1, TAIL, ORIGIN, Named(OLD, image(), False, 1))]


def test_a_removal_takes_no_room() -> None:
    effects = play(replica(), update(patch=REMOVE), looked(committed=image(OLD)))
    assert effects == [PersistPending(1, V, OLD, commit=False, replace=False, full=False, expected=None)]


@pytest.mark.parametrize(
    ("patch", "length"),
    [
        (Patch(PatchKind.WRITE, 2, 3), 8),
        (Patch(PatchKind.WRITE, 20, 3), 23),
        (Patch(PatchKind.TRUNCATE, 0, 3), 3),
        (Patch(PatchKind.TRUNCATE, 0, 30), 30),
    ],
)
def test_room_is_taken_for_the_whole_result(patch: Patch, length: int) -> None:
    assert play(replica(), update(patch=patch), looked(committed=image(OLD, 8))) == [ReserveImage(1, length, False)]


@pytest.mark.parametrize(
    ("patch", "status"),
    [
        (Patch(PatchKind.WRITE, 0, 3, truncate_version=4), Status.CONDITION),
        (Patch(PatchKind.TRUNCATE, 0, 3, truncate_version=4), Status.CONDITION),
        (Patch(PatchKind.WRITE, CHUNK_BYTES_MAX, 1, truncate_version=5), Status.TOO_LARGE),
    ],
)
def test_what_has_no_place_is_refused_before_anything_is_done(patch: Patch, status: Status) -> None:
    found = looked(committed=image(OLD, 8, truncate_version=5))
    assert play(replica(), update(patch=patch), found) == answered(status)


def test_a_removal_of_what_is_absent_finds_nothing() -> None:
    assert play(replica(), update(patch=REMOVE), looked()) == answered(Status.NOT_FOUND)


@pytest.mark.parametrize(
    ("sequence", "answer"),
    [
        (7, AnswerMutable(1, Status.OK, OLD, 4)),
        (8, AnswerMutable(1, Status.CONDITION)),
    ],
)
def test_a_write_that_was_done_is_not_done_again(sequence: int, answer: AnswerMutable) -> None:
    found = looked(committed=image(OLD), entry=ChannelEntry(sequence, OLD, 4))
    assert play(replica(), update(), found) == [answer, Ended(1)]


def test_a_write_that_was_noted_is_acknowledged_only_once_its_version_is_committed() -> None:
    head, entry = replica(), ChannelEntry(7, V, 10)
    effects = play(head, update(), looked(committed=image(OLD), held=pending(image(), OLD), entry=entry))
    assert effects == [ForwardUpdate(1, MIDDLE, ORIGIN, Named(OLD, image(), True, 1))]
    assert play(head, Forwarded(1, Status.OK)) == [CommitPending(1, V)]
    assert play(head, Committed(1)) == [LookupMutable(1)]
    assert play(head, looked(committed=image(), entry=entry)) == [AnswerMutable(1, Status.OK, V, 10), Ended(1)]


def test_a_head_without_a_lease_takes_no_write() -> None:
    assert play(replica(), update(), looked(lease=False)) == answered(Status.UNAVAILABLE)


def test_no_version_is_drawn_where_there_is_no_room() -> None:
    head = replica()
    assert play(head, update(), looked(), Reserved(1, False)) == answered(Status.NO_SPACE)
    assert writing(head, 2) == [PersistPending(2, V, 0, commit=False, replace=False, full=False, expected=None)]


def test_want_of_room_behind_is_definite_and_discards() -> None:
    head = replica()
    sent_on(head)
    assert play(head, Forwarded(1, Status.NO_SPACE)) == [DiscardPending(1, V)]
    assert play(head, Discarded(1)) == answered(Status.NO_SPACE)


def test_want_of_room_says_nothing_of_a_version_of_an_earlier_chain() -> None:
    middle, old = replica(MIDDLE), image(OLD)
    play(middle, named(of=old, full=True), looked(), Reserved(1, True), persisted(of=old))
    assert play(middle, Forwarded(1, Status.NO_SPACE)) == answered(Status.UNAVAILABLE, left=True)


@pytest.mark.parametrize(
    ("said", "status"),
    [
        (Status.TIMEOUT, Status.TIMEOUT),
        (Status.UNAVAILABLE, Status.UNAVAILABLE),
        (Status.CHAIN_VERSION, Status.CHAIN_VERSION),
        (Status.CONDITION, Status.UNAVAILABLE),
        (Status.BUSY, Status.UNAVAILABLE),
    ],
)
def test_what_is_not_definite_leaves_the_image_pending(said: Status, status: Status) -> None:
    head = replica()
    sent_on(head)
    assert play(head, Forwarded(1, said)) == answered(status, left=True)


def test_a_failed_write_takes_the_target_offline() -> None:
    head = replica()
    writing(head)
    effects = play(head, Persisted(1, Status.IO_ERROR))
    assert effects == [TargetOffline("a write failed"), *answered(Status.UNAVAILABLE)]
    assert play(head, update(2)) == answered(Status.UNAVAILABLE, 2)


def test_a_failed_commit_takes_the_target_offline_and_changes_no_answer() -> None:
    head = replica()
    sent_on(head)
    play(head, Forwarded(1, Status.OK))
    assert play(head, Committed(1, failed=True)) == [TargetOffline("a commit failed"), Ended(1, True)]


def test_want_of_room_for_a_commit_leaves_the_image_pending_and_the_target_where_it_is() -> None:
    head = replica()
    sent_on(head)
    play(head, Forwarded(1, Status.OK))
    assert play(head, Committed(1, failed=True, no_space=True)) == [Ended(1, True)]
    assert play(head, update(2)) == [LookupMutable(2)]


def test_want_of_room_for_a_discard_leaves_the_outcome_open() -> None:
    head = replica()
    sent_on(head)
    play(head, Forwarded(1, Status.NO_SPACE))
    assert play(head, Discarded(1, failed=True, no_space=True)) == answered(Status.UNAVAILABLE, left=True)


def test_a_base_that_is_damaged_is_mended_once_before_it_is_copied() -> None:
    head, base = replica(), image(OLD)
    play(head, update(), looked(committed=base), Reserved(1, True))
    assert play(head, Persisted(1, Status.CHECKSUM)) == [RepairImage(1, MIDDLE, OLD)]
    again = PersistPending(1, V, OLD, commit=False, replace=False, full=False, expected=None)
    assert play(head, Repaired(1, True)) == [again]
    assert play(head, Persisted(1, Status.CHECKSUM)) == answered(Status.CHECKSUM)


def test_a_successor_with_a_damaged_base_gets_the_whole_image() -> None:
    head = replica()
    sent_on(head)
    assert play(head, Forwarded(1, Status.CHECKSUM)) == [ForwardUpdate(1, MIDDLE, ORIGIN, Named(0, image(), True, 2))]
    assert play(head, Unreadable(1)) == [RepairImage(1, MIDDLE, V)]
    # Not CHECKSUM, which would say that nothing comes of it.
    assert play(head, Repaired(1, False)) == answered(Status.UNAVAILABLE, left=True)


@pytest.mark.parametrize("drive", [MIDDLE, TAIL])
def test_a_replica_behind_says_that_its_base_is_damaged(drive: str) -> None:
    machine = replica(drive)
    play(machine, named(previous=OLD), looked(committed=image(OLD)), Reserved(1, True))
    assert play(machine, Persisted(1, Status.CHECKSUM)) == answered(Status.CHECKSUM)


@pytest.mark.parametrize("previous", [0, OLD - 1])
def test_an_update_applies_only_to_the_version_that_it_names(previous: int) -> None:
    assert play(replica(MIDDLE), named(previous=previous), looked(committed=image(OLD))) == answered(Status.CONDITION)


def test_an_update_that_is_here_already_is_confirmed() -> None:
    confirmed = [AnswerMutable(1, Status.OK, V, 10), Ended(1)]
    assert play(replica(MIDDLE), named(previous=OLD), looked(committed=image())) == confirmed
    removed = [AnswerMutable(1, Status.OK, V, 0), Ended(1)]
    assert play(replica(MIDDLE), named(of=gone(), previous=OLD), looked()) == removed


def test_an_update_that_is_pending_here_is_brought_down_again_first() -> None:
    middle = replica(MIDDLE)
    effects = play(middle, named(previous=OLD), looked(committed=image(OLD), held=pending(image(), OLD)))
    assert effects == [ForwardUpdate(1, TAIL, ORIGIN, Named(OLD, image(), True, 1))]
    assert play(middle, Forwarded(1, Status.NO_SPACE)) == [DiscardPending(1, V)]
    assert play(middle, Discarded(1)) == [LookupMutable(1)]
    assert play(middle, looked(committed=image(OLD))) == answered(Status.NO_SPACE)


def test_messages_that_come_twice_or_late_are_refused() -> None:
    middle = replica(MIDDLE)
    assert play(middle, named(1, hop=5)) == [LookupMutable(1)]
    assert play(middle, named(2, hop=5)) == answered(Status.CONDITION, 2)
    assert play(middle, named(3, hop=4)) == answered(Status.CONDITION, 3)
    assert play(middle, named(4, hop=6)) == []


@pytest.mark.parametrize(
    ("drive", "event"), [(HEAD, named()), (MIDDLE, update()), (TAIL, update()), (HEAD, update(version=2))]
)
def test_whoever_saw_another_chain_is_refused(drive: str, event: object) -> None:
    assert play(replica(drive), event) == answered(Status.CHAIN_VERSION)  # type: ignore[arg-type]


def test_with_too_few_replicas_nothing_is_taken() -> None:
    states = dict.fromkeys((MIDDLE, TAIL), TargetState.OFFLINE)
    assert play(replica(states=states), update()) == answered(Status.UNAVAILABLE)


# With a syncing successor


def test_the_last_serving_replica_commits_before_it_answers() -> None:
    middle = replica(MIDDLE, states=SYNCING_TAIL)
    play(middle, named(previous=OLD), looked(committed=image(OLD)), Reserved(1, True))
    assert play(middle, persisted()) == [ForwardUpdate(1, TAIL, ORIGIN, Named(OLD, image(), True, 1))]
    assert play(middle, Forwarded(1, Status.OK)) == [CommitPending(1, V)]
    assert play(middle, Committed(1)) == [AnswerMutable(1, Status.OK, V, 10), Ended(1)]


def syncing(version: int = CHAIN_VERSION) -> ChainReplica:
    """A syncing replica that has forgotten what it knew of channels."""
    tail = replica(TAIL, states=SYNCING_TAIL, version=version)
    play(tail, ChannelsCleared(version))
    return tail


def test_a_syncing_replica_takes_updates_once_its_table_of_channels_is_empty() -> None:
    tail = replica(TAIL, states=SYNCING_TAIL)
    assert tail.clears_channels
    assert play(tail, named(full=True, hop=1)) == answered(Status.UNAVAILABLE)
    assert play(tail, ChannelsCleared(CHAIN_VERSION - 1), named(full=True, hop=2)) == answered(Status.UNAVAILABLE)
    assert play(tail, ChannelsCleared(CHAIN_VERSION), named(full=True, hop=3)) == [LookupMutable(1)]
    assert not tail.clears_channels


def test_the_table_is_not_emptied_while_an_earlier_write_may_still_enter_it() -> None:
    tail = replica(TAIL)
    play(tail, named(), looked(), Reserved(1, True))
    play(tail, Membership(chain(version=4, states=SYNCING_TAIL)))
    assert not tail.clears_channels
    play(tail, persisted())
    assert tail.clears_channels
    play(tail, ChannelsCleared(4), Membership(chain(version=5, states=SYNCING_TAIL)))
    assert tail.clears_channels


def test_a_syncing_replica_takes_the_whole_image_for_whatever_it_has() -> None:
    tail = syncing()
    found = looked(committed=image(OLD + 1), held=pending(image(OLD + 2), OLD + 1))
    assert play(tail, named(previous=OLD, full=True), found) == [ReserveImage(1, 10, use_reserve=True)]
    persist = PersistPending(1, V, OLD + 1, commit=True, replace=True, full=True, expected=image())
    assert play(tail, Reserved(1, True)) == [persist]
    assert play(tail, persisted()) == [AnswerMutable(1, Status.OK, V, 10), Ended(1)]


@pytest.mark.parametrize(("sequence", "noted"), [(7, True), (8, True), (6, False), (None, False)])
def test_a_syncing_replica_confirms_only_what_its_table_has_too(sequence: int | None, noted: bool) -> None:
    tail = syncing()
    entry = None if sequence is None else ChannelEntry(sequence, V, 10)
    effects = play(tail, named(full=True), looked(committed=image(), entry=entry))
    confirmed = [AnswerMutable(1, Status.OK, V, 10), Ended(1)]
    assert effects == (confirmed if noted else [ReserveImage(1, 10, use_reserve=True)])


def test_a_syncing_replica_takes_no_part_of_an_image() -> None:
    assert play(syncing(), named(), looked()) == answered(Status.BAD_REQUEST)


# Endings


def test_a_deadline_ends_what_waits_for_the_successor_and_leaves_the_image() -> None:
    head = replica()
    sent_on(head)
    assert play(head, Expired(1)) == answered(Status.TIMEOUT, left=True)
    assert play(head, Forwarded(1, Status.OK)) == []


def test_a_deadline_waits_for_the_drive() -> None:
    head = replica()
    writing(head)
    assert play(head, Expired(1)) == []
    assert play(head, persisted()) == answered(Status.TIMEOUT, left=True)


def test_a_deadline_ends_what_waits_for_its_turn() -> None:
    head = replica()
    writing(head)
    play(head, update(2), update(3))
    assert play(head, Expired(2)) == answered(Status.TIMEOUT, 2)
    assert head.busy == 2


def test_a_new_chain_ends_what_was_sent_on_and_leaves_the_image() -> None:
    head = replica()
    sent_on(head)
    play(head, update(2))
    following = play(head, Membership(chain((HEAD, TAIL), version=4)))
    assert following == [*answered(Status.CHAIN_VERSION, left=True), *answered(Status.CHAIN_VERSION, 2)]
    assert head.busy == 0


def test_a_new_chain_waits_for_the_drive_and_sends_nothing_on() -> None:
    head = replica()
    writing(head)
    assert play(head, Membership(chain((HEAD, TAIL), version=4))) == []
    assert len(head.earlier_chunks()) == 1
    assert play(head, persisted()) == answered(Status.CHAIN_VERSION, left=True)
    assert head.earlier_chunks() == []


def test_a_new_chain_lets_what_is_answered_be_committed() -> None:
    head = replica()
    sent_on(head)
    play(head, Forwarded(1, Status.OK))
    assert play(head, Membership(chain((HEAD, TAIL), version=4))) == []
    assert play(head, Committed(1)) == [Ended(1)]
