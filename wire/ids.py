"""Ids that travel: chunk ids, and how a block's key becomes one.

ChunkId (24 bytes, big-endian so that byte order is scan order): space u32 | object 16 bytes | index u32.
Space 0 is the file space; a KV namespace has its own id from 1 on.
"""

import struct
from collections.abc import Sequence
from hashlib import blake2b

from esker.wire.limits import OBJECT_BYTES

CHUNK_ID = struct.Struct(">I16sI")
FILE_SPACE = 0
NO_PUT_ID = bytes(16)


def chunk_id(space: int, object_id: bytes, index: int = 0) -> bytes:
    """The 24-byte id of chunk `index` of `object_id` (16 bytes) in `space`."""
    return CHUNK_ID.pack(space, object_id, index)


def block_object(key: bytes, salt: bytes) -> bytes:
    """16-byte object id of a KV block: BLAKE2b-128 of its key under the namespace's salt (at most 64 bytes)."""
    return blake2b(key, digest_size=OBJECT_BYTES, key=salt).digest()


def block_objects(keys: Sequence[bytes], salt: bytes) -> list[bytes]:
    """`block_object` of every key; the keyed state is set up once and copied."""
    copy = blake2b(digest_size=OBJECT_BYTES, key=salt).copy
    objects = []
    for key in keys:
        state = copy()
        state.update(key)
        objects.append(state.digest())
    return objects


def object_slot(object_id: bytes) -> int:
    """Placement slot of an anchor's object id: its low 16 bits."""
    return int.from_bytes(object_id[-2:], "big")
