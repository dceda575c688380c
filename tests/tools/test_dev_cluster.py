"""A real cluster of child processes: ready, killed, restarted, stopped, started again."""

import asyncio
import os
import signal
from pathlib import Path

import msgspec
import pytest

from esker.kvclient import Geometry, KVCacheClient, Status
from esker.tools import dev_cluster
from esker.tools.admin.link import ClusterLink
from esker.tools.child import Child
from esker.tools.dev_cluster import DevCluster
from esker.wire.errors import UserError
from esker.wire.messages import Method
from esker.wire.scrub_messages import Scrub, ScrubReply

from ..waiting import WAIT_S

MIB = 1 << 20
GEOMETRY = Geometry(block_bytes_max=8192)
KEYS = [bytes([number]) * 16 for number in range(40)]
VALUES = [bytes([number]) * 8192 for number in range(40)]


def cluster_at(path: Path | None, drives: int | None = 2) -> DevCluster:
    return DevCluster(path, drives=drives, replicas=drives and 2, capacity_bytes=64 * MIB, port=0)


async def client_of(cluster: DevCluster) -> KVCacheClient:
    return await KVCacheClient.connect(cluster.address, "test", GEOMETRY, pool_bytes=MIB)


async def all_there(client: KVCacheClient) -> bool:
    buffers = [bytearray(8192) for _ in KEYS]
    results = await client.get(KEYS, buffers)
    return all(result.status is Status.OK for result in results) and [bytes(each) for each in buffers] == VALUES


def alive(pid: int) -> bool:
    return Path("/proc", str(pid)).exists()


async def test_blocks_survive_kills_of_every_process_and_a_second_start(tmp_path: Path) -> None:
    async with cluster_at(tmp_path) as cluster:
        first = cluster.processes()
        assert [process.role for process in first] == ["meta", "chunkserver", "worker", "worker"]
        assert len({process.pid for process in first}) == 4
        async with await client_of(cluster) as client:
            assert {result.status for result in await client.put(KEYS, VALUES)} == {Status.OK}
            with pytest.raises(UserError, match=f"running cluster .* has {tmp_path}"):
                await cluster_at(tmp_path).__aenter__()
        for kill in (lambda: cluster.kill_worker(0), cluster.kill_meta, lambda: cluster.kill_worker(1)):
            await cluster.restarted(kill())
            async with await client_of(cluster) as client:
                assert await all_there(client)
        last = cluster.processes()
        ports = [process.port for process in last]
        assert ports == [process.port for process in first], "a restarted process is found where it was"
    assert not any(alive(process.pid) for process in (*first, *last))

    with pytest.raises(UserError, match="has 2 drives, and 3 drives were asked for"):
        await cluster_at(tmp_path, drives=3).__aenter__()
    async with DevCluster(tmp_path) as again:
        assert [process.port for process in again.processes()] == ports
        assert again.cluster_id == cluster.cluster_id
        async with await client_of(again) as client:
            assert await all_there(client)


async def test_a_killed_supervisor_takes_its_workers_along_and_comes_back_with_them(tmp_path: Path) -> None:
    async with cluster_at(tmp_path) as cluster:
        _, supervisor, *workers = cluster.processes()
        os.kill(supervisor.pid, signal.SIGKILL)
        for process in (supervisor, *workers):
            await cluster.restarted(process.pid)
        async with await client_of(cluster) as client:
            assert {result.status for result in await client.put(KEYS, VALUES)} == {Status.OK}


async def test_a_supervisor_killed_while_a_worker_is_stopped_is_replaced(tmp_path: Path) -> None:
    """The stopped worker holds its drive; the others serve, and it is replaced once it can end."""
    async with cluster_at(tmp_path) as cluster:
        _, supervisor, stopped, other = cluster.processes()
        os.kill(stopped.pid, signal.SIGSTOP)
        try:
            os.kill(supervisor.pid, signal.SIGKILL)
            await cluster.restarted(supervisor.pid)
            await cluster.restarted(other.pid)
        finally:
            os.kill(stopped.pid, signal.SIGCONT)
        await cluster.restarted(stopped.pid)
        async with await client_of(cluster) as client:
            assert {result.status for result in await client.put(KEYS, VALUES)} == {Status.OK}


