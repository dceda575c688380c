"""Bodies of requests and replies: msgspec structs, array-like, encoded as MessagePack.

Batches travel as packed columns (`bytes`), one entry per extent, little-endian, in the order of the extents. The
structs of the columns stand here beside the messages that carry them. A body is untrusted until its handler has
checked that the columns' lengths agree (`wire/columns.py`).
"""

import struct
from enum import IntEnum

import msgspec

from esker.wire.types import Geometry, Namespace, NamespaceMode, Routing, Worker

PROTOCOL_VERSION = 1


class Method(IntEnum):
    """What a request asks for; the numbers are part of the protocol."""

    HELLO = 1
    CANCEL = 2
    REGISTER_MEMORY = 3
    RELEASE_MEMORY = 4
    STATS = 5
    READ = 16
    CREATE = 17
    REMOVE = 18
    LOOKUP = 19
    CONFIRM = 20
    REPLACE = 21
    SCAN = 24
    REPORT_BLOCKS = 25
    CATALOG_CHECKED = 26
    DAMAGED = 27
    SCRUB = 28
    WRITE = 32
    READ_RANGE = 33
    VERSION_QUERY = 34
    UPDATE = 35
    CHANNELS = 36
    CHUNK_STAT = 37
    SCAN_IMAGES = 38
    FETCH_IMAGE = 39
    JOIN = 64
    HEARTBEAT = 65
    ROUTING = 66
    NAMESPACE_OPEN = 67
    NAMESPACE_LIST = 68
    CATALOG_REPORT = 69
    CATALOG_LIST = 70
    CLUSTER_STATUS = 71
    CATALOG_GET = 80
    NAMESPACE_FIGURES = 81
    NAMESPACE_REMOVE = 82
    META_PAGE = 83
    META_SNAPSHOT = 84
    META_CHANGE = 85
    SET_GOALS = 90
    EXPAND = 91
    FORGET_DRIVES = 92
    FORCE_CHAIN = 93
    SET_MIN_REPLICAS = 94


