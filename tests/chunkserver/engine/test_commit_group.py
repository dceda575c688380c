"""What a group does to the index, for every mixture of operations on a few keys."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from esker.chunkserver.engine.commit_group import Operation, Put, Remove, StatePut, plan_group
from esker.chunkserver.engine.record import Record, encode_record, record_key
from esker.chunkserver.engine.slot_files import Slot
from esker.wire.ids import NO_PUT_ID, chunk_id
from esker.wire.status import Status

KEYS = [record_key(1, chunk_id(1, bytes([number]) * 16)) for number in range(3)]
A, B = b"a" * 16, b"b" * 16


def ignore(*_: Any) -> None:
    """Nobody waits for these."""


def value(key: bytes, slot: int, *, version: int = 1, put_id: bytes = A) -> bytes:
    return encode_record(key, Record(10, version, 1, 10, 1, put_id, 0, bytes(8), b"", 1, slot))


def put(key: bytes, slot: int, *, version: int = 1, put_id: bytes = A) -> Put:
    return Put(key, value(key, slot, version=version, put_id=put_id), Slot(1, slot, 0, 0, 4096), ignore, None)


def remove(key: bytes, version: int = 0, put_id: bytes = NO_PUT_ID) -> Remove:
    return Remove(key, version, put_id, ignore, None)


def test_a_put_of_an_absent_key() -> None:
    plan = plan_group([put(KEYS[0], 5)], {}.get)
    assert plan.statuses == [Status.OK]
    assert plan.puts == [(KEYS[0], value(KEYS[0], 5))]
    assert not plan.deletes
    assert not plan.freed


def test_a_put_over_another_frees_its_slot() -> None:
    plan = plan_group([put(KEYS[0], 5)], {KEYS[0]: value(KEYS[0], 4)}.get)
    assert plan.statuses == [Status.OK]
    assert plan.freed == [(1, 4)]


def test_removals_and_their_conditions() -> None:
    stored = {KEYS[0]: value(KEYS[0], 4, version=7, put_id=A)}
    for operation, status in (
        (remove(KEYS[0]), Status.OK),
        (remove(KEYS[0], 7), Status.OK),
        (remove(KEYS[0], 7, A), Status.OK),
        (remove(KEYS[0], 0, A), Status.OK),
        (remove(KEYS[0], 8), Status.CONDITION),
        (remove(KEYS[0], 7, B), Status.CONDITION),
        (remove(KEYS[0], 0, B), Status.CONDITION),
        (remove(KEYS[1]), Status.NOT_FOUND),
        (remove(KEYS[1], 7, A), Status.NOT_FOUND),
    ):
        plan = plan_group([operation], stored.get)
        assert plan.statuses == [status]
        assert plan.freed == ([(1, 4)] if status is Status.OK else [])
        assert not plan.puts
        assert (KEYS[0] in plan.deletes) == (status is Status.OK)


def test_a_corrupt_record_counts_as_absent() -> None:
    stored = {KEYS[0]: b"garbage" * 20, KEYS[1]: b"garbage" * 20, KEYS[2]: b"garbage" * 20}
    plan = plan_group([put(KEYS[0], 5), remove(KEYS[1]), remove(KEYS[2], 3, A)], stored.get)
    assert plan.statuses == [Status.OK, Status.NOT_FOUND, Status.NOT_FOUND]
    assert plan.deletes == KEYS[1:]
    assert plan.corrupt == 3
    assert not plan.freed


def test_the_last_state_holds() -> None:
    operations: list[Operation] = [
        StatePut(b"routing", b"1", ignore, None),
        put(KEYS[0], 1),
        StatePut(b"routing", b"2", ignore, None),
        StatePut(b"versions", b"x", ignore, None),
    ]
    plan = plan_group(operations, {}.get)
    assert plan.states == {b"routing": b"2", b"versions": b"x"}
    assert plan.statuses == [Status.OK] * 4


OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.sampled_from(KEYS), st.sampled_from([1, 2]), st.sampled_from([A, B])),
        st.tuples(
            st.just("remove"), st.sampled_from(KEYS), st.sampled_from([0, 1, 2]), st.sampled_from([NO_PUT_ID, A])
        ),
    ),
    max_size=20,
)


@given(OPERATIONS, st.sets(st.sampled_from(KEYS)))
def test_a_group_is_its_operations_one_by_one(
    described: list[tuple[str, bytes, int, bytes]], present: set[bytes]
) -> None:
    """Against a model that applies each operation at once: same outcomes, same index, and every slot accounted for."""
    stored = {key: value(key, 100 + number) for number, key in enumerate(sorted(present))}
    model = {key: (100 + number, 1, A) for number, key in enumerate(sorted(present))}
    operations: list[Operation] = []
    statuses = []
    for number, (kind, key, version, put_id) in enumerate(described):
        if kind == "put":
            operations.append(put(key, number, version=version, put_id=put_id))
            model[key] = (number, version, put_id)
            statuses.append(Status.OK)
        else:
            operations.append(remove(key, version, put_id))
            if key not in model:
                statuses.append(Status.NOT_FOUND)
            elif version not in (0, model[key][1]) or put_id not in (NO_PUT_ID, model[key][2]):
                statuses.append(Status.CONDITION)
            else:
                del model[key]
                statuses.append(Status.OK)
    plan = plan_group(operations, stored.get)
    assert plan.statuses == statuses
    after = dict(stored)
    for key in plan.deletes:
        after.pop(key, None)
    after.update(plan.puts)
    assert after == {
        key: value(key, slot, version=version, put_id=put_id) for key, (slot, version, put_id) in model.items()
    }
    assert [key for key, _ in plan.puts] == sorted(key for key, _ in plan.puts)
    everywhere = {100 + number for number in range(len(present))} | {
        number for number, each in enumerate(described) if each[0] == "put"
    }
    assert sorted(slot for _, slot in plan.freed) == sorted(everywhere - {slot for slot, _, _ in model.values()})
