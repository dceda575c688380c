"""Two sequences of pages, compared: every difference once, however the pages are cut."""

from random import Random

import pytest

from esker.chunkserver.engine.record import Record
from esker.chunkserver.resync_compare import Copy, Side, copies_of, copy_of, differences
from esker.chunkserver.scan import digest
from esker.wire.admin_messages import SCAN_ROW, ScanReply
from esker.wire.errors import ProtocolError

Copies = dict[bytes, Copy]


def fill(side: Side, copies: Copies, page: int) -> None:
    """The next page of a side, of so many copies."""
    rest = [(key, copy) for key, copy in sorted(copies.items()) if key > side.after]
    taken = rest[:page]
    side.add(taken, taken[-1][0] if len(rest) > page else b"")


def compare(ours: Copies, theirs: Copies, pages: tuple[int, int]) -> list[bytes]:
    """All differences, read as a resync reads."""
    sides = Side(), Side()
    found: list[bytes] = []
    while not (sides[0].over and sides[1].over):
        for side, other, copies, page in zip(sides, sides[::-1], (ours, theirs), pages, strict=True):
            if not side.over and (other.over or side.after <= other.after):
                fill(side, copies, page)
        found += differences(*sides)
    return found


@pytest.mark.parametrize("seed", range(30))
def test_every_difference_is_found_once(seed: int) -> None:
    random = Random(seed)
    sides: tuple[Copies, Copies] = ({}, {})
    for number in range(random.randrange(40)):
        key = number.to_bytes(2, "big")
        for side in sides:
            if random.random() < 0.8:
                side[key] = (random.random() < 0.8,)
    ours, theirs = sides
    expected = sorted(key for key in ours.keys() | theirs.keys() if ours.get(key) != theirs.get(key))
    found = compare(ours, theirs, (random.randint(1, 10), random.randint(1, 10)))
    assert sorted(found) == expected
    assert len(found) == len(set(found))


def test_nothing_and_nothing_are_equal() -> None:
    assert compare({}, {}, (1, 1)) == []


RECORD = Record(5, 7, 3, 5, 1, b"p" * 16, 123, b"s" * 8, b"key", 1, 0)
ROW = SCAN_ROW.pack(b"k" * 28, 7, 5, 5, 1, b"p" * 16, 456, 3)
REPLY = ScanReply(ROW, b"key", b"", 0, digest(b"s" * 8))


def test_a_copy_is_the_same_whenever_and_wherever_it_was_stored() -> None:
    moved = RECORD._replace(created_ms=9, pages=2, slot=8, chain_version=9)
    assert copies_of(REPLY) == [(b"k" * 28, copy_of(RECORD))] == [(b"k" * 28, copy_of(moved))]


@pytest.mark.parametrize(
    "change",
    [
        {"version": 8},
        {"length": 6},
        {"block_bytes": 6},
        {"chunk_count": 2},
        {"put_id": b"q" * 16},
        {"checksums": b"t" * 8},
        {"key": b"kez"},
    ],
)
def test_anything_else_makes_it_another(change: dict[str, object]) -> None:
    assert copies_of(REPLY)[0][1] != copy_of(RECORD._replace(**change))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "reply",
    [
        ScanReply(ROW[:-1], b"key", b"", 0, REPLY.digests),
        ScanReply(ROW, b"key", b"", 0, b""),
        ScanReply(ROW, b"key", b"", 0, REPLY.digests * 2),
        ScanReply(ROW, b"ke", b"", 0, REPLY.digests),
        ScanReply(ROW, b"keys", b"", 0, REPLY.digests),
    ],
)
def test_columns_that_do_not_agree_are_refused(reply: ScanReply) -> None:
    with pytest.raises(ProtocolError):
        copies_of(reply)
