"""The transaction interface that every metadata engine implements: FoundationDB's semantics and limits.

Keys are ordered bytes. A transaction reads a snapshot at its read version (taken at its first read) and sees its own
writes. Commits are strictly serializable: a commit fails with `NotCommitted` if any key that the transaction read
(without `snapshot=True`) was written by a transaction that committed after the read version. A transaction that wrote
nothing always commits. Reads come at most `AGE_S` after the first one.

Stricter than FoundationDB, so that every engine can agree: keys have at least one byte, and keys from `KEY_END` on
(0xff...) are not ours. This module must not know any engine, and no key layout.
"""

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import TypeVar

from esker.meta.store.errors import KeyRange, NotCommitted, RetriesExhausted, RetryableError, printable_ranges

T = TypeVar("T")
KeyValue = tuple[bytes, bytes]

KEY_BYTES_MAX = 10_000
VALUE_BYTES_MAX = 100_000
TRANSACTION_BYTES_MAX = 10_000_000
"""Keys and values written, and the bounds of conflict ranges."""
AGE_S = 5.0
VERSIONSTAMP_BYTES = 10
KEY_END = b"\xff"
"""First key that may not be written; the end of a range over everything."""

RETRY_FIRST_S = 0.002
RETRY_LAST_S = 0.5
RUN_TIMEOUT_S = 5.0


def after_key(key: bytes) -> bytes:
    """The first key after `key`."""
    return key + b"\x00"


def after_prefix(prefix: bytes) -> bytes:
    """The first key after every key that starts with `prefix` (which is not all 0xff)."""
    stripped = prefix.rstrip(b"\xff")
    assert stripped, "no key follows this prefix"
    return stripped[:-1] + bytes([stripped[-1] + 1])


class Watch(ABC):
    """Fires once when a key's value is no longer the one that its transaction saw. Active from the commit on."""

    @abstractmethod
    async def wait(self, timeout_s: float) -> bool:
        """Whether the value changed within `timeout_s`. May be true without a change, rarely.

        Raises `StoreFailed` if the store closed, `InvalidOperation` if the transaction never committed.
        """

    @abstractmethod
    def cancel(self) -> None:
        """Forget it; `wait` then returns False."""


class Transaction(ABC):
    """One transaction; not shared between tasks. Made by `Store.transaction`, or handed out by `Store.run`."""

    @abstractmethod
    async def read_version(self) -> int:
        """The version that this transaction reads; fixes it."""

    @abstractmethod
    async def get(self, key: bytes, *, snapshot: bool = False) -> bytes | None:
        """The value, or None. `snapshot=True`: without a conflict if it changes."""

    @abstractmethod
    async def get_many(self, keys: Sequence[bytes], *, snapshot: bool = False) -> list[bytes | None]:
        """The values of many keys, asked for at once."""

    @abstractmethod
    async def get_range(
        self, begin: bytes, end: bytes, *, limit: int = 0, reverse: bool = False, snapshot: bool = False
    ) -> list[KeyValue]:
        """Up to `limit` (0: all) pairs of [begin, end) in key order, from the end if `reverse`.

        Only the part that was read conflicts.
        """

    async def pages(
        self, begin: bytes, end: bytes, *, page_rows: int = 1000, reverse: bool = False, snapshot: bool = False
    ) -> AsyncIterator[list[KeyValue]]:
        """`get_range` in pages of `page_rows`, all of one snapshot."""
        assert page_rows > 0
        while True:
            page = await self.get_range(begin, end, limit=page_rows, reverse=reverse, snapshot=snapshot)
            if page:
                yield page
            if len(page) < page_rows:
                return
            if reverse:
                end = page[-1][0]
            else:
                begin = after_key(page[-1][0])

    @abstractmethod
    def set(self, key: bytes, value: bytes) -> None: ...

    @abstractmethod
    def clear(self, key: bytes) -> None: ...

    @abstractmethod
    def clear_range(self, begin: bytes, end: bytes) -> None: ...

    @abstractmethod
    def add(self, key: bytes, operand: bytes) -> None:
        """Add the little-endian `operand` to the value, modulo its width, without reading it (no conflict).

        An absent value counts as 0; a longer or shorter one is cut or extended to the operand's length.
        """

    @abstractmethod
    def set_versionstamped_key(self, prefix: bytes, suffix: bytes, value: bytes) -> None:
        """Set `prefix + versionstamp + suffix`; the stamp (10 bytes, growing) is given at the commit."""

    @abstractmethod
    def versionstamp(self) -> bytes:
        """The stamp of the committed transaction. Raises `InvalidOperation` before, or if nothing was written."""

    @abstractmethod
    async def watch(self, key: bytes) -> Watch:
        """A watch on the value that this transaction sees (a read of it)."""

    @abstractmethod
    async def add_read_conflict_range(self, begin: bytes, end: bytes) -> None:
        """Conflict as if [begin, end) had been read."""

    @abstractmethod
    def add_write_conflict_range(self, begin: bytes, end: bytes) -> None:
        """Make others conflict as if [begin, end) had been written."""

    @abstractmethod
    async def commit(self) -> int:
        """Make the writes durable. Returns the commit's version, -1 if there was nothing to write.

        Raises `RetryableError`, `LimitExceeded`, `StoreFailed`. If the waiting task is cancelled, the outcome is
        unknown. Afterwards only `versionstamp` and `reset` are allowed.
        """

    @abstractmethod
    def reset(self) -> None:
        """Back to a fresh transaction; lets go of the snapshot. Always call it, or use `Store.run`."""


