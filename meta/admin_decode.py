"""The rows of the metadata store as an operator can read them: which table, which key, what it says.

One entry per table of `keys.py`; a test compares the two. Decoding never fails: what is damaged or unknown is shown as
such, byte by byte, because this is what people look at when something is wrong. Salts stay secret.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

import msgspec

from esker.meta import keys
from esker.meta.catalog import REPORT_PLACE
from esker.meta.catalog_record import unpack_block
from esker.meta.records import ClusterRecord, ManagerTerm, MetaServer, RemovedDrive, StoredRemoval, unpack
from esker.meta.store.base import KEY_BYTES_MAX, KEY_END
from esker.meta.store.errors import StoreError, printable
from esker.wire.errors import UserError
from esker.wire.types import Chain, ChainGoal, ChainTable, Leaving, Namespace, Worker

VALUE_BYTES_SHOWN = 64
Fields = dict[str, Any]


@dataclass(frozen=True, slots=True)
class KeyField:
    """A part of a key: `width` bytes of a number or of an id; 0: the rest, as text."""

    name: str
    width: int
    is_number: bool = True


@dataclass(frozen=True, slots=True)
class Table:
    """One table: its name, the first byte of its keys, their parts, and how its values are read."""

    name: str
    first: int
    parts: tuple[KeyField, ...]
    decode: Callable[[bytes, bytes], Any]
    """Takes key and value. Raises `StoreError` or `ValueError` for damage."""

    @property
    def key_range(self) -> keys.KeyRange:
        """All its rows."""
        return bytes([self.first]), bytes([self.first + 1])


def _number(width: int, *, signed: bool = False) -> Callable[[bytes, bytes], int]:
    def decode(key: bytes, value: bytes) -> int:
        if len(value) != width:
            raise ValueError(f"{len(value)} bytes where {width} should be")
        return int.from_bytes(value, "little", signed=signed)

    return decode


def _struct(kind: type[msgspec.Struct]) -> Callable[[bytes, bytes], Any]:
    return lambda key, value: unpack(kind, key, value)


def _raw(key: bytes, value: bytes) -> str:
    return f"{len(value)} bytes"


def _place(key: bytes, value: bytes) -> Fields:
    if len(value) != REPORT_PLACE.size:
        raise ValueError(f"{len(value)} bytes where {REPORT_PLACE.size} should be")
    life, number = REPORT_PLACE.unpack(value)
    return {"life": life, "number": number}


_TEXT = 0
TABLES = (
    Table("cluster", 0x01, (), _struct(ClusterRecord)),
    Table("routing-version", 0x02, (), _number(8)),
    Table("drive", 0x03, (KeyField("drive_id", _TEXT),), _struct(Worker)),
    Table("chain", 0x04, (KeyField("chain_id", 4),), _struct(Chain)),
    Table("chain-table", 0x05, (KeyField("table_id", 4), KeyField("version", 4)), _struct(ChainTable)),
    Table("placement", 0x06, (KeyField("table_id", 4), KeyField("version", 4), KeyField("part", 1)), _raw),
    Table("meta-server", 0x07, (KeyField("address", _TEXT),), _struct(MetaServer)),
    Table("manager", 0x08, (), _struct(ManagerTerm)),
    Table("manager-beats", 0x09, (), _number(8)),
    Table("chain-goal", 0x0A, (KeyField("chain_id", 4),), _struct(ChainGoal)),
    Table("leaving", 0x0B, (KeyField("drive_id", _TEXT),), _struct(Leaving)),
    Table("removed-drive", 0x0C, (KeyField("drive_id", _TEXT),), _struct(RemovedDrive)),
    Table("namespace", 0x10, (KeyField("namespace_id", 4),), _struct(Namespace)),
    Table("namespace-name", 0x11, (KeyField("name", _TEXT),), _number(4)),
    Table("namespace-last", 0x12, (), _number(4)),
    Table("removal", 0x13, (KeyField("namespace_id", 4),), _struct(StoredRemoval)),
    Table("block", 0x20, (KeyField("namespace_id", 4), KeyField("object", 16, False)), unpack_block),
    Table(
        "counter",
        0x21,
        (KeyField("namespace_id", 4), KeyField("figure", 1), KeyField("shard", 1)),
        _number(8, signed=True),
    ),
    Table("report", 0x22, (KeyField("drive_id", _TEXT),), _place),
)
_BY_FIRST = {table.first: table for table in TABLES}
_BY_NAME = {table.name: table for table in TABLES}


def table_named(name: str) -> Table:
    """Raises `UserError`, naming the tables there are."""
    table = _BY_NAME.get(name)
    if table is None:
        raise UserError(f"there is no table {name!r}; there are: {', '.join(_BY_NAME)}")
    return table


def table_of(key: bytes) -> Table | None:
    """The table that a key belongs to, if its first byte says so."""
    return _BY_FIRST.get(key[0]) if key else None


def make_key(name: str, parts: list[str]) -> bytes:
    """The key of a row from its table's name and the parts of its key as people write them: numbers in decimal, ids in
    hexadecimal, text as it is. Raises `UserError`.
    """
    table = table_named(name)
    if len(parts) != len(table.parts):
        wanted = " ".join(part.name.upper() for part in table.parts)
        raise UserError(f"a key of table {name} is written: {name} {wanted}".rstrip())
    key = bytes([table.first])
    for part, text in zip(table.parts, parts, strict=True):
        try:
            key += _part(part, text)
        except (ValueError, OverflowError):
            if part.width == _TEXT:
                raise UserError(f"{part.name} {text!r} is not text") from None
            kind = "a number" if part.is_number else f"{2 * part.width} hexadecimal digits"
            raise UserError(f"{part.name} {text!r} is not {kind} of {part.width} bytes") from None
    return key


def _part(part: KeyField, text: str) -> bytes:
    if part.width == _TEXT:
        return text.encode()
    piece = int(text).to_bytes(part.width, "big") if part.is_number else bytes.fromhex(text)
    if len(piece) != part.width:
        raise ValueError(text)
    return piece


def parse_key(text: str) -> bytes:
    """The key that error messages print like this: ASCII as it is, all else as \\xNN. Raises `UserError`."""
    try:
        key = text.encode("ascii").decode("unicode_escape").encode("latin-1")
    except (UnicodeDecodeError, UnicodeEncodeError):
        raise UserError(f"key {text!r}; write ASCII as it is, other bytes as \\xNN") from None
    if not b"" < key < KEY_END or len(key) > KEY_BYTES_MAX:
        raise UserError(f"key {text!r}; keys have 1 to {KEY_BYTES_MAX} bytes, the first one below \\xff")
    return key


def split_key(table: Table, key: bytes) -> Fields:
    """The parts of a key by name. Raises `ValueError` where they do not fit it."""
    fields: Fields = {}
    at = 1
    for part in table.parts:
        end = len(key) if part.width == _TEXT else at + part.width
        piece = key[at:end]
        if part.width == _TEXT:
            fields[part.name] = piece.decode()
        elif len(piece) < part.width:
            raise ValueError(f"{part.name} is cut off")
        else:
            fields[part.name] = int.from_bytes(piece, "big") if part.is_number else piece.hex()
        at = end
    if at != len(key):
        raise ValueError(f"{len(key) - at} bytes too many")
    return fields


def decoded_value(table: Table, key: bytes, value: bytes) -> Any:
    """The value as the table's type. Raises `StoreError`, `ValueError`."""
    return table.decode(key, value)


