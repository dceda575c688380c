"""The supervisor with real workers: what dies is started again, what cannot serve is reported, nothing outlives it."""

import asyncio
import json
import os
import shutil
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import msgspec
import pytest

from esker.chunkserver.config import ChunkserverConfig, DriveConfig
from esker.chunkserver.main import serve
from esker.chunkserver.supervisor import BACKOFF_MIN_S, Supervisor, WorkerState
from esker.wire.errors import UserError
from esker.wire.limits import MIB
from esker.wire.rpc_client import TcpAddress
from esker.wire.status import Status

from ..waiting import WAIT_S, until
from .processes import metadata
from .raw_client import RawClient, content


def config_of(cluster: str, *drives: DriveConfig, **changes: object) -> ChunkserverConfig:
    config = ChunkserverConfig(
        cluster=cluster, drives=drives, node_id="here", pool_bytes=8 * MIB, join_timeout_s=2.0, unresponsive_s=20.0
    )
    return msgspec.structs.replace(config, **changes)


def drive_at(directory: Path, **changes: object) -> DriveConfig:
    return msgspec.structs.replace(DriveConfig(str(directory), 64 * MIB), **changes)


class Running:
    """A supervisor at work, and what it told."""

    def __init__(self, config: ChunkserverConfig) -> None:
        self.told: list[tuple[str, int, str]] = []
        self.supervisor = Supervisor(config, self._changed)
        self.stop = asyncio.Event()
        self.task = asyncio.create_task(self.supervisor.run(self.stop))

    def _changed(self, worker: WorkerState) -> None:
        self.told.append((os.path.basename(worker.drive.directory), worker.pid, worker.failure))

    @property
    def workers(self) -> list[WorkerState]:
        return self.supervisor.workers

    async def ready(self, number: int, other_than: int = 0) -> WorkerState:
        """Waits until the worker of a drive serves in a process other than this."""
        worker = self.workers[number]
        await until(lambda: worker.ready.is_set() and worker.pid != other_than, "the worker became ready")
        return worker

    async def client(self, number: int) -> RawClient:
        return await RawClient.connect(TcpAddress("127.0.0.1", self.workers[number].port))


@asynccontextmanager
async def supervised(config: ChunkserverConfig) -> AsyncIterator[Running]:
    running = Running(config)
    try:
        yield running
    finally:
        running.stop.set()
        async with asyncio.timeout(WAIT_S):
            await running.task
    assert not any(alive(worker.pid) for worker in running.workers)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def there(path: str) -> bool:
    return os.path.exists(path)


def descriptors(pid: int) -> set[str]:
    """What a process has open; files that it closes meanwhile are left out."""
    found = set()
    for path in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):
            found.add(os.readlink(path))
    return found


async def test_a_worker_that_is_killed_comes_back_where_it_was_with_what_it_had(tmp_path: Path) -> None:
    async with (
        metadata(tmp_path / "meta", drives=2) as cluster,
        supervised(config_of(cluster, drive_at(tmp_path / "d0"), drive_at(tmp_path / "d1"))) as running,
    ):
        first = await running.ready(0)
        second = await running.ready(1)
        pid, port, other_pid = first.pid, first.port, second.pid
        async with await running.client(0) as client:

            async def created() -> int:
                """The chain that the drive has, once it knows."""
                made = {chain: (await client.create({1: content(1)}, chain=chain))[1] for chain in (1, 2)}
                return sum(chain for chain, status in made.items() if status is Status.OK)

            own = await until(created, "the worker learned of its chain")
        for restarts in (1, 2):
            os.kill(pid, signal.SIGKILL)
            pid = (await running.ready(0, other_than=pid)).pid
            assert first.restarts == restarts
        assert first.port == port
        assert second.pid == other_pid, "the other drive never noticed"
        assert running.told[-1] == ("d0", pid, "")
        async with await running.client(0) as client:
            assert await client.read_one(1, chain=own) == content(1)
        path = second.socket
        assert there(path)
        shutil.rmtree(tmp_path / "d1")
        os.kill(other_pid, signal.SIGKILL)
        await running.ready(1, other_than=other_pid)
        assert second.socket != path, "the drive was made anew"
        assert not there(path), "no life of it would remove what the killed one left"


