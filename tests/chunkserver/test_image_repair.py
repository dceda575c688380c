"""Damaged images of mutable chunks are found and mended, over real sockets."""

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from esker.chunkserver.image_upkeep import ImageKind
from esker.chunkserver.repair import Mended
from esker.chunkserver.upkeep import Upkeep
from esker.chunkserver.verify import ImageSource, Verdict, Verifier, no_pause
from esker.wire.ids import FILE_SPACE
from esker.wire.limits import MIB
from esker.wire.messages import Empty, Method
from esker.wire.scrub_messages import DAMAGED_EXTENT, Damaged
from esker.wire.status import Status

from ..waiting import until
from .drives import HEAD, ServedDrive, served
from .mutable_client import MutableClient
from .raw_client import RawClient, content, object_of
from .test_mutable import key_of
from .test_repair import upkeep_of

FIRST, SECOND = 0, 1


def spoil_image(drive: ServedDrive, number: int, at: int) -> None:
    """Changes a byte of the chunk's committed image on the drive, behind its back."""
    image = drive.store.images.chunk(key_of(number)).committed
    assert image is not None
    fd, offset = drive.store._slots.classes[image.pages].place(image.slot)
    with open(os.readlink(f"/proc/self/fd/{fd}"), "r+b", buffering=0) as file:
        file.seek(offset + at)
        byte = file.read(1)[0]
        file.seek(offset + at)
        file.write(bytes([byte ^ 0xFF]))
        os.fsync(file.fileno())


class Two:
    """Two drives of one chain with their upkeep, and chunks 1 to 3 on them, of 2 MiB, 100 bytes and nothing."""

    def __init__(self, drives: list[ServedDrive], clients: list[RawClient]) -> None:
        self.drives = drives
        self.clients = clients
        self.upkeeps = [upkeep_of(drive) for drive in drives]
        self.verifiers = [Verifier(ImageSource(drive.store.images), drive.engine.submit) for drive in drives]

    def kind(self, at: int) -> ImageKind:
        return ImageKind(self.drives[at].store.images, self.verifiers[at], self.upkeeps[at].repairs)

    async def verdict(self, at: int, number: int) -> Verdict:
        return (await self.verifiers[at].look(key_of(number))).verdict

    async def report(self, at: int, number: int) -> None:
        extent = DAMAGED_EXTENT.pack(object_of(number), 0, HEAD, 0)
        await self.clients[at].connection.call(Method.DAMAGED, Damaged(FILE_SPACE, extent), Empty, timeout_s=10)


@pytest.fixture
async def two(tmp_path: Path) -> AsyncIterator[Two]:
    async with (
        served(tmp_path, 2) as drives,
        await drives[FIRST].client() as first,
        await drives[SECOND].client() as second,
    ):
        made = Two(list(drives), [first, second])
        writer = MutableClient(first)
        for number, length in ((1, 2 * MIB), (2, 100), (3, 1)):
            assert (await writer.write(number, content(number, length), slot_bytes=2 * MIB)).status is Status.OK
        assert (await writer.truncate(3, 0)).status is Status.OK
        yield made
        for upkeep in made.upkeeps:
            await upkeep.aclose()


def counted(upkeep: Upkeep, drive: ServedDrive, outcome: str) -> bool:
    return drive.counters.get(f"repair_{outcome}") == 1 and not upkeep.repairs.waiting


@pytest.mark.parametrize("at", [FIRST, SECOND])
@pytest.mark.parametrize(("number", "place"), [(1, 2 * MIB - 1), (2, 7)])
async def test_a_damaged_image_becomes_the_others(two: Two, at: int, number: int, place: int) -> None:
    drive = two.drives[at]
    before = drive.store.images.chunk(key_of(number)).committed
    spoil_image(drive, number, place)
    assert await two.verdict(at, number) is Verdict.DAMAGED
    await two.report(at, number)
    await until(lambda: counted(two.upkeeps[at], drive, "repaired"), "the repair")
    assert await two.verdict(at, number) is Verdict.WHOLE
    after = drive.store.images.chunk(key_of(number)).committed
    assert before is not None
    assert after is not None
    assert after._replace(slot=0) == before._replace(slot=0), "it is the same image, in another slot"


async def test_where_both_are_damaged_they_stay(two: Two) -> None:
    for drive in two.drives:
        spoil_image(drive, 2, 7)
    for at in (FIRST, SECOND):
        assert await two.kind(at).mend(key_of(2)) is Mended.WAITING
        assert await two.verdict(at, 2) is Verdict.DAMAGED
        assert two.upkeeps[at].repairs.waiting == 1, "it is tried again"


async def test_a_report_is_no_proof(two: Two) -> None:
    before = two.drives[SECOND].store.images.chunk(key_of(1))
    await two.report(SECOND, 1)
    await until(lambda: counted(two.upkeeps[SECOND], two.drives[SECOND], "whole"), "a look at it")
    assert two.drives[SECOND].store.images.chunk(key_of(1)) == before
    await two.report(SECOND, 99)
    await until(lambda: counted(two.upkeeps[SECOND], two.drives[SECOND], "gone"), "a look at nothing")


async def test_the_scrubber_comes_by_every_chunk(two: Two) -> None:
    kind = two.kind(SECOND)
    found: list[bytes] = []
    after = b""
    while True:
        keys, after = kind.page(after, 1)
        found += keys
        if not after:
            break
    assert found == [key_of(number) for number in (1, 2, 3)]
    assert list(kind.page(b"", 100)[0]) == found
    looked = [await kind.look(key, no_pause) for key in found]
    assert looked == [(Verdict.WHOLE, 2 * MIB, False), (Verdict.WHOLE, 4096, False), (Verdict.WHOLE, 0, False)]
    images = two.drives[SECOND].store._index
    with images.env.begin(write=True, db=images.images) as txn:
        txn.put(key_of(1) + b"\0", b"no image")
    assert (await kind.look(key_of(1), no_pause)).verdict is Verdict.DAMAGED
    assert kind.page(b"", 100)[0][0] == key_of(1)
    assert await kind.mend(key_of(1)) is Mended.WAITING, "nobody knows its version any more"
