"""Reads over the same-host transport into memory that is not the pool's."""

import asyncio
import os
from typing import Any

import pytest

from esker.client import reads, staging
from esker.wire.messages import Method
from esker.wire.status import Status


def status_of(rows: list[Any]) -> list[Status]:
    return [Status(row[1]) for row in rows]


@pytest.fixture
def pwrites(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Sizes of what workers wrote into the client's memory by themselves."""
    sizes: list[int] = []
    real = os.pwrite

    def count(fd: int, data: bytes, offset: int) -> int:
        sizes.append(len(data))
        return real(fd, data, offset)

    monkeypatch.setattr("os.pwrite", count)
    return sizes


async def prepared(make_rig: Any, until: Any, **options: Any) -> Any:
    """A client whose workers know its staging memory."""
    rig = await make_rig("local", **options)
    await rig.fill([0])
    await rig.reads([0], [bytearray(65536)]).run(5)
    await until(lambda: all(len(state.channel.memory_ids) == 2 for state in rig.workers.by_drive.values()))
    return rig


async def test_the_first_reads_use_the_socket_and_later_ones_the_staging_slots(
    make_rig: Any, until: Any, pwrites: list[int]
) -> None:
    rig = await prepared(make_rig, until)
    assert pwrites == []
    numbers = list(range(1, 9))
    values = await rig.fill(numbers, 50_000)
    buffers = [bytearray(50_000) for _ in numbers]
    assert status_of(await rig.reads(numbers, buffers).run(5)) == [Status.OK] * 8
    assert buffers == values
    assert pwrites == [50_000] * 8
    assert rig.staging._pool.statistics().leased == 0


async def test_a_chunk_that_fits_the_slot_but_not_the_buffer_is_too_large(make_rig: Any, until: Any) -> None:
    rig = await prepared(make_rig, until)
    await rig.fill([1], 5000)
    buffer = bytearray(4999)
    ((_, status, length, *_),) = await rig.reads([1], [buffer]).run(5)
    assert (status, length) == (Status.TOO_LARGE, 5000)
    assert buffer == bytes(4999)


async def test_a_stopped_worker_is_replaced_and_cannot_touch_the_buffer_later(
    make_rig: Any, until: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = await prepared(make_rig, until)
    monkeypatch.setattr(reads, "ATTEMPT_S", 0.1)
    stopped = rig.cluster.workers[0]
    stopped.faults.hold |= {Method.READ, Method.STATS}
    buffer = bytearray(65536)
    assert status_of(await rig.reads([0], [buffer]).run(600)) == [Status.OK]
    pool = rig.staging._pool
    assert pool.statistics().quarantined == 1
    buffer[:] = bytes(65536)
    stopped.go_on()
    await until(lambda: pool.statistics().leased == 0)
    assert buffer == bytes(65536)


async def test_a_lost_connection_is_made_up_for_at_once_but_the_slot_waits_for_the_process(
    make_rig: Any, until: Any
) -> None:
    rig = await prepared(make_rig, until)
    for worker in rig.cluster.workers[:2]:
        worker.faults.hold.add(Method.READ)
    buffer = bytearray(65536)
    before = [worker.requests.count(Method.READ) for worker in rig.cluster.workers]
    running = asyncio.ensure_future(rig.reads([0], [buffer]).run(600))
    await until(lambda: [worker.requests.count(Method.READ) for worker in rig.cluster.workers] != before)
    first = rig.cluster.workers[0]
    dying, other = (
        rig.cluster.workers[:2] if first.requests.count(Method.READ) > before[0] else rig.cluster.workers[1::-1]
    )
    other.faults.hold.clear()
    await dying.stop()
    async with asyncio.timeout(30):
        assert status_of(await running) == [Status.OK]
    assert rig.staging._pool.statistics().quarantined == 1


async def test_what_staging_has_no_room_for_comes_through_the_socket(
    make_rig: Any, until: Any, monkeypatch: pytest.MonkeyPatch, pwrites: list[int]
) -> None:
    monkeypatch.setattr(staging, "STAGING_BYTES", 2 * 65536)
    monkeypatch.setattr(reads, "REQUEST_EXTENTS_AIM", 1)
    rig = await prepared(make_rig, until, drives=1, replicas=1)
    numbers = list(range(1, 7))
    values = await rig.fill(numbers)
    buffers = [bytearray(65536) for _ in numbers]
    assert status_of(await rig.reads(numbers, buffers).run(5)) == [Status.OK] * 6
    assert buffers == values
    assert len(pwrites) == 2


async def test_chunks_larger_than_all_of_it_are_never_staged(make_rig: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staging, "STAGING_BYTES", 65535)
    rig = await make_rig("local")
    (value,) = await rig.fill([0])
    buffer = bytearray(65536)
    assert status_of(await rig.reads([0], [buffer]).run(5)) == [Status.OK]
    assert buffer == value
    assert rig.staging._pool is None


@pytest.mark.parametrize("turns", range(4))
async def test_a_client_that_closes_lets_reads_end_that_are_coming_in(make_rig: Any, until: Any, turns: int) -> None:
    bugs: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: bugs.append(context))
    rig = await prepared(make_rig, until, drives=1, replicas=1)
    (worker,) = rig.cluster.workers
    worker.faults.hold.add(Method.READ)
    before = worker.requests.count(Method.READ)
    running = asyncio.ensure_future(rig.reads([0], [bytearray(65536)]).run(5))
    await until(lambda: worker.requests.count(Method.READ) > before)

    async def answer() -> None:
        for _ in range(turns):
            await asyncio.sleep(0)
        worker.go_on()

    await asyncio.gather(rig.aclose(), answer())
    assert status_of(await running)[0] in (Status.OK, Status.UNAVAILABLE)
    assert not bugs