async def test_a_metadata_server_that_dies_again_while_it_starts_is_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("esker.tools.dev_cluster.RESTART_DELAY_S", 0.01)
    async with cluster_at(tmp_path) as cluster:
        start_child = cluster._start_child
        killed = []

        async def dies_twice(name: str, arguments: list[str]) -> Child:
            child = await start_child(name, arguments)
            if len(killed) < 2:
                child.kill()
                killed.append(child.pid)
            return child

        monkeypatch.setattr(cluster, "_start_child", dies_twice)
        await cluster.restarted(cluster.kill_meta())
        assert len(killed) == 2
        assert cluster.processes()[0].pid not in killed
        async with await client_of(cluster) as client:
            assert {result.status for result in await client.put(KEYS, VALUES)} == {Status.OK}


async def test_a_metadata_server_that_cannot_come_back_ends_the_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster_at(tmp_path) as cluster:

        async def refuse(port: int) -> None:
            raise UserError("the store is of a newer esker")

        monkeypatch.setattr(cluster, "_start_meta", refuse)
        cluster.kill_meta()
        with pytest.raises(UserError, match="newer esker"):
            async with asyncio.timeout(WAIT_S):
                await cluster.wait()


async def test_ports_that_fit_another_number_of_drives_are_ignored(tmp_path: Path) -> None:
    async with cluster_at(tmp_path, drives=2) as cluster:
        state = cluster.directory.load()
        assert state is not None
    (tmp_path / "esker-dev.json").write_bytes(
        msgspec.json.encode(msgspec.structs.replace(state, worker_ports=state.worker_ports[:1]))
    )
    async with DevCluster(tmp_path) as again:
        assert len(again.processes()) == 4


async def test_a_temporary_cluster_leaves_nothing(tmp_path: Path) -> None:
    small = DevCluster(drives=1, replicas=1, capacity_bytes=64 * MIB, temporary_base=tmp_path, scrub_bytes_per_s=0)
    async with small as cluster:
        assert cluster.directory.path.parent == tmp_path
        assert cluster.directory.drive(0).is_dir()
        async with ClusterLink(cluster.address) as link:
            (worker,) = (await link.routing()).workers
            reply = await link.worker(worker, Method.SCRUB, Scrub(), ScrubReply)
        assert reply.rate_bytes_per_s == 0, "nothing is verified unless asked for"
    assert os.listdir(tmp_path) == []


async def test_a_drive_that_cannot_be_served_ends_the_start_with_its_reason(tmp_path: Path) -> None:
    async with cluster_at(tmp_path / "one"):
        pass
    (tmp_path / "one" / "drive-0" / "superblock").write_bytes(b"garbage")
    with pytest.raises(UserError, match="drive-0"):
        await cluster_at(tmp_path / "one").__aenter__()


async def test_rates_that_no_worker_takes_are_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="a scrub rate of 5 bytes per second; needed: at least"):
        await DevCluster(tmp_path, drives=1, replicas=1, port=0, scrub_bytes_per_s=5).__aenter__()


async def test_a_port_in_use_is_named(tmp_path: Path) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(UserError, match=str(port)):
            await DevCluster(tmp_path, drives=1, replicas=1, capacity_bytes=64 * MIB, port=port).__aenter__()


async def test_too_little_room_ends_the_start_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="are needed"):
        await DevCluster(temporary_base=tmp_path, needed_bytes=1 << 60).__aenter__()
    assert os.listdir(tmp_path) == []


async def test_a_drive_that_cannot_be_served_ends_the_first_start_with_its_reason(
    small_file_system: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dev_cluster, "TROUBLE_PATIENCE_S", 0.2)
    cluster = cluster_at(small_file_system / "d")
    with pytest.raises(UserError, match=r"not every drive can be served: .*/drive-\d: only .* are free"):
        await cluster.__aenter__()
