"""Events into a chain replica and effects out of it: frozen, without payload bytes (they travel beside).

Structs of msgspec, because a frozen dataclass takes ten times as long to make, and every chunk written makes a dozen.
"""

import msgspec

from esker.wire.ids import NO_PUT_ID
from esker.wire.status import Status
from esker.wire.types import Chain


class Content(msgspec.Struct, frozen=True, gc=False):
    """What a chunk holds, as far as replicas must agree on it."""

    length_bytes: int
    checksums: bytes
    """u64 little-endian XXH3-64 per started 64 KiB."""
    put_id: bytes
    block_bytes: int
    chunk_count: int
    key: bytes


class Stored(msgspec.Struct, frozen=True, gc=False):
    """A chunk that is durable here, or at the successor."""

    version: int
    content: Content


# Events. `op` is the runner's number for one operation at this replica.


class Create(msgspec.Struct, frozen=True, gc=False):
    """A create arrived, from a client (version 0) or from the predecessor."""

    op: int
    chain_version: int
    chunk: bytes
    version: int
    content: Content
    has_payload: bool
    """False: the predecessor only asks for confirmation of what should be here."""
    replace: bool = False
    """From the predecessor of a syncing replica: this copy takes the place of any other."""


class Remove(msgspec.Struct, frozen=True, gc=False):
    """A removal arrived. `version` 0 and `put_id` zeros: any."""

    op: int
    chain_version: int
    chunk: bytes
    version: int = 0
    put_id: bytes = NO_PUT_ID


class Sync(msgspec.Struct, frozen=True, gc=False):
    """The syncing successor shall have of this chunk what is here, or nothing if nothing is."""

    op: int
    chain_version: int
    chunk: bytes


class Repair(msgspec.Struct, frozen=True, gc=False):
    """The copy here may be damaged: it shall be looked at, and replaced by another replica's if it is.

    Answered with OK (it was replaced), EXISTS (it is whole), NOT_FOUND (nothing is here), CONDITION (it was damaged and
    the only copy there could be: it has been removed), CHECKSUM (no other replica has it whole), UNAVAILABLE (some
    other replica could not be asked), or why nothing could be done.
    """

    op: int
    chain_version: int
    chunk: bytes


class Found(msgspec.Struct, frozen=True, gc=False):
    """Answers `Lookup`."""

    op: int
    stored: Stored | None
    damaged: bool = False
    """With `stored` None: something is here that cannot be made out."""


class Reserved(msgspec.Struct, frozen=True, gc=False):
    """Answers `Reserve`."""

    op: int
    granted: bool


class Written(msgspec.Struct, frozen=True, gc=False):
    """Answers `Write`: the chunk is durable, or it cannot be."""

    op: int
    failed: bool = False
    no_space: bool = False
    """With `failed`: for lack of room, which is no fault of the drive."""


class Unreadable(msgspec.Struct, frozen=True, gc=False):
    """The stored copy that was to be forwarded does not verify."""

    op: int


class Removed(msgspec.Struct, frozen=True, gc=False):
    """Answers `RemoveLocal`: durable, or it cannot be."""

    op: int
    failed: bool = False
    no_space: bool = False
    """With `failed`: for lack of room, which is no fault of the drive; what was there stays."""


class Forwarded(msgspec.Struct, frozen=True, gc=False):
    """The successor's answer, or why there is none (UNAVAILABLE, TIMEOUT)."""

    op: int
    status: Status


class Fetched(msgspec.Struct, frozen=True, gc=False):
    """Answers `Fetch` and `CopyFrom`: the other's copy is in hand and verified, or not to be had."""

    op: int
    stored: Stored | None
    reached: bool = True
    """With `stored` None: the other said that it has none, or gave one that does not verify."""


class Verified(msgspec.Struct, frozen=True, gc=False):
    """Answers `Verify`."""

    op: int
    whole: bool


class Membership(msgspec.Struct, frozen=True, gc=False):
    """The manager made this chain."""

    chain: Chain


class Expired(msgspec.Struct, frozen=True, gc=False):
    """The operation's deadline passed: nobody waits for more than a definite local outcome any longer."""

    op: int


class DriveFailed(msgspec.Struct, frozen=True, gc=False):
    """The drive takes no more writes: nothing is served or acknowledged from now on."""

    why: str


Arrival = Create | Remove | Sync | Repair
"""What begins an operation."""

Event = (
    DriveFailed
    | Create
    | Remove
    | Sync
    | Repair
    | Found
    | Reserved
    | Written
    | Unreadable
    | Removed
    | Forwarded
    | Fetched
    | Verified
    | Membership
    | Expired
)


# Effects


class Lookup(msgspec.Struct, frozen=True, gc=False):
    """Say what is stored here for the operation's chunk."""

    op: int


class Reserve(msgspec.Struct, frozen=True, gc=False):
    """Take room for the chunk. A head leaves the drive's reserve alone; replicas behind it may use it."""

    op: int
    use_reserve: bool


class Write(msgspec.Struct, frozen=True, gc=False):
    """Write what was reserved (`fetched`: the successor's copy, in its place) and make it durable as `version`."""

    op: int
    version: int
    fetched: bool = False


class Forward(msgspec.Struct, frozen=True, gc=False):
    """Send the create on.

    `content` and `version` are what the successor shall have. `confirm`: without payload. Otherwise the payload is
    the operation's own, or (`from_store`) the copy stored here. `replace`: it takes the place of any other there.
    """

    op: int
    successor: str
    version: int
    content: Content
    confirm: bool
    from_store: bool
    replace: bool = False


class ForwardRemove(msgspec.Struct, frozen=True, gc=False):
    """Send the removal on. `anything`: whatever the successor has goes, without the removal's condition."""

    op: int
    successor: str
    anything: bool = False


class Fetch(msgspec.Struct, frozen=True, gc=False):
    """Take room for the successor's copy and read it: it wins over ours."""

    op: int
    successor: str


class Verify(msgspec.Struct, frozen=True, gc=False):
    """Read the copy stored here and compare it with its checksums; what fails is read once more."""

    op: int


class CopyFrom(msgspec.Struct, frozen=True, gc=False):
    """Read this drive's copy, if its worker takes part in the same version of the chain. No room is taken for it."""

    op: int
    drive_id: str


class RemoveLocal(msgspec.Struct, frozen=True, gc=False):
    """Remove the chunk here if it still has `version` (0: any), durably."""

    op: int
    version: int


class Answer(msgspec.Struct, frozen=True, gc=False):
    """The operation is over: tell whoever sent it. `stored`: what is here now, if anything is known to be."""

    op: int
    status: Status
    stored: Stored | None = None


class TargetOffline(msgspec.Struct, frozen=True, gc=False):
    """This replica must not serve or acknowledge anything any more: its drive failed a write."""

    why: str


Effect = (
    Lookup
    | Reserve
    | Write
    | Forward
    | ForwardRemove
    | Fetch
    | Verify
    | CopyFrom
    | RemoveLocal
    | Answer
    | TargetOffline
)
