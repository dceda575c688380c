"""What only real workers can show: their processes end or stop, and heads decide races over real chains."""

import asyncio
import os
import random
import signal
from typing import Any

from esker.kvclient import Geometry, KVCacheClient, Status
from esker.tools.dev_cluster import DevCluster

MIB = 1 << 20
UNIT = 65536
GEOMETRY = Geometry(block_bytes_max=4 * UNIT, stripe_unit_bytes=UNIT)


def status_of(results: list[Any]) -> list[Status]:
    return [result.status for result in results]


def value_of(seed: int, length: int = 4 * UNIT) -> bytes:
    return random.Random(seed).randbytes(length)


async def connected(cluster: DevCluster, transport: str = "auto", namespace: str = "ns") -> KVCacheClient:
    return await KVCacheClient.connect(cluster.address, namespace, GEOMETRY, transport=transport, pool_bytes=16 * MIB)


async def test_blocks_races_and_the_ends_of_processes() -> None:
    async with (
        DevCluster(drives=4, replicas=2, capacity_bytes=256 * MIB) as cluster,
        await connected(cluster, "local") as local,
        await connected(cluster, "tcp") as tcp,
    ):
        await _every_length_over_both(local, tcp)
        await _races(local, tcp)
        await _a_killed_worker(cluster, local)
        await _a_stopped_worker(cluster, local)


async def _every_length_over_both(local: KVCacheClient, tcp: KVCacheClient) -> None:
    lengths = [1, 4095, UNIT, UNIT + 1, 3 * UNIT - 7, 4 * UNIT]
    for writer, reader in ((local, tcp), (tcp, local), (local, local)):
        keys = [os.urandom(32) for _ in lengths]
        values = [value_of(length, length) for length in lengths]
        assert status_of(await writer.put(keys, values)) == [Status.OK] * 6
        assert status_of(await writer.put(keys, values)) == [Status.EXISTS] * 6
        for buffers in (reader.pool.acquire(6), [bytearray(length) for length in lengths]):
            results = await reader.get(keys, buffers)
            assert [(each.status, each.length) for each in results] == [(Status.OK, length) for length in lengths]
            got = [
                bytes(getattr(buffer, "view", buffer)[: len(value)])
                for buffer, value in zip(buffers, values, strict=True)
            ]
            assert got == values
            for buffer in buffers:
                if not isinstance(buffer, bytearray):
                    buffer.release()
        assert await reader.match_prefix([*keys, b"no"]) == 6
        assert await reader.remove(keys) == [Status.OK] * 6
        assert await writer.match_prefix(keys) == 0


async def _races(local: KVCacheClient, tcp: KVCacheClient) -> None:
    for turn in range(12):
        key, equal = b"race-%d" % turn, turn % 2 == 0
        lengths = (4 * UNIT, 4 * UNIT if equal or turn % 4 == 1 else UNIT)
        values = [value_of(turn if equal else 2 * turn + which, length) for which, length in enumerate(lengths)]
        results = await asyncio.gather(local.put([key], [values[0]]), tcp.put([key], [values[1]]))
        outcomes = sorted(result.status.name for ((result),) in results)
        if equal:
            assert set(outcomes) <= {"OK", "EXISTS"}
        for client in (local, tcp):
            buffer = bytearray(4 * UNIT)
            (result,) = await client.get([key], [buffer])
            assert result.status is Status.OK or (result.status is Status.NOT_FOUND and not equal), outcomes
            assert result.status is not Status.OK or bytes(buffer[: result.length]) in values


async def _until_up(client: KVCacheClient, count: int) -> None:
    async with asyncio.timeout(30):
        while len(client.statistics().transports) != count:  # noqa: ASYNC110 - nothing tells when it changes
            await asyncio.sleep(0.01)


async def _a_killed_worker(cluster: DevCluster, client: KVCacheClient) -> None:
    """Reads that are under way come from the other replica, into the very same slots."""
    keys, values = [b"k%d" % number for number in range(16)], [value_of(number) for number in range(16)]
    assert status_of(await client.put(keys, values)) == [Status.OK] * 16
    slots = client.pool.acquire(16)
    running = asyncio.ensure_future(client.get(keys, slots))
    await asyncio.sleep(0)  # the requests leave
    pid = cluster.kill_worker(1)
    assert status_of(await running) == [Status.OK] * 16
    assert [bytes(slot.view) for slot in slots] == values
    assert status_of(await client.get(keys, slots)) == [Status.OK] * 16
    for slot in slots:
        slot.release()
    await cluster.restarted(pid)
    await _until_up(client, 4)
    await cluster.settled()
    more = [b"more%d" % number for number in range(16)]
    assert status_of(await client.put(more, values)) == [Status.OK] * 16
    assert client.pool.statistics().quarantined == 0


async def _a_stopped_worker(cluster: DevCluster, client: KVCacheClient) -> None:
    """Its slots stay its own, whatever becomes of the call, until it goes on."""
    keys = [b"k%d" % number for number in range(16)]
    stopped = cluster.processes()[2].pid
    os.kill(stopped, signal.SIGSTOP)
    try:
        slots = client.pool.acquire(16)
        results = await client.get(keys, slots, timeout_s=0.3)
        late = [slot for slot in slots if slot.quarantined]
        assert late
        assert {each.status for each, slot in zip(results, slots, strict=True) if slot.quarantined} == {Status.TIMEOUT}
        for slot in slots:
            slot.release()
        assert client.pool.statistics().free == client.pool.slots - len(late)
        others = client.pool.acquire(16)
        assert not {slot.offset for slot in others} & {slot.offset for slot in late}
        assert status_of(await client.get(keys, others)) == [Status.OK] * 16, "the other replicas have them all"
    finally:
        os.kill(stopped, signal.SIGCONT)
    for slot in others:
        slot.release()
    async with asyncio.timeout(30):
        while client.pool.statistics().quarantined:  # noqa: ASYNC110 - nothing tells when it changes
            await asyncio.sleep(0.01)
    assert client.pool.statistics().free == client.pool.slots
