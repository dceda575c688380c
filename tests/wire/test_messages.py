"""The protocol does not change by accident: golden values of every message, column, method and status."""

import inspect
from struct import Struct
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from esker.wire import messages
from esker.wire.codec import decode_body, encode_body
from esker.wire.errors import RequestFailed
from esker.wire.limits import REQUEST_EXTENTS_MAX
from esker.wire.messages import Hello, Message, Method, Read
from esker.wire.status import Status

from .golden_messages import GOLDEN

each = pytest.mark.parametrize(("message", "values"), GOLDEN, ids=[type(message).__name__ for message, _ in GOLDEN])
MESSAGE_TYPES = [
    found
    for _, found in inspect.getmembers(messages, inspect.isclass)
    if issubclass(found, Message) and found is not Message and found.__module__ == messages.__name__
]


def holds(values: Any, golden: Any) -> bool:
    """Whether `values` say what `golden` says, and at most something more behind it."""
    if isinstance(golden, list):
        return isinstance(values, list) and len(values) >= len(golden) and all(map(holds, values, golden))
    if isinstance(golden, dict):
        return isinstance(values, dict) and all(name in values and holds(values[name], golden[name]) for name in golden)
    return type(values) is type(golden) and values == golden


@each
def test_what_travels(message: Message, values: list[Any]) -> None:
    sent = msgspec.msgpack.decode(encode_body(message))
    assert holds(sent, values), f"{type(message).__name__} now travels as {sent}; a released peer expects {values}"


@each
def test_golden_bytes_are_understood(message: Message, values: list[Any]) -> None:
    assert decode_body(type(message), msgspec.msgpack.encode(values)) == message


@each
def test_a_newer_peer_may_say_more(message: Message, values: list[Any]) -> None:
    more = [*msgspec.msgpack.decode(encode_body(message)), {"new": [1, 2]}, None]
    assert decode_body(type(message), msgspec.msgpack.encode(more)) == message


@each
def test_an_older_peer_may_leave_out_what_has_a_default(message: Message, values: list[Any]) -> None:
    fields = msgspec.structs.fields(type(message))
    while fields and not fields[-1].required:
        fields, values = fields[:-1], values[: len(fields) - 1]
        older = decode_body(type(message), msgspec.msgpack.encode(values))
        for field in fields:
            assert getattr(older, field.name) == getattr(message, field.name)


@each
def test_a_body_cut_short_or_of_another_type_is_a_bad_request(message: Message, values: list[Any]) -> None:
    body = encode_body(message)
    required = sum(field.required for field in msgspec.structs.fields(type(message)))
    malformed = [body[:cut] for cut in range(len(body))] + [b"\xc0", b"\xa1x", b"\x80", b"\xff" * 9]
    malformed += [msgspec.msgpack.encode(values[:count]) for count in range(required)]
    for at in range(len(values)):
        malformed.append(msgspec.msgpack.encode([*values[:at], [[[]]], *values[at + 1 :]]))
    for wrong in malformed:
        with pytest.raises(RequestFailed, match=f"^BAD_REQUEST: malformed {type(message).__name__}: "):
            decode_body(type(message), wrong)


def test_every_message_has_golden_values() -> None:
    assert {type(message) for message, _ in GOLDEN} == set(MESSAGE_TYPES)


def test_messages_travel_as_arrays_of_untracked_frozen_values() -> None:
    for message_type in MESSAGE_TYPES:
        config = message_type.__struct_config__
        assert (config.array_like, config.frozen, config.gc) == (True, True, False), message_type


@given(st.binary(max_size=200))
def test_random_bodies_raise_nothing_else(noise: bytes) -> None:
    for message_type in MESSAGE_TYPES:
        status = Status.BAD_REQUEST
        try:
            assert isinstance(decode_body(message_type, noise), message_type)
        except RequestFailed as failure:
            status = failure.status
        assert status is Status.BAD_REQUEST


