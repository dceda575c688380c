"""Changes of mutable chunks through a client: once each, unknown only where it must be, over both transports."""

import asyncio
from typing import Any, cast

import pytest

from esker.client.buffers import BufferPool
from esker.client.fake import FakeCluster
from esker.client.mutable import ChangeResult, ChunkClient, ChunkRead, ChunkRemove, ChunkTruncate, ChunkWrite
from esker.client.mutable.channels import CHANNELS_MAX
from esker.client.mutable.types import checked_changes
from esker.wire.errors import ConnectionFailed, RequestFailed, UserError
from esker.wire.messages import Method
from esker.wire.status import Status
from esker.wire.types import TargetState

from .chunks import OBJECT, Connect, content, read, write


@pytest.mark.parametrize("transport", ["tcp", "local"])
async def test_writes_truncations_and_removals(connect: Connect, transport: str) -> None:
    client = await connect(transport)
    assert (await read(client, 0)).status is Status.NOT_FOUND
    assert await client.write([write(0, 3, b"abc"), write(1, 0, b"x" * 200_000)]) == [
        ChangeResult(Status.OK, 1, 6),
        ChangeResult(Status.OK, 2, 200_000),
    ]
    assert await content(client, 0) == b"\0\0\0abc"
    assert await content(client, 1) == b"x" * 200_000
    (result,) = await client.write([ChunkTruncate(OBJECT, 0, 4, truncate_version=7)])
    assert result == ChangeResult(Status.OK, 3, 4)
    (late,) = await client.write([write(0, 0, b"late", truncate_version=6)])
    assert late.status is Status.CONDITION
    assert await content(client, 0) == b"\0\0\0a"
    assert (await client.write([write(0, 1, b"bc", truncate_version=7)]))[0].status is Status.OK
    assert await content(client, 0) == b"\0bca"
    stats = await client.stat([(OBJECT, 0), (OBJECT, 1), (OBJECT, 2)])
    assert [(each.status, each.length, each.truncate_version) for each in stats] == [
        (Status.OK, 4, 7),
        (Status.OK, 200_000, 0),
        (Status.NOT_FOUND, 0, 0),
    ]
    assert (await client.write([ChunkRemove(OBJECT, 0)]))[0].status is Status.OK
    assert (await client.write([ChunkRemove(OBJECT, 0)]))[0].status is Status.NOT_FOUND
    assert (await read(client, 0)).status is Status.NOT_FOUND
    assert client.statistics().counters["change_condition"] == 1
    assert client.statistics().counters["read_not_found"] == 2


async def test_data_in_slots_is_taken_by_workers_of_this_host(cluster: FakeCluster, connect: Connect) -> None:
    pool = BufferPool(65536, 4)
    client = await connect("local", pool=pool)
    first, second = pool.acquire(2)
    first.view[:] = b"1" * 65536
    second.view[:5] = b"22222"
    changes = [write(0, 0, first), write(4, 1, second.first(5)), ChunkTruncate(OBJECT, 4, 9, 1), write(8, 0, b"own")]
    results = await client.write(changes)
    assert {result.status for result in results} == {Status.OK}
    assert await content(client, 0) == b"1" * 65536
    assert b"22222" in await content(client, 4)
    assert await content(client, 8) == b"own"
    into = pool.acquire(1)[0]
    (result,) = await client.read([ChunkRead(OBJECT, 0, 5, 100, into)])
    assert result.data == b"1" * 100
    assert into.view[:100] == b"1" * 100
    for slot in (first, second, into):
        slot.release()
    await client.aclose()
    pool.close()


async def test_chunks_of_an_object_spread_over_all_heads(cluster: FakeCluster, connect: Connect) -> None:
    client = await connect()
    await client.write([write(index, 0, b"x") for index in range(4)])
    assert [worker.requests.count(Method.WRITE) for worker in cluster.workers] == [1, 1, 1, 1]


async def test_a_write_whose_answer_says_another_chain_version_is_done_once(
    cluster: FakeCluster, connect: Connect
) -> None:
    client = await connect()
    for worker in cluster.workers:
        worker.faults.unfinished = 3
    (result,) = await client.write([write(0, 0, b"x")])
    assert result.status is Status.OK
    assert cluster.mutable.applied == 1
    assert sum(worker.requests.count(Method.WRITE) for worker in cluster.workers) == 4


