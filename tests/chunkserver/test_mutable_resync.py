"""Mutable chunks when a chain changes: what a returning replica gets, what was left pending, and from whom damage is
mended. Real stores and sockets; the cluster map is the test's.
"""

import os
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import msgspec
import pytest

from esker.chunkserver.engine.commit_group import CommitDone
from esker.chunkserver.engine.image_record import ImageRecord
from esker.chunkserver.resync import ResyncService
from esker.chunkserver.scan import ScanService
from esker.wire.codec import decode_body
from esker.wire.limits import MIB
from esker.wire.messages import Method
from esker.wire.mutable_messages import UPDATE_EXTENT, UPDATE_RESULT, PatchKind, Update, UpdateReply
from esker.wire.status import Status
from esker.wire.types import Replica, Routing, TargetState

from ..waiting import until
from .drives import HEAD, ServedDrive, routing_of, served
from .mutable_client import MutableClient
from .raw_client import object_of
from .test_mutable import channels, images, key_of
from .test_scan import Told

SERVING, SYNCING, OFFLINE = TargetState.SERVING, TargetState.SYNCING, TargetState.OFFLINE


class Chain:
    """Drives that are one chain, in an order and states that the test names."""

    def __init__(self, drives: list[ServedDrive], clients: list[MutableClient]) -> None:
        self.drives = drives
        self.clients = clients
        self.version = 1
        self.min_replicas = 1
        self.resyncs = {drive.name: self._resyncs(drive) for drive in drives}
        for drive in drives:
            drive.view.on_chains = [drive.mutable.look, self.resyncs[drive.name].look]
            self._serve_scans(drive)

    def _serve_scans(self, drive: ServedDrive) -> None:
        service = ScanService(
            drive.store,
            drive.runner,
            Told(),
            lambda: self.version,
            lambda: None,
            drive.view.ready,  # type: ignore[arg-type]
        )
        assert drive.server is not None
        drive.server.handlers[int(Method.SCAN)] = service.scan

    async def back(self, drive: ServedDrive) -> None:
        """The drive is reached again, after `silence`."""
        await drive.listen()
        self._serve_scans(drive)
        number = self.drives.index(drive)
        await self.clients[number].raw.connection.aclose()
        self.clients[number].raw = await drive.client()

    def _resyncs(self, drive: ServedDrive) -> ResyncService:
        return ResyncService(
            drive.store,
            drive.runner,
            drive.mutable.runner,
            drive.view.replicas,
            drive.view.link,
            drive.counters,
            200 * MIB,
            2 * MIB,
            lambda: None,
        )

    def routing(self, *states: tuple[int, TargetState]) -> Routing:
        """The next map: the drives in this order, in these states."""
        self.version += 1
        routing = routing_of(self.drives, self.version)
        replicas = tuple(
            Replica(f"d{number}", state, "first" if state in (SERVING, SYNCING) else "") for number, state in states
        )
        chain = msgspec.structs.replace(routing.chains[0], replicas=replicas, min_replicas=self.min_replicas)
        return msgspec.structs.replace(routing, chains=(chain,))

    def change(self, *states: tuple[int, TargetState]) -> None:
        """Everybody hears of the next map."""
        routing = self.routing(*states)
        for drive in self.drives:
            drive.view.take(routing)
        for client in self.clients:
            client.chain_version = self.version

    async def synced(self, drive: ServedDrive, *others: ServedDrive) -> None:
        """Waits until `drive` has brought the syncing one up to date; then all have the same."""
        await until(lambda: self.resyncs[drive.name].synced == ((HEAD, self.version),), "the resync")
        for other in others:
            await until(lambda other=other: images(other) == images(drive), "the same images")  # type: ignore[misc]
            assert channels(other) == channels(drive)


