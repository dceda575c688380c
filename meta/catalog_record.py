"""The stored form of a block in the catalog: small, as there is one for every block of the cluster.

    format u8 | varint each: block bytes, chunk count, created (ms since 1970), chain id, version | key

Varints are LEB128: seven bits a byte, the low ones first, the high bit set on all but the last. Namespace and object
are in the key of the row. Bytes that are no such record are damage, never guessed at.
"""

from typing import NamedTuple

from esker.meta.store.errors import StoreFailed, printable

FORMAT = 2
_VARINTS = 5
_VARINT_BYTES_MAX = 10


class StoredBlock(NamedTuple):
    """A block, but for its namespace and object."""

    key: bytes
    block_bytes: int
    chunk_count: int
    created_ms: int
    chain_id: int
    """Of chunk 0; 0: not known."""
    version: int
    """Of chunk 0, by which later reports of the block win over earlier ones."""


def pack_block(block: StoredBlock) -> bytes:
    """The stored form of `block`."""
    packed = bytearray((FORMAT,))
    for value in (block.block_bytes, block.chunk_count, block.created_ms, block.chain_id, block.version):
        while value > 0x7F:
            packed.append(value & 0x7F | 0x80)
            value >>= 7
        packed.append(value)
    packed += block.key
    return bytes(packed)


def unpack_block(row_key: bytes, stored: bytes) -> StoredBlock:
    """What `pack_block` stored under `row_key`. Raises `StoreFailed`, naming the row, if it is anything else."""
    if stored[:1] != bytes((FORMAT,)):
        raise StoreFailed(
            f"metadata under {printable(row_key)} has format {stored[:1].hex() or 'none'}, this esker reads {FORMAT}; "
            "use the esker that wrote it, or run esker admin catalog check --repair"
        )
    values = []
    at = 1
    for _ in range(_VARINTS):
        value = shift = 0
        for byte in stored[at : at + _VARINT_BYTES_MAX]:
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
        else:
            raise StoreFailed(
                f"metadata under {printable(row_key)} is damaged (a number has no end); "
                "run esker admin catalog check --repair"
            )
        values.append(value)
    block_bytes, chunk_count, created_ms, chain_id, version = values
    return StoredBlock(stored[at:], block_bytes, chunk_count, created_ms, chain_id, version)
