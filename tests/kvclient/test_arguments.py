"""Every wrong argument is the caller's own error, in words, before anything is sent."""

import asyncio
import math
from typing import Any

import numpy as np
import pytest

from esker.client.arguments import TIMEOUT_S_MAX, checked_timeout_s
from esker.kvclient import BufferPool, Geometry, KVCacheClient, Status, UserError, prefix_keys

GEOMETRY = Geometry(block_bytes_max=4096)


def closed_pool() -> BufferPool:
    pool = BufferPool(4096, 1)
    pool.close()
    return pool


@pytest.mark.parametrize(
    ("given", "taken"), [(None, 7.0), (1, 1.0), (np.float32(0.5), 0.5), (math.inf, TIMEOUT_S_MAX), (10**400, 86_400.0)]
)
def test_timeouts_are_bounded(given: Any, taken: float) -> None:
    assert checked_timeout_s(given, 7.0) == taken


@pytest.mark.parametrize("timeout_s", [0, -1, math.nan, -math.inf, "5", True, [1]])
async def test_timeouts_that_are_none_are_refused_by_every_call(connect: Any, timeout_s: Any) -> None:
    client = await connect(GEOMETRY)
    for call in (
        client.put([b"k"], [b"v"], timeout_s=timeout_s),
        client.get([b"k"], [bytearray(1)], timeout_s=timeout_s),
        client.exists([b"k"], timeout_s=timeout_s),
        client.match_prefix([b"k"], timeout_s=timeout_s),
        client.remove([b"k"], timeout_s=timeout_s),
        connect(GEOMETRY, timeout_s=timeout_s),
    ):
        with pytest.raises(UserError, match="timeout_s is"):
            await call


async def test_an_endless_timeout_is_a_long_one(connect: Any) -> None:
    client = await connect(GEOMETRY, timeout_s=math.inf)
    assert (await client.put([b"k"], [b"v"], timeout_s=math.inf))[0].status is Status.OK
    assert await client.exists([b"k"], timeout_s=1e300) == [True]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"cluster": 5}, "cluster is a int; pass a str"),
        ({"cluster": "h\udc80:1"}, "cluster .* is not valid Unicode"),
        ({"cluster": "h:" + "9" * 5000}, "write host:port"),
        ({"namespace": None}, "namespace is a NoneType"),
        ({"namespace": "\udc80"}, "namespace .* is not valid Unicode"),
        ({"geometry": 4096}, "geometry is a int; pass a Geometry"),
        ({"geometry": Geometry(block_bytes_max="4k")}, "block_bytes_max is a str; pass an int"),  # type: ignore[arg-type]
        ({"geometry": Geometry(block_bytes_max=4096, model="\udc80")}, "model .* is not valid Unicode"),
        ({"geometry": Geometry(block_bytes_max=4096, block_tokens=1 << 64)}, "block_tokens is"),
        ({"pool_bytes": "1G"}, "pool_bytes is a str; pass an int"),
        ({"pool_bytes": 1e9}, "pool_bytes is a float"),
        ({"pool": bytearray(4096)}, "pool is a bytearray; pass a BufferPool"),
        ({"pool": closed_pool()}, "the pool is closed"),
    ],
)
async def test_connecting_with_wrong_arguments(cluster: Any, arguments: Any, message: str) -> None:
    lost: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: lost.append(context))
    given = {"cluster": cluster.address, "namespace": "ns", "geometry": GEOMETRY, **arguments}
    with pytest.raises(UserError, match=message):
        await KVCacheClient.connect(**given)
    assert lost == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"keys": None}, "keys are"),
        ({"keys": [b"a", "b"]}, "keys are bytes"),
        ({"keys": [b"a", None]}, "keys are bytes"),
        ({"keys": b"ab"}, "keys are bytes"),
        ({"start": "0"}, "start is a str; pass an int"),
        ({"start": 1.0}, "start is a float"),
        ({"start": -1}, "start is -1"),
        ({"anchor": "a"}, "anchor is a key"),
        ({"anchor": b""}, "anchor is a key"),
    ],
)
async def test_where_blocks_are_to_be_found(connect: Any, arguments: Any, message: str) -> None:
    client = await connect(GEOMETRY)
    given = {"keys": [b"a", b"b"], **arguments}
    for call in (
        client.exists(**given),
        client.put(values=[b"v", b"w"], **given),
        client.get(buffers=[bytearray(1), bytearray(1)], **given),
        client.remove(**given),
    ):
        with pytest.raises(UserError, match=message):
            await call


async def test_values_that_are_no_list(connect: Any) -> None:
    client = await connect(GEOMETRY)
    with pytest.raises(UserError, match="values are a NoneType"):
        await client.put([b"k"], None)
    with pytest.raises(UserError, match="buffers are a generator"):
        await client.get([b"k"], (bytearray(1) for _ in range(1)))


async def test_figures_of_numpy_and_bytearrays_are_fine(connect: Any) -> None:
    client = await connect(Geometry(block_bytes_max=np.int64(4096)), pool_bytes=np.int64(1 << 16))  # type: ignore[arg-type]
    assert (await client.put([bytearray(b"k")], [b"v"], start=np.int64(0)))[0].status is Status.OK
    assert await client.exists([b"k"]) == [True]


async def test_memory_that_was_given_back(connect: Any) -> None:
    client = await connect(GEOMETRY)
    (slot,) = client.pool.acquire(1)
    part = slot.first(10)
    view = memoryview(bytearray(4))
    view.release()
    slot.release()
    for value in (slot, part, view):
        with pytest.raises(UserError, match="released"):
            await client.put([b"k"], [value])
        with pytest.raises(UserError, match="released"):
            await client.get([b"k"], [value])
    with pytest.raises(UserError, match="released"):
        slot.first(10)
    assert client.pool.statistics().free == client.pool.slots


async def test_slots_of_a_closed_pool(connect: Any) -> None:
    client = await connect(GEOMETRY)
    pool = BufferPool(4096, 1)
    (slot,) = pool.acquire(1)
    pool.close()
    with pytest.raises(UserError, match="the pool is closed"):
        await client.get([b"k"], [slot])


def test_pools_of_wrong_figures() -> None:
    with pytest.raises(UserError, match="slot_bytes is a str"):
        BufferPool("4k", 1)  # type: ignore[arg-type]
    pool = BufferPool(4096, 1)
    with pytest.raises(UserError, match="count is a NoneType"):
        pool.acquire(None)  # type: ignore[arg-type]
    pool.close()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [((5, 1, b"s"), "token_ids are a int"), (([1], "1", b"s"), "block_tokens is a str"), (([1], 1, "s"), "salt is a")],
)
def test_prefixes_of_wrong_arguments(arguments: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        prefix_keys(*arguments)
