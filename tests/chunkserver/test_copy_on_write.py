"""New images from old ones: against a model of bytes, at every kind of boundary, and from a base that has rotted."""

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random

import pytest

from esker.chunkserver.copy_on_write import PIECE_BYTES, Change, Copy, Pieces
from esker.chunkserver.engine.fake import FakeEngine
from esker.chunkserver.engine.fake_disk import FakeDisk, FakeFiles
from esker.chunkserver.engine.image_record import ImageRecord
from esker.chunkserver.engine.record import record_key
from esker.chunkserver.engine.store import DriveStore
from esker.wire.checksum import checksums
from esker.wire.ids import chunk_id
from esker.wire.limits import ALIGN_BYTES, CHECKSUM_BLOCK_BYTES, MIB, aligned
from esker.wire.status import Status

KEY = record_key(1, chunk_id(0, bytes(16)))
SLOT_BYTES = 2 * MIB


class Drive:
    """A store on the fake drive, with one mutable chunk."""

    def __init__(self, directory: Path) -> None:
        self.disk = FakeDisk()
        self.engine = FakeEngine(self.disk)
        self.store = DriveStore.open(
            directory, cluster_id="c", capacity_bytes=64 * MIB, engine=self.engine, files=FakeFiles(self.disk)
        )
        self.pieces = Pieces()
        self.version = 0

    async def make(self, change: Change) -> ImageRecord | Status:
        """Writes and commits the new image; or why there is none."""
        loop = asyncio.get_running_loop()
        slot = self.store.allocate(change.length, SLOT_BYTES, reserve=True)
        ended: asyncio.Future[tuple[Status, bytes]] = loop.create_future()
        Copy(
            self.store.images,
            self.pieces,
            change,
            slot,
            self.engine.submit,
            lambda status, sums: ended.set_result((status, sums)),
        ).start()
        status, sums = await ended
        if status is not Status.OK:
            self.store.release(slot)
            return status
        self.version += 1
        image = ImageRecord(
            self.version, change.length, sums, pages=slot.pages, slot=slot.number, slot_bytes=SLOT_BYTES
        )
        committed: asyncio.Future[Status] = loop.create_future()
        self.store.images.replace(KEY, image, None, slot, lambda _, status: committed.set_result(status), None)
        assert await committed is Status.OK
        return image

    async def bytes_of(self, image: ImageRecord) -> bytes:
        """What is on the drive, its padding zero and its checksums right."""
        buffer = memoryview(bytearray(max(ALIGN_BYTES, aligned(image.length))))
        read: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.store.images.read_part(image, 0, buffer, lambda _, result: read.set_result(result), None)
        self.engine.submit()
        assert await read == len(buffer)
        assert not any(buffer[image.length :])
        content = bytes(buffer[: image.length])
        assert image.checksums == (checksums(memoryview(content)) if content else b"")
        return content


@pytest.fixture
async def drive(tmp_path: Path) -> AsyncIterator[Drive]:
    drive = Drive(tmp_path / "drive")
    yield drive
    assert drive.pieces.idle
    assert await drive.store.drain(10.0)
    drive.store.close()
    drive.engine.close()


def patched(before: bytes, offset: int, patch: bytes) -> bytes:
    """The model."""
    grown = before.ljust(offset, b"\0")
    return grown[:offset] + patch + grown[offset + len(patch) :]


EDGES = sorted(
    edge + shift
    for edge in (0, ALIGN_BYTES, CHECKSUM_BLOCK_BYTES, PIECE_BYTES, 2 * PIECE_BYTES)
    for shift in (-1, 0, 1)
    if edge + shift >= 0
)


@pytest.mark.parametrize("seed", range(4))
async def test_patches_and_truncations_give_what_the_model_says(drive: Drive, seed: int) -> None:
    random = Random(seed)
    image: ImageRecord | None = None
    content = b""
    for _ in range(40):
        if image is not None and random.random() < 0.3:
            length = random.choice(EDGES)
            change = Change(image, length)
            content = content[:length].ljust(length, b"\0")
        else:
            offset = random.choice(EDGES)
            patch = random.randbytes(max(1, random.choice((1, 4096, random.choice(EDGES)))))
            content = patched(content, offset, patch)
            change = Change(image, len(content), offset, memoryview(patch))
        made = await drive.make(change)
        assert isinstance(made, ImageRecord)
        image = made
        assert await drive.bytes_of(image) == content


async def test_many_copies_share_few_pieces(drive: Drive) -> None:
    content = os.urandom(SLOT_BYTES)
    image = await drive.make(Change(None, SLOT_BYTES, 0, memoryview(content)))
    assert isinstance(image, ImageRecord)
    # Each is an image of its own; which of them is committed last does not matter here.
    made = await asyncio.gather(*(drive.make(Change(image, SLOT_BYTES, n, memoryview(b"x"))) for n in range(8)))
    assert all(isinstance(each, ImageRecord) for each in made)


def spoil(drive: Drive, image: ImageRecord, at: int) -> None:
    """Changes a byte of the image on the drive."""
    fd, offset = drive.store._slots.classes[image.pages].place(image.slot)
    byte = os.pread(fd, 1, offset + at)[0]
    os.pwrite(fd, bytes([byte ^ 1]), offset + at)


@pytest.mark.parametrize("at", [0, CHECKSUM_BLOCK_BYTES + 7, PIECE_BYTES + 1])
async def test_a_base_that_rotted_is_never_given_fresh_checksums(drive: Drive, at: int) -> None:
    content = os.urandom(PIECE_BYTES + 100)
    image = await drive.make(Change(None, len(content), 0, memoryview(content)))
    assert isinstance(image, ImageRecord)
    spoil(drive, image, at)
    used = drive.store.used_bytes
    # In the same checksum block, right behind the bad byte, and cutting the image short behind it.
    assert await drive.make(Change(image, len(content), at + 1, memoryview(b"y"))) is Status.CHECKSUM
    assert await drive.make(Change(image, at + 2)) is Status.CHECKSUM
    assert drive.store.used_bytes == used
    # What is written over whole, or cut off with all of its block, does no harm any more.
    whole = await drive.make(Change(image, len(content), 0, memoryview(content)))
    assert isinstance(whole, ImageRecord)
    assert await drive.bytes_of(whole) == content
    assert drive.store.images.chunk(KEY).committed == whole


@pytest.mark.parametrize("operation", ["read", "write"])
async def test_a_drive_that_fails_ends_the_copy(drive: Drive, operation: str) -> None:
    content = os.urandom(3 * PIECE_BYTES)
    image = await drive.make(Change(None, len(content), 0, memoryview(content)))
    assert isinstance(image, ImageRecord)
    drive.disk.inject(operation, -5)
    assert await drive.make(Change(image, len(content), 9, memoryview(b"z"))) is Status.IO_ERROR
    drive.disk.inject(operation, ALIGN_BYTES)  # a short one
    made = await drive.make(Change(image, len(content), 9, memoryview(b"z")))
    if operation == "write":  # goes on by itself
        assert isinstance(made, ImageRecord)
        assert await drive.bytes_of(made) == patched(content, 9, b"z")
    else:
        assert made is Status.IO_ERROR
