"""Images of mutable chunks and channels in the index: records, single steps, scans, and what is corrupt."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from esker.chunkserver.engine.errors import CorruptRecord
from esker.chunkserver.engine.image_record import (
    COMMITTED,
    NO_WRITE,
    PENDING,
    ChannelRecord,
    ImageRecord,
    channel_key,
    decode_channel,
    decode_image,
    encode_channel,
    encode_image,
    image_key,
    split_channel_key,
)
from esker.chunkserver.engine.record import record_key
from esker.wire.ids import chunk_id
from esker.wire.limits import checksum_blocks
from esker.wire.status import Status

from .conftest import Drive

U32 = st.integers(0, 2**32 - 1)
U64 = st.integers(0, 2**64 - 1)
CLIENT = b"c" * 16


def key_of(number: int, chain_id: int = 1) -> bytes:
    return record_key(chain_id, chunk_id(0, number.to_bytes(16, "big")))


@st.composite
def some_images(draw: st.DrawFn) -> ImageRecord:
    channel = (draw(st.binary(min_size=16, max_size=16)), draw(U32), draw(U64))
    before = ChannelRecord(draw(U64), draw(U64), draw(U32))
    version = draw(st.integers(1, 2**64 - 1))
    absent = draw(st.booleans())
    length = 0 if absent else draw(st.integers(0, 300_000))
    pages = 0 if absent else draw(st.integers(max(1, -(-length // 4096)), 16384))
    sums = draw(st.binary(min_size=8, max_size=8)) * checksum_blocks(length)
    slot = 0 if absent else draw(U32)
    return ImageRecord(version, length, sums, draw(U64), draw(U64), draw(U32), draw(U32), pages, slot, *channel, before)


@given(some_images(), st.sampled_from((COMMITTED, PENDING)))
def test_images_round_trip(image: ImageRecord, which: bytes) -> None:
    key = image_key(key_of(3), which)
    assert decode_image(key, encode_image(key, image)) == image


@given(U64, U64, U32)
def test_channels_round_trip(sequence: int, version: int, length: int) -> None:
    key = channel_key(7, CLIENT, 9)
    assert split_channel_key(key) == (7, CLIENT, 9)
    entry = ChannelRecord(sequence, version, length)
    assert decode_channel(key, encode_channel(key, entry)) == entry


def test_every_flipped_bit_is_noticed() -> None:
    key = image_key(key_of(1), PENDING)
    value = encode_image(key, ImageRecord(5, 70_000, b"12345678" * 2, pages=18, slot=4))
    channel = channel_key(1, CLIENT, 2)
    entry = encode_channel(channel, ChannelRecord(1, 2, 3))
    for at in range(len(value)):
        with pytest.raises(CorruptRecord):
            decode_image(key, value[:at] + bytes([value[at] ^ 1]) + value[at + 1 :])
    for at in range(len(entry)):
        with pytest.raises(CorruptRecord):
            decode_channel(channel, entry[:at] + bytes([entry[at] ^ 4]) + entry[at + 1 :])
    with pytest.raises(CorruptRecord):
        decode_image(image_key(key_of(1), COMMITTED), value)  # a pending image never passes for a committed one
    for length in (0, 5, len(value) - 1):
        with pytest.raises(CorruptRecord):
            decode_image(key, value[:length])


class Steps:
    """The store's steps on chunk 1, awaited."""

    def __init__(self, drive: Drive) -> None:
        self.drive = drive
        self.images = drive.store.images

    async def write(
        self, version: int, *, replace: bool = False, sequence: int = 0, clears: bool = False, size: int = 5000
    ) -> Status:
        slot = self.drive.store.allocate(size, 8192, reserve=True)
        slot.written = True
        before = self.images.channel(1, CLIENT, 4) or NO_WRITE
        image = ImageRecord(
            version, size, b"12345678", pages=slot.pages, slot=slot.number, client=CLIENT, channel=4,
            sequence=sequence, before=before,
        )  # fmt: skip
        row = (channel_key(1, CLIENT, 4), ChannelRecord(sequence, version, size)) if sequence else None
        if replace:
            return await self.call(self.images.replace, key_of(1), image, row, slot)
        return await self.call(self.images.pend, key_of(1), image, row, slot, clears=clears)

    async def remove(self, version: int, *, replace: bool = False) -> Status:
        image = ImageRecord(version)
        return await self.call(self.images.replace if replace else self.images.pend, key_of(1), image, None, None)

    async def settle(self, version: int) -> Status:
        return await self.call(self.images.settle, key_of(1), version)

    async def discard(self, version: int) -> Status:
        return await self.call(self.images.discard, key_of(1), version)

    async def call(self, queue: Callable[..., None], *arguments: Any, **options: Any) -> Status:
        return Status(await self.drive.call(lambda done: queue(*arguments, done, None, **options)))

    @property
    def versions(self) -> tuple[int, int]:
        """Committed and pending; 0: none."""
        chunk = self.images.chunk(key_of(1))
        assert not chunk.damaged
        assert (key_of(1) in self.images.pending(1)) is (chunk.pending is not None)
        return (
            0 if chunk.committed is None else chunk.committed.version,
            0 if chunk.pending is None else chunk.pending.version,
        )

    @property
    def sequence(self) -> int:
        entry = self.images.channel(1, CLIENT, 4)
        return 0 if entry is None else entry.sequence

    @property
    def slots(self) -> int:
        return self.drive.store.counters()["slots"]


@pytest.fixture
async def steps(open_drive: Callable[..., Drive]) -> Steps:
    return Steps(open_drive())


