"""Clients that stay open while the cluster gets other drives: they find everything, and put on the new drives too."""

import signal
from pathlib import Path
from typing import Any

import pytest

from esker.kvclient import Geometry, KVCacheClient, Status
from esker.tools.admin.growth import run_drain, run_expand, run_replace
from esker.wire.limits import MIB

from ..waiting import until
from .clusters import SINGLE, STRIPED, get_all, put_all, value_of
from .test_growth import WAIT_S, Nodes, nodes, told

BEFORE, AFTER = range(60), range(100, 160)


class OpenClient:
    """With its blocks."""

    def __init__(self, client: KVCacheClient) -> None:
        self.client = client
        self.values: dict[int, bytes] = {}

    @classmethod
    async def of(cls, cluster: Nodes, name: str, geometry: Geometry, mode: str) -> "OpenClient":
        made = await KVCacheClient.connect(cluster.cluster, name, geometry, mode=mode, pool_bytes=4 * MIB)
        return cls(made)

    async def put(self, numbers: range) -> None:
        values = {number: value_of(number, self.client.geometry.block_bytes_max) for number in numbers}
        assert set((await put_all(self.client, values)).values()) == {Status.OK}
        self.values |= values

    async def check(self) -> None:
        assert await get_all(self.client, list(self.values)) == list(self.values.values())

    async def learn(self) -> None:
        """Waits until it knows of the expansion."""
        await self.client._link.routing.refresh()
        await until(lambda: self.client._keyspace.namespace.layout_epoch == 2, "the client's new layout")


async def test_open_clients_go_on_while_drives_come_and_go(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with nodes(tmp_path, 3) as cluster:
        clients = [
            await OpenClient.of(cluster, "striped", STRIPED, "replicated"),
            await OpenClient.of(cluster, "cached", SINGLE, "cache"),
        ]
        for each in clients:
            await each.put(BEFORE)
        await cluster.start(1)
        grown = await told(capsys, run_expand(cluster.cluster, dry_run=False, as_json=True))
        assert [table["table_id"] for table in grown["tables"]] == [1, 2]
        for each in clients:
            await each.learn()
            await each.check()
            await each.put(AFTER)
            await each.check()
            assert each.client.statistics().per_drive_written_bytes[cluster.drive(3)] > 0

        async def drain() -> Any:
            return await run_drain(cluster.cluster, "n0", cancel=False, dry_run=False, wait_s=WAIT_S, as_json=True)

        assert (await told(capsys, drain()))["state"] == "done"
        await cluster.workers[0].destroy()
        for each in clients:
            await each.check()

        _, cached = clients
        await cluster.start(1)
        old, new = cluster.drive(1), cluster.drive(4)
        cluster.workers[1].signal(signal.SIGKILL)
        replacing = run_replace(cluster.cluster, old, new, force=False, dry_run=False, wait_s=WAIT_S, as_json=True)
        assert (await told(capsys, replacing))["state"] == "done"
        await clients[0].check()
        found = await get_all(cached.client, list(cached.values))
        assert Status.NOT_FOUND in found, "what only the dead drive had is lost, in cache mode"
        for value, expected in zip(found, cached.values.values(), strict=True):
            assert value in (expected, Status.NOT_FOUND)
        assert set((await put_all(cached.client, cached.values)).values()) == {Status.OK, Status.EXISTS}
        await cached.check()
        for each in clients:
            await each.client.aclose()
