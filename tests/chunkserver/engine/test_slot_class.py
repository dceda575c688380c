"""Slot sizes: the namespace's own, or the series."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from esker.chunkserver.engine.slot_class import padded_bytes, slot_pages, zero_padding
from esker.wire.limits import ALIGN_BYTES, CHUNK_BYTES_MAX, KIB, MIB

SLOT_BYTES = st.integers(1, CHUNK_BYTES_MAX // ALIGN_BYTES).map(lambda pages: pages * ALIGN_BYTES)


@given(st.data(), SLOT_BYTES)
def test_a_slot_holds_its_chunk_and_wastes_little(data: st.DataObject, slot_bytes: int) -> None:
    length = data.draw(st.integers(0, slot_bytes))
    size = slot_pages(length, slot_bytes) * ALIGN_BYTES
    padded = padded_bytes(length)
    assert padded <= size <= slot_bytes
    if padded * 4 > slot_bytes * 3:
        assert size == slot_bytes
    else:
        assert size - padded <= padded / 4


@pytest.mark.parametrize(
    ("length", "slot_bytes", "expected_bytes"),
    [
        (640 * KIB, 640 * KIB, 640 * KIB),
        (500 * KIB, 640 * KIB, 640 * KIB),
        (480 * KIB, 640 * KIB, 512 * KIB),
        (1, MIB, 4 * KIB),
        (0, MIB, 4 * KIB),
        (33 * KIB, MIB, 40 * KIB),
        (100 * KIB, MIB, 112 * KIB),
        (4096, 4096, 4096),
        (CHUNK_BYTES_MAX, CHUNK_BYTES_MAX, CHUNK_BYTES_MAX),
    ],
)
def test_examples(length: int, slot_bytes: int, expected_bytes: int) -> None:
    assert slot_pages(length, slot_bytes) * ALIGN_BYTES == expected_bytes


def test_the_series_is_short() -> None:
    sizes = {slot_pages(pages * ALIGN_BYTES, CHUNK_BYTES_MAX) for pages in range(1, CHUNK_BYTES_MAX // ALIGN_BYTES + 1)}
    assert len(sizes) == 51


@pytest.mark.parametrize("slot_bytes", [0, -4096, 4095, 6000, CHUNK_BYTES_MAX + ALIGN_BYTES])
def test_sizes_that_are_no_slots(slot_bytes: int) -> None:
    with pytest.raises(ValueError, match="is not a multiple of 4096"):
        slot_pages(1, slot_bytes)


@pytest.mark.parametrize("length", [-1, 4097])
def test_chunks_that_do_not_fit(length: int) -> None:
    with pytest.raises(ValueError, match="does not fit a slot of 4096"):
        slot_pages(length, 4096)


@given(st.integers(0, 8192))
def test_padding_is_zeroed(length: int) -> None:
    buffer = memoryview(bytearray(b"\xff" * 8192))
    zero_padding(buffer, length)
    assert buffer == b"\xff" * length + bytes(8192 - length)
