"""SCAN_IMAGES and CHANNELS: a syncing replica shows its mutable chunks to its predecessor, and takes over the last
writes of their channels.

What the replica knew of channels goes when it begins to sync, when its state machine says so
(`ChainReplica.clears_channels`): a write of before that it never acknowledged must not pass for one that was done.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping

from xxhash import xxh3_64_intdigest

from esker.chunkserver.engine.image_record import ChannelRecord, channel_key
from esker.chunkserver.engine.images import Chunk, Images
from esker.chunkserver.engine.record import chain_prefix
from esker.craq.mutable_messages import ChannelsCleared
from esker.craq.replica import ChainReplica
from esker.wire.admin_messages import split_record_key
from esker.wire.codec import decode_body
from esker.wire.columns import rows
from esker.wire.errors import RequestFailed
from esker.wire.limits import CHUNK_ID_BYTES
from esker.wire.messages import Empty
from esker.wire.mutable_messages import (
    CHANNEL_ROW,
    CHANNEL_ROWS_MAX,
    IMAGE_ROW,
    Channels,
    ScanImages,
    ScanImagesReply,
)
from esker.wire.rpc_server import Request
from esker.wire.status import Status

IMAGE_ROWS_MAX = 1024
RETRY_S = 0.25
"""Before channels are forgotten that could not be for lack of room."""
DAMAGED = (1 << 64) - 1
"""In the place of a pending version: what is here cannot be made out, so it differs from everything."""


class ImageScanService:
    """Serves one drive. `refresh` is called where a request names a newer version of a chain."""

    def __init__(
        self,
        images: Images,
        replicas: Mapping[int, ChainReplica],
        ready: Callable[[int, int], bool],
        refresh: Callable[[], None],
        drive_failed: Callable[[str], None],
        dispatch: Callable[[ChainReplica, ChannelsCleared], None],
    ) -> None:
        """`ready(chain id, chain version)`: whether this worker takes part in the chain in that version and has nothing
        of an earlier one under way.
        """
        self._images = images
        self._replicas = replicas
        self._ready = ready
        self._refresh = refresh
        self._drive_failed = drive_failed
        self._dispatch = dispatch
        self._cleared: dict[int, int] = {}
        """In which version of a chain its channels were, or are being, forgotten."""
        self._loop = asyncio.get_running_loop()
        self._closed = False

    def close(self) -> None:
        """Begins nothing by itself any more."""
        self._closed = True

    def look(self, replicas: Iterable[ChainReplica]) -> None:
        """After chains have changed, or an operation has ended: forgets the channels of those that this drive is to be
        brought up to date in.
        """
        if self._closed:
            return
        for replica in replicas:
            chain = replica.chain
            if replica.clears_channels and self._cleared.get(chain.chain_id) != chain.version:
                self._cleared[chain.chain_id] = chain.version
                self._images.clear_channels(chain.chain_id, self._are_cleared, (replica, chain.version))

    def _are_cleared(self, token: tuple[ChainReplica, int], status: Status) -> None:
        replica, chain_version = token
        chain_id = replica.chain.chain_id
        if status is Status.OK:
            self._dispatch(replica, ChannelsCleared(chain_version))
        elif status is Status.NO_SPACE:  # no fault of the drive's; until there is room, the replica takes no update
            if self._cleared[chain_id] == chain_version:
                del self._cleared[chain_id]
            self._loop.call_later(RETRY_S, self.look, (replica,))
        else:
            self._drive_failed(f"cannot forget the channels of chain {chain_id}: {status.name}")

    def scan(self, request: Request) -> None:
        """Handles SCAN_IMAGES."""
        message = decode_body(ScanImages, request.body)
        if not 1 <= message.limit <= IMAGE_ROWS_MAX or len(message.after) not in (0, CHUNK_ID_BYTES):
            raise RequestFailed(
                Status.BAD_REQUEST,
                f"a page of {message.limit} rows after {len(message.after)} bytes; allowed: 1 to {IMAGE_ROWS_MAX} rows "
                f"after a chunk id of {CHUNK_ID_BYTES} bytes, or none",
            )
        self._check(message.chain_id, message.chain_version)
        after = chain_prefix(message.chain_id) + message.after if message.after else b""
        items, more = self._images.scan(message.chain_id, after, message.limit)
        request.reply(ScanImagesReply(b"".join(image_row(key, chunk) for key, chunk in items), more is not None))

    def channels(self, request: Request) -> None:
        """Handles CHANNELS."""
        message = decode_body(Channels, request.body)
        entries = rows(CHANNEL_ROW, message.rows, CHANNEL_ROWS_MAX)
        self._check(message.chain_id, message.chain_version)
        replica = self._replicas[message.chain_id]
        hello = request.connection.hello
        if not replica.syncing or hello is None or hello.peer_id != replica.place.predecessor:
            raise RequestFailed(Status.CHAIN_VERSION, "only the predecessor of a syncing replica sends channels")
        if not replica.channels_cleared:
            raise RequestFailed(Status.NOT_READY, "the channels of before have not been forgotten yet")
        merged = [
            (channel_key(message.chain_id, client, channel), ChannelRecord(sequence, version, length))
            for client, channel, sequence, version, length in entries
        ]
        self._images.merge_channels(merged, self._merged, request)

    def _merged(self, request: Request, status: Status) -> None:
        if status is Status.OK:
            request.reply(Empty())
        else:
            request.fail(status, "the channels could not be kept")

    def _check(self, chain_id: int, chain_version: int) -> None:
        if not self._ready(chain_id, chain_version):
            self._refresh()
            raise RequestFailed(
                Status.NOT_READY, f"not part of chain {chain_id} in version {chain_version}, or not yet"
            )


def image_row(record_key: bytes, chunk: Chunk) -> bytes:
    """What a replica says of one of its chunks, as a row of IMAGE_ROW."""
    _, _, object_id, index = split_record_key(record_key)
    image = chunk.committed
    pending = DAMAGED if chunk.damaged else 0 if chunk.pending is None else chunk.pending.version
    if image is None:
        return IMAGE_ROW.pack(object_id, index, 0, pending, 0, 0, 0)
    digest = xxh3_64_intdigest(image.checksums)
    return IMAGE_ROW.pack(object_id, index, image.version, pending, image.length, image.truncate_version, digest)
