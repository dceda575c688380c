"""The cluster as everyone sees it: workers, targets, chains, chain tables, routing, KV geometry.

All are immutable msgspec structs. They travel in messages and are stored by the metadata server, so fields are only
ever added, at the end, with a default.
"""

from enum import StrEnum

import msgspec

from esker.wire.limits import (
    ALIGN_BYTES,
    CHUNK_BYTES_MAX,
    KEY_BYTES_MAX,
    RUN_BLOCKS_MAX,
    STRIPE_CHUNKS_MAX,
)


class TargetState(StrEnum):
    """Public state of a replica, decided by the manager."""

    SERVING = "serving"
    SYNCING = "syncing"
    WAITING = "waiting"
    LASTSRV = "lastsrv"
    OFFLINE = "offline"


class Worker(msgspec.Struct, frozen=True):
    """A drive's worker process and where it listens. `drive_id` is fixed for the drive's life (its superblock)."""

    drive_id: str
    node_id: str
    host: str
    port: int
    socket_path: str
    """Unix socket for clients on the same host; empty where there is none."""
    boot_id: str
    """The host's boot id, by which a client knows that it is on the same host."""
    incarnation: str
    capacity_bytes: int
    join: int = 0
    """The how manieth join of the drive this is, as far as the drive knows; 0: it does not count them."""


class Replica(msgspec.Struct, frozen=True):
    """One replica of a chain: a target on a drive."""

    drive_id: str
    state: TargetState = TargetState.SERVING
    incarnation: str = ""
    """While SERVING or SYNCING: the life of the drive's worker that was admitted. A later life has to be admitted anew.
    Empty: not told yet.
    """


class Chain(msgspec.Struct, frozen=True):
    """An ordered replica list, head first."""

    chain_id: int
    version: int
    replicas: tuple[Replica, ...]
    min_replicas: int = 1


class ChainGoal(msgspec.Struct, frozen=True):
    """The drives that a chain shall have. The manager takes it there step by step, and drops the goal at the end."""

    chain_id: int
    drives: tuple[str, ...]
    added: tuple[str, ...] = ()
    """Those of `drives` that take the place of others: each has to serve before one of the others is taken out."""
    fresh: bool = False
    """The chain only caches: where nobody is left who has its blocks, it begins anew, empty."""


class Leaving(msgspec.Struct, frozen=True):
    """A drive that is being emptied, and gets no chains any more."""

    drive_id: str
    since_ms: int
    replaced_by: str = ""
    """The drive that takes over its chains; then it is forgotten once it is in none. Empty: it is drained."""


class ChainTable(msgspec.Struct, frozen=True):
    """A versioned, ordered list of chains with weights, that placement spreads over."""

    table_id: int
    version: int
    chain_ids: tuple[int, ...]
    weights: tuple[int, ...]


class Routing(msgspec.Struct, frozen=True):
    """The cluster map at one version. `tables` holds every live table version, newest last."""

    cluster_id: str
    version: int
    workers: tuple[Worker, ...]
    chains: tuple[Chain, ...]
    tables: tuple[ChainTable, ...]
    drives_expected: int
    replicas: int
    meta_servers: tuple[str, ...] = ()
    """Addresses of the metadata servers, host:port."""
    namespace_last: int = 0
    """The highest namespace id that was given when this map was read; a new one makes no new version."""
    namespaces: tuple[int, ...] = ()
    """Ids of the namespaces that there were then. Others up to `namespace_last` have been removed, each with a new
    version of the map.
    """
    goals: tuple[ChainGoal, ...] = ()
    """Of the chains whose drives are being changed."""
    leaving: tuple[Leaving, ...] = ()


class Geometry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What makes two writers' blocks interchangeable. A client whose geometry differs is refused."""

    block_bytes_max: int
    """Longest value, in bytes."""
    stripe_unit_bytes: int = 0
    """A longer value is striped in chunks of this many bytes. 0: block_bytes_max rounded up, at most 1 MiB."""
    run_blocks: int = 1
    block_tokens: int = 0
    model: str = ""
    revision: str = ""
    dtype: str = ""
    layout: str = ""
    rank_scheme: str = ""

    def resolved(self) -> "Geometry":
        """This geometry with `stripe_unit_bytes` filled in; checked.

        Raises `ValueError`, saying what is allowed, for a figure out of range.
        """
        if not 1 <= self.block_bytes_max <= CHUNK_BYTES_MAX * STRIPE_CHUNKS_MAX:
            raise ValueError(
                f"block_bytes_max is {self.block_bytes_max}; allowed: 1 to {CHUNK_BYTES_MAX * STRIPE_CHUNKS_MAX}"
            )
        unit = self.stripe_unit_bytes
        if unit == 0:
            unit = min(-(-self.block_bytes_max // ALIGN_BYTES) * ALIGN_BYTES, STRIPE_UNIT_DEFAULT_BYTES)
        if unit % ALIGN_BYTES or not ALIGN_BYTES <= unit <= CHUNK_BYTES_MAX:
            raise ValueError(
                f"stripe_unit_bytes is {unit}; allowed: multiples of {ALIGN_BYTES} up to {CHUNK_BYTES_MAX}"
            )
        chunks = -(-self.block_bytes_max // unit)
        if chunks > STRIPE_CHUNKS_MAX:
            raise ValueError(
                f"a block of {self.block_bytes_max} bytes in stripes of {unit} has {chunks} chunks; "
                f"allowed: {STRIPE_CHUNKS_MAX}; raise stripe_unit_bytes"
            )
        if not 1 <= self.run_blocks <= RUN_BLOCKS_MAX:
            raise ValueError(f"run_blocks is {self.run_blocks}; allowed: 1 to {RUN_BLOCKS_MAX}")
        if self.block_tokens < 0:
            raise ValueError(f"block_tokens is {self.block_tokens}; allowed: 0 (not told) and up")
        return msgspec.structs.replace(self, stripe_unit_bytes=unit)


class NamespaceMode(StrEnum):
    """How a namespace's blocks are kept; fixed when it is made."""

    REPLICATED = "replicated"
    """On as many drives as the chain table says. What was acknowledged outlives a drive."""
    CACHE = "cache"
    """On one drive each. A dead drive's keys go to the other drives until it is back; its blocks are misses."""


class Namespace(msgspec.Struct, frozen=True):
    """A KV keyspace: id, geometry, secret salt of its object ids, and the chain-table versions it is laid out over."""

    namespace_id: int
    name: str
    geometry: Geometry
    salt: bytes
    table_id: int
    table_version: int
    """Where blocks are put."""
    layout_epoch: int = 1
    """Counts changes of the table versions."""
    older_versions: tuple[int, ...] = ()
    """Versions of the table that may still hold blocks, the newest first."""
    mode: NamespaceMode = NamespaceMode.REPLICATED


STRIPE_UNIT_DEFAULT_BYTES = 1 << 20
NAME_CHARS_MAX = 128
assert KEY_BYTES_MAX >= 64, "a hex SHA-256, the longest key engines are known to use, must fit"
