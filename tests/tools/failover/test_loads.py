"""The loads of `esker failover`, on a cluster in memory: what is lost, old or late is seen, and nothing else."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from esker.client.fake import FakeCluster
from esker.client.mutable import ChunkClient
from esker.kvclient import Geometry, KVCacheClient
from esker.tools.failover.blocks import BATCH, BLOCK_BYTES, BLOCKS, BlockLoad
from esker.tools.failover.chunks import PATCH_BYTES, ChunkLoad, whole_value
from esker.wire.messages import Method
from esker.wire.status import Status

from ...waiting import until

CHAINS = 3


@pytest.fixture
async def cluster(short_directory: Path) -> AsyncIterator[FakeCluster]:
    async with FakeCluster(short_directory, drives=CHAINS, replicas=3) as cluster:
        yield cluster


@pytest.fixture
async def chunks(cluster: FakeCluster) -> AsyncIterator[ChunkLoad]:
    async with await ChunkClient.connect(cluster.address) as client:
        yield ChunkLoad(client, CHAINS, timeout_s=1.0)


@pytest.fixture
async def blocks(cluster: FakeCluster) -> AsyncIterator[BlockLoad]:
    geometry = Geometry(block_bytes_max=BLOCK_BYTES)
    async with await KVCacheClient.connect(cluster.address, "failover", geometry) as client:
        load = BlockLoad(client, timeout_s=1.0)
        await load.store()
        yield load


@asynccontextmanager
async def running(load: Any) -> AsyncIterator[None]:
    load.start()
    try:
        yield
    finally:
        await load.stop()


async def test_a_healthy_cluster_loses_nothing(cluster: FakeCluster, chunks: ChunkLoad, blocks: BlockLoad) -> None:
    async with running(chunks), running(blocks):
        assert await chunks.flows(10)
        await until(lambda: blocks.counts().reads >= 2 * BATCH and blocks.counts().puts >= 2, "blocks move")
        await until(lambda: chunks.counts().reads >= 2 * CHAINS, "chunks are read")
        assert await chunks.lost() == 0
        assert await blocks.lost() == 0
    seen = chunks.counts()
    assert seen.writes >= CHAINS
    assert (seen.wrong_reads, seen.reads_failed, seen.writes_failed, seen.writes_unknown) == (0, 0, 0, 0)
    kv = blocks.counts()
    assert (kv.wrong_blocks, kv.read_failures, kv.puts_failed) == (0, 0, 0)
    assert kv.slowest_read_s > 0
    assert {key[0] for key in cluster.mutable.images} == {1, 2, 3}, "a chunk on every chain"
    await chunks.remove()
    await blocks.remove()
    assert not any(image.data for image in cluster.mutable.images.values())
    assert not any(worker.chunks for worker in cluster.workers)


async def test_values_that_go_back_are_wrong_and_lost(cluster: FakeCluster, chunks: ChunkLoad) -> None:
    async with running(chunks):
        await chunks.flows(10)
        old = dict(cluster.mutable.images)
        await chunks.flows(10)
        assert chunks.counts().wrong_reads == 0
        for worker in cluster.workers:
            worker.faults.hold.add(Method.WRITE)
        cluster.mutable.images.update(old)
        await until(lambda: chunks.counts().wrong_reads >= CHAINS, "readers see it")
        assert await chunks.lost() == CHAINS
        cluster.mutable.images.clear()
        assert await chunks.lost() == CHAINS
        for worker in cluster.workers:
            worker.go_on()


async def test_a_write_without_an_answer_may_show_up_later(cluster: FakeCluster, chunks: ChunkLoad) -> None:
    async with running(chunks):
        await chunks.flows(10)
        for worker in cluster.workers:
            worker.faults.hold.add(Method.WRITE)
        await until(lambda: chunks.counts().writes_unknown >= CHAINS, "deadlines pass")
        chunks.forget()
        for worker in cluster.workers:
            worker.go_on()
        assert await chunks.flows(10)
        assert await chunks.lost() == 0
        assert chunks.counts().wrong_reads == 0
        assert chunks.counts().write_gap_s >= 1.0


async def test_half_a_patch_is_no_value() -> None:
    stamp = (7).to_bytes(8, "little")
    whole = stamp * (PATCH_BYTES // 8)
    assert whole_value(memoryview(whole)) == 7
    assert whole_value(memoryview(whole[:-8] + (8).to_bytes(8, "little"))) == -1
    assert whole_value(memoryview(whole[:-1])) == -1


async def test_blocks_that_are_gone_or_others_are_counted(cluster: FakeCluster, blocks: BlockLoad) -> None:
    for worker in cluster.workers:
        for key in list(worker.chunks)[:5]:
            for other in cluster.workers:
                other.chunks.pop(key, None)
    gone = BLOCKS - len(cluster.workers[0].chunks)
    assert gone == 15
    assert await blocks.lost() == gone
    async with running(blocks):
        await until(lambda: blocks.counts().read_failures > 0, "reads fail")
    for worker in cluster.workers:
        worker.faults.status[Method.CREATE] = Status.NO_SPACE
    with pytest.raises(Exception, match="cannot store the data set"):
        await blocks.store()


async def test_what_breaks_a_loop_is_said(chunks: ChunkLoad, monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(*_: object, **__: object) -> None:
        raise ValueError("a bug")

    monkeypatch.setattr(chunks._client, "write", broken)
    chunks.start()
    with pytest.raises(ValueError, match="a bug"):
        await asyncio.wait_for(chunks.flows(10), 10)
    with pytest.raises(ValueError, match="a bug"):
        await chunks.stop()
    await asyncio.gather(*chunks._tasks, return_exceptions=True)
