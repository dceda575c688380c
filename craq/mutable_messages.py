"""Events into a replica's mutable chunks and effects out of them: frozen, without payload bytes (they travel beside).

What an operation does is a patch; what a chunk is in one version is an image. `Reserved`, `Forwarded`, `Unreadable`,
`Expired`, `Membership`, `DriveFailed` and `TargetOffline` are those of `craq/messages.py`.

Every operation ends with exactly one `Ended`, after exactly one `AnswerMutable` or `ServeImage`. The answer may come
earlier than the end: until the end the operation holds its chunk, and the runner keeps what it has of it.
"""

from enum import IntEnum

import msgspec

from esker.craq.messages import Expired, Forwarded, Reserved, TargetOffline, Unreadable
from esker.wire.status import Status


class PatchKind(IntEnum):
    """What a patch does; the numbers travel."""

    WRITE = 0
    """`length_bytes` of payload at `offset`; a gap before it reads as zeros."""
    TRUNCATE = 1
    """The chunk is `length_bytes` long: cut, or filled with zeros."""
    REMOVE = 2


class Patch(msgspec.Struct, frozen=True, gc=False):
    """A change of one chunk. `offset` and `length_bytes` in bytes; the payload is beside."""

    kind: PatchKind
    offset: int = 0
    length_bytes: int = 0
    truncate_version: int = 0
    """Dropped where the image has a higher one: a late write brings no bytes back. A removal ignores it."""


class Image(msgspec.Struct, frozen=True, gc=False):
    """A chunk in one version."""

    version: int
    """Chain version << 40 | counter: grows for ever. 0 only in a resync's removal of what should not be there."""
    length_bytes: int = 0
    checksums: bytes = b""
    """u64 little-endian XXH3-64 per started 64 KiB."""
    truncate_version: int = 0
    absent: bool = False
    """In this version the chunk is removed; once committed, nothing is stored of it."""


class Origin(msgspec.Struct, frozen=True, gc=False):
    """By whom a write was asked for: one write at a time for each channel of a client's life."""

    client: bytes
    channel: int
    sequence: int


class ChannelEntry(msgspec.Struct, frozen=True, gc=False):
    """The last write of a channel, as the exactly-once table has it."""

    sequence: int
    version: int
    length_bytes: int
    """Of the chunk after it."""


class Pending(msgspec.Struct, frozen=True, gc=False):
    """An image that is durable here and not known to be committed. `previous`: the committed version before (0: none).

    Its record also keeps the channel's entry of before, which a discard puts back.
    """

    image: Image
    previous: int
    origin: Origin | None


class Named(msgspec.Struct, frozen=True, gc=False):
    """What a predecessor says of an update."""

    previous: int
    image: Image
    """What the chunk must be afterwards."""
    full: bool
    """The payload is all of the image: nothing of what is here is used."""
    hop: int
    """Number of this message between the two replicas in this version of the chain; grows."""


# Arrivals. `op` is the runner's number for one operation at this replica, of any kind.


class Update(msgspec.Struct, frozen=True, gc=False):
    """A change arrived, from a client (`named` None, `origin` given) or from the predecessor."""

    op: int
    chain_version: int
    chunk: bytes
    patch: Patch
    origin: Origin | None
    named: Named | None = None


class ReadRange(msgspec.Struct, frozen=True, gc=False):
    """A client wants to read the chunk, or only to know its version and length."""

    op: int
    chain_version: int
    chunk: bytes


class VersionQuery(msgspec.Struct, frozen=True, gc=False):
    """A replica in front asks the last serving one which version is committed. Version 0 in the answer: none is."""

    op: int
    chain_version: int
    chunk: bytes


class SyncMutable(msgspec.Struct, frozen=True, gc=False):
    """The syncing successor shall have of this chunk what is here, or nothing if nothing is."""

    op: int
    chain_version: int
    chunk: bytes


class Recover(msgspec.Struct, frozen=True, gc=False):
    """A pending image is here that no operation is about: it is to be committed.

    The runner begins one for every pending chunk at start and after each `Membership` while the replica `recovers`,
    and again after a while for each operation that ended and left one (`Ended.pending`).
    """

    op: int
    chain_version: int
    chunk: bytes


MutableArrival = Update | ReadRange | VersionQuery | SyncMutable | Recover


# Reports


class Looked(msgspec.Struct, frozen=True, gc=False):
    """Answers `LookupMutable`."""

    op: int
    committed: Image | None
    pending: Pending | None
    channel: ChannelEntry | None = None
    """Of the operation's origin."""
    lease_live: bool = True
    """Whether this worker's lease for the chain is live at this moment."""
    damaged: bool = False
    """Something is here that cannot be made out."""


