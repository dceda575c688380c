"""The checker of histories: good ones pass, and each way to be wrong is told as such."""

import random

import pytest
from tests.linearizability import (
    Action,
    Chunk,
    History,
    NotLinearizable,
    Operation,
    Outcome,
    Read,
    Remove,
    Truncate,
    Undecided,
    Write,
    apply,
    require_linearizable,
)

OK, STALE, ABSENT, UNKNOWN = Outcome.OK, Outcome.STALE, Outcome.ABSENT, Outcome.UNKNOWN


def write(text: bytes, called: float, returned: float, outcome: Outcome = OK, at: int = 0, tv: int = 0) -> Operation:
    return Operation("k", Write(at, text, tv), called, returned, outcome)


def read(result: bytes | None, called: float, returned: float, at: int = 0, length: int = 100) -> Operation:
    return Operation("k", Read(at, length, result), called, returned)


def change(action: Action, called: float, returned: float, outcome: Outcome = OK) -> Operation:
    return Operation("k", action, called, returned, outcome)


GOOD = {
    "nothing": [],
    "absent at first": [read(None, 0, 1)],
    "a write is read": [write(b"a", 0, 1), read(b"a", 2, 3)],
    "a read beside a write sees either": [write(b"a", 0, 10), read(None, 1, 2), read(b"a", 3, 4)],
    "writes beside each other in any order": [
        write(b"a", 0, 10),
        write(b"b", 0, 10),
        read(b"b", 11, 12),
        write(b"c", 13, 14),
        read(b"c", 15, 16),
    ],
    "an unknown write never happened": [write(b"a", 0, 1), write(b"b", 2, 9, UNKNOWN), read(b"a", 10, 11)],
    "an unknown write happens late": [
        write(b"a", 0, 1),
        write(b"b", 2, 3, UNKNOWN),
        read(b"a", 4, 5),
        read(b"b", 6, 7),
        read(b"b", 8, 9),
    ],
    "an unknown write happens between two others": [
        write(b"b", 0, 1, UNKNOWN),
        write(b"a", 2, 3),
        read(b"b", 4, 5),
        write(b"c", 6, 7),
        read(b"c", 8, 9),
    ],
    "an unknown read says nothing": [change(Read(0, 1, b"?"), 0, 1, UNKNOWN), read(None, 2, 3)],
    "parts and gaps": [
        write(b"ab", 0, 1, at=3),
        read(b"\0\0\0ab", 2, 3),
        read(b"a", 4, 5, at=3, length=1),
        read(b"", 6, 7, at=5),
        write(b"x", 8, 9, at=1),
        read(b"\0x\0ab", 10, 11),
    ],
    "truncated, filled, removed, made again": [
        write(b"abcd", 0, 1),
        change(Truncate(2), 2, 3),
        read(b"ab", 4, 5),
        change(Truncate(3), 6, 7),
        read(b"ab\0", 8, 9),
        change(Remove(), 10, 11),
        read(None, 12, 13),
        change(Remove(), 14, 15, ABSENT),
        write(b"z", 16, 17),
        read(b"z", 18, 19),
    ],
    "a late write is refused after a truncation": [
        write(b"abcd", 0, 1),
        change(Truncate(1, 5), 2, 3),
        write(b"late", 4, 5, STALE, tv=4),
        read(b"a", 6, 7),
        write(b"new", 8, 9, tv=5),
        read(b"new", 10, 11),
    ],
    "touching at an instant is beside each other": [write(b"a", 0, 1), read(None, 1, 2)],
}

