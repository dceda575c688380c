"""Errors of the metadata stores, one tree for every engine.

    StoreError
    ├── RetryableError             run the transaction again from its start
    │   ├── NotCommitted           another transaction wrote what this one read; names the ranges
    │   ├── TransactionTooOld      it read more than 5 s ago
    │   ├── CommitUnknown          it may have been committed, or not
    │   └── StoreBusy              too many commits are waiting
    ├── RetriesExhausted           `Store.run` met its deadline; says what was contended
    ├── LimitExceeded              a key, value or transaction above FoundationDB's limits
    ├── InvalidOperation           a use that no engine allows: our own bug
    └── StoreFailed                the engine cannot go on (full, I/O error, closed)
        └── StoreSilent            it did not answer in time; what a commit did is unknown

Engines map their own errors to these and let nothing else out.
"""

from collections.abc import Sequence

from esker.wire.errors import EskerError

KeyRange = tuple[bytes, bytes]


class StoreError(EskerError):
    """Base of what a store raises."""


class RetryableError(StoreError):
    """The transaction had no effect that was acknowledged; run it again."""


class NotCommitted(RetryableError):
    """A conflict: what was read changed before the commit. `ranges` are the conflicting ranges, as far as known."""

    def __init__(self, ranges: Sequence[KeyRange] = ()) -> None:
        super().__init__("conflict on " + printable_ranges(ranges))
        self.ranges = tuple(ranges)


class TransactionTooOld(RetryableError):
    """The transaction's snapshot is older than the store keeps."""


class CommitUnknown(RetryableError):
    """The commit may have happened. A transaction that is run again must be idempotent."""


class StoreBusy(RetryableError):
    """The queue of commits is full."""


class RetriesExhausted(StoreError):
    """The deadline passed. `ranges` are what was contended last. The outcome of the last attempt may be unknown."""

    def __init__(self, message: str, ranges: Sequence[KeyRange] = (), *, contended: bool = False) -> None:
        super().__init__(message)
        self.ranges = tuple(ranges)
        self.contended = contended
        """The last attempt that was answered met a conflict."""


class LimitExceeded(StoreError):
    """A key, value or transaction is larger than the interface allows."""


class InvalidOperation(StoreError):
    """Used in a way that the interface forbids."""


class StoreFailed(StoreError):
    """The engine cannot serve any more; the message says why."""


class StoreSilent(StoreFailed):
    """The engine did not answer in time; the message says what to check. What a commit did is unknown."""


def printable(key: bytes) -> str:
    """`key` as FoundationDB's tools print it: ASCII as it is, all else as \\xNN."""
    return "".join(chr(byte) if 33 <= byte < 127 and byte != 92 else f"\\x{byte:02x}" for byte in key)


def printable_range(found: KeyRange) -> str:
    """A range for a message; a single key is printed as a key."""
    begin, end = found
    return printable(begin) if end == begin + b"\x00" else f"{printable(begin)}..{printable(end)}"


def printable_ranges(ranges: Sequence[KeyRange]) -> str:
    """The first few of `ranges` for a message."""
    shown = ", ".join(printable_range(found) for found in ranges[:3])
    return shown + (f" and {len(ranges) - 3} more" if len(ranges) > 3 else "") if ranges else "unknown keys"
