"""Rows as operators read them: every table is known, damage is shown instead of hidden, secrets are not shown."""

import re

import msgspec
import pytest

from esker.meta import keys
from esker.meta.admin_decode import TABLES, describe, make_key, parse_key, split_key, table_of
from esker.meta.catalog import REPORT_PLACE
from esker.meta.catalog_record import StoredBlock, pack_block
from esker.meta.records import pack
from esker.meta.store.errors import printable
from esker.wire.errors import UserError
from esker.wire.types import Chain, Geometry, Namespace, Replica

from .test_keys import GOLDEN

OBJECT = bytes(range(16))


def test_there_is_a_table_for_every_line_of_the_key_table() -> None:
    assert keys.__doc__ is not None
    documented = {int(first, 16) for first in re.findall(r"^    ([0-9a-f]{2}) ", keys.__doc__, re.MULTILINE)}
    assert {table.first for table in TABLES} == documented
    assert len({table.name for table in TABLES}) == len(TABLES)


@pytest.mark.parametrize("key", [key for key, _ in GOLDEN], ids=printable)
def test_every_key_comes_apart_and_together_again(key: bytes) -> None:
    table = table_of(key)
    assert table is not None
    fields = split_key(table, key)
    assert make_key(table.name, [str(part) for part in fields.values()]) == key
    assert parse_key(printable(key)) == key
    begin, end = table.key_range
    assert begin <= key < end


def test_rows_are_shown_with_their_fields() -> None:
    chain = Chain(3, 2, (Replica("a", incarnation="life"), Replica("b")), 1)
    assert describe(keys.chain(3), pack(chain)) == {
        "key": "\\x04\\x00\\x00\\x00\\x03",
        "value_bytes": len(pack(chain)),
        "table": "chain",
        "fields": {"chain_id": 3},
        "value": {
            "chain_id": 3,
            "version": 2,
            "replicas": [
                {"drive_id": "a", "state": "serving", "incarnation": "life"},
                {"drive_id": "b", "state": "serving", "incarnation": ""},
            ],
            "min_replicas": 1,
        },
    }
    block = describe(keys.block(7, OBJECT), pack_block(StoredBlock(b"k\x00", 5, 1, 2, 3, 4)))
    assert block["fields"] == {"namespace_id": 7, "object": OBJECT.hex()}
    assert block["value"] == {
        "key": "k\\x00",
        "block_bytes": 5,
        "chunk_count": 1,
        "created_ms": 2,
        "chain_id": 3,
        "version": 4,
    }
    counter = describe(keys.counter(7, keys.BYTES, 9), (-5).to_bytes(8, "little", signed=True))
    assert (counter["fields"], counter["value"]) == ({"namespace_id": 7, "figure": 2, "shard": 9}, -5)
    assert describe(keys.report("d1"), REPORT_PLACE.pack(2, 3))["value"] == {"life": 2, "number": 3}
    assert describe(keys.placement(1, 1, 0), bytes(65536))["value"] == "65536 bytes"


def test_salts_are_not_shown() -> None:
    namespace = Namespace(1, "a", Geometry(block_bytes_max=4096).resolved(), b"0123456789", 1, 1)
    shown = describe(keys.namespace(1), pack(namespace))
    assert shown["value"]["salt"] == "(secret)"
    assert "0123456789" not in msgspec.json.encode(shown).decode()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (keys.chain(3), b"\x01garbage"),
        (keys.chain(3) + b"x", pack(Chain(3, 1, ()))),
        (keys.chain(3)[:-1], pack(Chain(3, 1, ()))),
        (keys.NAMESPACE_LAST, b"\x01"),
        (keys.block(7, OBJECT), b"\x01\x02"),
        (keys.report("d1"), b"short"),
        (b"\x03\xff\xfe", b""),
        (b"\x7funknown", b"\x01" * 100),
    ],
)
def test_damage_is_shown_as_such(key: bytes, value: bytes) -> None:
    shown = describe(key, value)
    assert shown["damage"]
    assert shown["raw"].removesuffix("...") == value[:64].hex()


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["chains", "1"], "there are: cluster, "),
        (["chain"], "is written: chain CHAIN_ID"),
        (["chain", "x"], "chain_id 'x' is not a number of 4 bytes"),
        (["chain", str(2**32)], "is not a number"),
        (["block", "1", "00"], "object '00' is not 32 hexadecimal digits"),
        (["cluster", "1"], "is written: cluster$"),
    ],
)
def test_keys_that_are_none_are_refused(words: list[str], complaint: str) -> None:
    with pytest.raises(UserError, match=complaint):
        make_key(words[0], words[1:])


@pytest.mark.parametrize("text", ["\\x0", "ä", "\\u1234"])
def test_printed_keys_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(UserError, match="write ASCII as it is"):
        parse_key(text)
