"""How large a slot a chunk gets. Pure.

A drive keeps slots of equal size together. Chunks of a namespace's full size get slots of exactly that size; shorter
ones, such as a last block or a compressed one, get the next size of a series with four steps per doubling, so that few
classes exist and at most a quarter of the stored length is spent on the rest of the slot.
"""

from esker.wire.limits import ALIGN_BYTES, CHUNK_BYTES_MAX, aligned


def slot_pages(length: int, slot_bytes: int) -> int:
    """Pages (4 KiB) of the slot for a chunk of `length` bytes in a namespace with chunks of `slot_bytes`.

    The namespace's own size when the chunk fills more than three quarters of it; else the series, never beyond that
    size. Raises `ValueError` for sizes that are no slot's.
    """
    if slot_bytes % ALIGN_BYTES or not ALIGN_BYTES <= slot_bytes <= CHUNK_BYTES_MAX:
        raise ValueError(
            f"slot size {slot_bytes} is not a multiple of {ALIGN_BYTES} from {ALIGN_BYTES} to {CHUNK_BYTES_MAX}"
        )
    if not 0 <= length <= slot_bytes:
        raise ValueError(f"a chunk of {length} bytes does not fit a slot of {slot_bytes}")
    padded = padded_bytes(length)
    if padded * 4 > slot_bytes * 3:
        return slot_bytes // ALIGN_BYTES
    return min(_step_up(padded // ALIGN_BYTES), slot_bytes // ALIGN_BYTES)


def padded_bytes(length: int) -> int:
    """What is written for a chunk of `length` bytes: whole pages, one at least."""
    return max(ALIGN_BYTES, aligned(length))


def zero_padding(buffer: memoryview, length: int) -> None:
    """Zeroes what follows `length` in `buffer`, so that nothing of its earlier content reaches the drive."""
    rest = len(buffer) - length
    if rest:
        buffer[length:] = bytes(rest)


def _step_up(pages: int) -> int:
    """The next size of the series: 1 to 8, then quarter steps between powers of two (10, 12, 14, 16, 20, …)."""
    step = 1 << max(0, (pages - 1).bit_length() - 3)
    return -(-pages // step) * step
