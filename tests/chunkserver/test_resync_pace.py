"""How fast resyncs go, in virtual time."""

import asyncio
from collections.abc import Callable

import pytest

from esker.chunkserver import resync_pace
from esker.chunkserver.resync_pace import (
    AT_ONCE,
    AT_ONCE_BESIDE_CLIENTS,
    BYTES_BESIDE_CLIENTS,
    LATELY_S,
    REST_FACTOR,
    REST_S_MAX,
    Pace,
)

from ..meta import virtual_time

MIB = 1 << 20


def never() -> bool:
    return False


async def passed(pace: Pace, sizes: list[int]) -> float:
    """How long it takes to let these in, each leaving at once."""
    loop = asyncio.get_running_loop()
    begun_s = loop.time()
    for size in sizes:
        await pace.enter(size)
        pace.leave(size)
    return loop.time() - begun_s


def test_bytes_go_at_the_rate() -> None:
    async def run() -> None:
        pace = Pace(10 * MIB, 64 * MIB, never)
        assert await passed(pace, [MIB] * 21) == pytest.approx(2.0)
        await asyncio.sleep(10)
        assert await passed(pace, [MIB] * 3) == pytest.approx(0.2), "time that nobody used is not saved up"
        assert await passed(pace, [0] * 1000) == pytest.approx(0.1), "what sends nothing waits for the last only"

    virtual_time.run(run())


async def entered(pace: Pace, count: int, size: int) -> list["asyncio.Task[None]"]:
    tasks = [asyncio.ensure_future(pace.enter(size)) for _ in range(count)]
    await asyncio.sleep(1)
    return tasks


@pytest.mark.parametrize(("busy", "limit"), [(False, AT_ONCE), (True, AT_ONCE_BESIDE_CLIENTS)])
def test_few_are_under_way_at_once_and_fewer_beside_clients(busy: bool, limit: int) -> None:
    async def run() -> None:
        pace = Pace(1000 * MIB, 1000 * MIB, lambda: busy)
        tasks = await entered(pace, limit + 3, 1)
        assert sum(task.done() for task in tasks) == limit
        pace.leave(1)
        await asyncio.sleep(REST_S_MAX + 0.1)
        assert sum(task.done() for task in tasks) == limit + 1
        for _ in range(limit + 2):
            pace.leave(1)
            await asyncio.sleep(REST_S_MAX + 0.1)
        await asyncio.gather(*tasks)

    virtual_time.run(run())


def test_their_bytes_are_bounded_but_for_one_that_is_larger() -> None:
    async def run() -> None:
        pace = Pace(1000 * MIB, 10, never)
        tasks = await entered(pace, 4, 4)
        assert sum(task.done() for task in tasks) == 2
        for _ in range(2):
            pace.leave(4)
        await asyncio.gather(*tasks)
        large = asyncio.ensure_future(pace.enter(100))
        await asyncio.sleep(0.1)
        assert not large.done()
        for _ in range(2):
            pace.leave(4)
        await large

    virtual_time.run(run())


def test_beside_clients_fewer_bytes_are_under_way() -> None:
    async def run() -> None:
        pace = Pace(1000 * MIB, 1000 * MIB, lambda: True)
        tasks = await entered(pace, 4, BYTES_BESIDE_CLIENTS // 2)
        assert sum(task.done() for task in tasks) == 2
        for _ in range(4):
            pace.leave(BYTES_BESIDE_CLIENTS // 2)
            await asyncio.sleep(REST_S_MAX + 0.1)
        await asyncio.gather(*tasks)

    virtual_time.run(run())


def test_clients_that_begin_to_write_slow_it_down(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resync_pace, "AT_ONCE", 4)
    monkeypatch.setattr(resync_pace, "AT_ONCE_BESIDE_CLIENTS", 1)
    busy: list[bool] = []
    clients: Callable[[], bool] = lambda: bool(busy)  # noqa: E731

    async def run() -> None:
        pace = Pace(1000 * MIB, 1000 * MIB, clients)
        tasks = await entered(pace, 6, 1)
        assert sum(task.done() for task in tasks) == 4
        busy.append(True)
        for _ in range(3):
            pace.leave(1)
        await asyncio.sleep(0.1)
        assert sum(task.done() for task in tasks) == 4, "one is still under way"
        pace.leave(1)
        await asyncio.sleep(REST_S_MAX + 0.1)
        assert sum(task.done() for task in tasks) == 5
        pace.leave(1)
        await asyncio.gather(*tasks)

    virtual_time.run(run())


def test_beside_clients_it_rests_and_for_a_while_after_them() -> None:
    busy = [True]

    async def sent(pace: Pace, count: int, each_s: float) -> float:
        begun_s = asyncio.get_running_loop().time()
        for _ in range(count):
            await pace.enter(1)
            await asyncio.sleep(each_s)
            pace.leave(1)
        return asyncio.get_running_loop().time() - begun_s

    async def run() -> None:
        pace = Pace(1000 * MIB, 1000 * MIB, lambda: bool(busy))
        assert await sent(pace, 10, 0.1) == pytest.approx(10 * 0.1 + 9 * REST_FACTOR * 0.1, abs=0.001)
        busy.clear()
        assert await sent(pace, 1, 0.1) == pytest.approx((1 + REST_FACTOR) * 0.1, abs=0.001), "they were there just now"
        await asyncio.sleep(LATELY_S)
        assert await sent(pace, 10, 0.1) == pytest.approx(1.0, abs=0.001)
        busy.append(True)
        assert await sent(pace, 1, 60.0) == pytest.approx(60.0, abs=0.3)
        assert await sent(pace, 1, 0.1) == pytest.approx(REST_S_MAX + 0.1, abs=0.001), "rests are bounded"

    virtual_time.run(run())
