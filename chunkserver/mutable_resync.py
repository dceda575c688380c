"""The mutable part of a resync: images that differ, and the last writes of channels, on the worker before the syncing
one.

Two chunks are equal if version, length, truncate version and checksums are, and nothing is pending at either; all
others are sent whole, or removed there, by the replica's own operation, under the lock that it shares with clients'
writes. Of a channel whose last write is still pending here the one before is sent: a pending write may yet be
discarded, and otherwise takes its entry with it. Channels come last, when all chunks are in line and all that was begun
in earlier versions of the chain has been reported by the drive: else the entry of such a write might come too late.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

from esker.chunkserver.engine.image_record import ChannelRecord, split_channel_key
from esker.chunkserver.engine.images import Images
from esker.chunkserver.engine.record import record_key
from esker.chunkserver.mutable_scan import IMAGE_ROWS_MAX, image_row
from esker.craq.replica import ChainReplica
from esker.wire.errors import ProtocolError
from esker.wire.ids import FILE_SPACE, chunk_id
from esker.wire.messages import Empty, Message, Method
from esker.wire.mutable_messages import (
    CHANNEL_ROW,
    CHANNEL_ROWS_MAX,
    IMAGE_ROW,
    Channels,
    ScanImages,
    ScanImagesReply,
)
from esker.wire.types import Chain

PAGE_ROWS = 256
CHANNEL_PAGE_ROWS = 1024
CALL_BUDGET_MS = 2000

Ask = Callable[[Method, Message, type[Message]], Awaitable[Message]]
"""Calls the syncing replica, again and again until it answers or the resync is given up."""

_PENDING_FIELD = 3

assert PAGE_ROWS <= IMAGE_ROWS_MAX
assert CHANNEL_PAGE_ROWS <= CHANNEL_ROWS_MAX


async def differing(images: Images, chain: Chain, ask: Ask) -> AsyncIterator[bytes]:
    """Record keys of the chunks to bring in line, in order."""
    after = b""
    while True:
        request = ScanImages(chain.chain_id, chain.version, after[4:], PAGE_ROWS, CALL_BUDGET_MS)
        reply = await ask(Method.SCAN_IMAGES, request, ScanImagesReply)
        assert isinstance(reply, ScanImagesReply)
        theirs = _rows(chain.chain_id, reply.rows)
        end = max(theirs) if reply.more else None
        if end is not None and end <= after:
            raise ProtocolError("a page of images does not get on")
        for key in _compare(images, chain.chain_id, after, end, theirs):
            yield key
        if end is None:
            return
        after = end


def _rows(chain_id: int, packed: bytes) -> dict[bytes, bytes]:
    """What the syncing replica says, by record key."""
    if len(packed) % IMAGE_ROW.size:
        raise ProtocolError("a page of images is not whole")
    result: dict[bytes, bytes] = {}
    for at in range(0, len(packed), IMAGE_ROW.size):
        row = packed[at : at + IMAGE_ROW.size]
        object_id, index, *_ = IMAGE_ROW.unpack(row)
        result[record_key(chain_id, chunk_id(FILE_SPACE, object_id, index))] = row
    return result


def _compare(
    images: Images, chain_id: int, after: bytes, end: bytes | None, theirs: dict[bytes, bytes]
) -> Iterator[bytes]:
    """Keys behind `after`, up to `end` (None: all), on which both differ."""
    more: bytes | None = after
    while more is not None:
        items, more = images.scan(chain_id, more, PAGE_ROWS)
        for key, chunk in items:
            if end is not None and key > end:
                more = None
                break
            own = image_row(key, chunk)
            if theirs.pop(key, None) != own or IMAGE_ROW.unpack(own)[_PENDING_FIELD]:
                yield key
    yield from theirs


async def send_channels(images: Images, replica: ChainReplica, ask: Ask, settled: Callable[[], Awaitable[None]]) -> int:
    """Sends the last write of every channel; how many. `settled` waits a moment, as often as it takes until nothing of
    an earlier version of the chain is under way; it raises when that takes too long.
    """
    chain = replica.chain
    while replica.mutable.earlier_chunks():
        await settled()
    after = b""
    count = 0
    while True:
        items, more = images.scan_channels(chain.chain_id, after, CHANNEL_PAGE_ROWS)
        before = _before_pending(images, chain.chain_id)
        packed = []
        for key, entry in items:
            if entry is not None and entry.version in before:
                entry = before[entry.version]
            if entry is not None and entry.sequence:
                _, client, channel = split_channel_key(key)
                packed.append(CHANNEL_ROW.pack(client, channel, entry.sequence, entry.version, entry.length))
        if packed:
            await ask(Method.CHANNELS, Channels(chain.chain_id, chain.version, b"".join(packed)), Empty)
            count += len(packed)
        if more is None:
            return count
        after = more
        await asyncio.sleep(0)


def _before_pending(images: Images, chain_id: int) -> dict[int, ChannelRecord]:
    """By version of a pending image: its channel's write before."""
    result = {}
    for key in images.pending(chain_id):
        pending = images.chunk(key).pending
        if pending is not None:
            result[pending.version] = pending.before
    return result


def size_of(images: Images, key: bytes) -> int:
    """How many bytes bringing a chunk in line may send."""
    chunk = images.chunk(key)
    return max(0 if image is None else image.length for image in (chunk.committed, chunk.pending))
