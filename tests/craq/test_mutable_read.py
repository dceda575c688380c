"""Reads of mutable chunks: which image is served, and what the last serving replica says is committed."""

import pytest

from esker.craq.messages import Expired, Membership
from esker.craq.mutable_messages import (
    AnswerMutable,
    Ended,
    Image,
    Looked,
    LookupMutable,
    Pending,
    QueryVersion,
    ReadRange,
    ServeImage,
    VersionKnown,
    VersionQuery,
)
from esker.craq.replica import AnyEffect
from esker.wire.status import Status
from esker.wire.types import TargetState

from .mutables import OLD, V, gone, image, looked, pending, writing
from .replicas import CHAIN_VERSION, CHUNK, HEAD, MIDDLE, TAIL, chain, play, replica

READ = ReadRange(1, CHAIN_VERSION, CHUNK)
QUERY = VersionQuery(1, CHAIN_VERSION, CHUNK)
SYNCING_TAIL = {TAIL: TargetState.SYNCING}


def served(of: Image | None, *, held: bool = False) -> list[AnyEffect]:
    """A read that ended well."""
    return [ServeImage(1, of, held), Ended(1)]


def refused(status: Status) -> list[AnyEffect]:
    """A read that did not."""
    return [AnswerMutable(1, status), Ended(1)]


@pytest.mark.parametrize("drive", [HEAD, MIDDLE, TAIL])
@pytest.mark.parametrize("committed", [image(), None])
def test_a_clean_replica_serves_what_it_has_committed(drive: str, committed: Image | None) -> None:
    assert play(replica(drive), READ) == [LookupMutable(1)]
    assert play(replica(drive), READ, looked(committed=committed)) == served(committed)


def test_a_dirty_replica_asks_the_last_serving_one_and_looks_again() -> None:
    head = replica()
    assert play(head, READ, looked(committed=image(OLD), held=pending(image(), OLD))) == [QueryVersion(1, TAIL)]
    assert play(head, VersionKnown(1, Status.OK, OLD)) == [LookupMutable(1)]


def test_a_syncing_replica_is_not_asked() -> None:
    head = replica(states=SYNCING_TAIL)
    assert play(head, READ, looked(committed=image(OLD), held=pending(image(), OLD))) == [QueryVersion(1, MIDDLE)]


BEFORE, NEW, NEWER = image(OLD), image(V), image(V + 1)


@pytest.mark.parametrize(
    ("said", "committed", "held", "effects"),
    [
        (OLD, BEFORE, pending(NEW, OLD), served(BEFORE)),
        (V, BEFORE, pending(NEW, OLD), served(NEW, held=True)),
        (V, NEW, None, served(NEW)),
        (V, NEW, pending(NEWER, V), served(NEW)),
        (V, NEWER, None, served(NEWER)),
        (0, None, pending(NEW), served(None)),
        (0, BEFORE, pending(gone(), OLD), served(None, held=True)),
        (OLD, BEFORE, pending(gone(), OLD), served(BEFORE)),
        (0, None, None, served(None)),
        (V, None, None, refused(Status.BUSY)),
        (V, BEFORE, pending(NEWER, OLD), refused(Status.BUSY)),
    ],
)
def test_what_the_last_serving_replica_says_is_served(
    said: int, committed: Image | None, held: Pending | None, effects: list[AnyEffect]
) -> None:
    head = replica()
    play(head, READ, looked(committed=BEFORE, held=pending(NEW, OLD)), VersionKnown(1, Status.OK, said))
    assert play(head, looked(committed=committed, held=held)) == effects


@pytest.mark.parametrize("status", [Status.UNAVAILABLE, Status.BUSY, Status.TIMEOUT])
def test_without_its_word_nothing_is_served(status: Status) -> None:
    head = replica()
    play(head, READ, looked(committed=BEFORE, held=pending(NEW, OLD)))
    assert play(head, VersionKnown(1, status)) == refused(status)