BAD = {
    "a lost write": [write(b"a", 0, 1), write(b"b", 2, 3), read(b"a", 4, 5)],
    "a write lost whole": [write(b"a", 0, 1), read(None, 2, 3)],
    "a stale read": [write(b"a", 0, 1), write(b"b", 2, 10), read(b"b", 3, 4), read(b"a", 5, 6)],
    "a value that was read vanishes": [
        write(b"a", 0, 1),
        write(b"b", 2, 3, UNKNOWN),
        read(b"b", 4, 5),
        read(b"a", 6, 7),
    ],
    "an unknown write is done twice": [
        write(b"b", 0, 1, UNKNOWN),
        read(b"b", 2, 3),
        write(b"a", 4, 5),
        read(b"a", 6, 7),
        read(b"b", 8, 9),
    ],
    "a write is done twice": [write(b"b", 0, 1), write(b"a", 2, 3), read(b"a", 4, 5), read(b"b", 6, 7)],
    "writes after each other change places": [
        write(b"a", 0, 1),
        write(b"b", 2, 3),
        read(b"a", 2.5, 6),
        read(b"a", 7, 8),
    ],
    "two readers disagree on the order": [
        write(b"a", 0, 20),
        write(b"b", 0, 20),
        read(b"a", 1, 2),
        read(b"b", 3, 4),
        read(b"a", 5, 6),
    ],
    "a read from the future": [read(b"a", 0, 1), write(b"a", 2, 3)],
    "an unknown write from the future": [read(b"a", 0, 1), write(b"a", 2, 3, UNKNOWN)],
    "bytes that nobody wrote": [write(b"aa", 0, 1), write(b"bb", 0, 1), read(b"ab", 2, 3)],
    "half a write": [write(b"aa", 0, 1), write(b"bb", 2, 9), read(b"ba", 3, 4)],
    "a gap is not zeros": [
        write(b"abcd", 0, 1),
        change(Truncate(1), 2, 3),
        write(b"x", 4, 5, at=3),
        read(b"abcx", 6, 7),
    ],
    "a removed chunk comes back": [write(b"a", 0, 1), change(Remove(), 2, 3), read(b"a", 4, 5)],
    "a removal of nothing": [change(Remove(), 0, 1)],
    "a removal that overlooks the chunk": [write(b"a", 0, 1), change(Remove(), 2, 3, ABSENT)],
    "a removal is done twice": [
        write(b"a", 0, 1),
        change(Remove(), 2, 3, UNKNOWN),
        read(None, 4, 5),
        write(b"b", 6, 7),
        read(b"b", 8, 9),
        read(None, 10, 11),
    ],
    "a late write resurrects bytes": [
        write(b"abcd", 0, 1),
        change(Truncate(1, 5), 2, 3),
        write(b"late", 4, 5, UNKNOWN, tv=4),
        read(b"late", 6, 7),
    ],
    "refused without reason": [write(b"a", 0, 1), write(b"b", 2, 3, STALE)],
    "accepted in spite of a newer truncation": [change(Truncate(1, 5), 0, 1), write(b"b", 2, 3, tv=4)],
}


@pytest.mark.parametrize("name", GOOD)
def test_good_histories(name: str) -> None:
    require_linearizable(GOOD[name])


@pytest.mark.parametrize("name", BAD)
def test_bad_histories(name: str) -> None:
    with pytest.raises(NotLinearizable):
        require_linearizable(BAD[name])


def test_a_report_shows_where_the_order_ended() -> None:
    with pytest.raises(NotLinearizable) as caught:
        require_linearizable(BAD["a lost write"])
    text = str(caught.value)
    assert "2 of 3 operations were explained" in text
    assert "read 100 bytes at 0: 1 bytes (61)" in text
    assert "a chunk of 1 bytes (62)" in text


def test_keys_are_judged_by_themselves() -> None:
    def of(key: str, action: Action, called: float, returned: float) -> Operation:
        return Operation(key, action, called, returned)

    require_linearizable([of("a", Write(0, b"1"), 0, 1), of("b", Read(0, 1, None), 2, 3)])
    with pytest.raises(NotLinearizable, match="key 'b'"):
        require_linearizable([of("a", Write(0, b"1"), 0, 1), of("b", Read(0, 1, b"1"), 2, 3)])


