"""The outcome of one request or of one extent of a batch, as it travels.

A status is a definite answer of the peer. What never got an answer is the client's to name
(`TIMEOUT`, `UNAVAILABLE`); a write that timed out is unknown, never failed.
"""

from enum import IntEnum
from typing import Final


class Status(IntEnum):
    """Status codes; the numbers are part of the protocol and never change."""

    OK = 0
    EXISTS = 1
    """CREATE: the chunk was there with the same length, checksums and put id; confirmed on the chain."""
    EXISTS_OTHER = 2
    """CREATE: a chunk of that id with other content is there; it stays."""
    NOT_FOUND = 3
    NO_SPACE = 4
    """The write was dropped before it got a version; membership is untouched."""
    BUSY = 5
    """A bounded queue is full: back off and try again."""
    TIMEOUT = 6
    """The deadline passed. For a write: the outcome is unknown."""
    UNAVAILABLE = 7
    """A worker that this needs cannot be reached or is not serving."""
    CHECKSUM = 8
    """Stored or received bytes do not match their checksum; never returned as data."""
    CHAIN_VERSION = 9
    """The request names another version of the chain than the worker's; refresh routing."""
    CONDITION = 10
    """Conditional removal: the stored version or put id is another."""
    TOO_LARGE = 11
    BAD_REQUEST = 12
    UNSUPPORTED_VERSION = 13
    WRONG_CLUSTER = 14
    IO_ERROR = 15
    BAD_MEMORY = 16
    """Registered client memory is unusable (truncated, too short, out of range)."""
    NOT_READY = 17
    """The cluster has no chains yet: drives are still missing."""
    GEOMETRY = 18
    """The namespace exists with another geometry."""
    FORBIDDEN = 19
    INTERNAL = 20
    CANCELLED = 21
    CONFLICT = 22
    """A metadata transaction met contention until its deadline."""
    NAMESPACE_REMOVED = 23
    """The namespace of these blocks has been removed: open one again."""


class _StatusOf(dict[int, Status]):
    def __missing__(self, number: int) -> Status:
        return Status.INTERNAL


STATUS_OF: Final = _StatusOf({int(status): status for status in Status})
"""By number, as it travels. One that this version does not know, of a newer peer, is INTERNAL to it."""