@pytest.mark.parametrize(
    ("found", "status"),
    [
        (looked(committed=image(), lease=False), Status.UNAVAILABLE),
        (looked(damaged=True), Status.CHECKSUM),
    ],
)
@pytest.mark.parametrize("event", [READ, QUERY])
def test_what_is_found_may_forbid_an_answer(found: Looked, status: Status, event: ReadRange | VersionQuery) -> None:
    assert play(replica(TAIL), event, found) == refused(status)


def test_a_lease_that_ends_while_the_last_one_is_asked_forbids_an_answer() -> None:
    head = replica()
    play(head, READ, looked(committed=BEFORE, held=pending(NEW, OLD)), VersionKnown(1, Status.OK, OLD))
    assert play(head, looked(committed=BEFORE, held=pending(NEW, OLD), lease=False)) == refused(Status.UNAVAILABLE)


def test_a_chain_that_changes_while_the_last_one_is_asked_forbids_an_answer() -> None:
    head = replica()
    play(head, READ, looked(committed=BEFORE, held=pending(NEW, OLD)))
    assert play(head, Membership(chain((HEAD, MIDDLE), version=4))) == refused(Status.CHAIN_VERSION)
    assert play(head, VersionKnown(1, Status.OK, OLD)) == []


@pytest.mark.parametrize(
    ("drive", "event", "states", "status"),
    [
        (TAIL, READ, SYNCING_TAIL, Status.UNAVAILABLE),
        (TAIL, READ, {TAIL: TargetState.WAITING}, Status.UNAVAILABLE),
        (TAIL, QUERY, SYNCING_TAIL, Status.UNAVAILABLE),
        (MIDDLE, QUERY, {}, Status.UNAVAILABLE),
        (HEAD, ReadRange(1, CHAIN_VERSION - 1, CHUNK), {}, Status.CHAIN_VERSION),
        (TAIL, VersionQuery(1, CHAIN_VERSION + 1, CHUNK), {}, Status.CHAIN_VERSION),
    ],
)
def test_only_those_who_know_are_asked(
    drive: str, event: ReadRange | VersionQuery, states: dict[str, TargetState], status: Status
) -> None:
    assert play(replica(drive, states=states), event) == refused(status)


def test_the_last_serving_replica_says_what_it_has_committed() -> None:
    assert play(replica(TAIL), QUERY, looked(committed=image())) == [AnswerMutable(1, Status.OK, V, 10), Ended(1)]
    assert play(replica(TAIL), QUERY, looked()) == [AnswerMutable(1, Status.OK), Ended(1)]


def test_what_waits_for_a_syncing_replica_is_not_committed() -> None:
    middle = replica(MIDDLE, states=SYNCING_TAIL)
    found = looked(committed=BEFORE, held=pending(NEW, OLD))
    assert play(middle, QUERY, found) == [AnswerMutable(1, Status.OK, OLD, 10), Ended(1)]
    assert play(middle, READ, found) == served(BEFORE)


@pytest.mark.parametrize("event", [READ, QUERY])
@pytest.mark.parametrize(("drive", "states"), [(TAIL, {}), (MIDDLE, SYNCING_TAIL)])
def test_what_was_pending_before_the_chain_changed_is_settled_before_anything_is_said(
    event: ReadRange | VersionQuery, drive: str, states: dict[str, TargetState]
) -> None:
    found = looked(committed=image(OLD - 1), held=pending(image(OLD), OLD - 1))
    assert play(replica(drive, states=states), event, found) == refused(Status.BUSY)


def test_reads_do_not_wait_for_writes() -> None:
    head = replica()
    writing(head, 2)
    assert play(head, READ) == [LookupMutable(1)]


def test_a_deadline_ends_a_read() -> None:
    head = replica()
    play(head, READ)
    assert play(head, Expired(1)) == refused(Status.TIMEOUT)
    assert head.busy == 0
