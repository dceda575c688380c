"""What one simulated drive keeps of mutable chunks: images with their bytes, and the table of channels.

Each method is one transaction: it is durable whole or not at all.
"""

from dataclasses import dataclass
from hashlib import blake2b

from esker.craq import mutable_messages as craq
from esker.craq import patches

ChannelKey = tuple[bytes, int]


@dataclass
class Slot:
    """An image with its bytes."""

    image: craq.Image
    data: bytes
    good: bytes | None = None
    """With bad bytes: what they were."""

    @property
    def damaged(self) -> bool:
        """The bytes are not what the checksums say."""
        return self.good is not None

    def go_bad(self) -> None:
        """Other bytes are read from now on."""
        if self.good is None:
            self.good, self.data = self.data, bytes(byte ^ 0xFF for byte in self.data)

    def mend(self, data: bytes) -> None:
        """The right ones take their place."""
        self.data, self.good = data, None


@dataclass
class PendingSlot:
    """A pending image with its bytes."""

    pending: craq.Pending
    slot: Slot
    before: craq.ChannelEntry | None
    """The channel's entry that this one took the place of."""


class MutableDrive:
    """Survives crashes."""

    def __init__(self) -> None:
        self.committed: dict[bytes, Slot] = {}
        self.pending: dict[bytes, PendingSlot] = {}
        self.channels: dict[ChannelKey, craq.ChannelEntry] = {}

    def persist(
        self, chunk: bytes, slot: Slot, previous: int, origin: craq.Origin | None, *, commit: bool, replace: bool
    ) -> None:
        """See `PersistPending`."""
        if replace:
            self.pending.pop(chunk, None)
            self.committed.pop(chunk, None)
        assert chunk not in self.pending, "one image is pending at most"
        before = None
        if origin is not None:
            key = (origin.client, origin.channel)
            before = self.channels.get(key)
            if before is None or before.sequence < origin.sequence:
                self.channels[key] = craq.ChannelEntry(origin.sequence, slot.image.version, slot.image.length_bytes)
        self.pending[chunk] = PendingSlot(craq.Pending(slot.image, previous, origin), slot, before)
        if commit:
            self.commit(chunk, slot.image.version)

    def commit(self, chunk: bytes, version: int) -> None:
        """See `CommitPending`."""
        held = self.pending.pop(chunk)
        assert held.pending.image.version == version
        if held.pending.image.absent:
            self.committed.pop(chunk, None)
        else:
            self.committed[chunk] = held.slot

    def discard(self, chunk: bytes, version: int) -> None:
        """See `DiscardPending`."""
        held = self.pending.pop(chunk)
        assert held.pending.image.version == version
        origin = held.pending.origin
        if origin is None:
            return
        key = (origin.client, origin.channel)
        entry = self.channels.get(key)
        if entry is not None and entry.version == version:
            if held.before is None:
                del self.channels[key]
            else:
                self.channels[key] = held.before

    def find(self, chunk: bytes, version: int) -> Slot | None:
        """The image of this version, pending or committed."""
        held = self.pending.get(chunk)
        if held is not None and held.slot.image.version == version:
            return held.slot
        slot = self.committed.get(chunk)
        return slot if slot is not None and slot.image.version == version else None

    def settled_channels(self) -> dict[ChannelKey, craq.ChannelEntry]:
        """What a resync gives away: for a version that may still be discarded the entry of before."""
        table = dict(self.channels)
        for held in self.pending.values():
            origin = held.pending.origin
            if origin is None:
                continue
            key = (origin.client, origin.channel)
            if key in table and table[key].version == held.pending.image.version:
                del table[key]
                if held.before is not None:
                    table[key] = held.before
        return table

    def merge_channels(self, table: dict[ChannelKey, craq.ChannelEntry]) -> None:
        """The higher sequence wins."""
        for key, entry in table.items():
            own = self.channels.get(key)
            if own is None or own.sequence < entry.sequence:
                self.channels[key] = entry


def image_of(version: int, data: bytes, truncate_version: int) -> craq.Image:
    """The image that has these bytes."""
    return craq.Image(version, len(data), blake2b(data, digest_size=8).digest(), truncate_version)


def patched(base: Slot | None, patch: craq.Patch, payload: bytes, version: int) -> Slot:
    """What `patch` makes of `base`."""
    data = b"" if base is None else base.data
    truncate_version = patches.resulting_truncate_version(None if base is None else base.image, patch)
    if patch.kind is craq.PatchKind.REMOVE:
        return Slot(craq.Image(version, absent=True), b"")
    length = patches.resulting_length(None if base is None else base.image, patch)
    if patch.kind is craq.PatchKind.WRITE:
        data = data.ljust(patch.offset, b"\0")
        data = data[: patch.offset] + payload + data[patch.offset + len(payload) :]
    data = data[:length].ljust(length, b"\0")
    return Slot(image_of(version, data, truncate_version), data)
