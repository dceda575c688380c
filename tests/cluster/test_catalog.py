"""The catalog of a real cluster: it follows the drives within its lag, and a check finds and mends what it missed."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from esker.kvclient import KVCacheClient, Status
from esker.meta import keys
from esker.meta.catalog_record import pack_block, unpack_block
from esker.tools.admin.catalog_command import CatalogCheck, check_catalog
from esker.tools.admin.link import ClusterLink
from esker.tools.admin.meta_check import check_metadata
from esker.tools.admin.meta_source import RemoteRows
from esker.tools.admin.namespaces import remove_namespaces
from esker.tools.dev_cluster import DevCluster
from esker.tools.exit_codes import ExitCode
from esker.wire.messages import ClusterStatus, ClusterStatusReply, Method

from ..waiting import WAIT_S, until
from .clusters import SINGLE, STRIPED, catalog, connect, down, key_of, put_all, running, value_of

GOOD = {Status.OK, Status.EXISTS}


@asynccontextmanager
async def filled(
    directory: Path, count: int, geometry: object = SINGLE
) -> AsyncIterator[tuple[DevCluster, KVCacheClient]]:
    """A cluster with so many blocks, all of them in the catalog."""
    async with running(directory, drives=3) as cluster, await connect(cluster, geometry) as client:
        await put(client, range(count))
        await listed(cluster, client, count)
        yield cluster, client


async def put(client: KVCacheClient, numbers: range) -> None:
    values = {number: value_of(number, client.geometry.block_bytes_max) for number in numbers}
    assert set((await put_all(client, values)).values()) <= GOOD


async def listed(cluster: DevCluster, client: KVCacheClient, count: int) -> None:
    async def look() -> bool:
        return len(await catalog(cluster, client)) == count

    await until(look, f"the catalog has {count} blocks")


async def check(cluster: DevCluster, namespace: str | None = None, *, repair: bool = False) -> CatalogCheck:
    async with ClusterLink(cluster.address) as link:
        return await check_catalog(link, namespace, repair=repair)


async def counters_are_right(cluster: DevCluster) -> bool:
    async with ClusterLink(cluster.address) as link:
        return (await check_metadata(RemoteRows(link), repair=False)).findings == []


async def status_of(cluster: DevCluster) -> ClusterStatusReply:
    async with ClusterLink(cluster.address) as link:
        return await link.meta(Method.CLUSTER_STATUS, ClusterStatus(), ClusterStatusReply)


async def test_what_is_put_and_removed_is_listed_and_counted_and_agrees(tmp_path: Path) -> None:
    async with filled(tmp_path, 60) as (cluster, client), await connect(cluster, STRIPED) as striped:
        await put(striped, range(20))
        await listed(cluster, striped, 20)
        assert set(await client.remove([key_of(number) for number in range(10)])) == {Status.OK}
        await listed(cluster, client, 50)
        result = await check(cluster)
        assert {each.name: each.blocks for each in result.namespaces} == {"of-16384-0": 50, "of-65536-16384": 20}
        assert (result.exit_code(), result.strange_spaces, result.unchecked) == (ExitCode.FINE, [], [])
        assert await counters_are_right(cluster)
        lags = [worker.catalog for worker in (await status_of(cluster)).workers]
        assert [(lag.dropped, lag.check_due) for lag in lags] == [(0, 0)] * 3


async def test_differences_are_found_and_the_drives_mend_them(tmp_path: Path) -> None:
    async with filled(tmp_path, 60, STRIPED) as (cluster, client):
        async with ClusterLink(cluster.address) as link:
            rows = RemoteRows(link)
            page = (await rows.page(*keys.blocks(1), 100)).rows
            lost, changed, damaged = page[:5], page[5:8], page[8:10]
            ghost = (keys.block(1, b"\x55" * 16), page[0][1])
            changes = [(key, value, None) for key, value in lost]
            changes += [
                (key, value, pack_block(unpack_block(key, value)._replace(block_bytes=1))) for key, value in changed
            ]
            changes += [(key, value, b"\x02\xff") for key, value in damaged]
            await rows.change([*changes, (ghost[0], None, ghost[1])], "test")
        found = await check(cluster)
        (namespace,) = found.namespaces
        assert (namespace.blocks, namespace.missing, namespace.extra, namespace.differing) == (60, 5, 1, 5)
        assert (namespace.repaired, found.exit_code()) == (0, ExitCode.DIFFERENCES)
        assert len(namespace.examples) == 5
        assert (await check(cluster, "of-65536-16384", repair=True)).exit_code() is ExitCode.FINE
        assert (await check(cluster)).exit_code() is ExitCode.FINE
        assert len(await catalog(cluster, client)) == 60
        # What was changed behind the catalog's back left its counters wrong; they are mended apart.
        assert not await counters_are_right(cluster)
        async with ClusterLink(cluster.address) as link:
            assert (await check_metadata(RemoteRows(link), repair=True)).exit_code() is ExitCode.FINE
        assert await counters_are_right(cluster)


async def test_blocks_that_come_and_go_meanwhile_are_no_differences(tmp_path: Path) -> None:
    async with filled(tmp_path, 200) as (cluster, client):
        await put(client, range(200, 300))
        assert set(await client.remove([key_of(number) for number in range(50)])) == {Status.OK}
        result = await check(cluster)  # while the drives have not told all of it yet
        assert result.namespaces[0].wrong == 0
        assert result.exit_code() is ExitCode.FINE


async def test_a_worker_that_is_down_is_named_and_the_rest_is_checked(tmp_path: Path) -> None:
    async with filled(tmp_path, 60) as (cluster, _):
        with down(cluster, 0) as pid:
            result = await check(cluster, repair=True)
            assert result.exit_code() is ExitCode.DEGRADED
            (namespace,) = result.namespaces
            assert namespace.wrong == 0
            assert 0 < namespace.blocks < 60
            assert len(namespace.unchecked) == 2, "the chains that it heads"
            assert result.unchecked == [], "it was told once"
            dead = cluster.processes()[2].drive_id
            assert all(f"drive {dead}: " in reason for reason in namespace.unchecked)
            removal = remove_namespaces(cluster.address, name=namespace.name, wait_s=0.1, as_json=True)
            assert await removal is ExitCode.AGAIN
        await cluster.restarted(pid)


async def test_what_a_killed_worker_did_not_tell_is_made_up_for(tmp_path: Path) -> None:
    async with filled(tmp_path, 20) as (cluster, client):
        await put(client, range(20, 80))
        pid = cluster.kill_worker(1)
        await cluster.restarted(pid)

        async def due() -> bool:
            return any(worker.catalog.check_due for worker in (await status_of(cluster)).workers)

        await until(due, "the worker says that the catalog must be checked")
        assert "run esker admin catalog check --repair" in (await status_of(cluster)).note
        result = await check(cluster, repair=True)
        assert (result.exit_code(), result.drives_cleared) == (ExitCode.FINE, 1)
        assert len(await catalog(cluster, client)) == 80
        assert await counters_are_right(cluster)

        async def cleared() -> bool:
            return not await due()

        await until(cleared, "the worker says that nothing is due")


async def test_the_catalog_catches_up_after_the_metadata_server_was_killed(tmp_path: Path) -> None:
    async with filled(tmp_path, 20) as (cluster, client):
        for number in range(3):
            pid = cluster.kill_meta()
            await put(client, range(20 + 40 * number, 60 + 40 * number))
            await cluster.restarted(pid)
        await listed(cluster, client, 140)
        assert (await check(cluster)).exit_code() is ExitCode.FINE
        assert await counters_are_right(cluster)


async def test_chunks_of_no_namespace_are_named_and_can_be_removed(tmp_path: Path) -> None:
    async with filled(tmp_path, 10) as (cluster, _):
        async with ClusterLink(cluster.address) as link:
            rows = RemoteRows(link)
            (name,) = (await rows.page(*_whole(keys.namespace_name("")), 10)).rows
            (record,) = (await rows.page(*keys.namespaces(), 10)).rows
            await rows.change([(name[0], name[1], None), (record[0], record[1], None)], "test")
        assert (await check(cluster)).strange_spaces == [1]
        removal = remove_namespaces(cluster.address, strange=1, wait_s=WAIT_S, as_json=True)
        assert await removal is ExitCode.FINE
        assert (await check(cluster)).strange_spaces == []


def _whole(prefix: bytes) -> keys.KeyRange:
    return prefix, bytes([prefix[0] + 1])
