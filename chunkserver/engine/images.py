"""Mutable chunks on a drive: their images, the slots under them, the last writes of their channels.

A chunk has at most one committed and one pending image, each whole in a slot of its own: what is written is never what
is read. A version is one commit (`pend`, `replace`, `settle`, `discard`); the rules of `store.py` hold for all of them:
data durable before the record, a freed slot out of use until nothing can read it any more. In which order versions
come, and who may read which, is decided elsewhere.

`DriveStore` makes it; it belongs to the same loop. Which chunks have a pending image is also kept in memory, by chain.
"""

import errno
from collections.abc import Callable, Sequence, Set
from functools import partial
from typing import Any, NamedTuple

from esker.chunkserver.engine.committer import Committer, Index
from esker.chunkserver.engine.errors import CorruptRecord
from esker.chunkserver.engine.image_group import (
    ChannelRow,
    ClearChannels,
    CommitDone,
    Discard,
    Mend,
    MergeChannels,
    Pend,
    Replace,
    Settle,
)
from esker.chunkserver.engine.image_record import (
    COMMITTED,
    IMAGE_KEY_BYTES,
    PENDING,
    ChannelRecord,
    ImageRecord,
    channel_key,
    decode_channel,
    decode_image,
    image_key,
)
from esker.chunkserver.engine.interface import Done, IoEngine
from esker.chunkserver.engine.record import chain_prefix
from esker.chunkserver.engine.slot_files import Slot
from esker.chunkserver.engine.slots import Slots
from esker.wire.limits import ALIGN_BYTES
from esker.wire.status import Status

OnCorrupt = Callable[[bytes, CorruptRecord], None]


class Chunk(NamedTuple):
    """What a drive has of a chunk."""

    committed: ImageRecord | None
    pending: ImageRecord | None
    damaged: bool = False
    """Something is here that cannot be made out; the fields show the rest."""


