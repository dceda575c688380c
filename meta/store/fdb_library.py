"""The package `foundationdb` on an event loop: its futures awaited, its errors as ours, its outcomes counted.

The package's futures become ready on the library's network thread: `on_ready` hands them to the event loop, and a task
that is cancelled cancels its future. Knows nothing of keys or transactions. The package itself is handed in.
"""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any, TypeVar

from esker.meta.store.errors import NotCommitted, StoreError
from esker.meta.store.fdb_errors import CANCELLED, translated

T = TypeVar("T")


class FoundationLibrary:
    """The package `fdb` (its API version chosen), for tasks of the running loop."""

    def __init__(self, fdb: Any, *, if_silent: str) -> None:
        """`if_silent` tells an operator what to check where no answer comes."""
        self.fdb = fdb
        self.counters = {"store_commits": 0, "store_conflicts": 0, "store_errors": 0}
        self._if_silent = if_silent
        self._loop = asyncio.get_running_loop()

    async def result(self, future: Any, read: Callable[[Any], T]) -> T:
        """What `read` makes of the package's `future` once it is ready. Raises `StoreError`."""
        if not future.is_ready():
            ready = self._loop.create_future()
            self.when_ready(future, lambda: _settle(ready))
            try:
                await ready
            except asyncio.CancelledError:
                future.cancel()
                raise
        try:
            return read(future)
        except self.fdb.FDBError as error:
            raise self.translated(error) from error

    def when_ready(self, future: Any, function: Callable[[], object]) -> None:
        """Call `function` on the loop once the package's `future` is ready."""

        def fired(_: Any) -> None:
            with contextlib.suppress(RuntimeError):  # The loop is closed: nobody waits any more.
                self._loop.call_soon_threadsafe(function)

        future.on_ready(fired)

    def translated(self, error: Any) -> StoreError:
        """Our error for the package's."""
        found = translated(
            error.code,
            _text(error.description),
            retryable=self.fdb.predicates.is_retryable(error),
            maybe_committed=self.fdb.predicates.is_maybe_committed(error),
            if_silent=self._if_silent,
        )
        self.counters["store_conflicts" if isinstance(found, NotCommitted) else "store_errors"] += 1
        return found

    def is_passing(self, error: Any) -> bool:
        """Whether the package's error says that the same may go well another time."""
        return error.code not in CANCELLED and bool(self.fdb.predicates.is_retryable(error))


def _settle(ready: "asyncio.Future[None]") -> None:
    if not ready.done():
        ready.set_result(None)


def _text(description: bytes | str) -> str:
    return description.decode("utf-8", "replace") if isinstance(description, bytes) else description