class Message(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Base of all bodies."""


# Connection


class Hello(Message, frozen=True):
    """First request on every connection. `authentication` is empty until tokens exist."""

    versions: tuple[int, ...]
    cluster_id: str
    """Empty: any cluster."""
    role: str
    """`client`, `worker` (a predecessor in a chain) or `tool`."""
    peer_id: str
    """Drive id of a worker, else empty. A newer connection of the same worker closes its older ones."""
    incarnation: str
    authentication: bytes = b""


class HelloReply(Message, frozen=True):
    version: int
    cluster_id: str
    drive_id: str
    """Empty when the server is a metadata server."""
    incarnation: str


class Failure(Message, frozen=True):
    """Body of a reply whose status says that the whole request failed."""

    message: str


class Empty(Message, frozen=True):
    """A body with nothing in it."""


class Cancel(Message, frozen=True):
    """Confirmed once no I/O of the named request is under way any more."""

    request_id: int


class RegisterMemory(Message, frozen=True):
    """Comes with one file descriptor (SCM_RIGHTS). Its memory must cover `length_bytes`."""

    length_bytes: int


class MemoryRegistered(Message, frozen=True):
    memory_id: int


class ReleaseMemory(Message, frozen=True):
    memory_id: int


class StatsReply(Message, frozen=True):
    counters: dict[str, int]


# Chunks

READ_EXTENT = struct.Struct("<16sIIIQ")
"""object, index, chain id, length wanted at most (bytes), offset in registered memory."""

READ_RESULT = struct.Struct("<HHIQQI16s")
"""extent number, status, length, version, block bytes, chunk count, put id. Then come the checksums.

`length` is the chunk's true length also when it was longer than wanted (status TOO_LARGE, no data).
"""


class Read(Message, frozen=True):
    """Reads whole chunks. `memory_id` 0: the data comes as payload, in the order of the reply's results.

    With registered memory each extent needs room for its chunk's length rounded up to 4 KiB at an offset that is a
    multiple of 4 KiB; an extent with less room gets TOO_LARGE.
    """

    space: int
    extents: bytes
    memory_id: int
    budget_ms: int


class ReadReply(Message, frozen=True):
    """One or more finished extents; the frame of all but the last is PARTIAL. Checksums are u64 each, concatenated."""

    results: bytes
    checksums: bytes


CREATE_EXTENT = struct.Struct("<16sIIIIIQQI16sH")
"""object, index, chain id, chain version, length, offset in registered memory / 4096, version, block bytes,
chunk count, put id, key length. Version is 0 from a client: the head gives one."""

CREATE_RESULT = struct.Struct("<HHQI16s")
"""extent number, status, version, length, put id: of the chunk that is there now."""


class Create(Message, frozen=True):
    """Creates chunks that are absent, on every replica of their chains. Data: payload in extent order (true lengths,
    no padding), or registered memory. `checksums` are u64 per started 64 KiB of each extent; `keys` are concatenated.
    """

    space: int
    slot_bytes: int
    """The namespace's chunk size, for the slot class."""
    extents: bytes
    checksums: bytes
    keys: bytes
    memory_id: int
    budget_ms: int


# CONFIRM has the body of CREATE, no payload and no memory: a replica asks its successor whether it has the same.
# REPLACE has the body and payload of CREATE: a syncing successor stores this copy, whatever it has under that id.


class CreateReply(Message, frozen=True):
    results: bytes


REMOVE_EXTENT = struct.Struct("<16sIIIQ16s")
"""object, index, chain id, chain version, version (0: any), put id (zeros: any)."""

REMOVE_RESULT = struct.Struct("<HH")
"""extent number, status: OK, NOT_FOUND, CONDITION, or why it failed."""


class Remove(Message, frozen=True):
    space: int
    extents: bytes
    budget_ms: int


class RemoveReply(Message, frozen=True):
    results: bytes


LOOKUP_KEY = struct.Struct("<16sI")
"""object, chain id: of chunk 0."""

LOOKUP_ABSENT, LOOKUP_PRESENT, LOOKUP_UNSURE = 0, 1, 2
"""What a LOOKUP's reply says of a key. UNSURE: not here, but as this replica does not serve the chain, others may have
it."""


class Lookup(Message, frozen=True):
    space: int
    keys: bytes


class LookupReply(Message, frozen=True):
    """One byte per key: LOOKUP_ABSENT, LOOKUP_PRESENT or LOOKUP_UNSURE."""

    present: bytes


# Metadata


class Join(Message, frozen=True):
    """A drive's worker is up at this address. Answered with the routing that includes it."""

    worker: Worker
    lives: tuple[str, ...] = ()
    """Incarnations in which the drive, as far as it knows, may have joined last; at most `JOIN_LIVES_MAX`."""


class JoinReply(Message, frozen=True):
    routing: Routing


class CatalogLag(Message, frozen=True):
    """How far the catalog is behind a drive, as its worker sees it."""

    waiting: int = 0
    """Entries that the catalog has not been told yet."""
    lag_ms: int = 0
    """Age of the oldest of them."""
    dropped: int = 0
    """Entries that it was never told, since the worker's start."""
    check_due: int = 0
    """How many times entries may have been lost since the catalog was last checked against this drive."""


class Heartbeat(Message, frozen=True):
    drive_id: str
    incarnation: str
    routing_version: int
    used_bytes: int
    capacity_bytes: int
    offline_chains: tuple[int, ...] = ()
    forwarded: bool = False
    """A metadata server passed it on to the one that it takes for the manager."""
    catalog: CatalogLag = CatalogLag()
    synced: tuple[tuple[int, int], ...] = ()
    """(chain id, chain version) in which this worker, as the last serving replica, has brought the syncing one up to
    date.
    """
    stalled: tuple[tuple[int, int], ...] = ()
    """Those in which the syncing replica does not get on and shall be dropped."""
    number: int = 0
    """Grows with each heartbeat of this life, so that one that comes late is known; 0: not told."""
    term: int = 0
    """Of the manager whose reply this worker got last; 0: of none yet."""
    stopped: tuple[tuple[int, int], ...] = ()
    """(chain id, chain version) that the last reply withheld: this worker's lease of them has ended."""
    unreachable: tuple[str, ...] = ()
    """Drives that this worker sends on to, and could not reach for a while."""
    leaving: bool = False
    """The last heartbeat of this life: it serves nothing any more."""


class HeartbeatReply(Message, frozen=True):
    routing: Routing | None
    """The new routing, where the worker's is old."""
    term: int = 0
    """Of the manager that acknowledges it, which renews the worker's lease; 0: no manager did."""
    withheld: tuple[tuple[int, int], ...] = ()
    """(chain id, chain version) for which the lease is not renewed, and ends at once: the manager is about to take
    SERVING from this worker there.
    """


class GetRouting(Message, frozen=True):
    known_version: int
    """0: none."""


class RoutingReply(Message, frozen=True):
    routing: Routing | None
    """None: the known version is the newest."""


class NamespaceOpen(Message, frozen=True):
    """Opens the namespace, making it if it is absent."""

    name: str
    geometry: Geometry
    create: bool = True
    mode: NamespaceMode = NamespaceMode.REPLICATED


class NamespaceReply(Message, frozen=True):
    namespace: Namespace
    placement: bytes
    """Slot table of its chain-table version: 65,536 u16 little-endian indexes into the table's chain list."""
    older: tuple[bytes, ...] = ()
    """Slot tables of its older versions, in their order."""


class NamespaceList(Message, frozen=True):
    pass


class NamespaceListReply(Message, frozen=True):
    namespaces: tuple[Namespace, ...]


class CatalogEntry(Message, frozen=True):
    """A block that was created (`created_ms` > 0) or removed (0), as its head saw it."""

    namespace_id: int
    object_id: bytes
    key: bytes
    block_bytes: int
    chunk_count: int
    created_ms: int
    version: int = 0
    """Of chunk 0. An entry never replaces or removes one of a higher version."""
    chain_id: int = 0
    """Of chunk 0; 0: not told."""


class CatalogReport(Message, frozen=True):
    """Entries of one drive, the older ones first. A report of the same life with a number that was taken is ignored,
    and so is one of an earlier life.
    """

    entries: tuple[CatalogEntry, ...]
    drive_id: str = ""
    """Empty: the report has no place in an order."""
    life: int = 0
    """Grows each time that the drive's worker starts."""
    number: int = 0
    """Of the report in its life, from 1 on."""


class CatalogList(Message, frozen=True):
    """A page of a namespace's blocks, in object order, after `after` (empty: from the first)."""

    namespace_id: int
    after: bytes
    limit: int


class CatalogListReply(Message, frozen=True):
    entries: tuple[CatalogEntry, ...]


class ClusterStatus(Message, frozen=True):
    forwarded: bool = False
    """A metadata server passed it on to the one that it takes for the manager."""


class WorkerStatus(Message, frozen=True):
    worker: Worker
    seconds_since_heartbeat: float
    """-1: none since this metadata server started."""
    used_bytes: int
    chains: int
    catalog: CatalogLag = CatalogLag()


class ClusterStatusReply(Message, frozen=True):
    routing: Routing
    workers: tuple[WorkerStatus, ...]
    blocks: int
    note: str
    """What an operator should know, such as replicas that had to share a node; empty if nothing."""
    manager: str = ""
    """Address of the metadata server that holds the manager lease; empty: none does."""
    term: int = 0
    """Of that lease; grows each time that it changes hands."""
    engine: str = ""
    """Of the metadata store, with its version."""
