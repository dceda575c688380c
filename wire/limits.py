"""Every limit that two processes must agree on, named once, units last.

Relations between limits are asserted at the bottom: a change that breaks one fails at import.
"""

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB

# Chunks
ALIGN_BYTES = 4 * KIB
"""Direct I/O unit: slot sizes, offsets and direct reads are multiples of it."""
CHUNK_BYTES_MAX = 64 * MIB
CHECKSUM_BLOCK_BYTES = 64 * KIB
"""One XXH3-64 covers this many bytes of a chunk (the last block may be shorter)."""
CHUNK_ID_BYTES = 24
OBJECT_BYTES = 16
PUT_ID_BYTES = 16
KEY_BYTES_MAX = 256
"""Longest key of a KV block."""

# Frames
HEADER_BYTES = 32
BODY_BYTES_MAX = 8 * MIB
PAYLOAD_BYTES_MAX = 128 * MIB
REQUEST_EXTENTS_MAX = 8192
"""Extents one READ, CREATE or REMOVE may carry."""
LOOKUP_KEYS_MAX = 65536
REQUEST_PAYLOAD_BYTES_MAX = 64 * MIB
"""Bytes one CREATE may carry; clients aim for `REQUEST_PAYLOAD_BYTES_AIM`."""
REQUEST_PAYLOAD_BYTES_AIM = 8 * MIB
SEND_BATCH_BYTES = MIB
"""How much is coalesced into one sendmsg, and received per wake-up."""

# Placement
PLACEMENT_SLOTS = 65536
REPLICAS_MAX = 8
RUN_BLOCKS_MAX = 65536
JOIN_LIVES_MAX = 64
"""Of how many lives a drive's worker says that it may have joined in one of them last."""
STRIPE_CHUNKS_MAX = 4096

# Time
CONNECT_TIMEOUT_S = 2.0
HANDSHAKE_TIMEOUT_S = 2.0
HEARTBEAT_INTERVAL_S = 0.5
WORKER_LEASE_S = 1.5
"""How long an acknowledged heartbeat lets a worker serve, from when it was sent."""
WORKER_LEASE_MARGIN_S = 0.5
"""What the manager waits beyond a worker's lease before it declares the worker dead."""
MANAGER_LEASE_S = 2.0
"""How long a renewal keeps a metadata server the manager, from before its transaction began."""
CLOCK_SKEW = 0.05
"""By how much the clocks of two machines may differ in rate. No two clocks are ever compared."""


def aligned(length_bytes: int) -> int:
    """`length_bytes` rounded up to a multiple of `ALIGN_BYTES`."""
    return (length_bytes + ALIGN_BYTES - 1) & -ALIGN_BYTES


def checksum_blocks(length_bytes: int) -> int:
    """How many checksums a chunk of `length_bytes` has: one per started 64 KiB."""
    return (length_bytes + CHECKSUM_BLOCK_BYTES - 1) // CHECKSUM_BLOCK_BYTES


assert CHUNK_BYTES_MAX % ALIGN_BYTES == 0
assert CHECKSUM_BLOCK_BYTES % ALIGN_BYTES == 0
assert REQUEST_PAYLOAD_BYTES_AIM <= REQUEST_PAYLOAD_BYTES_MAX <= PAYLOAD_BYTES_MAX
assert CHUNK_BYTES_MAX <= REQUEST_PAYLOAD_BYTES_MAX
assert LOOKUP_KEYS_MAX * OBJECT_BYTES < BODY_BYTES_MAX
assert HEARTBEAT_INTERVAL_S * 2 < WORKER_LEASE_S, "one lost heartbeat must not end a lease"
