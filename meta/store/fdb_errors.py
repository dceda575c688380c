"""What FoundationDB's error codes mean to us, in one table. Pure: knows the codes, not the package.

The codes are those of FoundationDB's documentation ("Error codes"). Anything that is not in the table follows what the
package's own predicates say of it: retryable, or perhaps committed.
"""

from esker.meta.store.base import KEY_BYTES_MAX, TRANSACTION_BYTES_MAX, VALUE_BYTES_MAX
from esker.meta.store.errors import (
    CommitUnknown,
    InvalidOperation,
    LimitExceeded,
    NotCommitted,
    StoreBusy,
    StoreError,
    StoreFailed,
    StoreSilent,
    TransactionTooOld,
)

NOT_COMMITTED = 1020
TIMED_OUT = 1031
CANCELLED = {1025, 1101}
"""A transaction that was cancelled or reset, and an operation that was."""

_MESSAGES: dict[int, tuple[type[StoreError], str]] = {
    1007: (TransactionTooOld, "it read more than 5 s ago"),
    1009: (StoreBusy, "a storage server has not come as far as the version that was read"),
    1021: (CommitUnknown, "the answer to the commit was lost"),
    1025: (StoreFailed, "the transaction was cancelled"),
    1032: (LimitExceeded, "too many watches are open"),
    1036: (InvalidOperation, "use of a range that holds a key whose versionstamp is not known yet"),
    1101: (StoreFailed, "the operation was cancelled"),
    2101: (LimitExceeded, f"the transaction is too large; allowed: {TRANSACTION_BYTES_MAX} bytes"),
    2102: (LimitExceeded, f"a key is too long; allowed: {KEY_BYTES_MAX} bytes, the store's prefix included"),
    2103: (LimitExceeded, f"a value is too long; allowed: {VALUE_BYTES_MAX} bytes"),
}


def translated(
    code: int, description: str, *, retryable: bool, maybe_committed: bool, if_silent: str = ""
) -> StoreError:
    """Our error for FoundationDB's. The ranges of a conflict are the caller's to add."""
    if code == NOT_COMMITTED:
        return NotCommitted()
    if code == TIMED_OUT:
        return StoreSilent("the metadata store did not answer in time" + (if_silent and "; " + if_silent))
    if code in _MESSAGES:
        kind, message = _MESSAGES[code]
        return kind(message)
    text = f"FoundationDB: {description} ({code})"
    if maybe_committed:
        return CommitUnknown(text)
    if retryable:
        return StoreBusy(text)
    return InvalidOperation(text) if 2000 <= code < 2100 else StoreFailed(text)
