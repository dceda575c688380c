"""The bytes of every key are fixed: data on disk depends on them."""

import pytest

from esker.meta import keys

OBJECT = bytes(range(16))

GOLDEN = [
    (keys.CLUSTER, "01"),
    (keys.ROUTING_VERSION, "02"),
    (keys.drive("d1"), "03 6431"),
    (keys.chain(258), "04 00000102"),
    (keys.table(1, 3), "05 00000001 00000003"),
    (keys.placement(1, 3, 1), "06 00000001 00000003 01"),
    (keys.chain_goal(258), "0a 00000102"),
    (keys.leaving("d1"), "0b 6431"),
    (keys.removed_drive("d1"), "0c 6431"),
    (keys.namespace(7), "10 00000007"),
    (keys.namespace_name("a/b"), "11 612f62"),
    (keys.NAMESPACE_LAST, "12"),
    (keys.block(7, OBJECT), "20 00000007 000102030405060708090a0b0c0d0e0f"),
    (keys.removal(7), "13 00000007"),
    (keys.counter(7, keys.BYTES, 9), "21 00000007 02 09"),
    (keys.report("d1"), "22 6431"),
]


@pytest.mark.parametrize(("key", "golden"), GOLDEN)
def test_golden_bytes(key: bytes, golden: str) -> None:
    assert key == bytes.fromhex(golden)


@pytest.mark.parametrize(("found", "inside", "outside"), [
    (keys.drives(), [keys.drive("a"), keys.drive("\U0010ffff" * 9)], [keys.ROUTING_VERSION, keys.chain(0)]),
    (keys.chains(), [keys.chain(0), keys.chain(2**32 - 1)], [keys.drive("z"), keys.table(0, 0)]),
    (keys.tables(), [keys.table(1, 1), keys.table(2**32 - 1, 2**32 - 1)], [keys.chain(1), keys.placement(0, 0, 0)]),
    (keys.namespaces(), [keys.namespace(1), keys.namespace(2**32 - 1)], [keys.namespace_name("a")]),
    (keys.blocks(7), [keys.block(7, bytes(16)), keys.block(7, b"\xff" * 16)], [keys.block(8, bytes(16))]),
    (keys.blocks(7, OBJECT), [keys.block(7, OBJECT[:15] + b"\x10")], [keys.block(7, OBJECT)]),
    (keys.blocks(2**32 - 1), [keys.block(2**32 - 1, b"\xff" * 16)], [keys.counter(0, 1, 0)]),
    (keys.removals(), [keys.removal(1), keys.removal(2**32 - 1)], [keys.NAMESPACE_LAST, keys.block(0, bytes(16))]),
    (keys.all_blocks(), [keys.block(0, bytes(16)), keys.block(2**32 - 1, b"\xff" * 16)], [keys.counter(0, 1, 0)]),
    (keys.counters_of(7), [keys.counter(7, 1, 0), keys.counter(7, 2, 15)], [keys.counter(6, 2, 15)]),
    (keys.reports(), [keys.report("a"), keys.report("z")], [keys.counter(2**32 - 1, 2, 15)]),
    (keys.counters(), [keys.counter(0, 1, 0), keys.counter(2**32 - 1, 2, 15)], [keys.block(1, OBJECT)]),
])  # fmt: skip
def test_ranges_hold_their_keys_and_no_others(found: keys.KeyRange, inside: list[bytes], outside: list[bytes]) -> None:
    begin, end = found
    assert all(begin <= key < end for key in inside)
    assert not any(begin <= key < end for key in outside)


def test_tables_of_keys_do_not_overlap() -> None:
    first_bytes = [bytes.fromhex(golden)[0] for _, golden in GOLDEN]
    assert len(set(first_bytes)) == len(first_bytes)


def test_parts_of_keys_come_back() -> None:
    assert keys.split_counter(keys.counter(9, keys.BLOCKS, 3)) == (9, keys.BLOCKS)
    assert keys.block_object(keys.block(9, OBJECT)) == OBJECT
    assert keys.namespace_id(keys.namespace(9)) == keys.namespace_id(keys.removal(9)) == 9