@dataclass(slots=True)
class Retry:
    """How `Store.run` waits between attempts; all sources of time and chance are arguments."""

    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    chance: Random = field(default_factory=Random)


class Store(ABC):
    """An open store. `run` is how code uses it."""

    retry: Retry
    engine: str
    """Name of the engine, for people."""
    exclusive: bool
    """Nobody else can have it open, and what it holds outlives whoever does."""
    key_bytes_max: int = KEY_BYTES_MAX
    if_silent: str = ""
    """What to check when it does not answer."""

    @abstractmethod
    def transaction(self) -> Transaction: ...

    @abstractmethod
    def statistics(self) -> dict[str, int]:
        """Counters and sizes, by name."""

    @abstractmethod
    async def version(self) -> str:
        """Version of the engine, for people."""

    @abstractmethod
    async def aclose(self) -> None:
        """Finish the commits under way, then close. Later use raises `StoreFailed`. Idempotent."""

    async def run(
        self,
        function: Callable[[Transaction], Awaitable[T]],
        *,
        what: str,
        timeout_s: float = RUN_TIMEOUT_S,
    ) -> T:
        """Run `function` in a transaction, commit, and again from the start after each retryable error.

        `function` must be idempotent: its last attempt may have been committed (`CommitUnknown`). `what` names the
        operation in errors ("join of drive d1"). Raises `RetriesExhausted` once `timeout_s` has passed.
        """
        deadline = self.retry.clock() + timeout_s
        transaction = self.transaction()
        attempts = 0
        contended: tuple[KeyRange, ...] = ()
        last: RetryableError | None = None
        try:
            while True:
                attempts += 1
                scope = asyncio.timeout(max(0.0, deadline - self.retry.clock()))
                try:
                    async with scope:
                        result = await function(transaction)
                        await transaction.commit()
                        return result
                except RetryableError as error:
                    last = error
                    contended = error.ranges if isinstance(error, NotCommitted) else contended
                except TimeoutError:
                    if not scope.expired():
                        raise
                    raise self._exhausted(what, timeout_s, attempts, contended, last) from last
                transaction.reset()
                pause = min(RETRY_LAST_S, RETRY_FIRST_S * 2 ** min(attempts - 1, 16)) * self.retry.chance.random()
                if self.retry.clock() + pause >= deadline:
                    raise self._exhausted(what, timeout_s, attempts, contended, last) from last
                await self.retry.sleep(pause)
        finally:
            transaction.reset()

    def _exhausted(
        self, what: str, timeout_s: float, attempts: int, ranges: Sequence[KeyRange], last: RetryableError | None
    ) -> RetriesExhausted:
        message = f"{what}: not done within {timeout_s:g} s, {attempts} attempts"
        if ranges:
            message += "; contended: " + printable_ranges(ranges)
        elif last is not None:
            message += f"; last: {last}"
        else:
            message += "; the store did not answer, the outcome is unknown" + (self.if_silent and "; " + self.if_silent)
        return RetriesExhausted(message, ranges, contended=isinstance(last, NotCommitted))
