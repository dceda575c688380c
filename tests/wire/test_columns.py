"""Packed columns are whole, bounded and consistent, or the request is refused."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from esker.wire.columns import check_rows, create_rows, rows
from esker.wire.errors import RequestFailed
from esker.wire.limits import CHUNK_BYTES_MAX, KEY_BYTES_MAX, REQUEST_EXTENTS_MAX, checksum_blocks
from esker.wire.messages import CREATE_EXTENT, LOOKUP_KEY, READ_EXTENT, REMOVE_EXTENT, Create
from esker.wire.status import Status

K64 = 64 * 1024


def extent(length: int = 5, key_bytes: int = 3) -> bytes:
    return CREATE_EXTENT.pack(b"o" * 16, 1, 2, 3, length, 4, 5, 6, 7, b"p" * 16, key_bytes)


def create(extents: bytes, checksums: bytes, keys: bytes) -> Create:
    return Create(1, 4096, extents, checksums, keys, 0, 1000)


def refused(call: Any, *arguments: Any) -> RequestFailed:
    with pytest.raises(RequestFailed) as failure:
        call(*arguments)
    return failure.value


@pytest.mark.parametrize("column", [READ_EXTENT, REMOVE_EXTENT, LOOKUP_KEY, CREATE_EXTENT])
@pytest.mark.parametrize("count", [1, 2, 5])
def test_whole_rows_are_taken(column: Any, count: int) -> None:
    packed = bytes(range(column.size)) * count
    assert check_rows(column, packed, 5) == count
    assert rows(column, packed, 5) == [column.unpack(bytes(range(column.size)))] * count


@pytest.mark.parametrize("size", [0, 1, 19, 21, 39, 6 * 20, 1000 * 20])
def test_columns_that_are_not_whole_empty_or_too_long_are_refused(size: int) -> None:
    failure = refused(rows, LOOKUP_KEY, bytes(size), 5)
    assert failure.status is Status.BAD_REQUEST
    assert failure.message == f"a column of {size} bytes; allowed: 1 to 5 rows of 20"
    assert refused(check_rows, LOOKUP_KEY, bytes(size), 5).message == failure.message


def test_the_most_rows_are_those_of_a_request() -> None:
    size = READ_EXTENT.size
    assert check_rows(READ_EXTENT, bytes(size * REQUEST_EXTENTS_MAX)) == REQUEST_EXTENTS_MAX
    assert refused(check_rows, READ_EXTENT, bytes(size * (REQUEST_EXTENTS_MAX + 1))).status is Status.BAD_REQUEST


def test_the_rows_of_a_create_come_with_their_own_checksums_and_keys() -> None:
    sums = [b"1" * 8, b"2" * 16, b"3" * 8]
    parts = create(extent(1, 2) + extent(K64 + 1, 0) + extent(K64, 3), b"".join(sums), b"abcde")
    found = create_rows(parts)
    assert [(row[4], row[10]) for row, _, _ in found] == [(1, 2), (K64 + 1, 0), (K64, 3)]
    assert [(s, k) for _, s, k in found] == [(sums[0], b"ab"), (sums[1], b""), (sums[2], b"cde")]


@pytest.mark.parametrize(
    ("message", "status", "text"),
    [
        (create(b"", b"", b""), Status.BAD_REQUEST, "a column of 0 bytes"),
        (create(extent()[:-1], b"s" * 8, b"key"), Status.BAD_REQUEST, "a column of"),
        (create(extent(0), b"", b"key"), Status.TOO_LARGE, f"a chunk of 0 bytes; allowed: 1 to {CHUNK_BYTES_MAX}"),
        (create(extent(CHUNK_BYTES_MAX + 1), b"", b"key"), Status.TOO_LARGE, f"a chunk of {CHUNK_BYTES_MAX + 1} bytes"),
        (create(extent(2**32 - 1), b"", b"key"), Status.TOO_LARGE, "a chunk of 4294967295 bytes"),
        (
            create(extent(5, KEY_BYTES_MAX + 1), b"s" * 8, b"k" * (KEY_BYTES_MAX + 1)),
            Status.BAD_REQUEST,
            f"a key of {KEY_BYTES_MAX + 1} bytes; allowed: {KEY_BYTES_MAX}",
        ),
        (create(extent(), b"s" * 7, b"key"), Status.BAD_REQUEST, "checksums or keys do not fit the extents"),
        (create(extent(), b"s" * 16, b"key"), Status.BAD_REQUEST, "checksums or keys do not fit"),
        (create(extent(), b"", b"key"), Status.BAD_REQUEST, "checksums or keys do not fit"),
        (create(extent(), b"s" * 8, b"ke"), Status.BAD_REQUEST, "checksums or keys do not fit"),
        (create(extent(), b"s" * 8, b"keys"), Status.BAD_REQUEST, "checksums or keys do not fit"),
        (create(extent() * 2, b"s" * 8, b"key"), Status.BAD_REQUEST, "checksums or keys do not fit"),
    ],
)
def test_columns_that_disagree_are_refused(message: Create, status: Status, text: str) -> None:
    failure = refused(create_rows, message)
    assert failure.status is status
    assert failure.message.startswith(text)


def test_the_limits_themselves_are_allowed() -> None:
    sums = bytes(8 * checksum_blocks(CHUNK_BYTES_MAX))
    [(row, own, key)] = create_rows(create(extent(CHUNK_BYTES_MAX, KEY_BYTES_MAX), sums, b"k" * KEY_BYTES_MAX))
    assert (row[4], len(own), len(key)) == (CHUNK_BYTES_MAX, len(sums), KEY_BYTES_MAX)


lengths = st.tuples(st.integers(0, 3 * K64), st.integers(0, KEY_BYTES_MAX + 1))


@given(st.lists(lengths, max_size=4), st.binary(max_size=60), st.binary(max_size=20), st.integers(-3, 3))
def test_random_columns_raise_nothing_else(sizes: list[tuple[int, int]], sums: bytes, keys: bytes, more: int) -> None:
    extents = b"".join(extent(length, key_bytes) for length, key_bytes in sizes)
    for message in (
        create(extents + bytes(max(0, more)), sums, keys),
        create(sums * 3, sums, keys),
        create(
            extents,
            bytes(max(0, sum(8 * checksum_blocks(length) for length, _ in sizes) + more)),
            bytes(sum(key_bytes for _, key_bytes in sizes)),
        ),
    ):
        status = None
        try:
            found = create_rows(message)
        except RequestFailed as failure:
            status = failure.status
        if status is not None:
            assert status in (Status.BAD_REQUEST, Status.TOO_LARGE)
            continue
        assert b"".join(own for _, own, _ in found) == message.checksums
        assert b"".join(key for _, _, key in found) == message.keys
        assert all(len(own) == 8 * checksum_blocks(row[4]) for row, own, _ in found)
