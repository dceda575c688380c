"""Clusters that grow, shrink and get other drives: nothing is lost, and new drives bear their part."""

import asyncio
import json
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from esker.chunkserver.worker import EXIT_USER_ERROR
from esker.kvclient import KVCacheClient, Status
from esker.tools.admin.catalog_command import check_catalog
from esker.tools.admin.cluster_figures import look
from esker.tools.admin.growth import run_balance, run_drain, run_expand, run_remove_node, run_replace
from esker.tools.admin.link import ClusterLink
from esker.tools.exit_codes import ExitCode
from esker.wire.errors import UserError
from esker.wire.limits import KIB, MIB

from ..chunkserver.processes import WorkerProcess, metadata, worker, worker_config
from ..waiting import until
from .clusters import SINGLE, get_all, put_all, value_of

WAIT_S = 60.0
BLOCK_BYTES = 16 * KIB
Printed = pytest.CaptureFixture[str]


class Nodes:
    """A metadata server, and a worker on a node of its own for each drive."""

    def __init__(self, directory: Path, cluster: str, stack: AsyncExitStack) -> None:
        self.cluster = cluster
        self.workers: list[WorkerProcess] = []
        self._directory = directory
        self._stack = stack

    async def start(self, count: int) -> None:
        """So many more."""
        first = len(self.workers)
        starting = [
            self._stack.enter_async_context(worker(self.cluster, self.directory(number), node_id=f"n{number}"))
            for number in range(first, first + count)
        ]
        for each in starting:
            self.workers.append(await each)
        await until(self._heard, "a heartbeat of every worker")

    async def _heard(self) -> bool:
        figures = await look(self.cluster)
        return len(figures.status.workers) == len(self.workers) and all(map(figures.up, figures.status.workers))

    def directory(self, number: int) -> Path:
        return self._directory / f"drive-{number}"

    def drive(self, number: int) -> str:
        return str(self.workers[number].ready["drive_id"])

    async def client(self) -> KVCacheClient:
        return await KVCacheClient.connect(self.cluster, "blocks", SINGLE, pool_bytes=4 * MIB)


@asynccontextmanager
async def nodes(directory: Path, count: int) -> AsyncIterator[Nodes]:
    async with metadata(directory / "meta", count, 2) as cluster, AsyncExitStack() as stack:
        started = Nodes(directory, cluster, stack)
        await started.start(count)
        yield started


def values(numbers: Sequence[int]) -> dict[int, bytes]:
    return {number: value_of(number, BLOCK_BYTES) for number in numbers}


async def readable(cluster: Nodes, numbers: Sequence[int]) -> None:
    """A client that knows nothing yet finds all blocks."""
    async with await cluster.client() as client:
        assert await get_all(client, numbers) == list(values(numbers).values())


async def told(captured: Printed, work: Any) -> dict[str, Any]:
    """What a command prints as JSON, if it ends well."""
    assert await work == ExitCode.FINE
    found: dict[str, Any] = json.loads(captured.readouterr().out)
    return found


async def reason(process: WorkerProcess) -> str:
    """Why the worker gives up, once it does."""
    while (event := await process.line())["event"] != "failed":
        pass
    return str(event["reason"])


async def test_a_cluster_grows_and_shrinks(tmp_path: Path, capsys: Printed) -> None:
    old, new = range(60), range(60, 160)
    async with nodes(tmp_path, 4) as cluster:
        async with await cluster.client() as client:
            assert set((await put_all(client, values(old))).values()) == {Status.OK}
        await cluster.start(2)

        planned = await told(capsys, run_expand(cluster.cluster, dry_run=True, as_json=True))
        grown = await told(capsys, run_expand(cluster.cluster, dry_run=False, as_json=True))
        assert planned["tables"] == grown["tables"]
        assert grown["tables"][0]["share"] == pytest.approx(1 / 3, abs=0.02)
        assert grown["tables"][0]["drives"] == sorted(cluster.drive(number) for number in (4, 5))
        assert await told(capsys, run_expand(cluster.cluster, dry_run=False, as_json=True)) == {
            "tables": [],
            "dry_run": False,
            "notes": [],
            "exit_code": 0,
        }
        await readable(cluster, old)
        async with await cluster.client() as client:
            assert set((await put_all(client, values(new))).values()) == {Status.OK}
        await readable(cluster, range(160))
        balance = await told(capsys, run_balance(cluster.cluster, as_json=True))
        assert all(row["replicas"] and row["heads"] for row in balance["drives"])

        with pytest.raises(UserError, match=r"still holds .* replicas: run esker admin drain n0 first"):
            await run_remove_node(cluster.cluster, "n0", as_json=False)
        drained = await told(
            capsys, run_drain(cluster.cluster, "n0", cancel=False, dry_run=False, wait_s=WAIT_S, as_json=True)
        )
        assert drained["state"] == "done"
        assert drained["chains"] == drained["chains_done"] > 0
        async with ClusterLink(cluster.cluster) as link:
            checked = await check_catalog(link, None, repair=False)
        assert checked.exit_code() is ExitCode.FINE, "other heads have the same blocks"
        await told(capsys, run_remove_node(cluster.cluster, "n0", as_json=True))
        assert "not in this cluster any more: it was removed by an operator" in await reason(cluster.workers[0])
        assert (await cluster.workers[0].ended())[0] == EXIT_USER_ERROR, "its supervisor does not start it again"
        await readable(cluster, range(160))
        # Each block has two replicas that serve: the loss of a drive takes none of them.
        await cluster.workers[1].destroy()
        await readable(cluster, range(160))


async def test_a_drive_is_replaced_under_load(tmp_path: Path, capsys: Printed) -> None:
    acknowledged: dict[int, bytes] = {}
    async with nodes(tmp_path, 3) as cluster:
        async with await cluster.client() as client:
            acknowledged |= values(range(50))
            assert set((await put_all(client, acknowledged)).values()) == {Status.OK}
            await cluster.start(1)
            old, new = cluster.drive(0), cluster.drive(3)
            cluster.workers[0].signal(signal.SIGKILL)

            replacing = asyncio.ensure_future(
                run_replace(cluster.cluster, old, new, force=False, dry_run=False, wait_s=WAIT_S, as_json=True)
            )
            number = 50
            while not replacing.done():
                more = values(range(number, number + 5))
                for key, status in (await put_all(client, more)).items():
                    if status is Status.OK:
                        acknowledged[key] = more[key]
                number += 5
                sample = list(acknowledged)[-40:]
                assert await get_all(client, sample) == [acknowledged[each] for each in sample]
        outcome = await told(capsys, replacing)
        assert outcome["state"] == "done"
        assert len(acknowledged) > 50
        async with await cluster.client() as client:
            assert await get_all(client, list(acknowledged)) == list(acknowledged.values())

        again = run_replace(cluster.cluster, old, new, force=False, dry_run=False, wait_s=WAIT_S, as_json=True)
        assert (await told(capsys, again))["state"] == "done", "a command that is run again finds that it is over"
        returned = await WorkerProcess.start(worker_config(cluster.cluster, cluster.directory(0), node_id="n0"))
        try:
            assert f"it was replaced by drive {new}" in await reason(returned)
        finally:
            await returned.destroy()
