"""Full drives: what has no room is dropped and counted, reads go on, nothing crashes, and room is used again."""

from pathlib import Path

import pytest

from esker.kvclient import Geometry, Status
from esker.wire.limits import KIB, MIB

from ..waiting import until
from .clusters import connect, get_all, key_of, put_all, put_through, running, value_of, view

CAPACITY_BYTES = 16 * MIB
BATCH = 10


@pytest.mark.parametrize(
    "geometry", [Geometry(block_bytes_max=256 * KIB), Geometry(block_bytes_max=256 * KIB, stripe_unit_bytes=64 * KIB)]
)
async def test_full_drives(tmp_path: Path, geometry: Geometry) -> None:
    async with running(tmp_path, capacity_bytes=CAPACITY_BYTES) as cluster, await connect(cluster, geometry) as client:
        pids = [process.pid for process in cluster.processes()]
        stored: dict[int, bytes] = {}
        refused: list[int] = []
        for start in range(0, 120, BATCH):
            values = {number: value_of(number, 256 * KIB) for number in range(start, start + BATCH)}
            for number, status in (await put_all(client, values)).items():
                assert status in (Status.OK, Status.NO_SPACE)
                if status is Status.OK:
                    stored[number] = values[number]
                else:
                    refused.append(number)
        assert len(stored) >= 30
        assert len(refused) >= 30
        assert client.statistics().counters["put_no_space"] == len(refused)
        seen = await view(cluster)
        assert seen.total("no_space") > 0
        for counters in seen.counters.values():
            assert counters["used_bytes"] <= CAPACITY_BYTES
        assert await get_all(client, list(stored)) == list(stored.values())
        assert set(await get_all(client, refused[:20])) == {Status.NOT_FOUND}
        assert all(status is Status.EXISTS for status in (await put_all(client, stored)).values())

        doomed = list(stored)[: len(stored) // 2]
        assert set(await client.remove([key_of(number) for number in doomed])) == {Status.OK}
        for number in doomed:
            del stored[number]

        async def room_again() -> bool:
            fresh = {number: value_of(number, 256 * KIB) for number in range(500, 505)}
            return set((await put_all(client, fresh)).values()) <= {Status.OK, Status.EXISTS}

        await until(room_again, "the room of removed blocks is used again")
        late = {number: value_of(number, 256 * KIB) for number in refused[:5]}
        await put_through(client, late)
        stored |= late
        assert await get_all(client, list(stored)) == list(stored.values())
        assert [process.pid for process in cluster.processes()] == pids, "nothing crashed"

    async with running(tmp_path, capacity_bytes=CAPACITY_BYTES) as cluster, await connect(cluster, geometry) as client:
        assert await get_all(client, list(stored)) == list(stored.values())
        for counters in (await view(cluster)).counters.values():
            assert counters["used_bytes"] <= CAPACITY_BYTES, "usage is exact after a restart"
        statuses: set[Status] = set()
        for start in range(600, 700, BATCH):
            values = {number: value_of(number, 256 * KIB) for number in range(start, start + BATCH)}
            statuses |= set((await put_all(client, values)).values())
        assert statuses == {Status.OK, Status.NO_SPACE}, "the cap holds after a restart too"