class Images:
    """See the module."""

    def __init__(
        self,
        index: Index,
        slots: Slots,
        committer: Committer,
        engine: IoEngine,
        pending: Sequence[bytes],
        on_corrupt: OnCorrupt,
    ) -> None:
        """`pending`: record keys of the chunks that have a pending image now."""
        self._index = index
        self._slots = slots
        self._committer = committer
        self._engine = engine
        self._on_corrupt = on_corrupt
        self._pending: dict[int, set[bytes]] = {}
        for record_key in pending:
            self._note_pending(record_key, True)

    # Reading

    def chunk(self, record_key: bytes) -> Chunk:
        """What is durable of the chunk."""
        with self._index.snapshot(self._index.images) as txn:
            return self._chunk(record_key, txn.get(record_key + COMMITTED), txn.get(record_key + PENDING))

    def _chunk(self, record_key: bytes, committed: bytes | None, pending: bytes | None) -> Chunk:
        damaged = False
        images: list[ImageRecord | None] = []
        for which, value in ((COMMITTED, committed), (PENDING, pending)):
            image = None
            if value is not None:
                try:
                    image = decode_image(image_key(record_key, which), value) if value else None
                    damaged = damaged or image is None
                except CorruptRecord as error:
                    self._on_corrupt(record_key, error)
                    damaged = True
            images.append(image)
        return Chunk(images[0], images[1], damaged)

    def chunk_and_channel(
        self, record_key: bytes, client: bytes, channel: int
    ) -> tuple[Chunk, ChannelRecord | CorruptRecord | None]:
        """What is durable of the chunk, and the last write of a channel of its chain, at one moment."""
        key = channel_key(int.from_bytes(record_key[:4], "big"), client, channel)
        with self._index.snapshot(self._index.images) as txn:
            chunk = self._chunk(record_key, txn.get(record_key + COMMITTED), txn.get(record_key + PENDING))
            value = txn.get(key, db=self._index.channels)
        try:
            return chunk, None if value is None else decode_channel(key, value)
        except CorruptRecord as error:
            return chunk, error

    def channel(self, chain_id: int, client: bytes, channel: int) -> ChannelRecord | None:
        """The last write of a channel. Raises `CorruptRecord`."""
        key = channel_key(chain_id, client, channel)
        with self._index.snapshot(self._index.channels) as txn:
            value = txn.get(key)
        return None if value is None else decode_channel(key, value)

    def pending(self, chain_id: int) -> list[bytes]:
        """Record keys of the chain's chunks that have a pending image, in order."""
        return sorted(self._pending.get(chain_id, ()))

    def pending_of(self, chain_id: int) -> Set[bytes]:
        """The same, as they are kept: for looking one up."""
        return self._pending.get(chain_id, frozenset())

    def scan(self, chain_id: int, after: bytes, limit: int) -> tuple[list[tuple[bytes, Chunk]], bytes | None]:
        """Up to `limit` chunks of a chain whose record keys follow `after`, and where the next page begins (None: that
        was all).
        """
        prefix = chain_prefix(chain_id)
        items: list[tuple[bytes, Chunk]] = []
        with self._index.snapshot(self._index.images) as txn:
            cursor = txn.cursor()
            found = cursor.set_range(after + b"\xff" if after else prefix)
            while found and cursor.key().startswith(prefix):
                key = cursor.key()
                record_key = key[:-1]
                if len(key) != IMAGE_KEY_BYTES:
                    found = cursor.next()
                    continue
                if len(items) == limit:
                    return items, items[-1][0]
                values: dict[bytes, bytes] = {}
                while found and cursor.key()[:-1] == record_key:
                    values[cursor.key()[-1:]] = cursor.value()
                    found = cursor.next()
                items.append((record_key, self._chunk(record_key, values.get(COMMITTED), values.get(PENDING))))
        return items, None

    def keys(self, after: bytes, limit: int) -> tuple[list[bytes], bytes]:
        """Record keys of up to `limit` chunks of all chains that follow `after`, and where the next page begins (empty:
        that was all). Those that cannot be made out are among them.
        """
        keys: list[bytes] = []
        with self._index.snapshot(self._index.images) as txn:
            cursor = txn.cursor()
            found = cursor.set_range(after + b"\xff") if after else cursor.first()
            while found:
                record_key = cursor.key()[:-1]
                if len(keys) == limit:
                    return keys, keys[-1]
                if len(record_key) == IMAGE_KEY_BYTES - 1:
                    keys.append(record_key)
                found = cursor.set_range(record_key + b"\xff")
        return keys, b""

    def scan_channels(
        self, chain_id: int, after: bytes, limit: int
    ) -> tuple[list[tuple[bytes, ChannelRecord | None]], bytes | None]:
        """Likewise of the channels of a chain, by channel key; None for one that cannot be made out."""
        prefix = chain_prefix(chain_id)
        items: list[tuple[bytes, ChannelRecord | None]] = []
        with self._index.snapshot(self._index.channels) as txn:
            cursor = txn.cursor()
            found = cursor.set_range(after + b"\0" if after else prefix)
            while found and cursor.key().startswith(prefix):
                key = cursor.key()
                if len(items) == limit:
                    return items, items[-1][0]
                try:
                    items.append((key, decode_channel(key, cursor.value())))
                except CorruptRecord as error:
                    self._on_corrupt(key, error)
                    items.append((key, None))
                found = cursor.next()
        return items, None

    # Data

    def read_part(self, image: ImageRecord, offset: int, buffer: memoryview, done: Done, token: Any) -> None:
        """Queues the read of an image from `offset` on; both it and the length of `buffer` are multiples of 4 KiB.

        In the same await-free stretch as the lookup. A result of `len(buffer)` is success.
        """
        assert (offset | len(buffer)) % ALIGN_BYTES == 0, (offset, len(buffer))
        assert offset + len(buffer) <= image.pages * ALIGN_BYTES, (offset, len(buffer), image.pages)
        fd, at = self._slots.classes[image.pages].place(image.slot)
        self._engine.read(fd, at + offset, buffer, done, token)

    def write_part(self, slot: Slot, offset: int, buffer: memoryview, done: Done, token: Any) -> None:
        """Queues a write into a slot that is not committed. Short ones go on by themselves; 0 is success, else a
        negative errno.
        """
        assert (offset | len(buffer)) % ALIGN_BYTES == 0, (offset, len(buffer))
        assert offset + len(buffer) <= slot.pages * ALIGN_BYTES, (offset, len(buffer), slot.pages)
        self._engine.write(slot.fd, slot.offset + offset, buffer, self._written, (slot, offset, buffer, done, token))

    def _written(self, token: tuple[Slot, int, memoryview, Done, Any], result: int) -> None:
        slot, offset, buffer, done, caller_token = token
        if result == len(buffer):
            done(caller_token, 0)
            return
        moved = result & -ALIGN_BYTES  # direct I/O continues at a page
        if result <= 0 or moved == 0:
            done(caller_token, result if result < 0 else -errno.EIO)
            return
        self.write_part(slot, offset + moved, buffer[moved:], done, caller_token)

    # Writing. Outcomes, besides those of the operations themselves: NO_SPACE, IO_ERROR.

    def pend(
        self,
        record_key: bytes,
        image: ImageRecord,
        channel: ChannelRow | None,
        slot: Slot | None,
        done: CommitDone,
        token: Any,
        *,
        clears: bool = False,
    ) -> None:
        """See `Pend`. `slot`, written whole, is the image's; none for a removal. The slot is the store's now."""
        self._check(image, slot)
        self._committer.queue(
            Pend(record_key, image, channel, slot, partial(self._done, record_key, True, done), token, clears=clears)
        )

    def replace(
        self,
        record_key: bytes,
        image: ImageRecord,
        channel: ChannelRow | None,
        slot: Slot | None,
        done: CommitDone,
        token: Any,
    ) -> None:
        """See `Replace`, and `pend`."""
        self._check(image, slot)
        self._committer.queue(
            Replace(record_key, image, channel, slot, partial(self._done, record_key, False, done), token)
        )

    def mend(self, record_key: bytes, version: int, slot: Slot, done: CommitDone, token: Any) -> None:
        """See `Mend`, and `pend`."""
        assert slot.written, "an image is committed after its data was written"
        self._committer.queue(Mend(record_key, version, slot, done, token))

    def settle(self, record_key: bytes, version: int, done: CommitDone, token: Any) -> None:
        """See `Settle`."""
        self._committer.queue(Settle(record_key, version, partial(self._done, record_key, False, done), token))

    def discard(self, record_key: bytes, version: int, done: CommitDone, token: Any) -> None:
        """See `Discard`."""
        self._committer.queue(Discard(record_key, version, partial(self._done, record_key, False, done), token))

    def merge_channels(self, rows: Sequence[ChannelRow], done: CommitDone, token: Any) -> None:
        """See `MergeChannels`."""
        self._committer.queue(MergeChannels(rows, done, token))

    def clear_channels(self, chain_id: int, done: CommitDone, token: Any) -> None:
        """See `ClearChannels`."""
        self._committer.queue(ClearChannels(chain_prefix(chain_id), done, token))

    def _check(self, image: ImageRecord, slot: Slot | None) -> None:
        if slot is None:
            assert image.absent, "an image needs a slot"
        else:
            assert (image.pages, image.slot) == (slot.pages, slot.number), "the image names another slot"
            assert slot.written, "an image is committed after its data was written"

    def _done(self, record_key: bytes, pending: bool, done: CommitDone, token: Any, status: Status) -> None:
        if status is Status.OK:
            self._note_pending(record_key, pending)
        done(token, status)

    def _note_pending(self, record_key: bytes, pending: bool) -> None:
        chain_id = int.from_bytes(record_key[:4], "big")
        if pending:
            self._pending.setdefault(chain_id, set()).add(record_key)
        else:
            self._pending.get(chain_id, set()).discard(record_key)
