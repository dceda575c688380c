"""Random transactions, interleaved, against a serial model: whatever commits must look as if it ran alone, in order."""

from dataclasses import dataclass, field

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from esker.meta.store.base import KEY_END, Transaction
from esker.meta.store.errors import NotCommitted
from esker.meta.store.writes import added

from .conftest import OpenStore

LONG = b"l" * 508
KEYS = [b"a", b"ab", b"b", LONG + b"12", LONG + b"123", LONG + b"1233", LONG + b"2", b"z"]
key = st.sampled_from(KEYS)
bound = st.sampled_from([b"", *KEYS, KEY_END])
value = st.binary(max_size=3)
operation = st.one_of(
    st.tuples(st.just("get"), key),
    st.tuples(st.just("range"), bound, bound, st.integers(0, 3), st.booleans()),
    st.tuples(st.just("set"), key, value),
    st.tuples(st.just("clear"), key),
    st.tuples(st.just("clear_range"), bound, bound),
    st.tuples(st.just("add"), key, st.binary(min_size=1, max_size=3)),
    st.tuples(st.just("commit")),
)
script = st.lists(st.tuples(st.integers(0, 2), operation), max_size=40)


@dataclass
class Attempt:
    """One transaction: what it did and read so far."""

    transaction: Transaction
    done: list[tuple[tuple, object]] = field(default_factory=list)


async def perform(transaction: Transaction, step: tuple) -> object:
    match step:
        case ("get", name):
            return await transaction.get(name)
        case ("range", begin, end, limit, reverse):
            return await transaction.get_range(min(begin, end), max(begin, end), limit=limit, reverse=reverse)
        case ("set", name, new):
            transaction.set(name, new)
        case ("clear", name):
            transaction.clear(name)
        case ("clear_range", begin, end):
            transaction.clear_range(min(begin, end), max(begin, end))
        case ("add", name, operand):
            transaction.add(name, operand)
    return None


def model(state: dict[bytes, bytes], step: tuple) -> object:
    match step:
        case ("get", name):
            return state.get(name)
        case ("range", begin, end, limit, reverse):
            begin, end = min(begin, end), max(begin, end)
            rows = sorted(((k, v) for k, v in state.items() if begin <= k < end), reverse=reverse)
            return rows[:limit] if limit else rows
        case ("set", name, new):
            state[name] = new
        case ("clear", name):
            state.pop(name, None)
        case ("clear_range", begin, end):
            for found in [k for k in state if min(begin, end) <= k < max(begin, end)]:
                del state[found]
        case ("add", name, operand):
            state[name] = added(state.get(name), operand)
    return None


def replay(state: dict[bytes, bytes], attempt: Attempt) -> dict[bytes, bytes]:
    """The state after `attempt` ran alone on `state`; checks everything that it read."""
    after = dict(state)
    for step, seen in attempt.done:
        assert model(after, step) == seen, step
    return after


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(script=script)
async def test_interleaved_transactions_are_serializable(open_store: OpenStore, script: list) -> None:
    async with open_store() as store:
        states: dict[int, dict[bytes, bytes]] = {0: {}}
        attempts = [Attempt(store.transaction()) for _ in range(3)]
        for who, step in [*script, *((who, ("commit",)) for who in range(3))]:
            attempt = attempts[who]
            if step != ("commit",):
                attempt.done.append((step, await perform(attempt.transaction, step)))
                continue
            read_version = await attempt.transaction.read_version()
            try:
                version = await attempt.transaction.commit()
            except NotCommitted:
                assert max(states) > read_version, "a conflict needs a commit since the read"
            else:
                before = max(state for state in states if version != -1 or state <= read_version)
                states[max(version, before)] = replay(states[before], attempt)
            attempt.transaction.reset()
            attempt.done.clear()
        final = store.transaction()
        assert await final.get_range(b"", KEY_END) == sorted(states[max(states)].items())
        final.reset()
