"""Images, updates and replicas that hold mutable chunks: what the tests of them share."""

from esker.craq.messages import Reserved
from esker.craq.mutable_messages import (
    ChannelEntry,
    Image,
    Looked,
    Named,
    Origin,
    Patch,
    PatchKind,
    Pending,
    Persisted,
    Update,
)
from esker.craq.replica import AnyEffect, ChainReplica
from esker.wire.status import Status

from .replicas import CHAIN_VERSION, CHUNK, FIRST_VERSION, play

OLD = FIRST_VERSION - 5
"""A version that was drawn in an earlier version of the chain."""
V = FIRST_VERSION
"""The first that is drawn in this one."""
ORIGIN = Origin(b"c" * 16, 1, 7)
WRITE = Patch(PatchKind.WRITE, 0, 10)
REMOVE = Patch(PatchKind.REMOVE)


def image(version: int = V, length_bytes: int = 10, truncate_version: int = 0) -> Image:
    """One content per version and length."""
    return Image(version, length_bytes, (version + length_bytes).to_bytes(8, "little"), truncate_version)


def gone(version: int = V) -> Image:
    """A removal."""
    return Image(version, absent=True)


def pending(of: Image, previous: int = 0, origin: Origin | None = ORIGIN) -> Pending:
    """`of`, not known to be committed."""
    return Pending(of, previous, origin)


def looked(
    op: int = 1,
    committed: Image | None = None,
    held: Pending | None = None,
    entry: ChannelEntry | None = None,
    *,
    lease: bool = True,
    damaged: bool = False,
) -> Looked:
    """What is found."""
    return Looked(op, committed, held, entry, lease, damaged)


def update(
    op: int = 1, patch: Patch = WRITE, origin: Origin = ORIGIN, chunk: bytes = CHUNK, version: int = CHAIN_VERSION
) -> Update:
    """From a client."""
    return Update(op, version, chunk, patch, origin)


def named(
    op: int = 1,
    of: Image | None = None,
    previous: int = 0,
    *,
    full: bool = False,
    hop: int = 1,
    version: int = CHAIN_VERSION,
) -> Update:
    """From the predecessor."""
    of = image() if of is None else of
    patch = REMOVE if of.absent else Patch(PatchKind.WRITE, 0, of.length_bytes)
    return Update(op, version, CHUNK, patch, ORIGIN, Named(previous, of, full, hop))


def persisted(op: int = 1, of: Image | None = None) -> Persisted:
    """Durable."""
    return Persisted(op, Status.OK, image() if of is None else of)


def writing(machine: ChainReplica, op: int = 1) -> list[AnyEffect]:
    """A client's write up to its persisting; the effects of that."""
    return play(machine, update(op), looked(op), Reserved(op, True))


def sent_on(machine: ChainReplica, op: int = 1) -> list[AnyEffect]:
    """A client's write up to its sending on; the effects of that."""
    writing(machine, op)
    return play(machine, persisted(op))
