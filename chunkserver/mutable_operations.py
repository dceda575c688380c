"""What the runner knows of an operation on a mutable chunk, and of the request it came in."""

import asyncio
from collections.abc import Callable

from esker.chunkserver.engine.image_record import ChannelRecord, ImageRecord
from esker.chunkserver.engine.images import Chunk
from esker.chunkserver.engine.slot_files import Slot
from esker.chunkserver.pool import Region
from esker.craq import mutable_messages as craq
from esker.craq.replica import ChainReplica
from esker.wire.admin_messages import split_record_key
from esker.wire.rpc_server import Request

Reply = Callable[[bytes, bool], None]
"""Sends finished extents' results; the flag says that more come."""


class MutableBatch:
    """A request with several operations: their results leave together as they come together."""

    __slots__ = ("_flush_soon", "_loop", "_reply", "_results", "left", "region", "request")

    def __init__(self, request: Request, count: int, region: Region | None, reply: Reply) -> None:
        """`region` holds the request's payload; the batch lets it go at its end."""
        self.request = request
        self.left = count
        self.region = region
        self._reply = reply
        self._results: list[bytes] = []
        self._flush_soon = False
        self._loop = asyncio.get_running_loop()

    def result(self, result: bytes) -> None:
        """One extent is answered."""
        self._results.append(result)
        self.left -= 1
        if not self._flush_soon:
            self._flush_soon = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_soon = False
        results, self._results = b"".join(self._results), []
        self._reply(results, self.left > 0)
        if self.left == 0 and self.region is not None:
            self.region.drop()
            self.region = None


class MutableOperation:
    """One operation. Whoever begins it sets what its kind needs."""

    __slots__ = (
        "answered",
        "at",
        "chunk_index",
        "deadline",
        "ended",
        "event",
        "looked",
        "object_id",
        "op",
        "payload_bytes",
        "record_key",
        "region",
        "replica",
        "serve",
        "slot",
        "slot_bytes",
        "timer",
    )

    def __init__(self, replica: ChainReplica, record_key: bytes) -> None:
        self.replica = replica
        self.record_key = record_key
        _, _, self.object_id, self.chunk_index = split_record_key(record_key)
        self.op = 0
        self.event: craq.MutableArrival
        self.looked: Chunk | None = None
        """What was stored here when it was last looked up."""
        self.deadline = 0.0
        """Loop time."""
        self.timer: asyncio.TimerHandle | None = None
        self.region: Region | None = None
        """Where its payload is: `payload_bytes` at `at`."""
        self.at = 0
        self.payload_bytes = 0
        self.slot: Slot | None = None
        self.slot_bytes = 0
        """The longest that the file's chunks get."""
        self.answered: Callable[[craq.AnswerMutable], None] | None = None
        self.serve: Callable[[craq.ServeImage, ImageRecord | None], None] | None = None
        """Gets the image to read, in the await-free stretch in which it was looked up."""
        self.ended: Callable[[craq.Ended], None] | None = None

    @property
    def payload(self) -> memoryview | None:
        if self.region is None or self.payload_bytes == 0:
            return None
        return self.region.view[self.at : self.at + self.payload_bytes]


def image_of(record: ImageRecord | None) -> craq.Image | None:
    """A stored image, as the protocol sees it."""
    if record is None:
        return None
    return craq.Image(record.version, record.length, record.checksums, record.truncate_version, record.absent)


def origin_of(record: ImageRecord) -> craq.Origin | None:
    """By whom a stored image was asked for."""
    if record.sequence == 0:
        return None
    return craq.Origin(record.client, record.channel, record.sequence)


def pending_of(record: ImageRecord | None) -> craq.Pending | None:
    """A stored pending image, as the protocol sees it."""
    image = image_of(record)
    if image is None or record is None:
        return None
    return craq.Pending(image, record.previous, origin_of(record))


def entry_of(channel: ChannelRecord | None) -> craq.ChannelEntry | None:
    """A channel's last write, as the protocol sees it."""
    return None if channel is None else craq.ChannelEntry(channel.sequence, channel.version, channel.length)


def stored_image(chunk: Chunk, version: int) -> ImageRecord | None:
    """The chunk's image of that version, pending or committed."""
    for image in (chunk.pending, chunk.committed):
        if image is not None and image.version == version:
            return image
    return None
