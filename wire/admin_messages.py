"""Bodies of the requests that operators' tools make: scans of drives, the catalog's checks, namespaces, raw metadata.

Kept apart from `messages.py`, which clients and workers need; the rules of the bodies are the same. No request here is
needed to store or read a block.
"""

import struct

from esker.wire.ids import CHUNK_ID
from esker.wire.messages import Message
from esker.wire.types import ChainGoal, Leaving, Namespace

SCAN_ROWS_MAX = 4096
BLOCKS_MAX = 500
"""Blocks that one REPORT_BLOCKS or CATALOG_GET may name."""
META_PAGE_ROWS_MAX = 10_000
META_PAGE_BYTES_AIM = 4 << 20
META_CHANGES_MAX = 10_000

# Drives

SCAN_ROW = struct.Struct("<28sQIQI16sQH")
"""record key, version, length, block bytes, chunk count, put id, created (ms since 1970), key length."""

RECORD_KEY = struct.Struct(">I24s")
"""chain id, chunk id: a drive's records stand in this order."""


class Scan(Message, frozen=True):
    """A page of a drive's records in key order, after `after`.

    `chain_id` 0: of all chains; `space` 0: of all spaces (it may only be given with a chain). The page may have fewer
    rows than `limit`, even none, before the end.
    """

    chain_id: int
    after: bytes
    limit: int
    space: int = 0
    first_chunks: bool = False
    """Only chunks with index 0: one per block."""
    routing_version: int = 0
    """Answered NOT_READY while the worker's cluster map is older than this."""
    chain_version: int = 0
    """Answered NOT_READY unless the worker takes part in the chain in this version, with nothing of an earlier one
    under way. 0: any. It may only be given with a chain.
    """
    digests: bool = False
    """The reply shall have `digests`."""


class ScanReply(Message, frozen=True):
    rows: bytes
    """Of SCAN_ROW."""
    keys: bytes
    """The blocks' keys, concatenated."""
    next_after: bytes
    """Where the next page begins; empty: this is the last one."""
    writes_under_way: int
    """Writes that this worker has begun and not ended: of the space, if one was given."""
    digests: bytes = b""
    """XXH3-64 of each row's checksums, u64 little-endian, if they were asked for."""


BLOCK_PLACE = struct.Struct("<16sIQ")
"""object id, chain id of chunk 0, version that the catalog has (0: none)."""


class ReportBlocks(Message, frozen=True):
    """What a drive has of these blocks' first chunks; with `report` the catalog is told it once more, in order with
    everything else that this drive has to tell. BUSY: too much waits already.
    """

    space: int
    blocks: bytes
    report: bool = False


class ReportBlocksReply(Message, frozen=True):
    """`rows` and `keys` as in `ScanReply`, of those that are there."""

    rows: bytes
    keys: bytes
    reports: int
    """How many entries this worker has had for the catalog since its start, and how many of them it is rid of."""
    reports_done: int


class CatalogChecked(Message, frozen=True):
    """The catalog agrees with this drive: so many losses (see `CatalogLag.check_due`) are made up for."""

    check_due: int


# Catalog and namespaces


class CatalogGet(Message, frozen=True):
    """The catalog's entries of these objects (16 bytes each, concatenated), those that are there."""

    namespace_id: int
    objects: bytes


class NamespaceRemoval(Message, frozen=True):
    """How far the removal of a namespace has come."""

    started_ms: int
    chains_done: int
    chains: int
    chunks_removed: int
    waiting_for: str
    """Why it does not go on at the moment; empty: it does."""


class NamespaceFigures(Message, frozen=True):
    namespace: Namespace
    blocks: int
    block_bytes: int
    removal: NamespaceRemoval | None
    """None: it is not being removed."""


class NamespaceFiguresGet(Message, frozen=True):
    """A page of all namespaces by id, those that are being removed included; or the ones called `name`."""

    after_id: int = 0
    limit: int = 1000
    name: str = ""


class NamespaceFiguresReply(Message, frozen=True):
    namespaces: tuple[NamespaceFigures, ...]


class NamespaceRemove(Message, frozen=True):
    """Begins to remove the namespace called `name`, those whose names start with `prefix`, or what drives hold of the
    namespace id `strange`, which the metadata does not know: exactly one is given.

    Answered once their names are free and the removal will go on by itself; at most `limit` at a time.
    """

    name: str = ""
    prefix: str = ""
    limit: int = 100
    strange: int = 0


class NamespaceRemoveReply(Message, frozen=True):
    removed: tuple[Namespace, ...]


# Drives that come and go


class SetGoals(Message, frozen=True):
    """Which drives chains shall have, and which drives are being emptied, decided from the cluster map of this very
    version: CONFLICT where it is another by now. The goals of other chains stay as they are.
    """

    routing_version: int
    goals: tuple[ChainGoal, ...]
    """A goal without drives: the chain shall stay as it is."""
    leaving: tuple[Leaving, ...] = ()
    """Their `since_ms` is not looked at."""
    staying: tuple[str, ...] = ()
    """Drives that are not emptied any more."""


class NewChain(Message, frozen=True):
    drives: tuple[str, ...]
    """Head first."""
    min_replicas: int
    weight: int


class Expand(Message, frozen=True):
    """Adds chains to a chain table, in a new version of it over which its namespaces are laid out from then on.
    CONFLICT as in `SetGoals`.
    """

    routing_version: int
    table_id: int
    chains: tuple[NewChain, ...]


class ExpandReply(Message, frozen=True):
    table_version: int
    chain_ids: tuple[int, ...]


class ForgetDrives(Message, frozen=True):
    """Removes drives that are in no chain. CONFLICT as in `SetGoals`."""

    routing_version: int
    drives: tuple[str, ...]


class GrowthReply(Message, frozen=True):
    routing_version: int
    """The new one, or a later one."""


# Raw metadata

MetaRow = tuple[bytes, bytes]
"""Key and value as they are stored."""


class MetaPage(Message, frozen=True):
    """A page of the metadata store from `begin` up to before `end`, of one version."""

    begin: bytes
    end: bytes
    limit: int


class MetaPageReply(Message, frozen=True):
    version: int
    """The version that was read."""
    rows: tuple[MetaRow, ...]
    over: bool
    """Nothing follows."""


class MetaSnapshot(Message, frozen=True):
    """Everything but the blocks of the catalog, all of one version, in as many replies as it takes."""


class MetaChange(Message, frozen=True):
    """Changes rows of the metadata store in one transaction, if each is still as expected; else CONFLICT.

    A row is key, expected value (None: absent) and new value (None: remove it).
    """

    rows: tuple[tuple[bytes, bytes | None, bytes | None], ...]
    why: str


class MetaChangeReply(Message, frozen=True):
    version: int


def space_before(chain_id: int, space: int) -> bytes:
    """The last record key that stands before the records of a space on a chain."""
    assert space > 0, "spaces of blocks are numbered from 1 on"
    return RECORD_KEY.pack(chain_id, CHUNK_ID.pack(space - 1, b"\xff" * 16, 0xFFFFFFFF))


def split_record_key(record_key: bytes) -> tuple[int, int, bytes, int]:
    """(chain id, space, object id, index) of a record key."""
    chain_id, chunk = RECORD_KEY.unpack(record_key)
    space, object_id, index = CHUNK_ID.unpack(chunk)
    return chain_id, space, object_id, index
