"""Checksums of a chunk: XXH3-64 per started 64 KiB, u64 little-endian, concatenated.

Blocks of 64 KiB because the hash then keeps the interpreter's lock for some 3 µs and never has to fight for it.
"""

import struct

from xxhash import xxh3_64_intdigest

from esker.wire.limits import CHECKSUM_BLOCK_BYTES

_U64 = struct.Struct("<Q")


def checksums(data: memoryview) -> bytes:
    """The checksums of `data`."""
    length = len(data)
    if length <= CHECKSUM_BLOCK_BYTES:
        return _U64.pack(xxh3_64_intdigest(data))
    step = CHECKSUM_BLOCK_BYTES
    digests = [xxh3_64_intdigest(data[at : at + step]) for at in range(0, length, step)]
    return struct.pack(f"<{len(digests)}Q", *digests)