async def test_a_version_goes_from_pending_to_committed(steps: Steps) -> None:
    assert await steps.write(1, sequence=1) is Status.OK
    assert (steps.versions, steps.slots, steps.sequence) == ((0, 1), 1, 1)
    assert await steps.settle(2) is Status.CONDITION
    assert await steps.settle(1) is Status.OK
    assert await steps.settle(1) is Status.OK
    assert await steps.write(2, sequence=2) is Status.OK
    assert (steps.versions, steps.slots) == ((1, 2), 2)
    assert await steps.settle(2) is Status.OK
    assert (steps.versions, steps.slots, steps.sequence) == ((2, 0), 1, 2)


async def test_a_discarded_version_leaves_what_was_there(steps: Steps) -> None:
    await steps.write(1, replace=True, sequence=1)
    await steps.write(2, sequence=2)
    assert await steps.discard(3) is Status.NOT_FOUND
    assert await steps.discard(2) is Status.OK
    assert (steps.versions, steps.slots, steps.sequence) == ((1, 0), 1, 1)
    await steps.write(3, sequence=2)
    await steps.write(4, replace=True, sequence=3)  # a later one of that channel: its entry stays
    assert (steps.versions, steps.slots, steps.sequence) == ((4, 0), 1, 3)


async def test_removals_leave_nothing(steps: Steps) -> None:
    await steps.write(1, replace=True)
    await steps.remove(2)
    assert (steps.versions, steps.slots) == ((1, 2), 1)
    await steps.settle(2)
    assert (steps.versions, steps.slots) == ((0, 0), 0)
    await steps.write(3)
    await steps.remove(4, replace=True)
    assert (steps.versions, steps.slots) == ((0, 0), 0)
    await steps.write(5, replace=True)
    await steps.write(6, clears=True)
    assert (steps.versions, steps.slots) == ((0, 6), 1)


async def test_channels_merge_and_are_forgotten(steps: Steps) -> None:
    images = steps.images
    await steps.write(5, sequence=5)
    rows = [(channel_key(1, CLIENT, number), ChannelRecord(number, number, 0)) for number in range(4, 30)]
    assert await steps.call(images.merge_channels, rows) is Status.OK
    assert steps.sequence == 5, "a lower sequence takes no entry's place"
    other = (channel_key(2, CLIENT, 1), ChannelRecord(1, 1, 0))
    assert await steps.call(images.merge_channels, [other]) is Status.OK
    first, more = images.scan_channels(1, b"", 20)
    rest, end = images.scan_channels(1, more or b"", 20)
    assert (len(first), len(rest), end) == (20, 6, None)
    queued = steps.drive.start(lambda done: images.merge_channels([(channel_key(1, CLIENT, 99), other[1])], done, None))
    assert await steps.call(images.clear_channels, 1) is Status.OK
    assert queued.done()
    assert images.scan_channels(1, b"", 20) == ([], None), "what was queued before is gone too"
    assert images.scan_channels(2, b"", 20)[0] == [other]


async def test_scans_give_pages_of_one_chain(steps: Steps) -> None:
    images = steps.images
    for number in range(10):
        for which in (images.pend, images.replace) if number % 2 else (images.pend,):
            await steps.call(which, key_of(number), ImageRecord(number + 1), None, None)
    await steps.call(images.pend, key_of(1, 2), ImageRecord(3), None, None)
    found = []
    after: bytes | None = b""
    while after is not None:
        items, after = images.scan(1, after, 2)
        found += items
    assert [key for key, _ in found] == [key_of(number) for number in range(0, 10, 2)]
    assert [chunk.pending for _, chunk in found] == [ImageRecord(number + 1) for number in range(0, 10, 2)]
    assert images.pending(2) == [key_of(1, 2)]


@pytest.mark.parametrize("which", [COMMITTED, PENDING])
async def test_a_corrupt_image_is_never_taken_for_absent(open_drive: Callable[..., Drive], which: bytes) -> None:
    drive = open_drive()
    steps = Steps(drive)
    await steps.write(1, replace=True)
    await steps.write(2)
    index = drive.store._index
    with index.env.begin(write=True, db=index.images) as txn:
        value = txn.get(key_of(1) + which)
        assert value is not None
        txn.put(key_of(1) + which, value[:-1] + bytes([value[-1] ^ 1]))
    chunk = drive.store.images.chunk(key_of(1))
    assert chunk.damaged
    drive.engine.close()
    drive.store.close()
    again = open_drive()
    assert again.store.counters()["corrupt_records"] == 1
    assert again.store.images.chunk(key_of(1)).damaged
    assert again.store.counters()["slots"] == 1, "the slot of the other image"
    whole = Steps(again)
    assert await whole.write(9, replace=True) is Status.OK  # a whole copy takes the place of everything
    assert (whole.versions, whole.slots) == ((9, 0), 1)


async def test_a_replaced_image_keeps_its_slot_until_reads_of_it_have_ended(open_drive: Callable[..., Drive]) -> None:
    drive = open_drive(manual=True)
    steps = Steps(drive)
    assert await steps.write(1, replace=True) is Status.OK
    image = steps.images.chunk(key_of(1)).committed
    assert image is not None
    buffer = memoryview(bytearray(8192))
    reading = drive.start(lambda done: steps.images.read_part(image, 0, buffer, done, None))
    assert await steps.write(2, sequence=1) is Status.OK
    assert await steps.settle(2) is Status.OK
    assert steps.versions == (2, 0)
    assert steps.slots == 2, "the old slot is still read"
    drive.engine.step()
    assert await reading == 8192
    assert steps.slots == 1
