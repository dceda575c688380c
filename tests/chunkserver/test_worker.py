"""The worker process from outside: its start, its end, users' mistakes, and bytes that are no protocol."""

import asyncio
import errno
import glob
import os
import shutil
import signal
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from esker.chunkserver.cluster_view import LIFE_STATE
from esker.chunkserver.engine.commit_group import CommitDone
from esker.chunkserver.engine.errors import DriveFailed, DriveOwned, NotNow
from esker.chunkserver.engine.store import DriveStore
from esker.chunkserver.joins import JOINS_STATE
from esker.chunkserver.pool import WorkerPool
from esker.chunkserver.worker import EXIT_INTERNAL, EXIT_NOT_NOW, EXIT_USER_ERROR, _exit_code, serve
from esker.wire import framing
from esker.wire.codec import encode_body
from esker.wire.errors import ConnectionFailed, RequestFailed, UserError
from esker.wire.limits import KIB, MIB
from esker.wire.messages import PROTOCOL_VERSION, Hello, HelloReply, Method
from esker.wire.rpc_client import Connection
from esker.wire.status import Status

from ..waiting import WAIT_S, until
from .processes import WorkerProcess, metadata, one_drive, worker, worker_config
from .raw_client import content
from .wrong_frames import HELLO, WRONG_FRAMES, frame, talk


@pytest.fixture
async def drive(tmp_path: Path) -> AsyncIterator[WorkerProcess]:
    async with one_drive(tmp_path) as process:
        yield process


async def refused(cluster: str, directory: Path, exit_code: int = EXIT_USER_ERROR, **changes: object) -> str:
    """The reason why a worker does not serve, which it gives in one line before it ends."""
    process = await WorkerProcess.start(worker_config(cluster, directory, **changes))
    try:
        line = await process.line()
        assert line["event"] == "failed", line
        assert "\n" not in line["reason"]
        code, log = await process.ended()
        assert code == exit_code
        assert "Traceback" not in log, log
        return line["reason"]
    finally:
        await process.destroy()


def unused_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


async def test_it_says_that_it_serves_and_that_it_is_alive_and_finds_its_data_again(tmp_path: Path) -> None:
    async with metadata(tmp_path / "meta") as cluster:
        async with worker(cluster, tmp_path / "drive") as first:
            assert first.ready["pid"] == first.pid
            assert first.ready["engine"] in ("io_uring", "threads")
            async with await first.client(tcp=True) as client:
                assert (await client.create({1: content(1)}))[1] is Status.OK
            assert (await first.line())["event"] == "alive"
            assert (await first.line())["event"] == "alive"
        assert first.ready["socket"] not in glob.glob(f"{os.path.dirname(first.ready['socket'])}/*")
        async with worker(cluster, tmp_path / "drive") as second:
            assert second.ready["drive_id"] == first.ready["drive_id"]
            async with await second.client() as client:
                assert await client.read_one(1) == content(1)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_ends_it_cleanly(drive: WorkerProcess, number: signal.Signals) -> None:
    drive.signal(number)
    code, log = await drive.ended()
    assert code == 0
    assert "Traceback" not in log, log


async def test_a_new_drive_needs_a_metadata_server(tmp_path: Path) -> None:
    nowhere = f"127.0.0.1:{unused_port()}"
    reason = await refused(nowhere, tmp_path / "drive", EXIT_NOT_NOW, join_timeout_s=0.3)
    assert "is a new drive" in reason
    assert f"looked at {nowhere}" in reason
    assert not (tmp_path / "drive").exists()


async def test_a_known_drive_serves_without_one(tmp_path: Path) -> None:
    async with one_drive(tmp_path) as process, await process.client() as client:
        assert (await client.create({1: content(1)}))[1] is Status.OK
    async with (
        worker(f"127.0.0.1:{unused_port()}", tmp_path / "drive", join_timeout_s=0.3) as process,
        await process.client() as client,
    ):
        assert await client.read_one(1) == content(1)
        assert await client.create({2: content(2)}) == {2: Status.UNAVAILABLE}, "this life was not admitted"


