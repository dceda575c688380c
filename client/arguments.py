"""Checks of what callers pass: each wrong argument is a `UserError` that names it, raised before anything is sent.

Knows types and ranges only; what a namespace, a chunk or a pool adds to that is checked where it is known.
"""

from enum import StrEnum
from numbers import Real
from typing import Any, TypeVar

from esker.client.buffers import BufferPool
from esker.wire.errors import UserError

E = TypeVar("E", bound=StrEnum)

TIMEOUT_S_MAX = 86_400.0
"""Longer timeouts, infinite ones too, are taken as this: event loops cannot wait for any length of time."""


def checked_timeout_s(timeout_s: Any, default_s: float) -> float:
    """Seconds, above 0 and at most `TIMEOUT_S_MAX`; None is the default."""
    if timeout_s is None:
        return default_s
    if isinstance(timeout_s, bool) or not isinstance(timeout_s, Real):
        raise UserError(f"timeout_s is a {type(timeout_s).__name__}; pass seconds, above 0")
    number: Any = timeout_s
    if not number > 0:  # nan too
        raise UserError(f"timeout_s is {number}; pass seconds, above 0")
    return TIMEOUT_S_MAX if number > TIMEOUT_S_MAX else float(number)


def checked_text(value: Any, name: str) -> str:
    """A text that can be sent."""
    if not isinstance(value, str):
        raise UserError(f"{name} is a {type(value).__name__}; pass a str")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise UserError(f"{name} {value!r} is not valid Unicode: {error.reason}") from None
    return value


def checked_choice(kind: type[E], value: Any, name: str) -> E:
    """A member of an enumeration, given by its value."""
    try:
        return kind(value)
    except ValueError:
        raise UserError(f"{name} is {value!r}; allowed: {', '.join(kind)}") from None


def checked_integer(value: Any, name: str) -> int:
    """An int; of numpy's too."""
    try:
        if isinstance(value, bool):
            raise TypeError
        return int(value.__index__())
    except (AttributeError, TypeError):
        raise UserError(f"{name} is a {type(value).__name__}; pass an int") from None


def check_pool(pool: Any) -> None:
    """Nothing, or a pool that is open."""
    if pool is None:
        return
    if not isinstance(pool, BufferPool):
        raise UserError(f"pool is a {type(pool).__name__}; pass a BufferPool")
    with pool.lock:
        pool.check_open()