def test_a_search_that_is_too_long_says_so() -> None:
    """Many unknown writes beside a read of what nobody wrote: there is no short way to tell."""
    history = [write(bytes([number]), 0, 1, UNKNOWN, at=number) for number in range(24)]
    history.append(read(b"?", 2, 3, length=1))
    with pytest.raises(Undecided, match="no verdict on 1 operations and 24 unknown ones after 1000 steps"):
        require_linearizable(history, steps_max=1000)


def test_the_first_state_may_be_given() -> None:
    require_linearizable([read(b"old", 0, 1)], initial=Chunk(b"old"))


def _simulated(seed: int, *, clients: int = 4, operations: int = 150) -> list[Operation]:
    """What clients see of a chunk that is right: every operation takes effect at one instant while it lasts."""
    random_ = random.Random(seed)
    chunk, history, version = Chunk(), [], 0
    free_at = [0.0] * clients
    plan = []
    for number in range(operations):
        client = random_.randrange(clients)
        called = free_at[client] + random_.random()
        effect = called + random_.random() * 3
        unknown = random_.random() < 0.05
        returned = called + 1 if unknown else effect + random_.random()
        free_at[client] = returned
        plan.append((effect, client, called, returned, unknown, number))
    for effect, client, called, returned, unknown, number in sorted(plan):
        kind = random_.random()
        action: Action
        if kind < 0.5:
            offset, length = random_.randrange(8), random_.randrange(1, 8)
            seen = None if chunk.data is None else chunk.data[offset : offset + length]
            history.append(Operation(0, Read(offset, length, seen), called, max(returned, effect), OK, f"c{client}"))
            continue
        if kind < 0.8:
            action = Write(random_.randrange(6), bytes([number % 251]) * random_.randrange(1, 4), version)
        elif kind < 0.9:
            version += random_.randrange(2)
            action = Truncate(random_.randrange(8), version)
        else:
            action = Remove()
        if unknown and random_.random() < 0.5:
            history.append(Operation(0, action, called, returned, UNKNOWN, f"c{client}"))  # it never takes effect
            continue
        after = apply(chunk, action)
        chunk = chunk if after is None else after
        refused = ABSENT if isinstance(action, Remove) else STALE
        outcome = UNKNOWN if unknown else refused if after is None else OK
        history.append(Operation(0, action, called, max(returned, effect), outcome, f"c{client}"))
    return history


@pytest.mark.parametrize("seed", range(20))
def test_histories_of_a_right_chunk_are_decided_soon(seed: int) -> None:
    history = _simulated(seed)
    assert require_linearizable(history, steps_max=100_000) >= len([each for each in history if each.outcome is OK])


@pytest.mark.parametrize("seed", range(20))
def test_one_wrong_read_in_a_long_history_is_found(seed: int) -> None:
    history = _simulated(seed)
    random_ = random.Random(seed)
    reads = [number for number, each in enumerate(history) if isinstance(each.action, Read) and each.action.result]
    number = random_.choice(reads)
    action = history[number].action
    assert isinstance(action, Read)
    assert action.result
    wrong = Read(action.offset, action.length, b"\xff" + action.result[1:])  # no operation writes this byte
    history[number] = Operation(0, wrong, history[number].called, history[number].returned)
    with pytest.raises(NotLinearizable):
        require_linearizable(history, steps_max=500_000)


def test_a_history_is_recorded_by_a_clock() -> None:
    ticks = iter(range(100))
    history = History(lambda: float(next(ticks)))
    called = history.call()
    history.ended("k", Write(0, b"a"), called)
    called = history.call()
    history.ended("k", Write(0, b"b"), called, UNKNOWN, by="c1")
    first, second = history.operations
    assert (first.called, first.returned, first.outcome) == (0.0, 1.0, OK)
    assert (second.called, second.returned, second.by) == (2.0, float("inf"), "c1")
    require_linearizable(history.operations)
