"""What a worker keeps of the cluster from one life to the next, and what it takes from newer maps."""

from pathlib import Path

import msgspec
import pytest

from esker.chunkserver.cluster_view import ROUTING_STATE
from esker.chunkserver.engine.commit_group import CommitDone
from esker.craq.versions import CHAIN_VERSION_SHIFT
from esker.wire.messages import LOOKUP_ABSENT, LOOKUP_PRESENT, LOOKUP_UNSURE, Method
from esker.wire.status import Status
from esker.wire.types import Replica

from .drives import ServedDrive, routing_of, served
from .raw_client import RawClient, create_body, create_rows_of


async def version_of_a_create(client: RawClient, number: int, chain_version: int = 1) -> int:
    body = create_body({number: b"x"}, chain_version=chain_version)
    _, answer = client.start(Method.CREATE, body, [memoryview(b"x")])
    await answer.wait()
    (row,) = create_rows_of(answer).values()
    assert row[1] == Status.OK
    return row[2]


async def test_no_version_is_drawn_twice_in_all_versions_of_a_chain(tmp_path: Path) -> None:
    seen: list[int] = []
    async with served(tmp_path) as (drive,), await drive.client() as client:
        for version in range(1, 4):
            drive.view.take(routing_of([drive], version))
            for number in range(3):
                seen.append(await version_of_a_create(client, version * 10 + number, version))
            assert seen[-1] >> CHAIN_VERSION_SHIFT == version
    assert seen == sorted(set(seen))


async def test_each_life_of_a_drives_worker_has_a_higher_number(tmp_path: Path) -> None:
    lives = []
    for _ in range(3):
        async with served(tmp_path) as (drive,):
            lives.append(drive.view.life)
    assert lives == [1, 2, 3]


async def test_a_later_life_takes_no_part_in_writes_until_it_is_admitted(tmp_path: Path) -> None:
    async with served(tmp_path) as (drive,), await drive.client() as client:
        assert (await client.create({1: b"x"}))[1] is Status.OK
        routing = routing_of([drive], 2)
        (chain,) = routing.chains
        other_life = tuple(msgspec.structs.replace(replica, incarnation="next") for replica in chain.replicas)
        drive.view.take(msgspec.structs.replace(routing, chains=(msgspec.structs.replace(chain, replicas=other_life),)))
        assert (await client.create({2: b"x"}, chain_version=2))[2] is Status.UNAVAILABLE
        assert await client.read_one(1) == b"x"
        assert await client.read_one(2) is Status.UNAVAILABLE, "it may have missed it"
        assert await client.lookup([1, 2]) == bytes((LOOKUP_PRESENT, LOOKUP_UNSURE))
        drive.view.take(routing_of([drive], 3))
        assert (await client.create({2: b"x"}, chain_version=3))[2] is Status.OK
        assert await client.read_one(3) is Status.NOT_FOUND
        assert await client.lookup([3]) == bytes((LOOKUP_ABSENT,))


async def test_the_routing_is_kept_for_a_start_without_metadata_server(tmp_path: Path) -> None:
    async with served(tmp_path) as (drive,), await drive.client() as client:
        assert (await client.create({1: b"x"}))[1] is Status.OK
    again = ServedDrive(tmp_path / "drive-0", "d0", drive.store.capacity_bytes, 1 << 20)
    assert again.view.load()
    assert drive.view.routing is not None
    assert again.view.routing == msgspec.structs.replace(drive.view.routing, tables=())
    assert set(again.view.replicas) == {1}
    await again.aclose()


async def test_only_what_concerns_the_drive_is_kept(tmp_path: Path) -> None:
    async with served(tmp_path) as (drive,):
        routing = routing_of([drive], 2)
        (own,) = routing.chains
        foreign = msgspec.structs.replace(own, chain_id=9, replicas=(Replica("elsewhere"),))
        stranger = msgspec.structs.replace(routing.workers[0], drive_id="elsewhere")
        drive.view.take(msgspec.structs.replace(routing, chains=(own, foreign), workers=(*routing.workers, stranger)))
        assert drive.view.worker("elsewhere") == stranger
    again = ServedDrive(tmp_path / "drive-0", "d0", drive.store.capacity_bytes, 1 << 20)
    assert again.view.load()
    assert again.view.routing == msgspec.structs.replace(routing, tables=())
    await again.aclose()


