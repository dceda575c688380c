"""The client's calls in a namespace whose values are one chunk each."""

import asyncio
import mmap
import os
from array import array
from typing import Any, cast

import numpy as np
import pytest

from esker.client import head_batch
from esker.kvclient import BufferPool, Geometry, KVCacheClient, Status, UserError
from esker.wire.errors import ConnectionFailed, RequestFailed
from esker.wire.messages import Method

GEOMETRY = Geometry(block_bytes_max=10_000)
KEYS = [b"key-%d" % number for number in range(12)]


def status_of(results: list[Any]) -> list[Status]:
    return [result.status for result in results]


def value_of(number: int, length: int = 10_000) -> bytes:
    return bytes([number + 1]) * length


@pytest.mark.parametrize("transport", ["auto", "tcp", "local"])
async def test_what_is_put_comes_back(connect: Any, transport: str) -> None:
    client = await connect(GEOMETRY, transport=transport)
    values = [value_of(number, 10_000 - 100 * number) for number in range(12)]
    assert status_of(await client.put(KEYS, values)) == [Status.OK] * 12
    slots = client.pool.acquire(12)
    results = await client.get(KEYS, slots)
    assert [(result.status, result.length) for result in results] == [(Status.OK, len(value)) for value in values]
    assert [bytes(slot.view[: len(value)]) for slot, value in zip(slots, values, strict=True)] == values
    assert await client.match_prefix([*KEYS, b"no", KEYS[0]]) == 12
    assert await client.match_prefix([b"no", *KEYS]) == 0
    assert await client.exists([KEYS[1], b"no", KEYS[0]]) == [True, False, True]


async def test_every_kind_of_memory_is_taken(connect: Any) -> None:
    client = await connect(GEOMETRY)
    (slot,) = client.pool.acquire(1)
    slot.view[:4] = b"slot"
    mapped = mmap.mmap(-1, 4096)
    values = [
        b"bytes",
        bytearray(b"bytearray"),
        memoryview(b"-view-")[1:-1],
        array("I", [1, 2, 3]),
        np.arange(6, dtype=np.float32).reshape(2, 3),
        np.zeros(3, dtype=[("a", "u1"), ("b", "<f4")]),
        mapped,
        slot.first(4),
    ]
    keys = KEYS[: len(values)]
    assert status_of(await client.put(keys, values)) == [Status.OK] * len(values)
    buffers = [
        bytearray(5),
        memoryview(bytearray(9)),
        np.zeros(4, dtype=np.uint8),
        array("I", bytes(12)),
        np.zeros((2, 3), dtype=np.float32),
        np.ones(3, dtype=[("a", "u1"), ("b", "<f4")]),
        mapped,
        client.pool.acquire(1)[0],
    ]
    assert status_of(await client.get(keys, buffers)) == [Status.OK] * len(values)
    assert bytes(buffers[0]) == b"bytes"
    assert bytes(buffers[2]) == b"view"
    assert buffers[3] == values[3]
    assert np.array_equal(buffers[4], values[4])
    assert np.array_equal(buffers[5], values[5])
    assert bytes(buffers[7].view[:4]) == b"slot"
    mapped.close()


async def test_tensors_of_the_cpu_are_memory_whatever_their_type(connect: Any) -> None:
    torch = pytest.importorskip("torch")
    client = await connect(GEOMETRY)
    value = torch.arange(1000, dtype=torch.float32).to(torch.bfloat16).reshape(10, 100)
    buffer = torch.zeros(10, 100, dtype=torch.bfloat16)
    assert status_of(await client.put([b"k"], [value])) == [Status.OK]
    assert (await client.get([b"k"], [buffer]))[0].length == 2000
    assert torch.equal(value, buffer)
    with pytest.raises(UserError, match="buffer 0 is not contiguous"):
        await client.get([b"k"], [buffer[:, 1]])
    with pytest.raises(UserError, match="value 0 is a tensor on meta"):
        await client.put([b"k"], [value.to("meta")])


async def test_a_bare_slot_stands_for_the_longest_value(connect: Any) -> None:
    client = await connect(GEOMETRY)
    (slot,) = client.pool.acquire(1)
    assert client.pool.slot_bytes == 12_288
    await client.put([b"k"], [slot])
    assert (await client.get([b"k"], [slot]))[0].length == 10_000


