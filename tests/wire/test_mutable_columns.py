"""Messages about mutable chunks: what travels does not change by accident, and nothing is used before it is checked."""

import inspect
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from esker.wire import mutable_messages
from esker.wire.codec import decode_body, encode_body
from esker.wire.errors import RequestFailed
from esker.wire.limits import CHECKSUM_BLOCK_BYTES, CHUNK_BYTES_MAX, KIB, MIB
from esker.wire.messages import Message
from esker.wire.mutable_columns import RangeRow, covered, range_rows, update_rows, write_rows
from esker.wire.mutable_messages import (
    CHANNEL_ROW,
    CHUNK_EXTENT,
    CHUNK_STAT_RESULT,
    IMAGE_ROW,
    READ_RANGE_EXTENT,
    READ_RANGE_RESULT,
    UPDATE_EXTENT,
    UPDATE_RESULT,
    VERSION_QUERY_RESULT,
    WRITE_EXTENT,
    WRITE_RESULT,
    Channels,
    ChunkStat,
    ChunkStatReply,
    FetchImage,
    FetchImageReply,
    PatchKind,
    ReadRange,
    ReadRangeReply,
    ScanImages,
    ScanImagesReply,
    Update,
    UpdateReply,
    VersionQuery,
    VersionQueryReply,
    Write,
    WriteReply,
)
from esker.wire.status import Status

OBJECT, CLIENT = b"o" * 16, b"c" * 16
GOLDEN: list[tuple[Message, list[Any]]] = [
    (Write(CLIENT, b"e", b"s", 1, 2), [CLIENT, b"e", b"s", 1, 2]),
    (WriteReply(b"r"), [b"r"]),
    (ReadRange(b"e", 1, 2), [b"e", 1, 2]),
    (ReadRangeReply(b"r", b"s"), [b"r", b"s"]),
    (ChunkStat(b"e", 1), [b"e", 1]),
    (ChunkStatReply(b"r"), [b"r"]),
    (VersionQuery(b"e", 1), [b"e", 1]),
    (VersionQueryReply(b"r"), [b"r"]),
    (FetchImage(b"e", 1, 2), [b"e", 1, 2]),
    (FetchImageReply(1, b"s", 2), [1, b"s", 2]),
    (Update(b"e", b"s", 1, 2), [b"e", b"s", 1, 2]),
    (UpdateReply(b"r"), [b"r"]),
    (Channels(1, 2, b"r"), [1, 2, b"r"]),
    (ScanImages(1, 2, b"a", 3, 4), [1, 2, b"a", 3, 4]),
    (ScanImagesReply(b"r", True), [b"r", True]),
]
COLUMNS = {
    "WRITE_EXTENT": "<16sIIIBIQIIQIQ",
    "WRITE_RESULT": "<HHQI",
    "READ_RANGE_EXTENT": "<16sIIIIIQ",
    "READ_RANGE_RESULT": "<HHQIII",
    "CHUNK_EXTENT": "<16sIII",
    "CHUNK_STAT_RESULT": "<HHQIQ",
    "VERSION_QUERY_RESULT": "<HHQ",
    "UPDATE_EXTENT": "<16sIIIBBQQQIIQIQIQ16sIQ",
    "UPDATE_RESULT": "<HHQ",
    "CHANNEL_ROW": "<16sIQQI",
    "IMAGE_ROW": "<16sIQQIQQ",
}


@pytest.mark.parametrize(("message", "values"), GOLDEN, ids=[type(message).__name__ for message, _ in GOLDEN])
def test_what_travels(message: Message, values: list[Any]) -> None:
    body = encode_body(message)
    assert msgspec.msgpack.decode(body)[: len(values)] == values
    assert decode_body(type(message), body) == message


def test_every_message_and_column_has_a_golden_value() -> None:
    found = {
        each
        for _, each in inspect.getmembers(mutable_messages, inspect.isclass)
        if issubclass(each, Message) and each.__module__ == mutable_messages.__name__
    }
    assert found == {type(message) for message, _ in GOLDEN}
    columns = (
        WRITE_EXTENT, WRITE_RESULT, READ_RANGE_EXTENT, READ_RANGE_RESULT, CHUNK_EXTENT, CHUNK_STAT_RESULT,
        VERSION_QUERY_RESULT, UPDATE_EXTENT, UPDATE_RESULT, CHANNEL_ROW, IMAGE_ROW,
    )  # fmt: skip
    assert [column.format for column in columns] == list(COLUMNS.values())
    assert [(kind.name, kind.value) for kind in PatchKind] == [("WRITE", 0), ("TRUNCATE", 1), ("REMOVE", 2)]


def write(
    kind: int = 0,
    offset: int = 0,
    length: int = 5,
    slot_bytes: int = MIB,
    *,
    sequence: int = 1,
    client: bytes = CLIENT,
    sums: bytes = bytes(8),
) -> Write:
    extent = WRITE_EXTENT.pack(OBJECT, 1, 2, 3, kind, 4, sequence, offset, length, 6, slot_bytes, 7)
    return Write(client, extent, sums, 0, 1000)


def update(
    kind: int = 0,
    full: int = 0,
    version: int = 9,
    length: int = 5,
    image: int = 5,
    slot_bytes: int = MIB,
    sums: bytes = bytes(8),
) -> Update:
    extent = UPDATE_EXTENT.pack(
        OBJECT, 1, 2, 3, kind, full, 4, 8, version, 0, length, 6, image, 6, slot_bytes, 0, CLIENT, 5, 6
    )
    return Update(extent, sums, 0, 1000)


