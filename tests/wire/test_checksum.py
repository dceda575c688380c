"""Checksums are part of the format on disk and of the protocol: golden vectors."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh3_64_intdigest

from esker.wire.checksum import checksums
from esker.wire.limits import CHECKSUM_BLOCK_BYTES, checksum_blocks

K64 = CHECKSUM_BLOCK_BYTES


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"a", "1f4e961eb632c6e6"),
        (b"esker", "8f76903ef206c25a"),
        (bytes(K64), "aa5cb602d302b233"),
        (bytes(K64 + 1), "aa5cb602d302b233 dbec4e07f4df4bc4"),
        (bytes(range(256)) * 768, "16550a616db51d9a 16550a616db51d9a 16550a616db51d9a"),
    ],
    ids=["a", "esker", "64 KiB of zeros", "64 KiB and one", "192 KiB"],
)
def test_golden_vectors(data: bytes, expected: str) -> None:
    assert checksums(memoryview(data)).hex(" ", 8) == expected


@given(st.integers(1, 4 * K64), st.binary(min_size=1, max_size=64))
def test_each_started_64_kib_has_its_own(size: int, unit: bytes) -> None:
    data = (unit * (size // len(unit) + 1))[:size]
    sums = checksums(memoryview(data))
    assert len(sums) == 8 * checksum_blocks(size)
    for number, (digest,) in enumerate(struct.iter_unpack("<Q", sums)):
        assert digest == xxh3_64_intdigest(data[number * K64 : (number + 1) * K64])


@pytest.mark.parametrize(("at", "changed"), [(0, 0), (K64 - 1, 0), (K64, 1), (2 * K64, 2)])
def test_a_changed_byte_changes_the_checksum_of_its_block_alone(at: int, changed: int) -> None:
    data = bytearray(2 * K64 + 100)
    before = struct.unpack("<3Q", checksums(memoryview(data)))
    data[at] ^= 1
    after = struct.unpack("<3Q", checksums(memoryview(data)))
    assert [number for number in range(3) if before[number] != after[number]] == [changed]
