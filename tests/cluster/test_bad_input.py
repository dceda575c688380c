"""What users and strangers get wrong, against a real cluster: one clear line, and everything else goes on."""

import asyncio
import os
import re
import signal
import socket
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from esker.kvclient import EskerError, Geometry, KVCacheClient, Status, UserError
from esker.tools.dev_cluster import DevCluster
from esker.wire.errors import ConnectionFailed
from esker.wire.limits import KIB, MIB
from esker.wire.rpc_client import TcpAddress

from ..chunkserver.wrong_frames import WRONG_FRAMES, talk
from .clusters import SINGLE, STRIPED, connect, get_all, key_of, put_all, running, value_of, view

GENEROUS_S = 40.0


def one_line(error: BaseException) -> str:
    text = str(error)
    assert text
    assert "\n" not in text
    return text


async def test_calls_that_cannot_be_meant(tmp_path: Path) -> None:
    async with running(tmp_path, drives=1, replicas=1) as cluster, await connect(cluster) as client:
        value = value_of(1, 16 * KIB)
        keys = [key_of(1)]
        columns = np.zeros((64, 512), dtype=np.uint8)
        mistakes: list[tuple[Any, str]] = [
            (client.put(keys, [value + b"x"]), "16385 bytes; the namespace's block_bytes_max is 16384"),
            (client.put(keys, [b""]), "value 0 is empty"),
            (client.put(keys, [columns[:, ::2]]), "value 0 is not contiguous"),
            (client.put(keys, []), "1 keys but 0 values"),
            (client.put([b""], [value]), "key 0 has 0 bytes; allowed: 1 to 256"),
            (client.put([bytes(257)], [value]), "key 0 has 257 bytes; allowed: 1 to 256"),
            (client.put(["text"], [value]), "keys are bytes"),
            (client.get(keys, [bytearray(10), bytearray(10)]), "1 keys but 2 buffers"),
            (client.get(keys, [bytes(16 * KIB)]), "buffer 0 is read-only"),
            (client.get(keys, [columns[:, ::2]]), "buffer 0 is not contiguous"),
            (client.get(keys, [bytearray()]), "buffer 0 is empty"),
            (client.get(keys, [None]), "buffer 0 is a NoneType"),
        ]
        for call, message in mistakes:
            with pytest.raises(UserError, match=re.escape(message)) as caught:
                await call
            one_line(caught.value)
        assert (await view(cluster)).total("create_ok") == 0, "nothing was sent"

        assert (await put_all(client, {1: value}))[1] is Status.OK
        for room in (1, 4096, 16 * KIB - 1):
            buffer = bytearray(room)
            (result,) = await client.get(keys, [buffer])
            assert (result.status, result.length) == (Status.TOO_LARGE, 16 * KIB), "the length says how much it takes"
        assert await get_all(client, [1]) == [value]


async def test_a_striped_block_needs_room_for_all_of_it(tmp_path: Path) -> None:
    async with running(tmp_path) as cluster, await connect(cluster, STRIPED) as client:
        value = value_of(1, 50_000)
        assert (await put_all(client, {1: value}))[1] is Status.OK
        for room in (1, 16 * KIB, 49_999):
            (result,) = await client.get([key_of(1)], [bytearray(room)])
            assert (result.status, result.length) == (Status.TOO_LARGE, 50_000)
        assert await get_all(client, [1]) == [value]


@pytest.mark.parametrize(
    ("geometry", "message"),
    [
        (Geometry(block_bytes_max=0), "block_bytes_max is 0; allowed: 1 to"),
        (Geometry(block_bytes_max=64 * MIB * 4096 + 1), "block_bytes_max is 274877906945; allowed: 1 to"),
        (
            Geometry(block_bytes_max=MIB, stripe_unit_bytes=4097),
            "stripe_unit_bytes is 4097; allowed: multiples of 4096",
        ),
        (Geometry(block_bytes_max=MIB, stripe_unit_bytes=-4096), "stripe_unit_bytes is -4096; allowed: multiples"),
        (Geometry(block_bytes_max=MIB, stripe_unit_bytes=64 * MIB + 4096), "stripe_unit_bytes is 67112960; allowed"),
        (Geometry(block_bytes_max=64 * MIB, stripe_unit_bytes=4096), "16384 chunks; allowed: 4096; raise stripe_unit"),
        (Geometry(block_bytes_max=MIB, run_blocks=0), "run_blocks is 0; allowed: 1 to"),
        (Geometry(block_bytes_max=MIB, block_tokens=-1), "block_tokens is -1; allowed: 0"),
    ],
)
async def test_figures_of_a_namespace_out_of_range(geometry: Geometry, message: str) -> None:
    with pytest.raises(UserError, match=re.escape(message)) as caught:
        await KVCacheClient.connect("127.0.0.1:1", "test", geometry)
    one_line(caught.value)