def describe(key: bytes, value: bytes) -> Fields:
    """A row for people and for JSON; what is wrong with it stands under `damage`."""
    row: Fields = {"key": printable(key), "value_bytes": len(value)}
    table = table_of(key)
    if table is None:
        return {**row, "table": "unknown", "damage": "no table has such keys", "raw": _shown(value)}
    row["table"] = table.name
    try:
        row["fields"] = split_key(table, key)
        row["value"] = plain(decoded_value(table, key, value))
    except (StoreError, ValueError) as error:
        row["damage"] = str(error)
        row["raw"] = _shown(value)
    return row


def plain(value: Any) -> Any:
    """`value` in numbers, text, lists and dictionaries."""
    if isinstance(value, msgspec.Struct):
        return {name: _secret(name, plain(getattr(value, name))) for name in value.__struct_fields__}
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return {name: plain(part) for name, part in value._asdict().items()}
    if isinstance(value, tuple | list):
        return [plain(part) for part in value]
    if isinstance(value, bytes):
        return printable(value)
    return value.value if isinstance(value, Enum) else value


def _secret(name: str, value: Any) -> Any:
    return "(secret)" if name == "salt" else value


def _shown(value: bytes) -> str:
    return value[:VALUE_BYTES_SHOWN].hex() + ("..." if len(value) > VALUE_BYTES_SHOWN else "")