async def test_a_head_that_dies_with_the_answer_is_followed_by_the_next_one(
    cluster: FakeCluster, connect: Connect, until: Any
) -> None:
    client = await connect()
    (first,) = await client.write([write(0, 0, b"first")])
    head = next(worker for worker in cluster.workers if Method.WRITE in worker.requests)
    head.faults.unfinished = 1
    for worker in cluster.workers:
        worker.faults.hold.add(Method.READ_RANGE)

    async def die() -> None:
        await until(lambda: head.requests.count(Method.WRITE) == 2)
        await head.stop()
        cluster.fail_over({head.drive_id: TargetState.OFFLINE})

    writing = asyncio.create_task(client.write([write(0, 0, b"second")]))
    await die()
    (second,) = await writing
    assert second.status is Status.OK
    assert second.version > first.version
    assert cluster.mutable.applied == 2
    for worker in cluster.workers:
        worker.go_on()
    assert await content(client, 0) == b"second"


async def test_a_write_that_nobody_answers_is_unknown_and_its_channel_is_used_no_more(
    cluster: FakeCluster, connect: Connect
) -> None:
    client = await connect()
    for worker in cluster.workers:
        worker.faults.hold.add(Method.WRITE)
    (result,) = await client.write([write(0, 0, b"late")], timeout_s=0.05)
    assert result.status is Status.TIMEOUT
    for worker in cluster.workers:
        worker.go_on()
    (result,) = await client.write([write(0, 0, b"next")])
    assert result.status is Status.OK
    assert [channel for _, _, channel in cluster.mutable.channels] == [0, 1]
    (again,) = await client.write([write(0, 0, b"more")])
    assert again.status is Status.OK
    assert sorted(row[0] for row in cluster.mutable.channels.values()) == [1, 2]


async def test_a_write_that_was_never_sent_failed_for_good(cluster: FakeCluster, connect: Connect) -> None:
    client = await connect()
    cluster.fail_over({worker.drive_id: TargetState.OFFLINE for worker in cluster.workers})
    await client._link.routing.refresh()
    (result,) = await client.write([write(0, 0, b"x")], timeout_s=0.05)
    assert result.status is Status.UNAVAILABLE


async def test_a_refusal_after_an_attempt_that_may_have_been_taken_up_says_unknown(
    cluster: FakeCluster, connect: Connect, until: Any
) -> None:
    client = await connect()
    for worker in cluster.workers:
        worker.faults.status[Method.WRITE] = Status.CHAIN_VERSION
    writing = asyncio.create_task(client.write([write(0, 0, b"x")]))
    await until(lambda: any(Method.WRITE in worker.requests for worker in cluster.workers))
    for worker in cluster.workers:
        worker.faults.status[Method.WRITE] = Status.NO_SPACE
    assert (await writing)[0].status is Status.TIMEOUT
    assert (await client.write([write(0, 0, b"x")]))[0].status is Status.NO_SPACE


async def test_more_writes_than_channels_wait_for_one(cluster: FakeCluster, connect: Connect, until: Any) -> None:
    client = await connect()
    count = CHANNELS_MAX + 30
    (head,) = {number for number in range(4) if client._chains([(OBJECT, 0)]) == [number]}
    cluster.workers[head].faults.hold.add(Method.WRITE)
    writing = [asyncio.create_task(client.write([write(4 * number, 0, b"%d" % number)])) for number in range(count)]
    await until(lambda: len(cluster.workers[head].requests) == CHANNELS_MAX)
    writing.pop().cancel()  # one that waits: whoever comes next is woken all the same
    writing.pop(0).cancel()  # one that is under way: unknown
    cluster.workers[head].go_on()
    for task in writing:
        assert [result.status for result in await task] == [Status.OK]
    assert max(channel for _, _, channel in cluster.mutable.channels) <= CHANNELS_MAX


async def test_busy_heads_are_asked_again(cluster: FakeCluster, connect: Connect) -> None:
    client = await connect()
    for worker in cluster.workers:
        worker.faults.busy = 2
    (result,) = await client.write([write(0, 0, b"x")])
    assert result.status is Status.OK
    assert cluster.mutable.applied == 1


