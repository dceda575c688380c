"""What `KVCacheClient` answers: one small object per key, and the client's own figures."""

from dataclasses import dataclass

import msgspec

from esker.client.buffers import PoolStatistics
from esker.client.channel import Transport
from esker.wire.status import Status


class GetResult(msgspec.Struct, frozen=True, gc=False):
    """Outcome of one key of a `get`."""

    status: Status
    """OK; NOT_FOUND; TOO_LARGE (the buffer is too small); or why there was no answer: TIMEOUT, UNAVAILABLE, CHECKSUM
    (no replica's bytes verified), IO_ERROR."""
    length: int
    """The block's length in bytes, with OK and TOO_LARGE; else 0."""


class PutResult(msgspec.Struct, frozen=True, gc=False):
    """Outcome of one key of a `put`."""

    status: Status
    """OK (stored on every replica); EXISTS (it was there, with these bytes); EXISTS_OTHER (it has other bytes, which
    stay); NO_SPACE (dropped); UNAVAILABLE (no answer of its chain; it may be stored all the same); TIMEOUT
    (unknown); CHECKSUM (the bytes changed while they were sent)."""


@dataclass(frozen=True, slots=True)
class ClientStatistics:
    """A client's totals since it connected, as its callers saw things."""

    counters: dict[str, int]
    """Blocks by operation and outcome (`get_ok`, `get_not_found`, `put_exists`), `lookup_keys` and `lookup_hits`."""
    per_drive_read_bytes: dict[str, int]
    """Verified bytes, by drive id."""
    per_drive_written_bytes: dict[str, int]
    """Bytes newly stored through each head, by drive id; its chain's other replicas wrote as many."""
    transports: dict[str, Transport]
    """How each drive's worker is reached at the moment; those that are down are left out."""
    pool: PoolStatistics
