"""An example of every message, and the plain values that travel for it.

The values are the protocol: a peer of another release counts on them. A message may grow fields at its end, with a
default; nothing else here ever changes. A new message is added together with its values.
"""

from typing import Any

from esker.wire.messages import (
    Cancel,
    CatalogEntry,
    CatalogLag,
    CatalogList,
    CatalogListReply,
    CatalogReport,
    ClusterStatus,
    ClusterStatusReply,
    Create,
    CreateReply,
    Empty,
    Failure,
    GetRouting,
    Heartbeat,
    HeartbeatReply,
    Hello,
    HelloReply,
    Join,
    JoinReply,
    Lookup,
    LookupReply,
    MemoryRegistered,
    Message,
    NamespaceList,
    NamespaceListReply,
    NamespaceOpen,
    NamespaceReply,
    Read,
    ReadReply,
    RegisterMemory,
    ReleaseMemory,
    Remove,
    RemoveReply,
    RoutingReply,
    StatsReply,
    WorkerStatus,
)
from esker.wire.types import (
    Chain,
    ChainTable,
    Geometry,
    Namespace,
    NamespaceMode,
    Replica,
    Routing,
    TargetState,
    Worker,
)

WORKER = Worker("d1", "n1", "127.0.0.1", 7001, "/run/s", "boot", "life", 1 << 40, 6)
WORKER_VALUES = {
    "drive_id": "d1",
    "node_id": "n1",
    "host": "127.0.0.1",
    "port": 7001,
    "socket_path": "/run/s",
    "boot_id": "boot",
    "incarnation": "life",
    "capacity_bytes": 1 << 40,
    "join": 6,
}
CHAIN = Chain(7, 3, (Replica("d1", incarnation="life"), Replica("d2", TargetState.SYNCING)), 2)
CHAIN_VALUES = {
    "chain_id": 7,
    "version": 3,
    "replicas": [
        {"drive_id": "d1", "state": "serving", "incarnation": "life"},
        {"drive_id": "d2", "state": "syncing", "incarnation": ""},
    ],
    "min_replicas": 2,
}
ROUTING = Routing("c1", 5, (WORKER,), (CHAIN,), (ChainTable(1, 2, (7, 8), (10, 20)),), 4, 2, ("h:1",), 9, (4, 9))
ROUTING_VALUES = {
    "cluster_id": "c1",
    "version": 5,
    "workers": [WORKER_VALUES],
    "chains": [CHAIN_VALUES],
    "tables": [{"table_id": 1, "version": 2, "chain_ids": [7, 8], "weights": [10, 20]}],
    "drives_expected": 4,
    "replicas": 2,
    "meta_servers": ["h:1"],
    "namespace_last": 9,
    "namespaces": [4, 9],
}
GEOMETRY = Geometry(1 << 20, 65536, 64, 16, "model", "revision", "bf16", "layout", "tp8")
GEOMETRY_VALUES = {
    "block_bytes_max": 1 << 20,
    "stripe_unit_bytes": 65536,
    "run_blocks": 64,
    "block_tokens": 16,
    "model": "model",
    "revision": "revision",
    "dtype": "bf16",
    "layout": "layout",
    "rank_scheme": "tp8",
}
NAMESPACE = Namespace(9, "kv", GEOMETRY, b"salt", 1, 4, 3, (2, 1), NamespaceMode.CACHE)
NAMESPACE_VALUES = {
    "namespace_id": 9,
    "name": "kv",
    "geometry": GEOMETRY_VALUES,
    "salt": b"salt",
    "table_id": 1,
    "table_version": 4,
    "layout_epoch": 3,
    "older_versions": [2, 1],
    "mode": "cache",
}
ENTRY = CatalogEntry(9, b"o" * 16, b"key", 5000, 2, 123456, 77, 7)
ENTRY_VALUES = [9, b"o" * 16, b"key", 5000, 2, 123456, 77, 7]
LAG = CatalogLag(1, 2, 3, 4)
STATUS = WorkerStatus(WORKER, 1.5, 10, 3, LAG)
STATUS_VALUES = [WORKER_VALUES, 1.5, 10, 3, [1, 2, 3, 4]]

GOLDEN: list[tuple[Message, list[Any]]] = [
    (Hello((1, 2), "c1", "worker", "d1", "life", b"token"), [[1, 2], "c1", "worker", "d1", "life", b"token"]),
    (HelloReply(1, "c1", "d1", "life"), [1, "c1", "d1", "life"]),
    (Failure("because"), ["because"]),
    (Empty(), []),
    (Cancel(77), [77]),
    (RegisterMemory(1 << 30), [1 << 30]),
    (MemoryRegistered(3), [3]),
    (ReleaseMemory(3), [3]),
    (StatsReply({"reads": 5}), [{"reads": 5}]),
    (Read(9, b"extents", 3, 1000), [9, b"extents", 3, 1000]),
    (ReadReply(b"results", b"sums"), [b"results", b"sums"]),
    (
        Create(9, 65536, b"extents", b"sums", b"keys", 3, 1000),
        [9, 65536, b"extents", b"sums", b"keys", 3, 1000],
    ),
    (CreateReply(b"results"), [b"results"]),
    (Remove(9, b"extents", 1000), [9, b"extents", 1000]),
    (RemoveReply(b"results"), [b"results"]),
    (Lookup(9, b"keys"), [9, b"keys"]),
    (LookupReply(b"\1\0"), [b"\1\0"]),
    (Join(WORKER, ("before", "life")), [WORKER_VALUES, ["before", "life"]]),
    (JoinReply(ROUTING), [ROUTING_VALUES]),
    (LAG, [1, 2, 3, 4]),
    (
        Heartbeat(
            "d1", "life", 5, 10, 20, (7,), True, LAG, ((7, 3),), ((8, 4), (9, 1)), 12, 6, ((7, 2),), ("d2",), True
        ),
        ["d1", "life", 5, 10, 20, [7], True, [1, 2, 3, 4], [[7, 3]], [[8, 4], [9, 1]], 12, 6, [[7, 2]], ["d2"], True],
    ),
    (HeartbeatReply(None, 6, ((7, 2),)), [None, 6, [[7, 2]]]),
    (GetRouting(5), [5]),
    (RoutingReply(ROUTING), [ROUTING_VALUES]),
    (NamespaceOpen("kv", GEOMETRY, False, NamespaceMode.CACHE), ["kv", GEOMETRY_VALUES, False, "cache"]),
    (NamespaceReply(NAMESPACE, b"slots", (b"old", b"older")), [NAMESPACE_VALUES, b"slots", [b"old", b"older"]]),
    (NamespaceList(), []),
    (NamespaceListReply((NAMESPACE,)), [[NAMESPACE_VALUES]]),
    (ENTRY, ENTRY_VALUES),
    (CatalogReport((ENTRY,), "d1", 2, 3), [[ENTRY_VALUES], "d1", 2, 3]),
    (CatalogList(9, b"after", 100), [9, b"after", 100]),
    (CatalogListReply((ENTRY,)), [[ENTRY_VALUES]]),
    (ClusterStatus(True), [True]),
    (STATUS, STATUS_VALUES),
    (
        ClusterStatusReply(ROUTING, (STATUS,), 42, "note", "h:1", 6, "lmdb"),
        [ROUTING_VALUES, [STATUS_VALUES], 42, "note", "h:1", 6, "lmdb"],
    ),
]