@pytest.fixture
async def chain(tmp_path: Path) -> AsyncIterator[Chain]:
    async with (
        served(tmp_path, 3) as drives,
        await drives[0].client() as first,
        await drives[1].client() as second,
        await drives[2].client() as third,
    ):
        made = Chain(list(drives), [MutableClient(raw) for raw in (first, second, third)])
        made.change((0, SERVING), (1, SERVING), (2, SERVING))
        yield made
        for client in made.clients:
            await client.raw.connection.aclose()
        for resyncs in made.resyncs.values():
            await resyncs.aclose()
        for drive in drives:
            await until(lambda drive=drive: drive.idle, "all operations ended")  # type: ignore[misc]


async def test_what_a_replica_missed_comes_whole_and_what_went_goes(chain: Chain) -> None:
    head, middle, tail = chain.clients
    first, _, third = chain.drives
    content = os.urandom(200_000)
    for number in range(6):
        assert (await head.write(number, content, channel=number)).status is Status.OK
    chain.change((0, SERVING), (1, SERVING), (2, OFFLINE))
    assert (await head.write(0, b"changed", 70_000)).status is Status.OK
    assert (await head.truncate(1, 5, 3)).status is Status.OK
    assert (await head.remove(2)).status is Status.OK
    assert (await head.write(9, b"new", channel=7)).status is Status.OK
    assert (await head.remove(3)).status is Status.OK
    assert (await head.write(3, b"again")).status is Status.OK
    chain.change((0, SERVING), (1, SERVING), (2, SYNCING))
    assert (await head.write(4, b"meanwhile", 1000)).status is Status.OK
    await chain.synced(chain.drives[1], first, third)
    assert await tail.read(0) is Status.UNAVAILABLE, "it does not serve yet"
    chain.change((0, SERVING), (1, SERVING), (2, SERVING))
    assert await tail.read(0) == content[:70_000] + b"changed" + content[70_007:]
    assert await tail.read(1) == content[:5]
    assert await tail.read(2) is Status.NOT_FOUND
    assert (await tail.read(3), await tail.read(9)) == (b"again", b"new")
    assert (await tail.read(4, 990, 30)) == content[990:1000] + b"meanwhile" + content[1009:1020]
    assert await middle.read(5) == content


async def test_a_replica_alone_forgets_what_it_never_acknowledged(chain: Chain) -> None:
    """The head was cut off with a write that nobody else has; when it is back the others win, also for its channel."""
    first, second, third = chain.drives
    head, middle, _ = chain.clients
    assert (await head.write(1, b"before", sequence=1)).status is Status.OK
    await committed(chain.drives)
    await second.silence()
    lost = await head.send([head.patch(number=1, data=b"lost!!", sequence=2)], budget_ms=300)
    assert lost[0].status is Status.UNAVAILABLE
    assert first.store.images.chunk(key_of(1)).pending is not None
    assert first.mutable.counters()["mutable_to_recover"] == 1
    await chain.back(second)
    chain.change((1, SERVING), (2, SERVING), (0, OFFLINE))
    assert (await middle.write(1, b"after", sequence=1, channel=5)).status is Status.OK
    chain.change((1, SERVING), (2, SERVING), (0, SYNCING))
    await chain.synced(third, first, second)
    chain.change((0, SERVING), (1, SERVING), (2, SERVING))
    assert await head.read(1) == b"aftere"
    # The same write, sent once more: it was never done, so it is done now.
    while (await head.write(1, b"lost!!", sequence=2)).status is not Status.OK:
        assert first.view.link("d1").connection is None, "the head has not found its successor again yet"
    assert await head.read(1) == b"lost!!"


