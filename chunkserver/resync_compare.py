"""What two replicas of a chain have, told apart: a merge of two sequences of pages in key order. Pure.

Two copies are equal if their version, length, put id, block length, chunk count, key and checksums (by their digest)
are. The version of the chain in which each was written says nothing more: an immutable chunk's version and content are
all that anybody ever asks of it, and a copy that came by a resync was written in a later version of the chain than the
one that it is a copy of.
"""

from collections.abc import Iterator, Sequence

from esker.chunkserver.engine.record import Record
from esker.chunkserver.scan import digest
from esker.wire.admin_messages import SCAN_ROW, ScanReply
from esker.wire.errors import ProtocolError

Copy = tuple[object, ...]
"""What must be equal."""

_DIGEST_BYTES = 8


class Side:
    """One replica's pages: what is left of the newest, and where it ends."""

    def __init__(self) -> None:
        self.copies: list[tuple[bytes, Copy]] = []
        self.after = b""
        """Where the next page begins."""
        self.over = False
        """There is no next page."""

    def add(self, copies: Sequence[tuple[bytes, Copy]], next_after: bytes) -> None:
        """A page; `next_after` empty: it is the last."""
        self.copies += copies
        self.after = next_after
        self.over = not next_after

    def take(self, end: bytes | None) -> dict[bytes, Copy]:
        """What stands up to `end` (None: everything)."""
        taken = {key: copy for key, copy in self.copies if end is None or key <= end}
        del self.copies[: len(taken)]
        return taken


def differences(ours: Side, theirs: Side) -> Iterator[bytes]:
    """Record keys on which the two differ, as far as both have been read."""
    ends = [side.after for side in (ours, theirs) if not side.over]
    end = min(ends) if ends else None
    behind = theirs.take(end)
    for key, copy in ours.take(end).items():
        if behind.pop(key, None) != copy:
            yield key
    yield from behind


def copy_of(record: Record) -> Copy:
    """What our record says."""
    return (
        record.version,
        record.length,
        record.block_bytes,
        record.chunk_count,
        record.put_id,
        record.key,
        digest(record.checksums),
    )


def copies_of(reply: ScanReply) -> list[tuple[bytes, Copy]]:
    """What a page of the other's scan says. Raises `ProtocolError` where its columns do not agree."""
    if len(reply.rows) % SCAN_ROW.size or len(reply.digests) * SCAN_ROW.size != len(reply.rows) * _DIGEST_BYTES:
        raise ProtocolError("a scan's rows and digests do not agree")
    copies: list[tuple[bytes, Copy]] = []
    at = 0
    for number, row in enumerate(SCAN_ROW.iter_unpack(reply.rows)):
        record_key, version, length, block_bytes, chunk_count, put_id, _, key_bytes = row
        key = reply.keys[at : at + key_bytes]
        at += key_bytes
        sums = reply.digests[number * _DIGEST_BYTES : (number + 1) * _DIGEST_BYTES]
        copies.append((record_key, (version, length, block_bytes, chunk_count, put_id, key, sums)))
    if at != len(reply.keys):
        raise ProtocolError("a scan's keys do not fit its rows")
    return copies
