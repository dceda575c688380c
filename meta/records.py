"""Values of the metadata store: a format byte, then the struct as MessagePack.

Structs of `wire.types` only ever gain fields at the end, with defaults, so old values stay readable. The format byte
is for changes beyond that. What does not decode is damage, never guessed at.
"""

from functools import cache
from typing import Any, TypeVar

import msgspec

from esker.meta.store.errors import StoreFailed, printable
from esker.wire.types import Namespace

FORMAT = 1
_FORMAT_BYTE = bytes([FORMAT])
S = TypeVar("S", bound=msgspec.Struct)
_encode = msgspec.msgpack.Encoder().encode


class ClusterRecord(msgspec.Struct, frozen=True):
    """What a cluster is from its first start on."""

    cluster_id: str
    drives_expected: int
    replicas: int
    created_ms: int


class MetaServer(msgspec.Struct, frozen=True):
    """A metadata server that others can reach. It counts `beats` up as long as it lives."""

    address: str
    incarnation: str
    beats: int


class ManagerTerm(msgspec.Struct, frozen=True):
    """Who is the manager, and for the how manieth time somebody became it."""

    term: int
    holder: str
    """Incarnation of the metadata server; empty: it gave the lease up."""
    address: str


class RemovedDrive(msgspec.Struct, frozen=True):
    """A drive that was removed from the cluster. It never joins again; what is on it stays there."""

    drive_id: str
    removed_ms: int
    replaced_by: str = ""
    """The drive that has its chains now; empty: it was drained."""


class StoredRemoval(msgspec.Struct, frozen=True):
    """A namespace that is being removed: no client finds it any more, its chunks and catalog entries go one by one."""

    namespace: Namespace
    started_ms: int
    routing_version: int
    """From this version of the cluster map on, workers refuse the namespace."""
    chains_done: tuple[int, ...] = ()
    """Chains that hold none of its chunks any more."""
    chains: int = 0
    """How many there are."""
    chunks_removed: int = 0
    waiting_for: str = ""
    """Why it does not go on at the moment."""


def pack(value: msgspec.Struct) -> bytes:
    """The stored form of `value`."""
    return _FORMAT_BYTE + _encode(value)


def unpack(kind: type[S], key: bytes, stored: bytes) -> S:
    """The struct that `pack` stored under `key`. Raises `StoreFailed`, naming the key, if it is anything else."""
    if stored[:1] != _FORMAT_BYTE:
        raise StoreFailed(
            f"metadata under {printable(key)} has format {stored[:1].hex() or 'none'}, this esker reads {FORMAT}; "
            "use the esker that wrote it, or restore a backup"
        )
    try:
        value: S = _decoder(kind).decode(memoryview(stored)[1:])
        return value
    except msgspec.DecodeError as error:
        raise StoreFailed(f"metadata under {printable(key)} is damaged ({error}); restore a backup") from error


@cache
def _decoder(kind: type[msgspec.Struct]) -> msgspec.msgpack.Decoder[Any]:
    return msgspec.msgpack.Decoder(kind)
