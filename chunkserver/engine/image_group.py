"""What operations on mutable chunks do to the index, within a group of commits: decided here, purely.

One operation is one version's step, all of it in one transaction: images, slots that become free, the channel's last
write. A channel's entry only gives way to one of the same or a higher sequence; only the discarding of the very write
that it tells of takes it back. A stored image that is corrupt frees nothing: its slot is unknown until the next start
counts the slots afresh.
"""

from collections.abc import Callable, Sequence
from typing import Any

from esker.chunkserver.engine.errors import CorruptRecord
from esker.chunkserver.engine.image_record import (
    COMMITTED,
    PENDING,
    ChannelRecord,
    ImageRecord,
    channel_key,
    decode_channel,
    decode_image,
    encode_channel,
    encode_image,
    image_key,
)
from esker.chunkserver.engine.slot_files import Slot
from esker.wire.mutable_messages import NO_CLIENT
from esker.wire.status import Status

Stored = Callable[[bytes], bytes | None]
CommitDone = Callable[[Any, Status], None]
ListKeys = Callable[[bytes], list[bytes]]
"""The stored keys that begin with a prefix."""
ChannelRow = tuple[bytes, ChannelRecord]
"""Channel key and what it gets."""


class _ImageOperation:
    __slots__ = ("done", "record_key", "slot", "token")

    def __init__(self, record_key: bytes, slot: Slot | None, done: CommitDone, token: Any) -> None:
        self.record_key = record_key
        self.slot = slot
        """Whose data must be durable before."""
        self.done = done
        self.token = token


