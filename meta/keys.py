"""Every key of the metadata store, in one table. Integers are big-endian, so that byte order is number order.

    key                                          value
    01                                           cluster record                 (records.ClusterRecord)
    02                                           routing version                u64 little-endian
    03 drive id                                  worker of that drive           (types.Worker)
    04 chain id u32                              chain                          (types.Chain)
    05 table id u32, version u32                 chain table                    (types.ChainTable)
    06 table id u32, version u32, part u8        half of its slot table         65,536 bytes as they are
    07 address                                   metadata server there          (records.MetaServer)
    08                                           manager's term and name        (records.ManagerTerm)
    09                                           beats of the manager           u64 little-endian
    0a chain id u32                              drives it shall have           (types.ChainGoal)
    0b drive id                                  drive that is being emptied    (types.Leaving)
    0c drive id                                  drive that was removed         (records.RemovedDrive)
    10 namespace id u32                          namespace                      (types.Namespace)
    11 name                                      namespace id                   u32 little-endian
    12                                           last namespace id              u32 little-endian
    13 namespace id u32                          removal under way              (records.StoredRemoval)
    20 namespace id u32, object 16 bytes         block of the catalog           (catalog_record.StoredBlock)
    21 namespace id u32, figure u8, shard u8     catalog counter (1 blocks, 2 bytes)   i64 little-endian, by atomic adds
    22 drive id                                  last report taken of the drive (life u64, number u64, big-endian)

Numbers in the key column are the first byte, in hexadecimal. Structs are encoded by `records.pack`. The slot table has
128 KiB and a value at most 100 kB: hence two halves. Free for later tables: 0d-0f membership, 14-1f tenants and
tokens, 30-3f files. Nothing else in `meta/` may build a key.
"""

import struct

CLUSTER = b"\x01"
ROUTING_VERSION = b"\x02"
_DRIVE = b"\x03"
_CHAIN = b"\x04"
_TABLE = b"\x05"
_PLACEMENT = b"\x06"
_META_SERVER = b"\x07"
MANAGER = b"\x08"
"""Written only when the lease changes hands, so that the manager's transactions read it without conflicts."""
MANAGER_BEATS = b"\x09"
_CHAIN_GOAL = b"\x0a"
_LEAVING = b"\x0b"
_REMOVED_DRIVE = b"\x0c"
_NAMESPACE = b"\x10"
_NAMESPACE_NAME = b"\x11"
NAMESPACE_LAST = b"\x12"
_REMOVAL = b"\x13"
_BLOCK = b"\x20"
_COUNTER = b"\x21"
_REPORT = b"\x22"

BLOCKS = 1
BYTES = 2
COUNTER_SHARDS = 16
PLACEMENT_PARTS = 2

KeyRange = tuple[bytes, bytes]
_U32 = struct.Struct(">I")
_U32_U32 = struct.Struct(">II")


def drive(drive_id: str) -> bytes:
    """Worker that serves the drive."""
    return _DRIVE + drive_id.encode()


def drives() -> KeyRange:
    """All drives."""
    return _whole(_DRIVE)


def chain(chain_id: int) -> bytes:
    """One chain."""
    return _CHAIN + _U32.pack(chain_id)


def chains() -> KeyRange:
    """All chains, by id."""
    return _whole(_CHAIN)


def table(table_id: int, version: int) -> bytes:
    """One version of a chain table."""
    return _TABLE + _U32_U32.pack(table_id, version)


def tables() -> KeyRange:
    """All versions of all chain tables, oldest first."""
    return _whole(_TABLE)


def placement(table_id: int, version: int, part: int) -> bytes:
    """Part 0 or 1 of the slot table of a chain-table version."""
    assert 0 <= part < PLACEMENT_PARTS
    return _PLACEMENT + _U32_U32.pack(table_id, version) + bytes([part])


def table_of_placement(key: bytes) -> bytes:
    """The chain-table version whose slot table `key` is a part of."""
    return _TABLE + key[1:9]


def meta_server(address: str) -> bytes:
    """The metadata server that listens at `address`."""
    return _META_SERVER + address.encode()


def meta_servers() -> KeyRange:
    """All metadata servers, by address."""
    return _whole(_META_SERVER)


def chain_goal(chain_id: int) -> bytes:
    """What a chain shall become."""
    return _CHAIN_GOAL + _U32.pack(chain_id)


def chain_goals() -> KeyRange:
    """All goals, by chain id."""
    return _whole(_CHAIN_GOAL)


def leaving(drive_id: str) -> bytes:
    """That the drive is being emptied."""
    return _LEAVING + drive_id.encode()


def all_leaving() -> KeyRange:
    """All drives that are being emptied."""
    return _whole(_LEAVING)


def removed_drive(drive_id: str) -> bytes:
    """That the drive was removed from the cluster."""
    return _REMOVED_DRIVE + drive_id.encode()


def namespace(namespace_id: int) -> bytes:
    """A namespace by its id."""
    return _NAMESPACE + _U32.pack(namespace_id)


def namespaces() -> KeyRange:
    """All namespaces, by id."""
    return _whole(_NAMESPACE)


def namespace_id(key: bytes) -> int:
    """The id in the key of a namespace or of a removal."""
    return int(_U32.unpack_from(key, 1)[0])


def namespace_name(name: str) -> bytes:
    """The id of the namespace of that name."""
    return _NAMESPACE_NAME + name.encode()


def removal(namespace_id: int) -> bytes:
    """The removal of a namespace."""
    return _REMOVAL + _U32.pack(namespace_id)


def removals() -> KeyRange:
    """All removals under way, by namespace id."""
    return _whole(_REMOVAL)


def block(namespace_id: int, object_id: bytes) -> bytes:
    """A block in the catalog."""
    return _BLOCK + _U32.pack(namespace_id) + object_id


def blocks(namespace_id: int, after: bytes = b"") -> KeyRange:
    """A namespace's blocks in object order; those after the object `after`, if given."""
    prefix = _BLOCK + _U32.pack(namespace_id)
    begin = prefix + after + b"\x00" if after else prefix
    return begin, _BLOCK + _U32.pack(namespace_id + 1) if namespace_id < 0xFFFFFFFF else b"\x21"


def all_blocks() -> KeyRange:
    """The blocks of all namespaces."""
    return _whole(_BLOCK)


def counter(namespace_id: int, figure: int, shard: int) -> bytes:
    """One shard of a catalog counter."""
    return _COUNTER + _U32.pack(namespace_id) + bytes([figure, shard])


def counters() -> KeyRange:
    """All catalog counters."""
    return _whole(_COUNTER)


def counters_of(namespace_id: int) -> KeyRange:
    """The catalog counters of one namespace."""
    prefix = _COUNTER + _U32.pack(namespace_id)
    return prefix, prefix + b"\xff"


def report(drive_id: str) -> bytes:
    """The last report that was taken of a drive."""
    return _REPORT + drive_id.encode()


def reports() -> KeyRange:
    """The last reports of all drives."""
    return _whole(_REPORT)


def split_counter(key: bytes) -> tuple[int, int]:
    """(namespace id, figure) of a counter's key."""
    return _U32.unpack_from(key, 1)[0], key[5]


def counter_shard(object_id: bytes) -> int:
    """The shard of the counters that counts a block."""
    return object_id[0] % COUNTER_SHARDS


def block_object(key: bytes) -> bytes:
    """Object id of a catalog key."""
    return key[5:]


def _whole(prefix: bytes) -> KeyRange:
    return prefix, bytes([prefix[0] + 1])