async def test_restarts_back_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pauses double; a worker that lived long starts again at once."""
    delays: list[float] = []
    plain_timeout = asyncio.timeout

    def timeout(delay_s: float | None) -> asyncio.Timeout:
        if delay_s is not None and delay_s <= 5.0:
            delays.append(delay_s)
            return plain_timeout(0.0)
        return plain_timeout(delay_s)

    async def dies(self: Supervisor, worker: WorkerState, stop: asyncio.Event) -> tuple[int, str]:
        if len(delays) == 8:
            monkeypatch.setattr("esker.chunkserver.supervisor.STEADY_S", -1.0)
        if len(delays) == 9:
            stop.set()
        return -9, ""

    monkeypatch.setattr(Supervisor, "_run_once", dies)
    monkeypatch.setattr("esker.chunkserver.supervisor.asyncio.timeout", timeout)
    supervisor = Supervisor(config_of("127.0.0.1:1", drive_at(tmp_path)), lambda _: None)
    assert await supervisor.run(asyncio.Event()) is True
    assert delays == [BACKOFF_MIN_S, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0, 5.0, BACKOFF_MIN_S]
    assert supervisor.workers[0].restarts == 9


async def test_a_worker_that_cannot_read_its_index_is_reported_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LMDB maps its file: a page that the drive cannot read ends the process by SIGBUS."""
    ends = 0

    async def dies(self: Supervisor, worker: WorkerState, stop: asyncio.Event) -> tuple[int, str]:
        nonlocal ends
        ends += 1
        if ends == 4:
            stop.set()
        return -signal.SIGBUS, ""

    monkeypatch.setattr(Supervisor, "_run_once", dies)
    monkeypatch.setattr("esker.chunkserver.supervisor.BACKOFF_MIN_S", 0.001)
    told: list[str] = []
    supervisor = Supervisor(config_of("127.0.0.1:1", drive_at(tmp_path)), lambda worker: told.append(worker.trouble))
    assert await supervisor.run(asyncio.Event()) is True
    (trouble,) = told
    assert "SIGBUS" in trouble
    assert "check the drive" in trouble
    assert supervisor.workers[0].restarts == 3