async def test_no_room_to_forget_channels_holds_a_resync_up_and_is_no_fault_of_the_drive(
    chain: Chain, monkeypatch: pytest.MonkeyPatch
) -> None:
    head = chain.clients[0]
    first, second, third = chain.drives
    assert (await head.write(1, b"x")).status is Status.OK
    chain.change((0, SERVING), (1, SERVING), (2, OFFLINE))
    clear, refused = third.store.images.clear_channels, []

    def full_at_first(chain_id: int, done: CommitDone, token: object) -> None:
        if len(refused) == 2:
            clear(chain_id, done, token)
        else:
            refused.append(chain_id)
            done(token, Status.NO_SPACE)

    monkeypatch.setattr("esker.chunkserver.mutable_scan.RETRY_S", 0.01)
    monkeypatch.setattr(third.store.images, "clear_channels", full_at_first)
    chain.change((0, SERVING), (1, SERVING), (2, SYNCING))
    await chain.synced(second, first, third)
    assert refused == [HEAD, HEAD]
    assert not third.view.offline_chains


async def test_what_is_pending_is_committed_by_the_next_tail(chain: Chain) -> None:
    first, second, third = chain.drives
    head, middle, _ = chain.clients
    assert (await head.write(1, b"old", sequence=1)).status is Status.OK
    await committed(chain.drives)
    await third.silence()
    answers = await head.send([head.patch(number=1, data=b"new", sequence=2)], budget_ms=300)
    assert answers[0].status in (Status.UNAVAILABLE, Status.TIMEOUT)
    assert [drive.store.images.chunk(key_of(1)).pending is not None for drive in (first, second)] == [True, True]
    assert await head.read(1) is Status.UNAVAILABLE, "the tail knows whether it is committed, and does not answer"
    chain.change((0, SERVING), (1, SERVING), (2, OFFLINE))
    for drive in (first, second):
        await until(lambda drive=drive: drive.store.images.chunk(key_of(1)).pending is None, "it is committed")  # type: ignore[misc]
    assert images(first) == images(second)
    assert [await client.read(1) for client in (head, middle)] == [b"new", b"new"]
    assert (await head.write(1, b"new", sequence=2)).version == (await head.stat(1))[1], "it was done before"
    await chain.back(third)


async def test_below_the_floor_nothing_is_committed_or_acknowledged(chain: Chain) -> None:
    first, second, _ = chain.drives
    head = chain.clients[0]
    chain.min_replicas = 2
    assert (await head.write(1, b"old", sequence=1)).status is Status.OK
    await committed(chain.drives)
    await second.silence()
    assert (await head.send([head.patch(number=1, data=b"new", sequence=2)], budget_ms=300))[0].status is not Status.OK
    chain.change((0, SERVING), (1, OFFLINE), (2, OFFLINE))
    assert (await head.write(1, b"x", sequence=3)).status is Status.UNAVAILABLE
    assert first.store.images.chunk(key_of(1)).pending is not None
    assert await head.read(1) is Status.BUSY, "nobody may see it before it is committed, nor the old one after"
    await chain.back(second)
    chain.change((0, SERVING), (1, SYNCING), (2, OFFLINE))
    await until(lambda: chain.resyncs["d0"].synced == ((HEAD, chain.version),), "the resync")
    assert first.store.images.chunk(key_of(1)).pending is not None
    chain.change((0, SERVING), (1, SERVING), (2, OFFLINE))
    await until(lambda: first.store.images.chunk(key_of(1)).pending is None, "committed once two serve")
    assert await chain.clients[1].read(1) == b"new"


async def committed(drives: Sequence[ServedDrive]) -> None:
    """Waits until all of them have the same images: an acknowledgement does not wait for every commit."""
    await until(lambda: all(images(drive) == images(drives[0]) for drive in drives), "committed everywhere")


def spoil(drive: ServedDrive, number: int) -> None:
    """Changes a byte of the committed image on the drive, behind its back."""
    image = drive.store.images.chunk(key_of(number)).committed
    assert image is not None
    rot(drive, image)


def rot(drive: ServedDrive, image: ImageRecord) -> None:
    """The same, of any image."""
    fd, offset = drive.store._slots.classes[image.pages].place(image.slot)
    with open(os.readlink(f"/proc/self/fd/{fd}"), "r+b", buffering=0) as file:
        file.seek(offset + 5)
        byte = file.read(1)[0]
        file.seek(offset + 5)
        file.write(bytes([byte ^ 0xFF]))
        os.fsync(file.fileno())