def status_of(call: Any, *arguments: Any) -> Status:
    with pytest.raises(RequestFailed) as failure:
        call(*arguments)
    return failure.value.status


def test_writes_that_may_pass() -> None:
    ((row, sums),) = write_rows(write())
    assert (row.object_id, row.chunk_index, row.channel, row.payload_bytes, sums) == (OBJECT, 1, 4, 5, bytes(8))
    ((row, sums),) = write_rows(write(PatchKind.TRUNCATE, length=500, sums=b""))
    assert (row.length, row.payload_bytes, sums) == (500, 0, b"")
    ((row, _),) = write_rows(write(PatchKind.REMOVE, length=0, sums=b""))
    assert row.payload_bytes == 0
    assert len(write_rows(write(offset=MIB - 5))) == 1


@pytest.mark.parametrize(
    ("message", "status"),
    [
        (write(3, sums=b""), Status.BAD_REQUEST),
        (write(length=0, sums=b""), Status.BAD_REQUEST),
        (write(sequence=0), Status.BAD_REQUEST),
        (write(client=bytes(16)), Status.BAD_REQUEST),
        (write(client=b"short"), Status.BAD_REQUEST),
        (write(sums=b""), Status.BAD_REQUEST),
        (write(sums=bytes(16)), Status.BAD_REQUEST),
        (write(slot_bytes=0), Status.BAD_REQUEST),
        (write(slot_bytes=4097), Status.BAD_REQUEST),
        (write(slot_bytes=CHUNK_BYTES_MAX + 4096), Status.BAD_REQUEST),
        (write(offset=MIB - 4), Status.TOO_LARGE),
        (write(offset=2**32 - 1, length=2**32 - 1, sums=b""), Status.TOO_LARGE),
        (write(PatchKind.TRUNCATE, offset=1, sums=b""), Status.BAD_REQUEST),
        (write(PatchKind.REMOVE, length=1, sums=b""), Status.BAD_REQUEST),
        (Write(CLIENT, b"", b"", 0, 0), Status.BAD_REQUEST),
        (Write(CLIENT, bytes(WRITE_EXTENT.size - 1), b"", 0, 0), Status.BAD_REQUEST),
    ],
)
def test_writes_that_may_not(message: Write, status: Status) -> None:
    assert status_of(write_rows, message) is status


def test_updates_that_may_pass() -> None:
    ((row, sums),) = update_rows(update())
    assert (row.hop, row.previous, row.version, row.payload_bytes, sums) == (4, 8, 9, 5, bytes(8))
    ((row, _),) = update_rows(update(full=1, length=70_000, image=70_000, sums=bytes(16)))
    assert row.payload_bytes == 70_000
    for version in (9, 0):  # 0: whatever the version was
        ((row, _),) = update_rows(update(PatchKind.REMOVE, 1, version, 0, 0, 0, b""))
        assert row.payload_bytes == 0


@pytest.mark.parametrize(
    ("message", "status"),
    [
        (update(3), Status.BAD_REQUEST),
        (update(full=2), Status.BAD_REQUEST),
        (update(PatchKind.TRUNCATE, full=1), Status.BAD_REQUEST),
        (update(version=0), Status.BAD_REQUEST),
        (update(PatchKind.REMOVE, length=0, image=5), Status.TOO_LARGE),
        (update(image=MIB + 1, sums=bytes(8 * 17)), Status.TOO_LARGE),
        (update(sums=b""), Status.BAD_REQUEST),
        (update(sums=bytes(16)), Status.BAD_REQUEST),
    ],
)
def test_updates_that_may_not(message: Update, status: Status) -> None:
    assert status_of(update_rows, message) is status


def test_ranges_end_within_the_longest_chunk() -> None:
    whole = READ_RANGE_EXTENT.pack(OBJECT, 1, 2, 3, 0, CHUNK_BYTES_MAX, 0)
    assert range_rows(whole)[0].length == CHUNK_BYTES_MAX
    beyond = READ_RANGE_EXTENT.pack(OBJECT, 1, 2, 3, 1, CHUNK_BYTES_MAX, 0)
    assert status_of(range_rows, whole + beyond) is Status.TOO_LARGE


@given(st.integers(0, 300_000), st.integers(0, 300_000), st.integers(0, 300_000))
def test_what_is_read_covers_what_is_asked_for(offset: int, length: int, chunk: int) -> None:
    start, end = covered(offset, length, chunk)
    if length == 0 or offset >= chunk:
        assert start == end
        return
    assert start % CHECKSUM_BLOCK_BYTES == 0
    assert end == chunk or end % CHECKSUM_BLOCK_BYTES == 0
    assert offset - CHECKSUM_BLOCK_BYTES < start <= offset
    assert min(offset + length, chunk) <= end < offset + length + CHECKSUM_BLOCK_BYTES
    assert RangeRow(OBJECT, 0, 0, 0, offset, length, 0).room >= end - start


def test_room_for_a_range() -> None:
    assert RangeRow(OBJECT, 0, 0, 0, 0, 1, 0).room == 64 * KIB
    assert RangeRow(OBJECT, 0, 0, 0, 64 * KIB - 1, 2, 0).room == 128 * KIB