async def test_the_data_path_survives_the_metadata_server(tmp_path: Path) -> None:
    async with metadata(tmp_path / "meta") as cluster:
        process = await WorkerProcess.start(worker_config(cluster, tmp_path / "drive"))
        process.ready = await process.line()
    try:
        async with await process.client() as client:
            assert (await client.create({1: content(1)}))[1] is Status.OK
            assert await client.read_one(1) == content(1)
        code, log = await process.stop()
        assert code == 0
        assert "Traceback" not in log, log
    finally:
        await process.destroy()


async def test_the_directory_of_another_cluster(tmp_path: Path) -> None:
    async with one_drive(tmp_path / "a"):
        pass
    async with metadata(tmp_path / "b" / "meta") as other:
        reason = await refused(other, tmp_path / "a" / "drive")
    assert "belongs to cluster" in reason
    assert "choose another directory" in reason


async def test_an_earlier_copy_of_a_drive_does_not_serve_and_the_newest_does(tmp_path: Path) -> None:
    async with metadata(tmp_path / "meta") as cluster:
        async with worker(cluster, tmp_path / "drive"):
            pass
        shutil.copytree(tmp_path / "drive", tmp_path / "copy")
        async with worker(cluster, tmp_path / "drive"):
            pass
        for _ in range(2):
            assert "this is an earlier copy of the directory of drive" in await refused(cluster, tmp_path / "copy")
        async with worker(cluster, tmp_path / "drive"):
            pass


async def test_a_drive_that_a_running_worker_owns(tmp_path: Path) -> None:
    async with metadata(tmp_path / "meta") as cluster, worker(cluster, tmp_path / "drive") as owner:
        reason = await refused(cluster, tmp_path / "drive", EXIT_NOT_NOW)
        assert f"already owned by a running worker with pid {owner.pid}" in reason
        async with await owner.client() as client:
            assert (await client.create({1: content(1)}))[1] is Status.OK


async def test_a_drive_whose_owner_is_about_to_end_is_waited_for(tmp_path: Path) -> None:
    async with metadata(tmp_path / "meta") as cluster:
        async with worker(cluster, tmp_path / "drive") as owner:
            following = await WorkerProcess.start(worker_config(cluster, tmp_path / "drive"))
            await following.logs("waiting for the drive's present owner")
            code, _ = await owner.stop()
            assert code == 0
        following.ready = await following.line()
        assert following.ready["event"] == "ready", following.ready
        assert (await following.stop())[0] == 0
        await following.destroy()


async def test_a_port_in_use(tmp_path: Path) -> None:
    async with metadata(tmp_path / "meta") as cluster:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port = listener.getsockname()[1]
            reason = await refused(cluster, tmp_path / "drive", EXIT_NOT_NOW, port=port, keep_port=True)
            assert f"cannot listen on 127.0.0.1:{port}" in reason
            assert "choose another port" in reason
            async with worker(cluster, tmp_path / "drive", port=port) as process:
                assert process.ready["port"] != port, "a port that nobody insists on gives way"


