"""What is sent on together: as much as one request carries, in the order in which it came."""

from esker.chunkserver.forward import Item, _batches
from esker.wire.ids import NO_PUT_ID
from esker.wire.limits import MIB, REQUEST_EXTENTS_MAX, REQUEST_PAYLOAD_BYTES_AIM
from esker.wire.messages import Method

VERSION = 5 << 40


def item(op: int, method: Method = Method.CREATE, length: int = 4096, space: int = 7, slot_bytes: int = MIB) -> Item:
    """An operation to be sent on; a removal's row has its version where a create's has the length."""
    if method is Method.REMOVE:
        return Item(op, method, space, 0, (b"o" * 16, 0, 1, 1, VERSION, NO_PUT_ID), b"", b"", None, 0, 1.0)
    row = (b"o" * 16, 0, 1, 1, length, 0, VERSION, length, 1, NO_PUT_ID, 3)
    return Item(op, method, space, slot_bytes, row, b"s" * 8, b"key", None, 0, 1.0)


def shape(items: list[Item]) -> list[list[int]]:
    """The operations of each batch."""
    return [[item.op for item in batch] for batch in _batches(items)]


def test_operations_of_a_kind_travel_together() -> None:
    for method in (Method.CREATE, Method.CONFIRM, Method.REMOVE):
        assert shape([item(op, method) for op in range(5)]) == [[0, 1, 2, 3, 4]]


def test_order_is_kept_where_kinds_alternate() -> None:
    methods = [Method.CREATE, Method.CREATE, Method.REMOVE, Method.CREATE, Method.CONFIRM, Method.CONFIRM]
    assert shape([item(op, method) for op, method in enumerate(methods)]) == [[0, 1], [2], [3], [4, 5]]


def test_other_spaces_and_slot_sizes_travel_apart() -> None:
    assert shape([item(0), item(1, space=8), item(2, space=8), item(3, slot_bytes=4096)]) == [[0], [1, 2], [3]]


def test_a_request_carries_no_more_than_it_may() -> None:
    per_request = REQUEST_PAYLOAD_BYTES_AIM // MIB
    large = [item(op, length=MIB) for op in range(2 * per_request + 1)]
    assert [len(batch) for batch in _batches(large)] == [per_request, per_request, 1]
    assert [len(batch) for batch in _batches([item(op, length=2 * REQUEST_PAYLOAD_BYTES_AIM) for op in range(2)])] == [
        1,
        1,
    ]
    many = [item(op, Method.REMOVE) for op in range(REQUEST_EXTENTS_MAX + 1)]
    assert [len(batch) for batch in _batches(many)] == [REQUEST_EXTENTS_MAX, 1]


def test_nothing_makes_no_request() -> None:
    assert _batches([]) == []