@pytest.mark.parametrize("damaged", [0, 1, 2])
async def test_a_rotten_base_is_mended_before_it_is_written_over(chain: Chain, damaged: int) -> None:
    head = chain.clients[0]
    content = os.urandom(100_000)
    assert (await head.write(1, content)).status is Status.OK
    await committed(chain.drives)
    spoil(chain.drives[damaged], 1)
    assert (await head.write(1, b"patch", 20)).status is Status.OK
    await committed(chain.drives)
    for client in chain.clients:
        assert await client.read(1) == content[:20] + b"patch" + content[25:]


async def test_a_rotten_image_is_mended_before_it_is_passed_on(chain: Chain) -> None:
    """The last serving replica brings another up to date with a copy that it gets from a third."""
    head, _, tail = chain.clients
    content = os.urandom(100_000)
    assert (await head.write(1, content)).status is Status.OK
    chain.change((0, SERVING), (1, SERVING), (2, OFFLINE))
    assert (await head.write(1, b"missed", 10)).status is Status.OK
    await committed(chain.drives[:2])
    spoil(chain.drives[1], 1)
    chain.change((0, SERVING), (1, SERVING), (2, SYNCING))
    await chain.synced(chain.drives[1], *chain.drives)
    chain.change((0, SERVING), (1, SERVING), (2, SERVING))
    assert await tail.read(1) == content[:10] + b"missed" + content[16:]
    assert chain.drives[1].counters.snapshot()["mutable_mended"] == 1


@pytest.mark.parametrize(("role", "peer_id"), [("client", ""), ("worker", "d0"), ("tool", "d1")])
async def test_updates_come_only_from_the_predecessor(chain: Chain, role: str, peer_id: str) -> None:
    """Not from clients, and not from a worker that stands elsewhere in the chain, or stood before in an earlier one."""
    head, _, tail = chain.clients
    assert (await head.write(1, b"x")).status is Status.OK
    extent = UPDATE_EXTENT.pack(
        object_of(1), 0, HEAD, chain.version, PatchKind.REMOVE, 1, 9, 0, 0, 0, 0, 0, 0, 0, MIB, 0, bytes(16), 0, 0
    )
    async with await chain.drives[2].client(role=role, peer_id=peer_id) as stranger:
        _, answer = stranger.start(Method.UPDATE, Update(extent, b"", 0, 5000))
        await answer.wait()
    ((_, status, _),) = UPDATE_RESULT.iter_unpack(decode_body(UpdateReply, answer.bodies[0]).results)
    assert status == Status.CHAIN_VERSION
    assert await tail.read(1) == b"x"
    chain.change((1, SERVING), (2, SERVING), (0, OFFLINE))
    assert (await head.write(1, b"y")).status in (Status.UNAVAILABLE, Status.CHAIN_VERSION)
    assert await tail.read(1) == b"x"


async def test_a_rotten_pending_image_is_mended_before_it_is_committed(chain: Chain) -> None:
    """The head's pending image rots while its successor, by now the last one, has committed it."""
    first, _, third = chain.drives
    head, middle, _ = chain.clients
    content = os.urandom(100_000)
    assert (await head.write(1, b"old")).status is Status.OK
    await committed(chain.drives)
    await third.silence()
    assert (await head.send([head.patch(number=1, data=content)], budget_ms=300))[0].status is not Status.OK
    pending = first.store.images.chunk(key_of(1)).pending
    assert pending is not None
    rot(first, pending)
    chain.change((0, SERVING), (1, SERVING), (2, OFFLINE))
    await until(lambda: first.store.images.chunk(key_of(1)).pending is None, "it is committed")
    assert [await client.read(1) for client in (head, middle)] == [content, content]
    assert first.counters.snapshot()["mutable_mended"] == 1
