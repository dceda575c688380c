"""Values of several chunks: whole or a miss, whoever races and whatever fails."""

import asyncio
import random
from typing import Any

import pytest

from esker.client.fake import FakeChunk
from esker.kvclient import Geometry, Status
from esker.wire.messages import Method
from esker.wire.types import TargetState

UNIT = 4096
GEOMETRY = Geometry(block_bytes_max=8 * UNIT, stripe_unit_bytes=UNIT)
CHAINS = 4


def status_of(results: list[Any]) -> list[Status]:
    return [result.status for result in results]


def value_of(seed: int, length: int) -> bytes:
    return random.Random(seed).randbytes(length)


def stored(cluster: Any) -> dict[int, FakeChunk]:
    """The chunks of the only block by index, as its heads have them."""
    found = {}
    for worker in cluster.workers:
        for (chain_id, _, _, index), chunk in worker.chunks.items():
            if cluster.replicas(chain_id)[0] is worker:
                found[index] = chunk
    return found


def places(cluster: Any, index: int) -> list[tuple[Any, Any]]:
    """The workers that have chunk `index` of the only block, with its key there."""
    return [(worker, where) for worker in cluster.workers for where in worker.chunks if where[3] == index]


@pytest.mark.parametrize("transport", ["local", "tcp"])
@pytest.mark.parametrize("length", [1, UNIT - 1, UNIT, UNIT + 1, 3 * UNIT, 8 * UNIT - 5, 8 * UNIT])
async def test_every_length_comes_back(connect: Any, cluster: Any, transport: str, length: int) -> None:
    client = await connect(GEOMETRY, transport=transport)
    value = value_of(length, length)
    put_from, get_into = client.pool.acquire(2)
    put_from.view[:length] = value
    assert status_of(await client.put([b"k"], [put_from.first(length)])) == [Status.OK]
    assert len(stored(cluster)) == -(-length // UNIT)
    for buffer in (get_into, bytearray(8 * UNIT), bytearray(length)):
        (result,) = await client.get([b"k"], [buffer])
        assert (result.status, result.length) == (Status.OK, length)
        assert bytes(getattr(buffer, "view", buffer)[:length]) == value


async def test_chunks_lie_on_consecutive_chains_and_carry_the_block(connect: Any, cluster: Any) -> None:
    client = await connect(GEOMETRY)
    await client.put([b"k"], [value_of(1, 6 * UNIT + 7)])
    chains = {index: places(cluster, index)[0][1][0] for index in range(7)}
    assert [(chains[index] - chains[0]) % CHAINS for index in range(7)] == [index % CHAINS for index in range(7)]
    blocks = {chunk[3:6] for chunk in stored(cluster).values()}
    assert len(blocks) == 1
    ((block_bytes, count, put_id),) = blocks
    assert (block_bytes, count) == (6 * UNIT + 7, 7)
    assert put_id != bytes(16)


async def test_short_and_long_values_in_one_call(connect: Any) -> None:
    client = await connect(GEOMETRY)
    lengths = [10, 8 * UNIT, 5000, UNIT, 2 * UNIT]
    keys = [b"%d" % length for length in lengths]
    values = [value_of(length, length) for length in lengths]
    assert status_of(await client.put(keys, values)) == [Status.OK] * 5
    slots = client.pool.acquire(6)
    results = await client.get([*keys, b"no"], slots)
    assert [(each.status, each.length) for each in results[:5]] == [(Status.OK, length) for length in lengths]
    assert results[5].status is Status.NOT_FOUND
    assert [bytes(slot.view[:length]) for slot, length in zip(slots, lengths, strict=False)] == values
    assert await client.match_prefix([*keys, b"no"]) == 5


@pytest.mark.parametrize("room", [10, UNIT, UNIT + 1, 3 * UNIT - 1])
async def test_a_buffer_too_small_says_what_is_needed(connect: Any, room: int) -> None:
    client = await connect(GEOMETRY)
    await client.put([b"k"], [value_of(1, 3 * UNIT)])
    (result,) = await client.get([b"k"], [bytearray(room)])
    assert (result.status, result.length) == (Status.TOO_LARGE, 3 * UNIT)


async def test_a_second_put_stores_nothing_more(connect: Any, cluster: Any) -> None:
    client = await connect(GEOMETRY)
    value = value_of(1, 3 * UNIT)
    await client.put([b"k"], [value])
    before = stored(cluster)
    assert status_of(await client.put([b"k"], [value])) == [Status.EXISTS]
    for other in (value[:-1], value_of(2, 8 * UNIT), b"short"):
        assert status_of(await client.put([b"k"], [other])) == [Status.EXISTS_OTHER]
    assert stored(cluster) == before


async def test_removal_takes_every_chunk(connect: Any, cluster: Any) -> None:
    client = await connect(GEOMETRY)
    await client.put([b"k", b"l"], [value_of(1, 5 * UNIT), b"short"])
    assert await client.remove([b"k", b"l", b"no"]) == [Status.OK, Status.OK, Status.NOT_FOUND]
    assert stored(cluster) == {}


async def test_nothing_is_visible_before_chunk_0(connect: Any, cluster: Any, until: Any) -> None:
    client = await connect(GEOMETRY)
    await client.put([b"k"], [b"find the chain"])
    (first, _), _ = places(cluster, 0)
    await client.remove([b"k"])
    chain = next(number for number in range(CHAINS) if cluster.workers[number] is first)
    last = cluster.workers[(chain + 3) % CHAINS]  # the head of chunks 3 and 7
    last.faults.hold.add(Method.CREATE)
    running = asyncio.ensure_future(client.put([b"k"], [value_of(1, 8 * UNIT)]))
    await until(lambda: len(stored(cluster)) >= 4)
    assert await client.exists([b"k"]) == [False]
    assert 0 not in stored(cluster)
    last.go_on()
    assert status_of(await running) == [Status.OK]
    assert await client.exists([b"k"]) == [True]


async def test_a_put_that_does_not_get_through_is_a_miss(connect: Any, cluster: Any) -> None:
    client = await connect(GEOMETRY)
    for worker in cluster.workers[1:]:
        worker.faults.status[Method.CREATE] = Status.NO_SPACE
    value = value_of(1, 8 * UNIT)
    assert status_of(await client.put([b"k"], [value])) == [Status.NO_SPACE]
    assert status_of(await client.get([b"k"], [bytearray(8 * UNIT)])) == [Status.NOT_FOUND]
    for worker in cluster.workers:
        worker.faults.status.clear()
    assert status_of(await client.put([b"k"], [value])) == [Status.OK]


async def test_chunks_left_by_another_put_are_replaced(connect: Any, cluster: Any) -> None:
    client = await connect(GEOMETRY)
    await client.put([b"k"], [value_of(1, 4 * UNIT)])
    for worker, where in places(cluster, 0):
        del worker.chunks[where]  # as if the first put had ended before its last step
    value = value_of(2, 4 * UNIT)
    assert status_of(await client.put([b"k"], [value])) == [Status.OK]
    buffer = bytearray(4 * UNIT)
    assert status_of(await client.get([b"k"], [buffer])) == [Status.OK]
    assert buffer == value


async def test_a_put_of_the_same_bytes_repairs_a_broken_block(connect: Any, cluster: Any) -> None:
    client = await connect(GEOMETRY)
    value = value_of(1, 4 * UNIT)
    await client.put([b"k"], [value])
    for worker, where in places(cluster, 2):
        worker.chunks[where] = worker.chunks[where]._replace(put_id=b"f" * 16)
    assert status_of(await client.put([b"k"], [value])) == [Status.OK]
    buffer = bytearray(4 * UNIT)
    assert status_of(await client.get([b"k"], [buffer])) == [Status.OK]
    assert buffer == value


@pytest.mark.parametrize("damage", ["missing", "foreign"])
async def test_a_block_broken_at_every_replica_is_a_miss_and_removed(connect: Any, cluster: Any, damage: str) -> None:
    client = await connect(GEOMETRY)
    await client.put([b"k"], [value_of(1, 4 * UNIT)])
    for worker, where in places(cluster, 3):
        if damage == "missing":
            del worker.chunks[where]
        else:
            worker.chunks[where] = worker.chunks[where]._replace(put_id=b"f" * 16)
    assert status_of(await client.get([b"k"], [bytearray(8 * UNIT)])) == [Status.NOT_FOUND]
    assert await client.exists([b"k"]) == [False]
    other = value_of(2, 4 * UNIT)
    assert status_of(await client.put([b"k"], [other])) == [Status.OK]


async def test_a_chunk_that_one_replica_lost_comes_from_another(connect: Any, cluster: Any) -> None:
    client = await connect(GEOMETRY)
    value = value_of(1, 8 * UNIT)
    await client.put([b"k"], [value])
    for index in range(1, 8):
        worker, where = places(cluster, index)[index % 2]
        del worker.chunks[where]
    for _ in range(3):
        buffer = bytearray(8 * UNIT)
        assert status_of(await client.get([b"k"], [buffer])) == [Status.OK]
        assert buffer == value


@pytest.mark.parametrize("status", [Status.BUSY, Status.UNAVAILABLE, Status.CHECKSUM, Status.TIMEOUT])
async def test_without_a_definite_answer_nothing_is_removed(connect: Any, cluster: Any, status: Status) -> None:
    client = await connect(GEOMETRY)
    value = value_of(1, 2 * UNIT)
    await client.put([b"k"], [value])
    (lost, where), (doubtful, _) = places(cluster, 1)
    chunk = lost.chunks.pop(where)
    doubtful.faults.status[Method.READ] = status
    for _ in range(2):
        (result,) = await client.get([b"k"], [bytearray(2 * UNIT)], timeout_s=0.1)
        assert result.status is not Status.OK
    doubtful.faults.status.clear()
    lost.chunks[where] = chunk
    buffer = bytearray(2 * UNIT)
    assert status_of(await client.get([b"k"], [buffer])) == [Status.OK]
    assert buffer == value


async def test_a_serving_replica_that_is_down_is_no_definite_answer(connect: Any, cluster: Any) -> None:
    client = await connect(GEOMETRY, transport="tcp")
    await client.put([b"k"], [value_of(1, 2 * UNIT)])
    (lost, where), (down, _) = places(cluster, 1)
    chunk = lost.chunks.pop(where)
    await down.stop()
    assert status_of(await client.get([b"k"], [bytearray(2 * UNIT)])) != [Status.OK]
    assert len(places(cluster, 0)) == 2
    lost.chunks[where] = chunk


async def test_replicas_that_do_not_serve_give_no_definite_answer(connect: Any, cluster: Any) -> None:
    client = await connect(GEOMETRY)
    await client.put([b"k"], [value_of(1, 2 * UNIT)])
    chunks = places(cluster, 1)
    for worker, where in chunks:
        worker.chunks[where] = worker.chunks[where]._replace(put_id=b"f" * 16)
    cluster.fail_over({worker.drive_id: TargetState.LASTSRV for worker, _ in chunks})
    await client._link.routing.refresh()
    assert status_of(await client.get([b"k"], [bytearray(2 * UNIT)])) == [Status.NOT_FOUND]
    assert len(places(cluster, 0)) == 2
    cluster.fail_over({})


async def test_corrupted_chunk_0_figures_are_a_miss(connect: Any, cluster: Any) -> None:
    client = await connect(GEOMETRY)
    await client.put([b"k"], [value_of(1, 2 * UNIT)])
    for worker, where in places(cluster, 0):
        worker.chunks[where] = worker.chunks[where]._replace(block_bytes=2**60, chunk_count=2**31)
    assert status_of(await client.get([b"k"], [bytearray(8 * UNIT)])) == [Status.NOT_FOUND]


async def test_racing_putters_of_equal_bytes_both_succeed(connect: Any) -> None:
    one, two = await connect(GEOMETRY), await connect(GEOMETRY, transport="tcp")
    value = value_of(1, 8 * UNIT)
    results = await asyncio.gather(one.put([b"k"], [value]), two.put([b"k"], [value]))
    assert {result.status for ((result),) in results} <= {Status.OK, Status.EXISTS}
    buffer = bytearray(8 * UNIT)
    assert status_of(await one.get([b"k"], [buffer])) == [Status.OK]
    assert buffer == value


@pytest.mark.parametrize("seed", range(8))
async def test_racing_putters_of_different_bytes_never_leave_a_mixture(connect: Any, cluster: Any, seed: int) -> None:
    choose = random.Random(seed)
    clients = [await connect(GEOMETRY, transport=choose.choice(["local", "tcp"])) for _ in range(3)]
    values = [value_of(number, choose.choice([2, 5, 8]) * UNIT - choose.randrange(50)) for number in range(3)]
    for worker in cluster.workers:
        worker.faults.busy = choose.randrange(4)  # shuffles who comes when
    results = await asyncio.gather(
        *(client.put([b"k"], [value]) for client, value in zip(clients, values, strict=True))
    )
    winners = [value for ((result),), value in zip(results, values, strict=True) if result.status is Status.OK]
    seen = set()
    for client in clients:
        buffer = bytearray(8 * UNIT)
        (result,) = await client.get([b"k"], [buffer])
        if result.status is Status.OK:
            assert bytes(buffer[: result.length]) in values
            seen.add(bytes(buffer[: result.length]))
        else:
            assert result.status is Status.NOT_FOUND
    assert len(seen) <= 1
    assert len(winners) <= 1 or not seen
