"""Geometries: what is filled in, and what is refused with what is allowed."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from esker.wire.limits import ALIGN_BYTES, CHUNK_BYTES_MAX, KIB, MIB, RUN_BLOCKS_MAX, STRIPE_CHUNKS_MAX
from esker.wire.types import STRIPE_UNIT_DEFAULT_BYTES, Geometry


@pytest.mark.parametrize(
    ("block_bytes_max", "unit"),
    [
        (1, 4 * KIB),
        (4 * KIB, 4 * KIB),
        (4 * KIB + 1, 8 * KIB),
        (640 * KIB, 640 * KIB),
        (MIB, MIB),
        (MIB + 1, MIB),
        (32 * MIB, MIB),
    ],
)
def test_the_stripe_unit_is_filled_in(block_bytes_max: int, unit: int) -> None:
    assert Geometry(block_bytes_max).resolved() == Geometry(block_bytes_max, stripe_unit_bytes=unit)
    assert unit <= STRIPE_UNIT_DEFAULT_BYTES


def test_what_is_resolved_stays_as_it_is() -> None:
    geometry = Geometry(5 * MIB, 128 * KIB, 64, 16, "model", "revision", "bf16", "layout", "tp8")
    assert geometry.resolved() == geometry
    assert geometry.resolved().resolved() == geometry


LONGEST = CHUNK_BYTES_MAX * STRIPE_CHUNKS_MAX


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"block_bytes_max": 0}, f"^block_bytes_max is 0; allowed: 1 to {LONGEST}$"),
        ({"block_bytes_max": -1}, "^block_bytes_max is -1; allowed"),
        ({"block_bytes_max": LONGEST + 1}, f"^block_bytes_max is {LONGEST + 1}; allowed"),
        ({"stripe_unit_bytes": 4095}, "^stripe_unit_bytes is 4095; allowed: multiples of 4096 up to 67108864$"),
        ({"stripe_unit_bytes": 4097}, "^stripe_unit_bytes is 4097; allowed"),
        ({"stripe_unit_bytes": -4096}, "^stripe_unit_bytes is -4096; allowed"),
        ({"stripe_unit_bytes": CHUNK_BYTES_MAX + 4096}, f"^stripe_unit_bytes is {CHUNK_BYTES_MAX + 4096}; allowed"),
        (
            {"block_bytes_max": 4096 * STRIPE_CHUNKS_MAX + 1, "stripe_unit_bytes": 4096},
            "has 4097 chunks; allowed: 4096; raise stripe_unit_bytes$",
        ),
        ({"run_blocks": 0}, f"^run_blocks is 0; allowed: 1 to {RUN_BLOCKS_MAX}$"),
        ({"run_blocks": RUN_BLOCKS_MAX + 1}, f"^run_blocks is {RUN_BLOCKS_MAX + 1}; allowed"),
        ({"block_tokens": -1}, r"^block_tokens is -1; allowed: 0 \(not told\) and up$"),
    ],
)
def test_figures_out_of_range_are_refused_with_what_is_allowed(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Geometry(**{"block_bytes_max": MIB, **fields}).resolved()


@pytest.mark.parametrize(
    "fields",
    [
        {"block_bytes_max": 1},
        {"block_bytes_max": LONGEST, "stripe_unit_bytes": CHUNK_BYTES_MAX},
        {"block_bytes_max": 4096 * STRIPE_CHUNKS_MAX, "stripe_unit_bytes": 4096},
        {"run_blocks": RUN_BLOCKS_MAX},
    ],
)
def test_the_limits_themselves_are_allowed(fields: dict[str, Any]) -> None:
    assert Geometry(**{"block_bytes_max": MIB, **fields}).resolved().stripe_unit_bytes > 0


@given(st.integers(-10, 2**40), st.integers(-10, 2**28), st.integers(-2, 2**17))
def test_what_is_accepted_can_be_laid_out(block_bytes_max: int, unit: int, run_blocks: int) -> None:
    refusal = ""
    try:
        resolved = Geometry(block_bytes_max, unit, run_blocks).resolved()
    except ValueError as error:
        refusal = str(error)
    if refusal:
        assert "allowed: " in refusal
        return
    assert resolved.stripe_unit_bytes % ALIGN_BYTES == 0
    assert 0 < resolved.stripe_unit_bytes <= CHUNK_BYTES_MAX
    assert 0 < -(-resolved.block_bytes_max // resolved.stripe_unit_bytes) <= STRIPE_CHUNKS_MAX
