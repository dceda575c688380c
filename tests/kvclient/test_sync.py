"""The blocking facade: from many threads, across forks, and gone when it is closed."""

import asyncio
import gc
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
import uvloop

from esker.client.fake import FakeCluster
from esker.kvclient import BufferPool, Geometry, Status, SyncKVCacheClient, UserError
from esker.wire.errors import ConnectionFailed
from esker.wire.messages import Method

GEOMETRY = Geometry(block_bytes_max=4096)


class Served:
    """A cluster in memory on a thread of its own."""

    def __init__(self, directory: Path) -> None:
        self.cluster = FakeCluster(directory)
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """The coroutine's result, on the cluster's loop."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(20)

    def __enter__(self) -> "Served":
        self._thread.start()
        self.run(self.cluster.__aenter__())
        return self

    def __exit__(self, *_: object) -> None:
        self.run(self.cluster.__aexit__())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@pytest.fixture
def served(short_directory: Path) -> Iterator[Served]:
    with Served(short_directory) as made:
        yield made


@pytest.fixture
def client(served: Served) -> Iterator[SyncKVCacheClient]:
    with SyncKVCacheClient(served.cluster.address, "ns", GEOMETRY, pool_bytes=1 << 20) as made:
        yield made


def test_all_calls(client: SyncKVCacheClient) -> None:
    assert [each.status for each in client.put([b"a", b"b"], [b"1", b"22"])] == [Status.OK] * 2
    buffers = [bytearray(2), bytearray(2)]
    assert [(each.status, each.length) for each in client.get([b"a", b"b"], buffers)] == [(0, 1), (0, 2)]
    assert client.exists([b"b", b"c"]) == [True, False]
    assert client.match_prefix([b"a", b"b", b"c"]) == 2
    assert client.remove([b"a"]) == [Status.OK]
    assert client.statistics().counters["put_ok"] == 2
    assert client.geometry.stripe_unit_bytes == 4096
    assert len(client.salt) == 32


def test_the_mode_is_passed_on(served: Served) -> None:
    with SyncKVCacheClient(served.cluster.address, "cached", GEOMETRY, mode="cache", pool_bytes=1 << 20) as client:
        assert [each.status for each in client.put([b"a"], [b"1"])] == [Status.OK]
    with pytest.raises(UserError, match="you asked"):
        SyncKVCacheClient(served.cluster.address, "cached", GEOMETRY, pool_bytes=1 << 20)


def test_errors_come_out_where_the_call_was(client: SyncKVCacheClient) -> None:
    with pytest.raises(UserError, match="key 0 has 0 bytes"):
        client.put([b""], [b"v"])


def test_many_threads_at_once(client: SyncKVCacheClient) -> None:
    wrong: list[object] = []

    def work(mark: int) -> None:
        for turn in range(20):
            key, value = b"%d-%d" % (mark, turn), bytes([mark]) * 1000
            (slot,) = client.pool.acquire(1)
            client.put([key], [value])
            (result,) = client.get([key], [slot])
            if result.status is not Status.OK or slot.view[:1000] != value:
                wrong.append((mark, turn, result))
            slot.release()

    threads = [threading.Thread(target=work, args=(mark,)) for mark in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert client.pool.statistics().free == client.pool.slots


def test_close_ends_the_thread_and_can_be_repeated(served: Served) -> None:
    client = SyncKVCacheClient(served.cluster.address, "ns", GEOMETRY, pool_bytes=1 << 20)
    assert any(thread.name == "esker-client" for thread in threading.enumerate())
    client.close()
    client.close()
    assert not any(thread.name == "esker-client" for thread in threading.enumerate())
    with pytest.raises(UserError, match="this client is closed"):
        client.match_prefix([b"a"])


def test_a_client_that_nobody_has_any_more_ends_by_itself(served: Served) -> None:
    client = SyncKVCacheClient(served.cluster.address, "ns", GEOMETRY, pool_bytes=1 << 20)
    engine, inner = client._client()
    del client
    gc.collect()
    engine.thread.join(20)
    assert not engine.thread.is_alive()
    assert inner.pool.closed


def test_closing_ends_calls_of_other_threads(served: Served) -> None:
    client = SyncKVCacheClient(served.cluster.address, "ns", GEOMETRY, pool_bytes=1 << 20)
    client.put([b"k"], [b"v"])
    for worker in served.cluster.workers:
        worker.faults.hold.add(Method.READ)
    outcome: list[object] = []
    started = threading.Event()

    def work() -> None:
        started.set()
        try:
            outcome.append(client.get([b"k"], [bytearray(1)], timeout_s=600)[0].status)
        except UserError as error:
            outcome.append(str(error))

    thread = threading.Thread(target=work)
    thread.start()
    started.wait()
    client.close()
    thread.join(20)
    assert not thread.is_alive()
    endings = (Status.UNAVAILABLE, "the client was closed during the call", "this client is closed; make another one")
    assert outcome[0] in endings


def test_a_call_that_comes_just_after_the_close_is_told_so(served: Served) -> None:
    client = SyncKVCacheClient(served.cluster.address, "ns", GEOMETRY, pool_bytes=1 << 20)
    engine, inner = client._client()  # as a call does that is overtaken by the close
    client.close()
    with pytest.raises(UserError, match="this client is closed; make another one"):
        engine.call(inner.exists([b"a"]))


def test_a_call_from_the_clients_own_thread_is_refused(client: SyncKVCacheClient) -> None:
    engine, _ = client._client()

    async def misuse() -> None:
        client.match_prefix([b"a"])

    async def close() -> None:
        client.close()

    for refused in (misuse(), close()):
        with pytest.raises(UserError, match="own thread"):
            engine.call(refused)
    assert client.match_prefix([b"a"]) == 0


def test_a_failed_connect_leaves_no_thread() -> None:
    with pytest.raises(ConnectionFailed, match=r"looked at 127\.0\.0\.1:1"):
        SyncKVCacheClient("127.0.0.1:1", "ns", GEOMETRY, timeout_s=0.05)
    assert not any(thread.name == "esker-client" for thread in threading.enumerate())


def _in_fork(function: Callable[[], str]) -> str:
    """What `function` returns in a forked child; its exception's text, if it raises."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            answer = function()
        except BaseException as error:
            answer = f"{type(error).__name__}: {error}"
        os.write(writer, answer.encode())
        os._exit(0)
    os.close(writer)
    with open(reader, "rb") as answers:
        answer = answers.read().decode()
    os.waitpid(pid, 0)
    return answer


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_connects_anew_and_the_parent_goes_on(client: SyncKVCacheClient) -> None:
    client.put([b"a"], [b"1"])
    (leased,) = client.pool.acquire(1)

    def child() -> str:
        buffer = bytearray(1)
        hits = client.match_prefix([b"a", b"b"])
        status = client.get([b"a"], [buffer])[0].status
        client.put([b"from-child"], client.pool.acquire(1))
        free = client.pool.statistics().free
        client.close()
        return f"{hits} {status.name} {buffer.decode()} {free == 255}"

    assert _in_fork(child) == "1 OK 1 True"
    assert client.exists([b"a", b"from-child"]) == [True, True]
    assert client.get([b"a"], [leased])[0].status is Status.OK


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_does_not_hold_the_parents_connections(served: Served) -> None:
    client = SyncKVCacheClient(served.cluster.address, "ns", GEOMETRY, transport="tcp", pool_bytes=1 << 20)

    def child() -> str:
        ports = {worker.info.port for worker in served.cluster.workers}
        peers = set()
        for link in Path("/proc/self/fd").iterdir():
            if link.exists() and str(link.readlink()).startswith("socket:"):
                peers.add(_peer_port(int(link.name)))
        # The servers live in this process too, so their ends of the connections are here; the client's must not be.
        return str(sorted(ports & peers))

    assert _in_fork(child) == "[]"
    client.close()


def _peer_port(fd: int) -> int:
    sock = socket.socket(fileno=os.dup(fd))
    try:
        peer = sock.getpeername()
        return int(peer[1]) if isinstance(peer, tuple) else 0
    except OSError:
        return 0
    finally:
        sock.close()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_given_pool_cannot_cross_a_fork(served: Served) -> None:
    pool = BufferPool(4096, 4)
    client = SyncKVCacheClient(served.cluster.address, "ns", GEOMETRY, pool=pool)
    answer = _in_fork(lambda: str(client.match_prefix([b"a"])))
    assert answer == "UserError: a pool cannot be shared across a fork: make a client with its own in the child"
    client.close()
    pool.close()


def test_a_spawned_process_has_its_own_client(served: Served, client: SyncKVCacheClient) -> None:
    client.put([b"a"], [b"1"])
    program = (
        "from esker.kvclient import Geometry, SyncKVCacheClient\n"
        f"client = SyncKVCacheClient({served.cluster.address!r}, 'ns', Geometry(block_bytes_max=4096))\n"
        "print(client.match_prefix([b'a', b'b']))\n"  # and is left open: the interpreter's end closes it
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, timeout=30, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "1\n", "")
