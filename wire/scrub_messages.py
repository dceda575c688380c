"""Bodies of requests about damage: what a client saw, and passes over everything that a drive holds.

The rules of the bodies are those of `messages.py`. No request here is needed to store or read a block.
"""

import struct

from esker.wire.messages import Message

DAMAGED_EXTENT = struct.Struct("<16sIIQ")
"""object, index, chain id, version of the chunk whose bytes did not match (0: not known)."""
DAMAGED_EXTENTS_MAX = 256


class Damaged(Message, frozen=True):
    """Chunks whose bytes did not match their checksums when they were read from this worker.

    It is answered at once, with `Empty`; the worker looks at its copies later, believes only what it sees itself, and
    may forget some where many are named.
    """

    space: int
    extents: bytes
    """Of DAMAGED_EXTENT, at most DAMAGED_EXTENTS_MAX."""


class Scrub(Message, frozen=True):
    """How far a drive's scrubbing is."""

    start: bool = False
    """Begin a pass now, or go on with the one that is under way, without waiting for its time."""
    rate_bytes_per_s: int = 0
    """With `start`: how fast that pass goes; 0: as the worker was set up."""


class ScrubPass(Message, frozen=True):
    """One pass over everything that a drive holds."""

    number: int
    """From 1 on, for the drive's whole life."""
    began_ms: int
    """Milliseconds since 1970."""
    ended_ms: int = 0
    """0: it has not."""
    chunks: int = 0
    """Looked at so far."""
    data_bytes: int = 0
    """Read so far."""
    mismatches: int = 0
    """Chunks whose record or data did not verify."""
    repaired: int = 0
    """Of those: replaced from another replica, or whole when they were read again."""
    lost: int = 0
    """Of those: there is no whole copy, and what is read of them is a miss or an error."""
    waiting: int = 0
    """Of those: another replica could not be asked; a later read or pass tries again."""


class ScrubReply(Message, frozen=True):
    present: ScrubPass | None
    """The pass under way."""
    last: ScrubPass | None
    """The last one that came to its end."""
    stored_bytes: int
    """What the drive holds now: about what a pass reads."""
    rate_bytes_per_s: int
    """Of the pass under way, or the next one. 0: passes begin only on request."""
    next_ms: int = 0
    """When the next pass begins by itself (since 1970); 0: one is under way, or none will."""
