"""What tests of mutable chunks share: one object's chunks, written and read by short calls."""

from collections.abc import Awaitable, Callable
from typing import Any

from esker.client.mutable import ChunkClient, ChunkRead, ChunkReadResult, ChunkWrite
from esker.wire.status import Status

OBJECT = bytes(range(16))

Connect = Callable[..., Awaitable[ChunkClient]]


def write(index: int, offset: int, data: Any, truncate_version: int = 0) -> ChunkWrite:
    """A write of the object's chunk `index`."""
    return ChunkWrite(OBJECT, index, offset, data, truncate_version=truncate_version)


async def read(client: ChunkClient, index: int, offset: int = 0, length: int = 1 << 20) -> ChunkReadResult:
    """A read of the object's chunk `index`."""
    return (await client.read([ChunkRead(OBJECT, index, offset, length)]))[0]


async def content(client: ChunkClient, index: int) -> bytes:
    """The whole chunk `index`, which is there."""
    result = await read(client, index)
    assert result.status is Status.OK
    assert len(result.data) == result.chunk_bytes
    return bytes(result.data)