async def test_another_geometry_is_refused_with_both(tmp_path: Path) -> None:
    async with running(tmp_path, drives=1, replicas=1) as cluster:
        geometry = Geometry(block_bytes_max=32 * KIB, model="llama", dtype="bf16")
        first = await KVCacheClient.connect(cluster.address, "test", geometry)
        for change, here, there in [
            ({"block_bytes_max": 64 * KIB}, "32768", "65536"),
            ({"stripe_unit_bytes": 8 * KIB}, "32768", "8192"),
            ({"run_blocks": 8}, "1", "8"),
            ({"model": "qwen"}, "llama", "qwen"),
            ({"dtype": ""}, "bf16", "''"),
        ]:
            other = msgspec.structs.replace(geometry, **change)
            with pytest.raises(UserError, match="another geometry") as caught:
                await KVCacheClient.connect(cluster.address, "test", other)
            text = one_line(caught.value)
            assert here in text, text
            assert there in text, text
            assert next(iter(change)) in text
        same = await KVCacheClient.connect(cluster.address, "test", geometry)
        assert (await first.put([b"key"], [b"value"]))[0].status is Status.OK
        assert await same.exists([b"key"]) == [True]
        await first.aclose()
        await same.aclose()


async def test_no_metadata_server() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    async with asyncio.timeout(GENEROUS_S):
        with pytest.raises(
            ConnectionFailed, match=f"no metadata server answered.*looked at 127.0.0.1:{port}"
        ) as caught:
            await KVCacheClient.connect(f"127.0.0.1:{port}", "test", SINGLE, timeout_s=0.5)
        one_line(caught.value)


async def test_a_metadata_server_that_hangs(tmp_path: Path) -> None:
    async with running(tmp_path, drives=1, replicas=1) as cluster:
        (meta,) = [process.pid for process in cluster.processes() if process.role == "meta"]
        os.kill(meta, signal.SIGSTOP)
        try:
            async with asyncio.timeout(GENEROUS_S):
                with pytest.raises(ConnectionFailed, match=f"looked at {cluster.address}"):
                    await connect(cluster, timeout_s=0.5)
        finally:
            os.kill(meta, signal.SIGCONT)
        async with await connect(cluster) as client:
            assert await client.exists([b"key"]) == [False]


async def test_something_else_listens_there() -> None:
    async def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 smtp.example.org ESMTP ready\r\n" * 4)
        writer.close()

    server = await asyncio.start_server(greet, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with asyncio.timeout(GENEROUS_S):
        with pytest.raises(EskerError, match=f"127.0.0.1:{port}") as caught:
            await KVCacheClient.connect(f"127.0.0.1:{port}", "test", SINGLE, timeout_s=0.5)
    one_line(caught.value)
    server.close()
    await server.wait_closed()


async def test_garbage_to_every_port_of_a_cluster_in_use(tmp_path: Path) -> None:
    async with running(tmp_path) as cluster, await connect(cluster) as client:
        values = {number: value_of(number, 5000) for number in range(20)}
        assert set((await put_all(client, values)).values()) == {Status.OK}
        pids = [process.pid for process in cluster.processes()]
        ports = [process.port for process in cluster.processes() if process.port]
        assert len(ports) == 3
        for sent in WRONG_FRAMES.values():
            answers = await asyncio.gather(*(talk(TcpAddress("127.0.0.1", port), sent) for port in ports))
            assert all(len(answer) < 300 for answer in answers)
        assert await get_all(client, list(values)) == list(values.values())
        assert (await put_all(client, {50: b"x"}))[50] is Status.OK
        async with await connect(cluster) as newcomer:
            assert await get_all(newcomer, [50]) == [b"x"]
        assert [process.pid for process in cluster.processes()] == pids, "nothing crashed"


async def test_the_drive_of_another_cluster(tmp_path: Path) -> None:
    async with running(tmp_path / "a", drives=1, replicas=1) as one:
        pass
    async with running(tmp_path / "b", drives=1, replicas=1) as other:
        pass
    mine, foreign = (Path(cluster.drive_directories[0]) for cluster in (one, other))
    mine.rename(tmp_path / "mine")
    foreign.rename(mine)
    with pytest.raises(UserError, match=f"belongs to cluster {other.cluster_id}, not to {one.cluster_id}") as caught:
        await DevCluster(tmp_path / "a", drives=1, replicas=1, port=0).__aenter__()
    one_line(caught.value)