async def test_a_part_of_a_slot_is_a_buffer_of_that_length(connect: Any) -> None:
    client = await connect(GEOMETRY, transport="local")
    (slot,) = client.pool.acquire(1)
    slot.view[:] = b"-" * len(slot.view)
    await client.put([b"k"], [b"x" * 100])
    (enough,) = await client.get([b"k"], [slot.first(100)])
    assert (enough.status, bytes(slot.view[98:102])) == (Status.OK, b"xx--")
    (short,) = await client.get([b"k"], [slot.first(99)])
    assert (short.status, short.length) == (Status.TOO_LARGE, 100)


async def test_a_put_is_write_once(connect: Any, cluster: Any) -> None:
    client = await connect(GEOMETRY)
    assert status_of(await client.put([b"k"], [b"first"])) == [Status.OK]
    stored = sum(len(worker.chunks) for worker in cluster.workers)
    assert status_of(await client.put([b"k"], [b"first"])) == [Status.EXISTS]
    assert status_of(await client.put([b"k"], [b"other"])) == [Status.EXISTS_OTHER]
    assert sum(len(worker.chunks) for worker in cluster.workers) == stored == 2
    buffer = bytearray(10)
    await client.get([b"k"], [buffer])
    assert buffer[:5] == b"first"


async def test_a_key_twice_in_one_call(connect: Any) -> None:
    client = await connect(GEOMETRY)
    results = await client.put([b"a", b"b", b"a", b"a"], [b"1", b"2", b"1", b"3"])
    assert status_of(results) == [Status.OK, Status.OK, Status.EXISTS, Status.EXISTS_OTHER]
    buffers = [bytearray(1), bytearray(1)]
    assert status_of(await client.get([b"a", b"a"], buffers)) == [Status.OK] * 2
    assert buffers == [b"1", b"1"]


async def test_removed_blocks_are_gone_and_can_be_put_again(connect: Any) -> None:
    client = await connect(GEOMETRY)
    await client.put(KEYS[:2], [b"1", b"2"])
    assert await client.remove([KEYS[0], b"no"]) == [Status.OK, Status.NOT_FOUND]
    assert await client.exists(KEYS[:2]) == [False, True]
    assert status_of(await client.get(KEYS[:1], [bytearray(1)])) == [Status.NOT_FOUND]
    assert status_of(await client.put(KEYS[:1], [b"other"])) == [Status.OK]


async def test_empty_calls_are_fine(connect: Any) -> None:
    client = await connect(GEOMETRY)
    assert await client.put([], []) == []
    assert await client.get([], []) == []
    assert await client.exists([]) == []
    assert await client.match_prefix([]) == 0
    assert await client.remove([]) == []


async def test_namespaces_do_not_see_each_other(connect: Any) -> None:
    one, two = await connect(GEOMETRY, "one"), await connect(GEOMETRY, "two")
    await one.put([b"k"], [b"1"])
    assert await two.exists([b"k"]) == [False]
    assert await (await connect(GEOMETRY, "one")).exists([b"k"]) == [True]


@pytest.mark.parametrize(
    ("keys", "values", "message"),
    [
        ([b"k"], [], "1 keys but 0 values"),
        ([b""], [b"v"], "key 0 has 0 bytes; allowed: 1 to 256"),
        ([b"k", b"x" * 257], [b"v", b"v"], "key 1 has 257 bytes"),
        (["k"], [b"v"], "keys are bytes"),
        ([3], [b"v"], "keys are bytes"),
        ([b"k"], [b""], "value 0 is empty"),
        ([b"k", b"l"], [b"v", bytes(10_001)], "value 1 has 10001 bytes; the namespace's block_bytes_max is 10000"),
        ([b"k"], [memoryview(b"abcd")[::2]], "value 0 is not contiguous"),
        ([b"k"], [np.zeros((4, 4))[:, 1]], "value 0 is not contiguous"),
        ([b"k"], ["text"], "value 0 is a str"),
        ([b"k"], [None], "value 0 is a NoneType"),
    ],
)
async def test_bad_values_are_refused_before_anything_is_sent(
    connect: Any, cluster: Any, keys: Any, values: Any, message: str
) -> None:
    client = await connect(GEOMETRY)
    with pytest.raises(UserError, match=message):
        await client.put(keys, values)
    assert not any(Method.CREATE in worker.requests for worker in cluster.workers)


