"""Removal of namespaces in a real cluster: clients are told, chunks go from every drive, whoever is killed."""

from pathlib import Path

from esker.kvclient import KVCacheClient, Status
from esker.tools.admin.catalog_command import check_catalog
from esker.tools.admin.link import ClusterLink
from esker.tools.dev_cluster import DevCluster
from esker.tools.exit_codes import ExitCode
from esker.wire.admin_messages import NamespaceRemove, NamespaceRemoveReply
from esker.wire.messages import Method

from ..waiting import until
from .clusters import (
    SINGLE,
    STRIPED,
    connect,
    down,
    get_all,
    key_of,
    opened,
    put_all,
    records_by_key,
    running,
    value_of,
)


async def put(client: KVCacheClient, count: int, first: int = 0, length: int = 5000) -> set[Status]:
    values = {number: value_of(number, length) for number in range(first, first + count)}
    return set((await put_all(client, values)).values())


async def remove(cluster: DevCluster, name: str = "", prefix: str = "") -> list[str]:
    """Begins a removal; the names that it takes."""
    async with ClusterLink(cluster.address) as link:
        reply = await link.meta(Method.NAMESPACE_REMOVE, NamespaceRemove(name, prefix), NamespaceRemoveReply)
    return [namespace.name for namespace in reply.removed]


async def left(cluster: DevCluster) -> dict[str, object]:
    """Every namespace, and how far its removal is."""
    async with ClusterLink(cluster.address) as link:
        return {each.namespace.name: each.removal for each in await link.namespaces()}


async def gone(cluster: DevCluster, name: str) -> None:
    async def look() -> bool:
        return name not in await left(cluster)

    await until(look, f"namespace {name} is gone")


async def test_clients_are_told_and_the_name_may_be_used_again(tmp_path: Path) -> None:
    async with running(tmp_path) as cluster, await connect(cluster) as client, await connect(cluster, STRIPED) as other:
        assert await put(client, 300) == {Status.OK}
        assert await put(other, 20, length=60_000) == {Status.OK}
        assert await remove(cluster, "of-16384-0") == ["of-16384-0"]

        async def refused() -> bool:
            return await put(client, 20, first=1000) == {Status.NAMESPACE_REMOVED}

        async def hidden() -> bool:
            return set(await get_all(client, range(300))) == {Status.NAMESPACE_REMOVED}

        await until(refused, "puts are refused")
        await until(hidden, "every worker knows, also those that only hold replicas")
        assert await client.exists([key_of(1)]) == [False]
        await gone(cluster, "of-16384-0")
        async with await connect(cluster) as again:
            assert await again.exists([key_of(number) for number in range(300)]) == [False] * 300
            assert await put(again, 10) == {Status.OK}
        assert await get_all(other, range(20)) == [value_of(number, 60_000) for number in range(20)]
        async with ClusterLink(cluster.address) as link:
            await until(lambda: _agrees(link), "catalog and drives agree")
    with opened([str(tmp_path / f"drive-{number}") for number in range(2)]) as drives:
        for drive in drives:
            assert {key for key in records_by_key(drive) if key < key_of(20)} == {key_of(n) for n in range(20)}
            assert max(records_by_key(drive)) == key_of(19)


async def _agrees(link: ClusterLink) -> bool:
    return (await check_catalog(link, None, repair=False)).exit_code() is ExitCode.FINE


async def test_a_removal_goes_on_after_the_metadata_server_was_killed(tmp_path: Path) -> None:
    async with running(tmp_path) as cluster, await connect(cluster) as client:
        for first in range(0, 3000, 500):
            assert await put(client, 500, first, length=100) == {Status.OK}
        await remove(cluster, "of-16384-0")
        for _ in range(2):
            pid = cluster.kill_meta()
            await cluster.restarted(pid)
        await gone(cluster, "of-16384-0")
    with opened([str(tmp_path / f"drive-{number}") for number in range(2)]) as drives:
        assert [records_by_key(drive) for drive in drives] == [{}, {}]


async def test_a_removal_waits_for_a_worker_that_is_down_and_says_so(tmp_path: Path) -> None:
    async with running(tmp_path) as cluster, await connect(cluster) as client:
        assert await put(client, 50) == {Status.OK}
        with down(cluster, 1) as pid:
            await remove(cluster, "of-16384-0")

            async def waits() -> bool:
                removal = (await left(cluster))["of-16384-0"]
                return removal is not None and "chain " in removal.waiting_for  # type: ignore[attr-defined]

            await until(waits, "the removal says what it waits for")
        await cluster.restarted(pid)
        await gone(cluster, "of-16384-0")


async def test_a_tenant_is_purged_whole_and_nobody_else(tmp_path: Path) -> None:
    async with running(tmp_path) as cluster:
        for name in ("t/a", "t/b", "t2/a"):
            async with await KVCacheClient.connect(cluster.address, name, SINGLE, pool_bytes=1 << 20) as client:
                assert await put(client, 20) == {Status.OK}
        assert await remove(cluster, prefix="t/") == ["t/a", "t/b"]
        await gone(cluster, "t/a")
        await gone(cluster, "t/b")
        assert set(await left(cluster)) == {"t2/a"}
        async with await KVCacheClient.connect(cluster.address, "t2/a", SINGLE, pool_bytes=1 << 20) as client:
            assert all(await client.exists([key_of(number) for number in range(20)]))