async def test_a_fresh_drive_has_no_routing_and_an_unreadable_one_counts_as_none(tmp_path: Path) -> None:
    fresh = ServedDrive(tmp_path / "fresh", "d0", 64 << 20, 1 << 20)
    assert not fresh.view.load()
    fresh.store.state_put(ROUTING_STATE, b"\xc1 no message", lambda *_: None, None)
    assert await fresh.store.drain(10)
    assert not fresh.view.load()
    await fresh.aclose()


async def test_only_newer_maps_are_taken(tmp_path: Path) -> None:
    async with served(tmp_path) as (drive,), await drive.client() as client:
        second = routing_of([drive], 2)
        drive.view.take(second)
        drive.view.take(routing_of([drive], 1))
        assert drive.view.routing == second
        assert (await client.create({1: b"x"}))[1] is Status.CHAIN_VERSION
        assert (await client.create({1: b"x"}, chain_version=2))[1] is Status.OK
        assert await client.read_one(1) == b"x", "reads need no matching version"


async def test_a_drive_that_was_taken_out_of_a_chain_answers_for_it_no_more(tmp_path: Path) -> None:
    async with served(tmp_path) as (drive,), await drive.client() as client:
        assert (await client.create({1: b"x"}))[1] is Status.OK
        routing = routing_of([drive], 2)
        (chain,) = routing.chains
        without = msgspec.structs.replace(chain, replicas=(Replica("elsewhere", incarnation="other"),))
        drive.view.take(msgspec.structs.replace(routing, chains=(without,)))
        assert (await client.create({2: b"x"}))[2] is Status.CHAIN_VERSION
        assert (await client.create({2: b"x"}, chain_version=2))[2] is Status.UNAVAILABLE
        assert await client.read_one(1) == b"x", "what it has is as true as before"
        assert await client.lookup([1, 2]) == bytes((LOOKUP_PRESENT, LOOKUP_UNSURE)), "others may have more by now"


async def test_chains_of_others_are_none_of_its_business(tmp_path: Path) -> None:
    async with served(tmp_path) as (drive,):
        routing = routing_of([drive], 2)
        (own,) = routing.chains
        foreign = msgspec.structs.replace(
            own, chain_id=9, replicas=(msgspec.structs.replace(own.replicas[0], drive_id="elsewhere"),)
        )
        drive.view.take(msgspec.structs.replace(routing, chains=(own, foreign)))
        assert set(drive.view.replicas) == {1}
        assert drive.view.worker("elsewhere") is None


async def test_a_chain_that_a_failed_drive_learns_of_is_offline_from_the_start(tmp_path: Path) -> None:
    async with served(tmp_path) as (drive,), await drive.client() as client:
        drive.view.fail_drive("it smokes")
        routing = routing_of([drive], 2)
        (own,) = routing.chains
        drive.view.take(msgspec.structs.replace(routing, chains=(own, msgspec.structs.replace(own, chain_id=5))))
        assert drive.view.offline_chains == {1, 5}
        for chain in (1, 5):
            made = await client.create({1: b"x"}, chain=chain, chain_version=2)
            assert made[1] is Status.UNAVAILABLE
            assert await client.read_one(1, chain=chain) is Status.UNAVAILABLE


async def test_no_room_for_the_cluster_map_is_no_fault_of_the_drive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with served(tmp_path) as (drive,), await drive.client() as client:

        def full(name: str, value: bytes, done: CommitDone, token: object) -> None:
            done(token, Status.NO_SPACE)

        monkeypatch.setattr(drive.store, "state_put", full)
        drive.view.take(routing_of([drive], 2))
        assert not drive.view.offline_chains
        assert (await client.create({1: b"x"}, chain_version=2))[1] is Status.OK