@pytest.mark.parametrize(
    ("buffer", "message"),
    [
        (b"readonly", "buffer 0 is read-only"),
        (memoryview(bytearray(8))[::2], "buffer 0 is not contiguous"),
        (bytearray(), "buffer 0 is empty"),
        (5, "buffer 0 is a int"),
    ],
)
async def test_bad_buffers_are_refused_before_anything_is_sent(
    connect: Any, cluster: Any, buffer: Any, message: str
) -> None:
    client = await connect(GEOMETRY)
    with pytest.raises(UserError, match=message):
        await client.get([b"k"], [buffer])
    assert not any(Method.READ in worker.requests for worker in cluster.workers)


async def test_a_released_slot_is_refused_and_others_are_not_touched(connect: Any) -> None:
    client = await connect(GEOMETRY)
    one, two = client.pool.acquire(2)
    two.release()
    with pytest.raises(UserError, match="released"):
        await client.get([b"a", b"b"], [one, two])
    one.release()
    assert client.pool.statistics().free == client.pool.slots


async def test_one_slot_cannot_take_two_blocks(connect: Any) -> None:
    client = await connect(GEOMETRY)
    (slot,) = client.pool.acquire(1)
    with pytest.raises(UserError, match="in use"):
        await client.get([b"a", b"b"], [slot, slot])
    assert status_of(await client.put([b"a", b"b"], [slot, slot])) == [Status.OK] * 2


async def test_a_slot_released_during_a_call_comes_back_after_it(connect: Any, cluster: Any, until: Any) -> None:
    client = await connect(GEOMETRY, transport="local")
    await client.put([b"k"], [b"v"])
    for worker in cluster.workers:
        worker.faults.hold.add(Method.READ)
    (slot,) = client.pool.acquire(1)
    running = asyncio.ensure_future(client.get([b"k"], [slot]))
    await until(lambda: any(Method.READ in worker.requests for worker in cluster.workers))
    slot.release()
    assert client.pool.statistics().free == client.pool.slots - 1
    for worker in cluster.workers:
        worker.go_on()
    assert status_of(await running) == [Status.OK]
    assert client.pool.statistics().free == client.pool.slots


async def test_runs_are_placed_together_and_need_their_anchor(connect: Any, cluster: Any) -> None:
    client = await connect(Geometry(block_bytes_max=100, run_blocks=4), "runs")
    keys = [b"%d" % number for number in range(8)]
    await client.put(keys, [b"v"] * 8)
    chains = [{where[0] for worker in cluster.workers for where in worker.chunks}]
    assert len(chains[0]) <= 2, "two runs lie on two chains at most"
    assert await client.match_prefix(keys[4:], start=4) == 4
    assert await client.match_prefix(keys[2:], start=2, anchor=keys[0]) == 6
    with pytest.raises(UserError, match="block 2 lies inside a run of 4 blocks"):
        await client.match_prefix(keys[2:], start=2)


async def test_another_geometry_is_refused_with_both(connect: Any) -> None:
    await connect(GEOMETRY)
    with pytest.raises(UserError, match=r"10000.*20000"):
        await connect(Geometry(block_bytes_max=20_000))


async def test_a_cluster_that_is_not_ready_is_waited_for_within_the_deadline(connect: Any, cluster: Any) -> None:
    cluster.namespaces.not_ready = 1
    client = await connect(GEOMETRY)
    assert status_of(await client.put([b"k"], [b"v"])) == [Status.OK]
    cluster.namespaces.not_ready = 1000
    with pytest.raises(RequestFailed, match="2 of 4 drives have joined"):
        await connect(GEOMETRY, timeout_s=0.5)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"cluster": "nowhere"}, "cluster address 'nowhere'; write host:port"),
        ({"geometry": Geometry(block_bytes_max=0)}, "block_bytes_max is 0"),
        ({"geometry": Geometry(block_bytes_max=100, stripe_unit_bytes=5000)}, "stripe_unit_bytes is 5000"),
        ({"transport": "rdma"}, "transport is 'rdma'; allowed: auto, tcp, local"),
        ({"pool_bytes": 100}, "a pool of 100 bytes has no room for a block of 10000 bytes"),
    ],
)
async def test_bad_arguments_are_refused(cluster: Any, arguments: Any, message: str) -> None:
    given = {"cluster": cluster.address, "namespace": "ns", "geometry": GEOMETRY, **arguments}
    with pytest.raises(UserError, match=message):
        await KVCacheClient.connect(**given)


