"""Waiting for what other processes bring about: a condition, looked at again and again, and always a deadline."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

LOOK_EVERY_S = 0.01
WAIT_S = 30.0

T = TypeVar("T")


async def until(look: Callable[[], Awaitable[T] | T], what: str, timeout_s: float = WAIT_S) -> T:
    """Looks until something true is seen, and returns it. Fails, naming `what` was waited for, after `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while True:
        seen = look()
        if isinstance(seen, Awaitable):
            seen = await seen
        if seen:
            return seen
        assert time.monotonic() < deadline, f"{what} did not happen within {timeout_s:g} s; last seen: {seen!r}"
        await asyncio.sleep(LOOK_EVERY_S)
