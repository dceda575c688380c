"""Corrupted chunks and records: never bytes, at most a miss; mended from other replicas, logged and counted."""

import os
from pathlib import Path

import lmdb
import pytest

from esker.kvclient import Geometry, Status
from esker.tools.admin.link import ClusterLink
from esker.tools.admin.scrub_command import run_scrub
from esker.tools.dev_cluster import DevCluster
from esker.tools.exit_codes import ExitCode
from esker.wire.messages import Method
from esker.wire.scrub_messages import Scrub, ScrubReply
from esker.wire.types import TargetState

from ..waiting import until
from .clusters import (
    SINGLE,
    STRIPED,
    connect,
    get_all,
    key_of,
    opened,
    put_all,
    records_by_key,
    running,
    value_of,
    view,
)


def spoil_chunks(directory: str, texts: list[bytes]) -> int:
    """Changes one byte of each text wherever it stands in the drive's data files; how many were found."""
    found = 0
    for path in sorted((Path(directory) / "data").rglob("*")):
        if not path.is_file():
            continue
        data = path.read_bytes()
        with path.open("r+b") as file:
            for text in texts:
                at = data.find(text)
                if at >= 0:
                    file.seek(at + 1)
                    file.write(bytes([text[1] ^ 0x10]))
                    found += 1
            file.flush()
            os.fsync(file.fileno())
    return found


def spoil_records(directory: str, keys: list[bytes]) -> int:
    """Changes one byte of the records of blocks, on a drive that nobody has open; how many."""
    spoiled = 0
    with (
        lmdb.open(f"{directory}/meta.lmdb", max_dbs=8, map_size=1 << 30) as env,
        env.begin(write=True) as names,
    ):
        for name in list(names.cursor().iternext(values=False)):
            database = env.open_db(name, txn=names)
            for record_key, value in list(names.cursor(database)):
                if any(key in value for key in keys):
                    changed = bytearray(value)
                    changed[40] ^= 1
                    names.put(record_key, bytes(changed), db=database)
                    spoiled += 1
    return spoiled


async def counted(cluster: DevCluster, **outcomes: int) -> bool:
    """Whether so many repairs have ended so, on all drives together."""
    seen = await view(cluster)
    return {name: seen.total(f"repair_{name}") for name in outcomes} == outcomes


async def all_serve(cluster: DevCluster) -> None:
    """Waits until nobody is being brought up to date."""

    async def serving() -> bool:
        chains = (await view(cluster)).routing.chains
        return all(replica.state is TargetState.SERVING for chain in chains for replica in chain.replicas)

    await until(serving, "all replicas serve")


async def scrubbed(cluster: DevCluster) -> tuple[ExitCode, list[tuple[int, int]]]:
    """Scrubs all drives; how that ended, and how many chunks of each drive are damaged, and lost."""
    code = await run_scrub(cluster.address, (), start=True, wait_s=60, rate_bytes_per_s=1 << 30, as_json=True)
    async with ClusterLink(cluster.address) as link:
        routing = await link.routing()
        replies = [await link.worker(each, Method.SCRUB, Scrub(), ScrubReply) for each in routing.workers]
    return code, [(reply.last.mismatches, reply.last.lost) for reply in replies if reply.last is not None]


async def repaired(cluster: DevCluster, **outcomes: int) -> None:
    """Waits until so many repairs have ended so."""
    await until(lambda: counted(cluster, **outcomes), f"repairs end as {outcomes}")


