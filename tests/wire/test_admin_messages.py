"""Bodies of operators' requests: fixed columns, and bodies of earlier senders that lack the later fields."""

import msgspec

from esker.wire.admin_messages import BLOCK_PLACE, RECORD_KEY, SCAN_ROW, Scan, space_before, split_record_key
from esker.wire.codec import decode_body, encode_body
from esker.wire.ids import chunk_id
from esker.wire.messages import CatalogEntry, CatalogLag, CatalogReport, Heartbeat, Method, WorkerStatus
from esker.wire.status import Status

OBJECT = bytes(range(16))


def test_columns_have_fixed_bytes() -> None:
    key = RECORD_KEY.pack(3, chunk_id(7, OBJECT, 2))
    assert key == bytes.fromhex("00000003 00000007") + OBJECT + bytes.fromhex("00000002")
    row = SCAN_ROW.pack(key, 1, 2, 3, 4, bytes(16), 5, 6)
    assert row == key + bytes.fromhex(
        "0100000000000000 02000000 0300000000000000 04000000" + 16 * "00" + "0500000000000000 0600"
    )
    assert BLOCK_PLACE.pack(OBJECT, 3, 9) == OBJECT + bytes.fromhex("03000000 0900000000000000")


def test_numbers_are_part_of_the_protocol() -> None:
    numbers = {method.name: method.value for method in Method if method in range(24, 32) or method >= 80}
    assert numbers == {
        "SCAN": 24,
        "REPORT_BLOCKS": 25,
        "CATALOG_CHECKED": 26,
        "DAMAGED": 27,
        "SCRUB": 28,
        "CATALOG_GET": 80,
        "NAMESPACE_FIGURES": 81,
        "NAMESPACE_REMOVE": 82,
        "META_PAGE": 83,
        "META_SNAPSHOT": 84,
        "META_CHANGE": 85,
        "SET_GOALS": 90,
        "EXPAND": 91,
        "FORGET_DRIVES": 92,
        "FORCE_CHAIN": 93,
        "SET_MIN_REPLICAS": 94,
    }
    assert Status.NAMESPACE_REMOVED == 23


def test_bodies_without_the_later_fields_are_read() -> None:
    pack = msgspec.msgpack.encode
    assert decode_body(Heartbeat, pack(["d", "i", 1, 2, 3])).catalog == CatalogLag()
    assert decode_body(CatalogEntry, pack([1, OBJECT, b"k", 1, 1, 5])) == CatalogEntry(1, OBJECT, b"k", 1, 1, 5, 0, 0)
    assert decode_body(CatalogReport, pack([[]])) == CatalogReport((), "", 0, 0)
    assert decode_body(Scan, pack([1, b"", 5])) == Scan(1, b"", 5, 0, False, 0)
    worker = {"drive_id": "d", "node_id": "n", "host": "h", "port": 1, "socket_path": "", "boot_id": "b"}
    worker |= {"incarnation": "i", "capacity_bytes": 1}
    assert decode_body(WorkerStatus, pack([worker, 1.0, 2, 3])).catalog == CatalogLag()


def test_lag_travels_with_the_heartbeat() -> None:
    beat = Heartbeat("d", "i", 1, 2, 3, catalog=CatalogLag(1, 2, 3, 4))
    assert decode_body(Heartbeat, encode_body(beat)) == beat


def test_spaces_follow_each_other() -> None:
    for chain_id, space in ((1, 1), (1, 2**32 - 1), (2**32 - 1, 5)):
        before = space_before(chain_id, space)
        assert before < RECORD_KEY.pack(chain_id, chunk_id(space, bytes(16)))
        assert split_record_key(before) == (chain_id, space - 1, b"\xff" * 16, 2**32 - 1)