@pytest.mark.parametrize(
    "nested", [b"\x91" * 100_000, b"\x97" + encode_body(Hello((), "", "", "", ""))[1:] + b"\x91" * 100_000]
)
def test_nesting_without_end_is_a_bad_request(nested: bytes) -> None:
    with pytest.raises(RequestFailed, match=r"^BAD_REQUEST: malformed Hello: "):
        decode_body(Hello, nested)


def test_golden_body() -> None:
    assert encode_body(Read(9, b"extents", 3, 1000)).hex() == "9409c407657874656e747303cd03e8"


@pytest.mark.parametrize(
    ("column", "row", "golden"),
    [
        (messages.READ_EXTENT, (1, 2, 3, 4), "01000000 02000000 03000000 0400000000000000"),
        (
            messages.READ_RESULT,
            (1, 2, 3, 4, 5, 6, b"p" * 16),
            "0100 0200 03000000 0400000000000000 0500000000000000 06000000" + "70" * 16,
        ),
        (
            messages.CREATE_EXTENT,
            (1, 2, 3, 4, 5, 6, 7, 8, b"p" * 16, 9),
            "01000000 02000000 03000000 04000000 05000000 0600000000000000 0700000000000000 08000000"
            + "70" * 16
            + "0900",
        ),
        (messages.CREATE_RESULT, (1, 2, 3, 4, b"p" * 16), "0100 0200 0300000000000000 04000000" + "70" * 16),
        (
            messages.REMOVE_EXTENT,
            (1, 2, 3, 4, b"p" * 16),
            "01000000 02000000 03000000 0400000000000000" + "70" * 16,
        ),
        (messages.REMOVE_RESULT, (1, 2), "0100 0200"),
        (messages.LOOKUP_KEY, (1,), "01000000"),
    ],
    ids=["read", "read result", "create", "create result", "remove", "remove result", "lookup"],
)
def test_golden_columns(column: Struct, row: tuple[Any, ...], golden: str) -> None:
    with_object = column.format.startswith("<16s")
    expected = (b"o" * 16 if with_object else b"") + bytes.fromhex(golden)
    assert column.pack(*((b"o" * 16,) if with_object else ()), *row) == expected


def test_extent_numbers_fit_their_column() -> None:
    assert REQUEST_EXTENTS_MAX <= 2**16


METHODS = {
    "HELLO": 1,
    "CANCEL": 2,
    "REGISTER_MEMORY": 3,
    "RELEASE_MEMORY": 4,
    "STATS": 5,
    "READ": 16,
    "CREATE": 17,
    "REMOVE": 18,
    "LOOKUP": 19,
    "CONFIRM": 20,
    "JOIN": 64,
    "HEARTBEAT": 65,
    "ROUTING": 66,
    "NAMESPACE_OPEN": 67,
    "NAMESPACE_LIST": 68,
    "CATALOG_REPORT": 69,
    "CATALOG_LIST": 70,
    "CLUSTER_STATUS": 71,
}
STATUSES = {
    "OK": 0,
    "EXISTS": 1,
    "EXISTS_OTHER": 2,
    "NOT_FOUND": 3,
    "NO_SPACE": 4,
    "BUSY": 5,
    "TIMEOUT": 6,
    "UNAVAILABLE": 7,
    "CHECKSUM": 8,
    "CHAIN_VERSION": 9,
    "CONDITION": 10,
    "TOO_LARGE": 11,
    "BAD_REQUEST": 12,
    "UNSUPPORTED_VERSION": 13,
    "WRONG_CLUSTER": 14,
    "IO_ERROR": 15,
    "BAD_MEMORY": 16,
    "NOT_READY": 17,
    "GEOMETRY": 18,
    "FORBIDDEN": 19,
    "INTERNAL": 20,
    "CANCELLED": 21,
    "CONFLICT": 22,
}


def test_numbers_of_methods_never_change() -> None:
    assert METHODS.items() <= {method.name: method.value for method in Method}.items()
    assert all(0 < method < 2**16 for method in Method)


def test_numbers_of_statuses_never_change() -> None:
    assert STATUSES.items() <= {status.name: status.value for status in Status}.items()
    assert all(0 <= status < 2**16 for status in Status)
