"""Settings of a node's supervisor and of one drive's worker: frozen, unknown keys refused, passed in."""

import msgspec

from esker.wire.limits import ALIGN_BYTES, MIB

RESYNC_BYTES_PER_S = 200 * MIB
SCRUB_BYTES_PER_S = 20 * MIB
"""Less than one part in a hundred of what an NVMe drive reads; a full 4 TB drive in two and a half days."""


class DriveConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One drive of a node."""

    directory: str
    capacity_bytes: int
    """Hard cap on what esker stores there."""
    port: int = 0
    """0: any free one, kept while the supervisor lives."""
    port_is_wish: bool = False
    """When `port` is taken, any other will do."""


class ChunkserverConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A node: its supervisor and drives."""

    cluster: str
    """Metadata servers, `host:port[,host:port]`."""
    drives: tuple[DriveConfig, ...]
    node_id: str
    host: str = "127.0.0.1"
    """Address to listen on, and by which others reach this node."""
    insecure: bool = False
    """Listen on an address that is not loopback although connections are not authenticated yet."""
    engine: str = "auto"
    """Block I/O: `auto`, `io_uring` or `threads`."""
    pool_bytes: int = 64 * MIB
    """Memory of each worker for data in flight."""
    join_timeout_s: float = 10.0
    """How long a worker looks for a metadata server before it gives up (a new drive) or serves without one."""
    resync_bytes_per_s: int = RESYNC_BYTES_PER_S
    """How fast each drive sends chunks to replicas that are being brought up to date."""
    scrub_bytes_per_s: int = SCRUB_BYTES_PER_S
    """How fast each drive is scrubbed; 0: only on request."""
    unresponsive_s: float = 30.0
    """A worker that gives no sign of life for this long is killed and started again."""


class WorkerConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One worker, as its supervisor starts it."""

    cluster: str
    directory: str
    capacity_bytes: int
    port: int
    node_id: str
    host: str
    engine: str
    pool_bytes: int
    join_timeout_s: float
    keep_port: bool
    """False: when `port` is taken, any other will do."""
    resync_bytes_per_s: int = RESYNC_BYTES_PER_S
    scrub_bytes_per_s: int = SCRUB_BYTES_PER_S


POOL_BYTES_MIN = 8 * MIB
RESYNC_BYTES_PER_S_MIN = MIB
SCRUB_BYTES_PER_S_MIN = MIB
assert POOL_BYTES_MIN % ALIGN_BYTES == 0