async def test_what_callers_get_wrong_is_said_before_anything_is_sent(cluster: FakeCluster, connect: Connect) -> None:
    client = await connect()
    pool = BufferPool(4096, 1)
    (released,) = pool.acquire(1)
    released.release()
    pool.close()
    wrong: list[tuple[Any, str]] = [
        (ChunkWrite(b"short", 0, 0, b"x"), "an object id is 16 bytes"),
        (ChunkWrite(OBJECT, -1, 0, b"x"), "index is -1"),
        (ChunkWrite(OBJECT, 0, -1, b"x"), "not -1"),
        (ChunkWrite(OBJECT, 0, 0, b""), "no data"),
        (ChunkWrite(OBJECT, 0, 1 << 20, b"x"), "bytes 1048576 to 1048577 of a chunk of at most 1048576"),
        (ChunkWrite(OBJECT, 0, 0, b"x", chunk_bytes=5000), "chunk_bytes is 5000; allowed: multiples of 4096"),
        (ChunkWrite(OBJECT, 0, 0, "text"), "a str is no contiguous memory"),
        (ChunkTruncate(OBJECT, 0, 1 << 21, 1), "of a chunk of at most"),
        (ChunkTruncate(OBJECT, 0, 1, 1 << 64), "truncate_version is"),
        (ChunkWrite(OBJECT, 0, 0, b"x", chunk_bytes=cast(Any, "1m")), "chunk_bytes is '1m'; pass an int"),
        (ChunkWrite(OBJECT, 0, 0, b"x", chunk_bytes=cast(Any, 8192.0)), "chunk_bytes is 8192.0; pass an int"),
        (ChunkWrite(OBJECT, 0, 0, released), "this slot was released"),
        (ChunkRead(OBJECT, 0, 0, 1), "change 1 is a ChunkRead; pass a ChunkWrite, ChunkTruncate or ChunkRemove"),
        ((OBJECT, 0, b"x"), "change 1 is a tuple; pass"),
    ]
    for change, text in wrong:
        with pytest.raises(UserError, match=text.replace("*", r"\*")):
            await client.write([write(0, 0, b"fine"), change])
    for asked, text in [
        (ChunkRead(OBJECT, 0, 0, 10, bytearray(9)), "10 bytes do not fit memory of 9"),
        (ChunkRead(OBJECT, 0, 0, 10, bytes(10)), "read-only"),
        (ChunkRead(OBJECT, 0, 1 << 26, 1), "of a chunk of at most"),
        (cast(Any, write(0, 0, b"x")), "read 0 is a ChunkWrite; pass a ChunkRead"),
        (ChunkRead(OBJECT, 0, 0, 10, released), "this slot was released"),
    ]:
        with pytest.raises(UserError, match=text):
            await client.read([asked])
    for chunk, text in [(OBJECT, "chunk 0 is a bytes; pass a tuple"), ((OBJECT,), "chunk 0 has 1 parts; pass a tuple")]:
        with pytest.raises(UserError, match=text):
            await client.stat(cast(Any, [chunk]))
    with pytest.raises(UserError, match="chunks are a ChunkWrite; pass a list"):
        await client.write(cast(Any, write(0, 0, b"x")))
    with pytest.raises(UserError, match="timeout_s is 0"):
        await client.stat([(OBJECT, 0)], timeout_s=0)
    assert not any(worker.requests for worker in cluster.workers)
    await client.aclose()
    with pytest.raises(UserError, match="closed"):
        await client.stat([(OBJECT, 0)])


def test_data_of_a_slot_can_be_sent_after_the_slot_was_released() -> None:
    pool = BufferPool(4096, 1)
    (slot,) = pool.acquire(1)
    slot.view[:4] = b"data"
    (patch,) = checked_changes([ChunkWrite(OBJECT, 0, 0, slot)])
    slot.release()
    assert patch.view[:4] == b"data"
    pool.close()


async def test_connecting_says_what_is_wrong(cluster: FakeCluster, connect: Connect) -> None:
    with pytest.raises(UserError, match="transport is 'rdma'; allowed: auto, tcp, local"):
        await connect("rdma")
    for wrong, text in [({"pool": b""}, "pool is a bytes"), ({"table_version": "1"}, "table_version is a str")]:
        with pytest.raises(UserError, match=text):
            await connect(**wrong)
    with pytest.raises(UserError, match="cluster is a int"):
        await ChunkClient.connect(cast(Any, 7000))
    with pytest.raises(RequestFailed, match="no version 9 of the chain table; only 1"):
        await connect(table_version=9)
    with pytest.raises(ConnectionFailed, match=r"127\.0\.0\.1:1"):
        await ChunkClient.connect("127.0.0.1:1", timeout_s=0.2)