async def test_no_metadata_server_is_a_bounded_wait_that_says_where_it_looked() -> None:
    with pytest.raises(ConnectionFailed, match=r"within 0\.0\d+ s; looked at .*127\.0\.0\.1:1"):
        await KVCacheClient.connect("127.0.0.1:1,localhost:1", "ns", GEOMETRY, timeout_s=0.05)


async def test_a_closed_client_refuses_calls(connect: Any) -> None:
    client = await connect(GEOMETRY)
    await client.aclose()
    await client.aclose()
    for call in (client.put([b"k"], [b"v"]), client.get([b"k"], [bytearray(1)]), client.match_prefix([b"k"])):
        with pytest.raises(UserError, match="closed"):
            await call


async def test_a_given_pool_outlives_its_clients(connect: Any) -> None:
    pool = BufferPool(10_000, 2)
    for namespace in ("one", "two"):
        client = await connect(GEOMETRY, namespace, pool=pool)
        slots = pool.acquire(2)
        assert status_of(await client.put([b"a", b"b"], slots)) == [Status.OK] * 2
        for slot in slots:
            slot.release()
        await client.aclose()
    assert pool.statistics().free == 2
    pool.close()


async def test_closing_leaves_no_descriptor(connect: Any, until: Any) -> None:
    before = len(os.listdir("/proc/self/fd"))
    client = await connect(GEOMETRY)
    await client.put([b"k"], [b"v"])
    await client.aclose()
    await until(lambda: len(os.listdir("/proc/self/fd")) == before)  # the servers' ends close a moment later


async def test_statistics_tell_outcomes_and_drives_apart(connect: Any) -> None:
    client = await connect(GEOMETRY)
    await client.put([*KEYS, KEYS[0]], [b"x" * 1000] * 13)
    await client.get([*KEYS, b"no"], [bytearray(1000) for _ in range(13)])
    await client.get([KEYS[0]], [bytearray(1)])
    await client.exists([KEYS[0], b"no"])
    await client.remove([KEYS[0]])
    statistics = client.statistics()
    assert statistics.counters == {
        "get_not_found": 1,
        "get_ok": 12,
        "get_too_large": 1,
        "lookup_hits": 1,
        "lookup_keys": 2,
        "put_exists": 1,
        "put_ok": 12,
        "remove_ok": 1,
    }
    assert sum(statistics.per_drive_read_bytes.values()) == 12_000
    assert sum(statistics.per_drive_written_bytes.values()) == 12_000
    assert set(statistics.transports.values()) == {"local"}


async def test_the_data_path_needs_no_metadata_server(connect: Any, cluster: Any) -> None:
    client = await connect(GEOMETRY)
    await cluster._meta.aclose()
    assert status_of(await client.put(KEYS, [b"v"] * 12)) == [Status.OK] * 12
    assert await client.match_prefix(KEYS) == 12
    assert status_of(await client.get(KEYS, client.pool.acquire(12))) == [Status.OK] * 12


async def test_a_worker_down_costs_puts_but_no_hits(
    connect: Any, cluster: Any, until: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(head_batch, "FAILOVER_S", 0.2)
    client = await connect(GEOMETRY, transport="tcp")
    await client.put(KEYS, [b"v"] * 12)
    await cluster.workers[0].stop()
    await until(lambda: "drive0" not in client.statistics().transports)
    assert await client.match_prefix(KEYS) == 12
    assert status_of(await client.get(KEYS, client.pool.acquire(12))) == [Status.OK] * 12
    keys = [b"new-%d" % number for number in range(40)]
    outcome = set(status_of(await client.put(keys, [b"v"] * 40)))
    assert outcome == {Status.OK, Status.UNAVAILABLE}
    await cluster.workers[0].start()
    cluster.new_map()
    await until(lambda: len(client.statistics().transports) == 4)
    assert set(status_of(await client.put(keys, [b"v"] * 40))) == {Status.OK, Status.EXISTS}


async def test_a_status_that_only_newer_workers_know_is_an_internal_error(connect: Any, cluster: Any) -> None:
    client = await connect(GEOMETRY)
    await client.put([b"a"], [b"value"])
    for worker in cluster.workers:
        worker.faults.status |= dict.fromkeys((Method.READ, Method.CREATE, Method.REMOVE), cast(Status, 999))
    assert [result.status for result in await client.put([b"b"], [b"value"])] == [Status.INTERNAL]
    assert [result.status for result in await client.get([b"a"], [bytearray(5)])] == [Status.INTERNAL]
    assert await client.remove([b"a"]) == [Status.INTERNAL]
