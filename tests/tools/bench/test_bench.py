"""The benchmark against a real cluster: every mode, what it reports, and that it cleans up."""

import json
import os
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from esker.kvclient import Geometry, KVCacheClient
from esker.tools.bench.baseline import BaselineName
from esker.tools.bench.bench import run_bench, writes_per_commit
from esker.tools.bench.blocks import Blocks
from esker.tools.bench.client_job import Load
from esker.tools.bench.command import run_bench_command
from esker.tools.bench.options import BenchOptions
from esker.tools.bench.report import as_json
from esker.tools.bench.workload import Mode
from esker.tools.dev_cluster import DevCluster
from esker.tools.exit_codes import ExitCode
from esker.tools.inspect_cluster import ClusterView, view_cluster
from esker.wire.errors import UserError

pytestmark = pytest.mark.asyncio(loop_scope="module")

MIB = 1 << 20
SMALL = BenchOptions(block_bytes=16384, iodepth=8, size_bytes=2 * MIB, runtime_s=0.15, repeat=2, drives=2)


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def cluster() -> AsyncIterator[DevCluster]:
    async with DevCluster(drives=2, replicas=2, capacity_bytes=256 * MIB) as started:
        yield started


async def measured(cluster: DevCluster, **changes: Any) -> dict[str, Any]:
    options = replace(SMALL, **changes)
    outcome = await run_bench(options, cluster.address, cluster.drive_directories)
    assert outcome.exit_code() is ExitCode.FINE
    found: dict[str, Any] = json.loads(json.dumps(as_json(outcome), default=str))
    return found


@pytest.mark.parametrize(
    ("mode", "verify"), [(Mode.READ, True), (Mode.RANDREAD, False), (Mode.WRITE, False), (Mode.RANDWRITE, True)]
)
async def test_one_direction(cluster: DevCluster, mode: Mode, verify: bool) -> None:
    found = await measured(cluster, mode=mode, verify=verify)
    for side in ("esker", "raw"):
        assert found[side]["bw_bytes"] > 0
        assert found[side]["iops"] > 0
        assert 0 < found[side]["lat_us"]["p50"] <= found[side]["lat_us"]["p99"]
    assert found["ratio"] == pytest.approx(found["esker"]["bw_bytes"] / found["raw"]["bw_bytes"])
    assert (found["baseline"], found["bs"], found["iodepth"]) == ("ring", 16384, 8)
    assert found["dataset_bytes"] == 2 * MIB
    assert found["sync"] == ("fdatasync" if mode.writes else "none")
    assert found["transport"] == "local"
    assert len(found["turns"]) == found["repeat"] == 2
    assert len(found["per_drive_bytes"]) == 2
    assert all(count > 0 for count in found["per_drive_bytes"].values())
    assert await blocks_stored(cluster) == 0


async def test_both_directions_are_reported_apart(cluster: DevCluster) -> None:
    found = await measured(cluster, mode=Mode.RANDRW, size_bytes=4 * MIB)
    for side in ("esker", "raw"):
        read, write = found[side]["read"], found[side]["write"]
        assert read["iops"] > 0
        assert write["iops"] > 0
    assert await blocks_stored(cluster) == 0


async def test_jobs_and_transport(cluster: DevCluster) -> None:
    found = await measured(cluster, numjobs=2, transport="tcp", baseline=BaselineName.SOCKET, repeat=1)
    assert (found["numjobs"], found["transport"], found["baseline"]) == (2, "tcp", "socket")


async def test_parts_of_mutable_chunks_are_written_in_place_and_read(cluster: DevCluster) -> None:
    found = await measured(cluster, mutable=True, chunk_bytes=65536, mode=Mode.RANDRW, verify=True, repeat=1)
    assert found["esker"]["read"]["iops"] > 0
    assert found["esker"]["write"]["iops"] > 0
    assert (found["mutable"], found["chunk_bytes"], found["failures"], found["wrong_blocks"]) == (True, 65536, {}, 0)
    assert 0 < found["longest_write_gap_s"] == found["turns"][0]["longest_write_gap_s"]


async def test_striped_blocks_come_from_every_drive(cluster: DevCluster) -> None:
    found = await measured(cluster, block_bytes=4 * MIB, size_bytes=16 * MIB, iodepth=2, baseline=BaselineName.NONE)
    assert found["raw"] is None
    assert found["ratio"] is None
    first, second = found["per_drive_bytes"].values()
    assert first == pytest.approx(second, rel=0.35)


async def test_wrong_contents_are_found(cluster: DevCluster) -> None:
    workload = replace(SMALL, mode=Mode.RANDREAD).workload
    geometry = Geometry(block_bytes_max=workload.block_bytes)
    async with await KVCacheClient.connect(cluster.address, "wrong", geometry, pool_bytes=8 * 16384) as client:
        blocks = Blocks(workload)
        load = Load(client, workload, blocks, verify=True)
        await load.store(-1, range(workload.blocks))
        key = blocks.key(-1, 3)
        await client.remove([key])
        await client.put([key], [bytes(workload.block_bytes)])
        assert await load.compare(-1, range(workload.blocks)) == 1
        assert (await load.run(0)).wrong_blocks > 0
        await load.remove(-1, range(workload.blocks))


async def test_a_cluster_of_its_own_is_used_and_removed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = replace(SMALL, directory=tmp_path / "drives", repeat=1)
    assert await run_bench_command(options, machine=True) is ExitCode.FINE
    assert json.loads(capsys.readouterr().out)["ratio"] > 0
    assert os.listdir(tmp_path) == []
    assert await run_bench_command(replace(options, baseline=BaselineName.NONE), machine=False) is ExitCode.FINE
    assert "median" in capsys.readouterr().out


async def test_a_data_set_without_room_is_refused() -> None:
    with pytest.raises(UserError, match="are needed"):
        await run_bench_command(replace(SMALL, size_bytes=1 << 60), machine=True)


async def test_mean_group_size_comes_from_the_workers_counters(cluster: DevCluster) -> None:
    routing = (await view_cluster(cluster.address)).routing
    before = ClusterView(routing, {"a": {"commits": 1, "commit_records": 1}, "b": {}})
    after = ClusterView(routing, {"a": {"commits": 3, "commit_records": 9}, "b": {"commits": 2, "commit_records": 12}})
    assert writes_per_commit(before, after) == 5
    assert writes_per_commit(after, after) == 1


async def blocks_stored(cluster: DevCluster) -> int:
    view = await view_cluster(cluster.address, counters=True)
    return view.total("slots")
