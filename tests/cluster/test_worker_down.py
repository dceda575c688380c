"""While a worker is down: reads go to the other replica, puts and lookups end in their budgets, and it all goes on."""

import asyncio
import os
import signal
from pathlib import Path

import pytest

from esker.kvclient import KVCacheClient, Status

from ..waiting import until
from .clusters import (
    SINGLE,
    STRIPED,
    connect,
    down,
    get_all,
    key_of,
    put_all,
    put_through,
    running,
    stopped,
    value_of,
    worker_pid,
)

BUDGET_S = 3.0
GENEROUS_S = 40.0
"""Within this a call must have ended that has a budget of `BUDGET_S`."""
FAILED_IN_TIME = {Status.UNAVAILABLE, Status.TIMEOUT}


async def everything_goes_on(client: KVCacheClient, values: dict[int, bytes], fresh: int) -> None:
    """Waits until puts, gets and lookups work as if nothing had been."""

    async def put() -> bool:
        numbers = {number: value_of(number, 5000) for number in range(fresh, fresh + 20)}
        return set((await put_all(client, numbers)).values()) <= {Status.OK, Status.EXISTS}

    await until(put, "puts work again")
    assert await get_all(client, list(values)) == list(values.values())
    assert all(await client.exists([key_of(number) for number in values]))


@pytest.mark.parametrize("geometry", [SINGLE, STRIPED])
async def test_a_dead_worker(tmp_path: Path, geometry: object) -> None:
    values = {number: value_of(number, geometry.block_bytes_max) for number in range(40)}
    keys = [key_of(number) for number in values]
    async with running(tmp_path) as cluster, await connect(cluster, geometry) as client:
        assert set((await put_all(client, values)).values()) == {Status.OK}
        with down(cluster, 0) as pid:
            async with asyncio.timeout(GENEROUS_S):
                assert await get_all(client, list(values), timeout_s=BUDGET_S) == list(values.values())
                assert await client.exists(keys, timeout_s=BUDGET_S) == [True] * len(keys)
                assert await client.match_prefix([*keys, b"absent"], timeout_s=BUDGET_S) == len(keys)
                fresh = {number: value_of(number, 5000) for number in range(100, 120)}
                assert set((await put_all(client, fresh, timeout_s=0.2)).values()) <= FAILED_IN_TIME
                await put_through(client, fresh)  # its chains go on without it
                assert set(await client.remove(keys[:3], timeout_s=BUDGET_S)) == {Status.OK}
            async with await connect(cluster, geometry) as newcomer:
                assert await get_all(newcomer, list(values)[3:], timeout_s=BUDGET_S) == list(values.values())[3:]
            counters = client.statistics().counters
            assert counters["get_ok"] == 40
        await cluster.restarted(pid)
        await everything_goes_on(client, dict(list(values.items())[3:]), 100)
        assert client.statistics().counters["get_ok"] == 77


async def test_without_any_replica_calls_end_in_their_budgets(tmp_path: Path) -> None:
    values = {number: value_of(number, 16384) for number in range(10)}
    async with running(tmp_path) as cluster, await connect(cluster) as client:
        assert set((await put_all(client, values)).values()) == {Status.OK}
        with down(cluster, 0) as first, down(cluster, 1) as second:
            async with asyncio.timeout(GENEROUS_S):
                assert set(await get_all(client, list(values), timeout_s=BUDGET_S)) <= FAILED_IN_TIME
                assert await client.match_prefix([key_of(0)], timeout_s=BUDGET_S) == 0
                assert set((await put_all(client, values, timeout_s=BUDGET_S)).values()) <= FAILED_IN_TIME
        for pid in (first, second):
            await cluster.restarted(pid)
        await everything_goes_on(client, values, 100)


async def test_a_worker_that_hangs(tmp_path: Path) -> None:
    """It keeps its connections and answers nothing: only deadlines tell."""
    values = {number: value_of(number, 16384) for number in range(40)}
    keys = [key_of(number) for number in values]
    async with running(tmp_path) as cluster, await connect(cluster) as client:
        assert set((await put_all(client, values)).values()) == {Status.OK}
        with stopped(worker_pid(cluster, 1)):
            async with asyncio.timeout(GENEROUS_S):
                assert await get_all(client, list(values), timeout_s=BUDGET_S) == list(values.values())
                assert await client.exists(keys, timeout_s=BUDGET_S) == [True] * len(keys)
                fresh = {number: value_of(number, 5000) for number in range(100, 110)}
                await put_through(client, fresh)  # its chains go on without it
        await everything_goes_on(client, values, 200)


async def test_a_worker_that_hangs_with_reads_into_shared_memory_under_way(tmp_path: Path) -> None:
    """Slots that the hanging worker may still write into are kept; those are read through others, right."""
    values = {number: value_of(number, 16384) for number in range(40)}
    async with running(tmp_path) as cluster, await connect(cluster, transport="local") as client:
        assert set((await put_all(client, values)).values()) == {Status.OK}
        slots = client.pool.acquire(40)
        keys = [key_of(number) for number in values]
        with stopped(worker_pid(cluster, 0)):
            async with asyncio.timeout(GENEROUS_S):
                results = await client.get(keys, slots, timeout_s=BUDGET_S)
            statuses = [result.status for result in results]
            assert set(statuses) <= {Status.OK, Status.TIMEOUT}
            for slot, status, value in zip(slots, statuses, values.values(), strict=True):
                assert slot.quarantined == (status is Status.TIMEOUT)
                if status is Status.OK:
                    assert slot.view[: len(value)] == value
        await until(lambda: client.pool.statistics().quarantined == 0, "the worker let go")
        results = await client.get(keys, slots)
        assert {result.status for result in results} == {Status.OK}
        for slot, value in zip(slots, values.values(), strict=True):
            assert slot.view[: len(value)] == value
            slot.release()


async def test_a_dead_metadata_server_stops_no_data(tmp_path: Path) -> None:
    values = {number: value_of(number, 16384) for number in range(20)}
    async with running(tmp_path) as cluster, await connect(cluster) as client:
        assert set((await put_all(client, dict.fromkeys(range(60, 80), b"x"))).values()) == {Status.OK}
        (meta,) = [process.pid for process in cluster.processes() if process.role == "meta"]
        os.kill(meta, signal.SIGSTOP)
        try:
            assert set((await put_all(client, values)).values()) == {Status.OK}
            assert await get_all(client, list(values)) == list(values.values())
            assert await client.match_prefix([key_of(number) for number in values]) == len(values)
        finally:
            os.kill(meta, signal.SIGCONT)
        pid = cluster.kill_meta()
        assert await get_all(client, list(values)) == list(values.values())
        assert set((await put_all(client, {50: b"while it is away"})).values()) == {Status.OK}
        await cluster.restarted(pid)
        async with await connect(cluster) as newcomer:
            assert await get_all(newcomer, [50]) == [b"while it is away"]