class Pend(_ImageOperation):
    """The chunk gets this pending image, in place of another. OK."""

    __slots__ = ("channel", "clears", "image")

    def __init__(
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
        """`clears`: the committed image goes too."""
        super().__init__(record_key, slot, done, token)
        self.image = image
        self.channel = channel
        self.clears = clears


class Replace(Pend):
    """The chunk gets this image as its committed one (nothing is kept of an absent one), and has none pending. OK."""

    __slots__ = ()


class Mend(_ImageOperation):
    """The image of this version, committed or pending, is in this slot from now on. OK; CONDITION: it is not there."""

    __slots__ = ("new_slot", "version")

    def __init__(self, record_key: bytes, version: int, slot: Slot, done: CommitDone, token: Any) -> None:
        super().__init__(record_key, slot, done, token)
        self.new_slot = slot
        self.version = version


class Settle(_ImageOperation):
    """The pending image of this version becomes the committed one. OK, also if it is already; else CONDITION."""

    __slots__ = ("version",)

    def __init__(self, record_key: bytes, version: int, done: CommitDone, token: Any) -> None:
        super().__init__(record_key, None, done, token)
        self.version = version


class Discard(_ImageOperation):
    """The pending image of this version goes; its channel's entry, if it is of that write, is the one before again.
    OK, NOT_FOUND.
    """

    __slots__ = ("version",)

    def __init__(self, record_key: bytes, version: int, done: CommitDone, token: Any) -> None:
        super().__init__(record_key, None, done, token)
        self.version = version


class MergeChannels:
    """Channels' last writes as another replica has them. OK."""

    __slots__ = ("done", "rows", "token")

    def __init__(self, rows: Sequence[ChannelRow], done: CommitDone, token: Any) -> None:
        self.rows = rows
        self.done = done
        self.token = token


class ClearChannels:
    """All channels of a chain go, those of operations queued before included. OK."""

    __slots__ = ("done", "prefix", "token")

    def __init__(self, prefix: bytes, done: CommitDone, token: Any) -> None:
        self.prefix = prefix
        self.done = done
        self.token = token


ImageOperation = Pend | Mend | Settle | Discard | MergeChannels | ClearChannels


class ImagePlan:
    """What a group's operations on mutable chunks change. Values are None where something goes."""

    __slots__ = ("_channel", "_channel_keys", "_image", "channels", "corrupt", "freed", "images")

    def __init__(self, image: Stored, channel: Stored, channel_keys: ListKeys) -> None:
        """These give what is stored now."""
        self._channel_keys = channel_keys
        self._image = image
        self._channel = channel
        self.images: dict[bytes, bytes | None] = {}
        self.channels: dict[bytes, bytes | None] = {}
        self.freed: list[tuple[int, int]] = []
        self.corrupt = 0

    def add(self, operation: ImageOperation) -> Status:
        """Plans the operation, behind those before it; its outcome."""
        if isinstance(operation, MergeChannels):
            for row in operation.rows:
                self._merge(row)
            return Status.OK
        if isinstance(operation, ClearChannels):
            planned = [key for key in self.channels if key.startswith(operation.prefix)]
            for key in self._channel_keys(operation.prefix) + planned:
                self.channels[key] = None
            return Status.OK
        committed = image_key(operation.record_key, COMMITTED)
        pending = image_key(operation.record_key, PENDING)
        if isinstance(operation, Settle):
            return self._settle(committed, pending, operation.version)
        if isinstance(operation, Discard):
            return self._discard(pending, operation)
        if isinstance(operation, Mend):
            return self._mend((committed, pending), operation)
        self._clear(pending)
        if isinstance(operation, Replace):
            self._commit(committed, operation.image)
        else:
            if operation.clears:
                self._clear(committed)
            self.images[pending] = encode_image(pending, operation.image)
        if operation.channel is not None:
            self._merge(operation.channel)
        return Status.OK

    def _settle(self, committed: bytes, pending: bytes, version: int) -> Status:
        image = self._stored(pending)
        if image is None or image.version != version:
            before = self._stored(committed)
            return Status.OK if before is not None and before.version == version else Status.CONDITION
        self.images[pending] = None
        self._commit(committed, image)
        return Status.OK

    def _mend(self, keys: tuple[bytes, bytes], operation: Mend) -> Status:
        slot = operation.new_slot
        for key in keys:
            image = self._stored(key)
            if image is not None and image.version == operation.version and not image.absent:
                self._clear(key)
                self.images[key] = encode_image(key, image._replace(pages=slot.pages, slot=slot.number))
                return Status.OK
        self.freed.append((slot.pages, slot.number))
        return Status.CONDITION

    def _discard(self, pending: bytes, operation: Discard) -> Status:
        image = self._stored(pending)
        if image is None or image.version != operation.version:
            return Status.NOT_FOUND
        self._clear(pending)
        if image.client != NO_CLIENT:
            key = channel_key(int.from_bytes(pending[:4], "big"), image.client, image.channel)
            entry = self._stored_channel(key)
            if entry is not None and entry.version == image.version:
                self.channels[key] = encode_channel(key, image.before) if image.before.sequence else None
        return Status.OK

    def _commit(self, key: bytes, image: ImageRecord) -> None:
        self._clear(key)
        if not image.absent:
            self.images[key] = encode_image(key, image)

    def _clear(self, key: bytes) -> None:
        """What is under `key` goes, and its slot becomes free."""
        if self._value(key) is None:
            return
        image = self._stored(key)
        if image is None:
            self.corrupt += 1
        elif not image.absent:
            self.freed.append((image.pages, image.slot))
        self.images[key] = None

    def _value(self, key: bytes) -> bytes | None:
        return self.images[key] if key in self.images else self._image(key)

    def _stored(self, key: bytes) -> ImageRecord | None:
        value = self._value(key)
        if not value:
            return None
        try:
            return decode_image(key, value)
        except CorruptRecord:
            return None

    def _merge(self, row: ChannelRow) -> None:
        key, entry = row
        before = self._stored_channel(key)
        if before is None or before.sequence <= entry.sequence:
            self.channels[key] = encode_channel(key, entry)

    def _stored_channel(self, key: bytes) -> ChannelRecord | None:
        value = self.channels[key] if key in self.channels else self._channel(key)
        if value is None:
            return None
        try:
            return decode_channel(key, value)
        except CorruptRecord:
            return None
