"""Sizes as people write them, to bytes and back.

Units are powers of 1024 whatever their spelling (`4k`, `4K`, `4KB`, `4KiB` are all 4096), as fio reads them by
default, so that a command line can be carried over between the two.
"""

import re
from fractions import Fraction

from esker.runtime.errors import SettingError

_UNITS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4, "p": 5}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(?:([kmgtp]?)(?:i?b)?)\s*", re.IGNORECASE | re.ASCII)


def parse_size(text: str) -> int:
    """Bytes that `text` names: `4096`, `4k`, `512K`, `1m`, `1.5GiB`.

    Raises `SettingError` for anything that is not a size or does not come to whole bytes.
    """
    match = _SIZE.fullmatch(text)
    if match is None:
        raise SettingError(f"not a size: {text!r}; write bytes or a number with a unit, such as 4KiB, 1m or 10GiB")
    number, unit = match.groups()
    size_bytes = Fraction(number) * 1024 ** _UNITS[unit.lower()]
    if size_bytes.denominator != 1:
        raise SettingError(f"not a whole number of bytes: {text!r}")
    return int(size_bytes)


def format_size(size_bytes: int) -> str:
    """`size_bytes` for people, in the largest unit that keeps it at 1 or more: `4 KiB`, `1.5 GiB`, `17 B`.

    At most two decimals, so it may be rounded; figures for machines stay integers.
    """
    magnitude = abs(size_bytes)
    power = min(max(0, (magnitude.bit_length() - 1) // 10), 5)
    if power == 0:
        return f"{size_bytes} B"
    number = f"{size_bytes / 1024**power:.2f}".rstrip("0").rstrip(".")
    return f"{number} {'KMGTP'[power - 1]}iB"