class Persisted(msgspec.Struct, frozen=True, gc=False):
    """Answers `PersistPending`. OK: `image` is durable. Otherwise nothing has changed here.

    NO_SPACE; CHECKSUM (the base, the payload or the result is not what it should be); anything else: the drive failed.
    """

    op: int
    status: Status
    image: Image | None = None


class Repaired(msgspec.Struct, frozen=True, gc=False):
    """Answers `RepairImage`. Not `done`: what is here is as it was."""

    op: int
    done: bool


class Committed(msgspec.Struct, frozen=True, gc=False):
    """Answers `CommitPending`: durable, or it cannot be."""

    op: int
    failed: bool = False
    no_space: bool = False
    """With `failed`: for lack of room, which is no fault of the drive; the image is still pending."""


class Discarded(msgspec.Struct, frozen=True, gc=False):
    """Answers `DiscardPending`: durable, or it cannot be."""

    op: int
    failed: bool = False
    no_space: bool = False
    """As in `Committed`."""


class VersionKnown(msgspec.Struct, frozen=True, gc=False):
    """Answers `QueryVersion`: what the last serving replica says, or why there is no answer (UNAVAILABLE, TIMEOUT)."""

    op: int
    status: Status
    version: int = 0


class ChannelsCleared(msgspec.Struct, frozen=True, gc=False):
    """The table of the chain's channels here is empty, durably; see `ChainReplica.clears_channels`."""

    chain_version: int


MutableReport = Looked | Persisted | Repaired | Committed | Discarded | VersionKnown

MutableEvent = MutableArrival | MutableReport | Reserved | Forwarded | Unreadable | Expired


# Effects


class LookupMutable(msgspec.Struct, frozen=True, gc=False):
    """Say what is durable here of the operation's chunk and channel, as it is now."""

    op: int


class ReserveImage(msgspec.Struct, frozen=True, gc=False):
    """Take room for an image; answered by `Reserved`. A head leaves the drive's reserve alone.

    What is reserved and not persisted by the operation's end is free again.
    """

    op: int
    length_bytes: int
    use_reserve: bool


class PersistPending(msgspec.Struct, frozen=True, gc=False):
    """Make the operation's patch of the committed image durable as `version`, in a slot of its own.

    `expected`: what it must be (from the predecessor). `commit`: in the same transaction it becomes the committed
    image. `replace`: whatever is here, committed and pending, goes in the same transaction. `full`: the payload is the
    whole image. The channel's entry is written in the same transaction, unless a higher sequence is there.
    """

    op: int
    version: int
    previous: int
    commit: bool
    replace: bool
    full: bool
    expected: Image | None


class RepairImage(msgspec.Struct, frozen=True, gc=False):
    """The image of `version` here, committed or pending, does not verify: take that of the same version from `drive`,
    where it may be either too, verified, into its place.
    """

    op: int
    drive: str
    version: int


class CommitPending(msgspec.Struct, frozen=True, gc=False):
    """The pending image of `version` becomes the committed one, durably."""

    op: int
    version: int


class DiscardPending(msgspec.Struct, frozen=True, gc=False):
    """The pending image of `version` goes, durably; its channel's entry of before comes back, if its own is there."""

    op: int
    version: int


class ForwardUpdate(msgspec.Struct, frozen=True, gc=False):
    """Send an update on; answered by `Forwarded`, or by `Unreadable` if what is to be sent from here does not verify.

    Not `full`: the operation's own patch and payload, with `named`. `full`: all of the image `named.image`, which is
    stored here as pending or committed (nothing but `named`, if it is absent); the patch is then a WRITE at 0 of its
    length, or a REMOVE.
    """

    op: int
    successor: str
    origin: Origin | None
    named: Named


class QueryVersion(msgspec.Struct, frozen=True, gc=False):
    """Ask the drive `tail` which version of the chunk is committed."""

    op: int
    tail: str


class ServeImage(msgspec.Struct, frozen=True, gc=False):
    """Answer a read with this image, which is stored here at this moment (`pending`: as the pending one).

    None: the chunk is absent.
    """

    op: int
    image: Image | None
    pending: bool = False


class AnswerMutable(msgspec.Struct, frozen=True, gc=False):
    """Tell whoever sent the operation. `version` and `length_bytes`: with OK."""

    op: int
    status: Status
    version: int = 0
    length_bytes: int = 0


class Ended(msgspec.Struct, frozen=True, gc=False):
    """The operation is over. `pending`: an image is left pending here, to be recovered."""

    op: int
    pending: bool = False


MutableEffect = (
    LookupMutable
    | ReserveImage
    | PersistPending
    | RepairImage
    | CommitPending
    | DiscardPending
    | ForwardUpdate
    | QueryVersion
    | ServeImage
    | AnswerMutable
    | Ended
    | TargetOffline
)
