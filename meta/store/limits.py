"""What keys, values and ranges every engine takes: one check of each, so that all refuse alike.

Knows no engine. The limits themselves are the interface's (`base.py`).
"""

from esker.meta.store.base import KEY_BYTES_MAX, KEY_END, VALUE_BYTES_MAX
from esker.meta.store.errors import InvalidOperation, LimitExceeded, printable


def checked_key(key: bytes, bytes_max: int = KEY_BYTES_MAX) -> bytes:
    """`key`, unless it is empty, too long or not ours: `LimitExceeded`."""
    if not 1 <= len(key) <= bytes_max:
        raise LimitExceeded(f"a key has {len(key)} bytes; allowed: 1 to {bytes_max}")
    if key >= KEY_END:
        raise LimitExceeded(f"key {printable(key[:32])} is in the system's range; allowed: below \\xff")
    return key


def checked_value(value: bytes) -> bytes:
    """`value`, unless it is too long: `LimitExceeded`."""
    if len(value) > VALUE_BYTES_MAX:
        raise LimitExceeded(f"a value has {len(value)} bytes; allowed: {VALUE_BYTES_MAX}")
    return value


def check_range(begin: bytes, end: bytes, bytes_max: int = KEY_BYTES_MAX) -> None:
    """Raises `InvalidOperation` for bounds in the wrong order, `LimitExceeded` for bounds that no key can have."""
    if begin > end:
        raise InvalidOperation(f"the range begins after its end: {printable(begin[:32])}..{printable(end[:32])}")
    if end > KEY_END or len(begin) > bytes_max + 1 or len(end) > bytes_max + 1:
        raise LimitExceeded("a range ends in the system's keys, or has a bound above the key limit")