async def test_a_file_in_the_place_of_the_directory(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    async with metadata(tmp_path / "meta") as cluster:
        assert "is not a directory" in await refused(cluster, tmp_path / "file")
        assert "is not a directory" in await refused(cluster, tmp_path / "file" / "below")


async def test_a_directory_with_other_things_in_it(tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").write_text("")
    async with metadata(tmp_path / "meta") as cluster:
        reason = await refused(cluster, tmp_path / "full")
    assert "is not empty (it has 'thesis.tex')" in reason


async def test_a_directory_that_cannot_be_read(tmp_path: Path) -> None:
    if os.geteuid() == 0:
        locked = Path("/sys/kernel/esker-test-drive")  # where not even root may make one
    else:
        locked = tmp_path / "locked"
        locked.mkdir(mode=0o000)
    async with metadata(tmp_path / "meta") as cluster:
        reason = await refused(cluster, locked)
    assert str(locked) in reason
    assert "choose another" in reason


async def test_a_file_system_without_room(tmp_path: Path, small_file_system: Path) -> None:
    async with metadata(tmp_path / "meta") as cluster:
        reason = await refused(cluster, small_file_system / "drive", EXIT_NOT_NOW)
    assert "are needed: free some space on its file system" in reason


async def test_a_superblock_that_is_not_one(tmp_path: Path) -> None:
    async with metadata(tmp_path / "meta") as cluster:
        async with worker(cluster, tmp_path / "drive"):
            pass
        path = tmp_path / "drive" / "superblock"
        whole = path.read_bytes()
        for spoiled in (b"garbage", whole[:2000], whole[:100] + b"x" + whole[101:]):
            path.write_bytes(spoiled)
            reason = await refused(cluster, tmp_path / "drive")
            assert f"{path}" in reason
            assert "empty directory" in reason or "another directory" in reason
        path.write_bytes(whole)
        async with worker(cluster, tmp_path / "drive"):
            pass


# Bytes that are no protocol


@pytest.fixture
async def shared_drive(tmp_path: Path) -> AsyncIterator[WorkerProcess]:
    """A worker whose log is looked at in the end."""
    async with metadata(tmp_path / "meta") as cluster, worker(cluster, tmp_path / "drive") as process:
        yield process


async def test_what_is_no_protocol_ends_its_connection_only(shared_drive: WorkerProcess) -> None:
    async with await shared_drive.client() as client:
        assert (await client.create({1: content(1)}))[1] is Status.OK
        for name, sent in WRONG_FRAMES.items():
            for address in (shared_drive.tcp, shared_drive.ready["socket"]):
                answer = await talk(address, sent)
                assert len(answer) < 300, (name, answer)
                assert await client.read_one(1) == content(1), name
    code, log = await shared_drive.stop()
    assert code == 0
    assert log.count("broke the protocol") >= 2 * (len(WRONG_FRAMES) - 1), log
    for reason in ("bad magic", "protocol version 2", "body of", "payload of", "before the handshake"):
        assert reason in log
    assert "Traceback" not in log, log


async def test_a_frame_that_breaks_off(shared_drive: WorkerProcess) -> None:
    async with await shared_drive.client() as client:
        assert (await client.create({1: content(1)}))[1] is Status.OK
        for cut in (1, 31, 32, 40, len(HELLO) - 1):
            reader, writer = await asyncio.open_connection(shared_drive.tcp.host, shared_drive.tcp.port)
            writer.write(HELLO[:cut])
            writer.write_eof()
            async with asyncio.timeout(WAIT_S):
                assert await reader.read() == b""
            writer.close()
        assert await client.read_one(1) == content(1)


async def test_who_never_shakes_hands_is_sent_away(shared_drive: WorkerProcess) -> None:
    assert await talk(shared_drive.tcp, b"") == b""


async def test_versions_and_clusters_are_checked_at_the_handshake(shared_drive: WorkerProcess) -> None:
    hello = frame(Method.HELLO, encode_body(Hello((77, 78), "", "client", "", "")))
    answer = await talk(shared_drive.tcp, hello)
    assert f"this side speaks version {PROTOCOL_VERSION}".encode() in answer
    assert framing.HEADER.unpack_from(answer)[3] == Status.UNSUPPORTED_VERSION
    with pytest.raises(RequestFailed, match="this is cluster") as caught:
        await Connection.connect(shared_drive.tcp, role="client", cluster_id="another")
    assert caught.value.status is Status.WRONG_CLUSTER
    several = frame(Method.HELLO, encode_body(Hello((77, PROTOCOL_VERSION), "", "client", "", "")))
    reader, writer = await asyncio.open_connection(shared_drive.tcp.host, shared_drive.tcp.port)
    writer.write(several)
    async with asyncio.timeout(WAIT_S):
        header = await reader.readexactly(framing.HEADER.size)
    assert framing.decode(header)[1] == Status.OK
    writer.close()


async def test_more_descriptors_than_belong_there(shared_drive: WorkerProcess) -> None:
    async with await shared_drive.client() as client:
        assert (await client.create({1: content(1)}))[1] is Status.OK
        before = len(os.listdir(f"/proc/{shared_drive.pid}/fd"))
        for _ in range(10):
            connection = await Connection.connect(shared_drive.socket, role="client")
            fds = [os.open("/dev/null", os.O_RDONLY) for _ in range(20)]
            with pytest.raises(ConnectionFailed):
                await connection.call(Method.STATS, Hello((1,), "", "", "", ""), HelloReply, timeout_s=10, fds=fds)
            await connection.aclose()
            for fd in fds:
                os.close(fd)
        await until(
            lambda: len(os.listdir(f"/proc/{shared_drive.pid}/fd")) <= before, "the worker closed what it was sent"
        )
        assert await client.read_one(1) == content(1)


def spoil(drive: Path, text: bytes) -> int:
    """Changes a byte of `text` where it first stands in each data file, behind the worker's back; in how many."""
    spoiled = 0
    for path in (drive / "data").rglob("*"):
        at = path.read_bytes().find(text) if path.is_file() else -1
        if at >= 0:
            with path.open("r+b") as file:
                file.seek(at)
                file.write(bytes([text[0] ^ 1]))
                file.flush()
                os.fsync(file.fileno())
            spoiled += 1
    return spoiled


async def test_a_chunk_of_the_drive_that_rotted_is_never_passed_off_as_data(tmp_path: Path) -> None:
    """The worker hands over what it reads; its checksums come from the record, so the reader notices."""
    async with one_drive(tmp_path) as process, await process.client() as client:
        assert (await client.create({1: content(1, 64 * KIB)}))[1] is Status.OK
        assert spoil(tmp_path / "drive", b"00000001-") == 1
        with pytest.raises(AssertionError, match="do not verify"):
            await client.read_one(1)


@pytest.mark.parametrize("state", [LIFE_STATE, JOINS_STATE])
async def test_without_room_for_its_own_life_a_worker_does_not_begin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: str
) -> None:
    """It is started again until there is; one that served would do so as an earlier life, or out of its chains."""
    put = DriveStore.state_put

    def full(store: DriveStore, name: str, value: bytes, done: CommitDone, token: object) -> None:
        if name == state:
            done(token, Status.NO_SPACE)
        else:
            put(store, name, value, done, token)

    pool = WorkerPool(MIB)
    monkeypatch.setattr(DriveStore, "state_put", full)
    monkeypatch.setattr("esker.chunkserver.worker.WorkerPool", lambda size_bytes: pool)
    async with metadata(tmp_path / "meta", drives=1) as cluster:
        with pytest.raises(NotNow, match="no space left for drive"):
            await serve(worker_config(cluster, tmp_path / "drive"), asyncio.Event())
    pool.close()


def caused(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UserError("a mistake"), EXIT_USER_ERROR),
        (caused(UserError("no right"), OSError(errno.EACCES, "")), EXIT_USER_ERROR),
        (caused(UserError("no socket"), OSError(errno.ENOSPC, "")), EXIT_NOT_NOW),
        (caused(UserError("a port in use"), OSError(errno.EADDRINUSE, "")), EXIT_NOT_NOW),
        (DriveOwned("in use"), EXIT_NOT_NOW),
        (DriveFailed("took no write"), EXIT_NOT_NOW),
        (OSError(errno.ENOMEM, ""), EXIT_NOT_NOW),
        (OSError(errno.EBADF, ""), EXIT_INTERNAL),
    ],
)
def test_only_what_somebody_has_to_change_is_final(error: Exception, code: int) -> None:
    assert _exit_code(error) == code