async def test_a_users_mistake_is_reported_and_not_tried_again(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    async with (
        metadata(tmp_path / "meta") as cluster,
        supervised(config_of(cluster, drive_at(tmp_path / "file"), drive_at(tmp_path / "d1"))) as running,
    ):
        bad = running.workers[0]
        await until(lambda: [told for told in running.told if told[2]], "the failure was reported")
        good = await running.ready(1)
        assert "is not a directory" in bad.failure
        assert [(name, failure) for name, _, failure in running.told if failure] == [("file", bad.failure)]
        os.kill(good.pid, signal.SIGKILL)
        await running.ready(1, other_than=good.pid)
        assert bad.restarts == 0
        assert not alive(bad.pid)


async def test_when_no_drive_can_be_served_it_ends(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.tex").write_text("")
    async with metadata(tmp_path / "meta") as cluster:
        running = Running(config_of(cluster, drive_at(tmp_path / "file"), drive_at(tmp_path / "other")))
        async with asyncio.timeout(WAIT_S):
            assert await running.task is False
    assert "is not a directory" in running.workers[0].failure
    assert "is not empty" in running.workers[1].failure


async def test_a_drive_that_cannot_be_served_at_present_is_served_once_it_can(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        async with (
            metadata(tmp_path / "meta") as cluster,
            supervised(config_of(cluster, drive_at(tmp_path / "d0", port=port))) as running,
        ):
            worker = running.workers[0]
            await until(lambda: worker.restarts >= 2, "it was tried again")
            assert f"cannot listen on 127.0.0.1:{port}" in worker.trouble
            assert [failure for _, _, failure in running.told] == [""], "one trouble, told once"
            listener.close()
            assert (await running.ready(0)).port == port
            assert (worker.trouble, worker.failure) == ("", "")


async def test_a_port_that_is_only_a_wish_gives_way(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        drive = drive_at(tmp_path / "d0", port=port, port_is_wish=True)
        async with metadata(tmp_path / "meta") as cluster, supervised(config_of(cluster, drive)) as running:
            assert (await running.ready(0)).port not in (0, port)
            assert running.workers[0].restarts == 0


async def test_a_worker_that_gives_no_sign_of_life_is_killed_and_replaced(tmp_path: Path) -> None:
    async with (
        metadata(tmp_path / "meta") as cluster,
        supervised(config_of(cluster, drive_at(tmp_path / "d0"), unresponsive_s=1.0, join_timeout_s=1.0)) as running,
    ):
        worker = await running.ready(0)
        pid = worker.pid
        os.kill(pid, signal.SIGSTOP)
        await running.ready(0, other_than=pid)
        assert not alive(pid)
        assert worker.restarts == 1


async def test_no_worker_outlives_a_supervisor_that_is_killed(tmp_path: Path) -> None:
    async with metadata(tmp_path / "meta", drives=2) as cluster:
        arguments = ["-m", "esker", "chunkserver", "--json", "--cluster", cluster, "--capacity", "64MiB"]
        arguments += ["--drive", str(tmp_path / "d0"), "--drive", str(tmp_path / "d1")]
        read_end, write_end = os.pipe()
        inherited = os.readlink(f"/proc/self/fd/{write_end}")
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *arguments,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            pass_fds=(write_end,),
        )
        os.close(read_end)
        os.close(write_end)
        assert process.stdout is not None
        async with asyncio.timeout(WAIT_S):
            pids = [json.loads(await process.stdout.readline())["pid"] for _ in range(2)]
        assert all(map(alive, pids))
        assert inherited in descriptors(process.pid)
        assert not any(inherited in descriptors(pid) for pid in pids), "workers inherit nothing of the supervisor"
        process.kill()
        await process.wait()
        await until(lambda: not any(map(alive, pids)), "its workers ended")


@pytest.mark.parametrize("end", [lambda process: process.send_signal(signal.SIGTERM), lambda p: p.stdin.close()])
async def test_the_end_of_stdin_and_a_signal_end_it_and_its_workers(
    tmp_path: Path, end: Callable[[asyncio.subprocess.Process], None]
) -> None:
    async with metadata(tmp_path / "meta") as cluster:
        arguments = ["-m", "esker", "chunkserver", "--json", "--watch-stdin", "--cluster", cluster]
        arguments += ["--capacity", "64MiB", "--drive", str(tmp_path / "d0")]
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *arguments,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        assert process.stdout is not None
        async with asyncio.timeout(WAIT_S):
            pid = json.loads(await process.stdout.readline())["pid"]
            end(process)
            _, log = await process.communicate()
        assert process.returncode == 0, log
        assert b"Traceback" not in log
        assert not alive(pid)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"drives": ()}, "no drive is given"),
        ({"drives": (DriveConfig("/d", MIB), DriveConfig("/x/../d", MIB))}, "/d is given twice"),
        ({"pool_bytes": MIB}, "a pool of 1048576 bytes; needed: at least 8388608"),
        ({"scrub_bytes_per_s": 1}, "a scrub rate of 1 bytes per second; needed: at least 1048576, or 0 for scrubbing"),
        ({"resync_bytes_per_s": 1}, "a resync rate of 1 bytes per second; needed: at least 1048576"),
    ],
)
def test_a_configuration_that_cannot_work_is_refused_at_once(changes: dict, message: str) -> None:
    config = msgspec.structs.replace(config_of("127.0.0.1:1", DriveConfig("/d", MIB)), **changes)
    with pytest.raises(UserError, match=message):
        Supervisor(config, lambda _: None)


async def test_an_address_that_others_reach_is_refused(tmp_path: Path) -> None:
    config = config_of("127.0.0.1:1", drive_at(tmp_path / "d0"), host="0.0.0.0")
    with pytest.raises(UserError, match=r"can be reached from other machines.*--insecure"):
        await serve(config, lambda _: None, asyncio.Event())
    assert os.listdir(tmp_path) == []
