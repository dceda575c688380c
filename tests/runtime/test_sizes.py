"""Sizes: fio's spelling in, bytes out, and bytes as people read them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from esker.runtime.errors import SettingError
from esker.runtime.sizes import format_size, parse_size


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("0", 0),
        ("4096", 4096),
        ("512b", 512),
        ("4k", 4096),
        ("4K", 4096),
        ("4kb", 4096),
        ("4KiB", 4096),
        ("1m", 1 << 20),
        ("10GiB", 10 << 30),
        (" 2 t ", 2 << 40),
        ("1P", 1 << 50),
        ("1.5GiB", 3 << 29),
        ("0.5k", 512),
    ],
)
def test_sizes_are_read_as_fio_reads_them(text: str, size_bytes: int) -> None:
    assert parse_size(text) == size_bytes


@pytest.mark.parametrize(
    "text", ["", "k", "-1", "+1k", "1x", "1kk", "1 k b", "0x10", "1e3", "1,5g", ".5k", "٣k", "nan"]
)
def test_what_is_no_size_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(SettingError, match=r"not a size: .*such as 4KiB"):
        parse_size(text)


def test_a_fraction_of_a_byte_is_refused() -> None:
    with pytest.raises(SettingError, match=r"not a whole number of bytes: '1\.3k'"):
        parse_size("1.3k")


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1 KiB"),
        (640 * 1024, "640 KiB"),
        (3 << 29, "1.5 GiB"),
        (1 << 60, "1024 PiB"),
        (-2048, "-2 KiB"),
        (1025, "1 KiB"),
    ],
)
def test_sizes_for_people(size_bytes: int, text: str) -> None:
    assert format_size(size_bytes) == text


@given(st.integers(0, 1023), st.sampled_from(["", "k", "m", "g", "t", "p"]))
def test_a_whole_number_of_units_comes_back(number: int, unit: str) -> None:
    size_bytes = parse_size(f"{number}{unit}")
    assert parse_size(format_size(size_bytes)) == size_bytes