@pytest.mark.parametrize("geometry", [SINGLE, STRIPED])
@pytest.mark.parametrize("transport", ["local", "tcp"])
async def test_rotten_chunks_without_another_replica(tmp_path: Path, geometry: Geometry, transport: str) -> None:
    values = {number: value_of(number, geometry.block_bytes_max) for number in range(20)}
    async with (
        running(tmp_path, drives=1, replicas=1) as cluster,
        await connect(cluster, geometry, transport=transport) as client,
    ):
        assert set((await put_all(client, values)).values()) == {Status.OK}
        texts = [values[number][-100:] for number in range(5)]
        assert spoil_chunks(cluster.drive_directories[0], texts) == 5
        found = await get_all(client, list(values))
        assert found == [Status.CHECKSUM] * 5 + list(values.values())[5:]
        assert client.statistics().counters["get_checksum"] == 5
        slots = client.pool.acquire(5)
        results = await client.get([key_of(number) for number in range(5)], slots)
        assert {result.status for result in results} <= {Status.CHECKSUM, Status.NOT_FOUND}
        for slot in slots:
            slot.release()
        await repaired(cluster, removed=5)
        assert set(await get_all(client, list(values)[:5])) == {Status.NOT_FOUND}
        assert set((await put_all(client, values)).values()) == {Status.OK, Status.EXISTS}
        assert await get_all(client, list(values)) == list(values.values())


async def test_rotten_chunks_with_another_replica(tmp_path: Path) -> None:
    values = {number: value_of(number, 16384) for number in range(20)}
    async with running(tmp_path) as cluster, await connect(cluster) as client:
        assert set((await put_all(client, values)).values()) == {Status.OK}
        first, second = cluster.drive_directories
        assert spoil_chunks(first, [values[number][:100] for number in range(0, 10)]) == 10
        assert spoil_chunks(second, [values[number][:100] for number in range(8, 18)]) == 10
        for _ in range(3):
            found = dict(zip(values, await get_all(client, list(values)), strict=True))
            assert found.pop(8) is found.pop(9) is Status.CHECKSUM, "both copies are rotten"
            assert found == {number: value for number, value in values.items() if number not in (8, 9)}
        # Each read asked one of the two, and only what was read was found: the scrub finds the rest.
        code, figures = await scrubbed(cluster)
        assert code is ExitCode.DIFFERENCES
        assert [lost for _, lost in figures] == [2, 2]
        assert await counted(cluster, repaired=16)
        assert await scrubbed(cluster) == (ExitCode.DIFFERENCES, [(2, 2)] * 2)
        assert (await view(cluster)).total("damaged_chunks") == 4
        again = await put_all(client, values)
        assert again.pop(8) is again.pop(9) is Status.OK, "what nobody has is put again"
        assert set(again.values()) == {Status.EXISTS}
        for _ in range(3):
            assert await get_all(client, list(values)) == list(values.values())
        assert await scrubbed(cluster) == (ExitCode.FINE, [(0, 0)] * 2)


async def test_corrupt_records_are_no_blocks_and_can_be_put_again(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    values = {number: value_of(number, 16384) for number in range(20)}
    async with running(tmp_path) as cluster, await connect(cluster) as client:
        assert set((await put_all(client, values)).values()) == {Status.OK}
        first, second = cluster.drive_directories
    assert spoil_records(first, [key_of(number) for number in range(5)]) == 5
    assert spoil_records(second, [key_of(number) for number in range(4, 8)]) == 4
    capfd.readouterr()
    async with running(tmp_path) as cluster:
        await all_serve(cluster)
        async with await connect(cluster) as client:
            for _ in range(3):
                for number, found in zip(values, await get_all(client, list(values)), strict=True):
                    if number == 4:
                        assert found is Status.CHECKSUM, "both records are gone"
                    else:
                        assert found == values[number], "the other copy is whole"
            assert (await view(cluster)).total("corrupt_records") == 9
            log = capfd.readouterr().err
            assert log.count("corrupt record emptied") == 9, log

            async def mended() -> bool:  # some by the resyncs of the start, some by reads, the rest by scrubs
                return await scrubbed(cluster) == (ExitCode.DIFFERENCES, [(1, 1)] * 2)

            await until(mended, "all is mended but the block of which both records are gone")
            again = await put_all(client, values)
            assert set(again.values()) <= {Status.OK, Status.EXISTS}
            assert again[4] is Status.OK
            for _ in range(3):
                assert await get_all(client, list(values)) == list(values.values())
        directories = cluster.drive_directories
    with opened(directories) as stores:
        assert [sorted(records_by_key(store)) for store in stores] == [sorted(map(key_of, values))] * 2
