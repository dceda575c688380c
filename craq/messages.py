"""Events into a chain replica and effects out of it: frozen, without payload bytes (they travel beside)."""

from dataclasses import dataclass

from esker.wire.ids import NO_PUT_ID
from esker.wire.status import Status
from esker.wire.types import Chain


@dataclass(frozen=True, slots=True)
class Content:
    """What a chunk holds, as far as replicas must agree on it."""

    length_bytes: int
    checksums: bytes
    """u64 little-endian XXH3-64 per started 64 KiB."""
    put_id: bytes
    block_bytes: int
    chunk_count: int
    key: bytes


@dataclass(frozen=True, slots=True)
class Stored:
    """A chunk that is durable here, or at the successor."""

    version: int
    content: Content


# Events. `op` is the runner's number for one operation at this replica.


@dataclass(frozen=True, slots=True)
class Create:
    """A create arrived, from a client (version 0) or from the predecessor."""

    op: int
    chain_version: int
    chunk: bytes
    version: int
    content: Content
    has_payload: bool
    """False: the predecessor only asks for confirmation of what should be here."""


@dataclass(frozen=True, slots=True)
class Remove:
    """A removal arrived. `version` 0 and `put_id` zeros: any."""

    op: int
    chain_version: int
    chunk: bytes
    version: int = 0
    put_id: bytes = NO_PUT_ID


@dataclass(frozen=True, slots=True)
class Found:
    """Answers `Lookup`."""

    op: int
    stored: Stored | None


@dataclass(frozen=True, slots=True)
class Reserved:
    """Answers `Reserve`."""

    op: int
    granted: bool


@dataclass(frozen=True, slots=True)
class Written:
    """Answers `Write`: the chunk is durable, or it cannot be."""

    op: int
    failed: bool = False
    no_space: bool = False
    """With `failed`: for lack of room, which is no fault of the drive."""


@dataclass(frozen=True, slots=True)
class Unreadable:
    """The stored copy that was to be forwarded does not verify."""

    op: int


@dataclass(frozen=True, slots=True)
class Removed:
    """Answers `RemoveLocal`: durable, or it cannot be."""

    op: int
    failed: bool = False
    no_space: bool = False
    """With `failed`: for lack of room, which is no fault of the drive; what was there stays."""


@dataclass(frozen=True, slots=True)
class Forwarded:
    """The successor's answer, or why there is none (UNAVAILABLE, TIMEOUT)."""

    op: int
    status: Status


@dataclass(frozen=True, slots=True)
class Fetched:
    """Answers `Fetch`: the successor's copy is in hand and verified, or not to be had."""

    op: int
    stored: Stored | None


@dataclass(frozen=True, slots=True)
class Membership:
    """The manager made this chain."""

    chain: Chain


@dataclass(frozen=True, slots=True)
class Expired:
    """The operation's deadline passed: nobody waits for more than a definite local outcome any longer."""

    op: int


@dataclass(frozen=True, slots=True)
class DriveFailed:
    """The drive takes no more writes: nothing is served or acknowledged from now on."""

    why: str


Event = (
    DriveFailed
    | Create
    | Remove
    | Found
    | Reserved
    | Written
    | Unreadable
    | Removed
    | Forwarded
    | Fetched
    | Membership
    | Expired
)


# Effects


@dataclass(frozen=True, slots=True)
class Lookup:
    """Say what is stored here for the operation's chunk."""

    op: int


@dataclass(frozen=True, slots=True)
class Reserve:
    """Take room for the chunk. A head leaves the drive's reserve alone; replicas behind it may use it."""

    op: int
    use_reserve: bool


@dataclass(frozen=True, slots=True)
class Write:
    """Write what was reserved (`fetched`: the successor's copy, in its place) and make it durable as `version`."""

    op: int
    version: int
    fetched: bool = False


@dataclass(frozen=True, slots=True)
class Forward:
    """Send the create on.

    `content` and `version` are what the successor shall have. `confirm`: without payload. Otherwise the payload is
    the operation's own, or (`from_store`) the copy stored here.
    """

    op: int
    successor: str
    version: int
    content: Content
    confirm: bool
    from_store: bool


@dataclass(frozen=True, slots=True)
class ForwardRemove:
    """Send the removal on."""

    op: int
    successor: str


@dataclass(frozen=True, slots=True)
class Fetch:
    """Take room for the successor's copy and read it: it wins over ours."""

    op: int
    successor: str


@dataclass(frozen=True, slots=True)
class RemoveLocal:
    """Remove the chunk here if it still has `version`, durably."""

    op: int
    version: int


@dataclass(frozen=True, slots=True)
class Answer:
    """The operation is over: tell whoever sent it. `stored`: what is here now, if anything is known to be."""

    op: int
    status: Status
    stored: Stored | None = None


@dataclass(frozen=True, slots=True)
class TargetOffline:
    """This replica must not serve or acknowledge anything any more: its drive failed a write."""

    why: str


Effect = Lookup | Reserve | Write | Forward | ForwardRemove | Fetch | RemoveLocal | Answer | TargetOffline
