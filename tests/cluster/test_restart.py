"""A restart finds everything again, and the catalog agrees with what was put and removed."""

from pathlib import Path

from esker.kvclient import Status
from esker.wire.types import Chain

from ..waiting import until
from .clusters import SINGLE, STRIPED, catalog, connect, get_all, key_of, put_all, running, value_of, view


def drives_of(chain: Chain) -> set[str]:
    return {replica.drive_id for replica in chain.replicas}


async def test_a_restarted_cluster_has_its_data_its_usage_and_its_ids(tmp_path: Path) -> None:
    values = {number: value_of(number, 1 + number * 777) for number in range(20)}
    large = {number: value_of(number, 60_000) for number in range(10)}
    async with running(tmp_path, drives=3) as cluster:
        async with await connect(cluster, SINGLE) as client, await connect(cluster, STRIPED) as striped:
            assert set((await put_all(client, values)).values()) == {Status.OK}
            assert set((await put_all(striped, large)).values()) == {Status.OK}
        before = await view(cluster)
        used = {drive: counters["used_bytes"] for drive, counters in before.counters.items()}
        cluster_id = cluster.cluster_id
    async with running(tmp_path, drives=3) as cluster:
        assert cluster.cluster_id == cluster_id
        await cluster.settled()
        after = await view(cluster)
        assert {drive: counters["used_bytes"] for drive, counters in after.counters.items()} == used
        assert [(c.chain_id, drives_of(c)) for c in after.routing.chains] == [
            (c.chain_id, drives_of(c)) for c in before.routing.chains
        ]
        async with await connect(cluster, SINGLE) as client, await connect(cluster, STRIPED) as striped:
            assert await get_all(client, list(values)) == list(values.values())
            assert await get_all(striped, list(large)) == list(large.values())
            assert set((await put_all(client, values)).values()) <= {Status.EXISTS, Status.OK}
            again = await view(cluster)
            assert {drive: counters["used_bytes"] for drive, counters in again.counters.items()} == used, (
                "all was there"
            )
            assert await client.match_prefix([key_of(number) for number in values]) == len(values)


async def test_the_catalog_agrees_with_what_is_there_also_after_kills(tmp_path: Path) -> None:
    async with running(tmp_path) as cluster, await connect(cluster, SINGLE) as client:
        async with await connect(cluster, STRIPED) as striped:
            values = {number: value_of(number, 5000) for number in range(30)}
            assert set((await put_all(client, values)).values()) == {Status.OK}
            assert (await put_all(striped, {1: value_of(1, 60_000)}))[1] is Status.OK
            assert set(await client.remove([key_of(number) for number in range(10)])) == {Status.OK}

            async def agrees() -> bool:
                return set(await catalog(cluster, client)) == {key_of(number) for number in range(10, 30)}

            await until(agrees, "the catalog took in what was put and removed")
            entry = (await catalog(cluster, client))[key_of(20)]
            assert (entry.block_bytes, entry.chunk_count) == (5000, 1)

            async def has_the_striped_one() -> bool:
                return set(await catalog(cluster, striped)) == {key_of(1)}

            await until(has_the_striped_one, "the catalog took in the striped block")
            entry = (await catalog(cluster, striped))[key_of(1)]
            assert (entry.block_bytes, entry.chunk_count) == (60_000, 4)

        pid = cluster.kill_meta()
        more = {number: value_of(number, 5000) for number in range(100, 120)}
        assert set((await put_all(client, more)).values()) == {Status.OK}
        await cluster.restarted(pid)

        async def caught_up() -> bool:
            expected = {key_of(number) for number in [*range(10, 30), *more]}
            return set(await catalog(cluster, client)) == expected

        await until(caught_up, "the catalog caught up")
