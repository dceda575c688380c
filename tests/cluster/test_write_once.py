"""Write-once: one copy of what is put twice, and racing putters never leave a mixture."""

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from esker.kvclient import KVCacheClient, Status

from ..waiting import until
from .clusters import SINGLE, STRIPED, connect, get_all, key_of, put_all, running, value_of, view

GOOD = {Status.OK, Status.EXISTS}


async def used_bytes(cluster: object) -> list[int]:
    """What each drive has in use."""
    return [counters["used_bytes"] for counters in (await view(cluster)).counters.values()]  # type: ignore[arg-type]


async def test_what_is_put_twice_is_stored_once(tmp_path: Path) -> None:
    async with running(tmp_path) as cluster:
        for geometry in (SINGLE, STRIPED):
            async with await connect(cluster, geometry) as first, await connect(cluster, geometry) as second:
                values = {number: value_of(number, geometry.block_bytes_max - number) for number in range(30)}
                assert set((await put_all(first, values)).values()) == {Status.OK}
                used = await used_bytes(cluster)
                assert used[0] == used[1] > 0, "both replicas have everything"
                for client in (first, second):
                    assert set((await put_all(client, values)).values()) == {Status.EXISTS}
                assert await used_bytes(cluster) == used
                twice = [key_of(100), key_of(100), key_of(101), key_of(100)]
                results = await first.put(twice, [b"one", b"one", b"two", b"three"])
                assert [result.status for result in results] == [
                    Status.OK,
                    Status.EXISTS,
                    Status.OK,
                    Status.EXISTS_OTHER,
                ], "also within one call"


async def test_racing_putters_of_equal_bytes_all_succeed(tmp_path: Path) -> None:
    async with running(tmp_path) as cluster:
        for geometry in (SINGLE, STRIPED):
            async with AsyncExitStack() as stack:
                clients = [await stack.enter_async_context(await connect(cluster, geometry)) for _ in range(3)]
                for turn in range(8):
                    numbers = range(turn * 10, turn * 10 + 10)
                    values = {number: value_of(number, geometry.block_bytes_max) for number in numbers}
                    outcomes = await asyncio.gather(*(put_all(client, values) for client in clients))
                    assert {status for made in outcomes for status in made.values()} <= GOOD
                    for client in clients:
                        assert await get_all(client, numbers) == list(values.values())
                used = await used_bytes(cluster)
                for client in clients:
                    assert set((await put_all(client, values)).values()) == {Status.EXISTS}
                assert await used_bytes(cluster) == used


async def race(clients: Sequence[KVCacheClient], numbers: range) -> None:
    """Each client puts other bytes under the same keys; then each reads them twice."""
    geometry = clients[0].geometry
    values = [
        {number: value_of(number, geometry.block_bytes_max, variant) for number in numbers}
        for variant in range(len(clients))
    ]
    puts = [put_all(client, mine) for client, mine in zip(clients, values, strict=True)]
    outcomes = await asyncio.gather(*puts)
    statuses = {status for made in outcomes for status in made.values()}
    assert statuses <= GOOD | {Status.EXISTS_OTHER, Status.BUSY, Status.TIMEOUT}, statuses
    reads = [await get_all(client, numbers) for client in clients for _ in range(2)]
    for at, number in enumerate(numbers):
        candidates = [mine[number] for mine in values]
        seen = {read[at] for read in reads}
        assert seen <= {*candidates, Status.NOT_FOUND}, f"block {number} is a mixture"
        assert len(seen - {Status.NOT_FOUND}) <= 1, f"block {number} is now one, now the other"
        if geometry.block_bytes_max <= geometry.stripe_unit_bytes:
            (winner,) = [variant for variant, made in enumerate(outcomes) if made[number] is Status.OK]
            assert seen == {candidates[winner]}, "whoever was told so has won"


@pytest.mark.parametrize("transport", ["local", "tcp"])
async def test_racing_putters_of_different_bytes_leave_one_whole_or_a_miss(tmp_path: Path, transport: str) -> None:
    async with running(tmp_path) as cluster:
        for geometry in (SINGLE, STRIPED):
            async with AsyncExitStack() as stack:
                clients = [
                    await stack.enter_async_context(await connect(cluster, geometry, transport=transport))
                    for _ in range(3)
                ]
                for turn in range(12):
                    await race(clients, range(turn * 4, turn * 4 + 4))


async def test_a_key_that_ended_as_a_miss_can_be_put_again(tmp_path: Path) -> None:
    """Stripe chunks of other putters, left over, are replaced."""
    async with running(tmp_path) as cluster, await connect(cluster, STRIPED) as client:
        value, other = value_of(1, 64 * 1024), value_of(1, 64 * 1024, 1)
        assert (await put_all(client, {1: value}))[1] is Status.OK
        assert await client.remove([key_of(1)]) == [Status.OK]
        assert await get_all(client, [1]) == [Status.NOT_FOUND]
        assert (await put_all(client, {1: other}))[1] is Status.OK
        assert await get_all(client, [1]) == [other]

        async def drives_agree() -> bool:
            used = await used_bytes(cluster)
            return used[0] == used[1]

        await until(drives_agree, "both drives hold the same")
