"""The load on mutable chunks, on a cluster in memory: what it writes, compares, counts and removes."""

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import msgspec
import pytest

from esker.client.buffers import BufferPool
from esker.client.fake import FakeCluster
from esker.client.mutable import ChunkClient
from esker.tools.bench.mutable_job import MutableLoad
from esker.tools.bench.options import BenchOptions
from esker.tools.bench.workload import Mode, Workload
from esker.wire.errors import EskerError, UserError
from esker.wire.limits import MIB
from esker.wire.messages import Method
from esker.wire.status import Status

WORKLOAD = Workload(mode=Mode.RANDRW, block_bytes=8192, blocks=50, iodepth=6, batch=2, runtime_s=0.1, seed=1)


@pytest.fixture
async def cluster(short_directory: Path) -> AsyncIterator[FakeCluster]:
    async with FakeCluster(short_directory, drives=2) as cluster:
        yield cluster


@pytest.fixture
async def load_of(cluster: FakeCluster) -> AsyncIterator[Callable[..., MutableLoad]]:
    async with AsyncExitStack() as stack:
        pool = BufferPool(8192, 6)
        stack.callback(pool.close)
        client = await stack.enter_async_context(await ChunkClient.connect(cluster.address, pool=pool))

        def make(mode: Mode, *, verify: bool = True) -> MutableLoad:
            workload = msgspec.structs.replace(WORKLOAD, mode=mode)
            return MutableLoad(client, pool, workload, 4 * 8192, verify)

        yield make


@pytest.mark.parametrize("mode", list(Mode))
async def test_every_mode_moves_blocks_and_leaves_nothing(
    cluster: FakeCluster, load_of: Callable[..., MutableLoad], mode: Mode
) -> None:
    load = load_of(mode)
    await load.store()
    assert sum(len(image.data or b"") for image in cluster.mutable.images.values()) == 50 * 8192
    for turn in range(2):
        measured = await load.run(turn)
        assert (measured.wrong_blocks, measured.failures) == (0, {})
        assert (measured.read is not None and measured.read.blocks > 0) == mode.reads
        assert (measured.write is not None and measured.write.blocks > 0) == mode.writes
        assert (0 < measured.longest_write_gap_s <= measured.seconds) == mode.writes
        assert sum(measured.per_drive_bytes.values()) == sum(
            flow.bytes for flow in (measured.read, measured.write) if flow is not None
        )
        assert await load.clear(turn) == (0, 0)
    assert await load.clear(-1) == (0, 13)
    assert not any(image.data for image in cluster.mutable.images.values())


async def test_writes_go_on_past_the_end_of_the_data_set(
    cluster: FakeCluster, load_of: Callable[..., MutableLoad]
) -> None:
    load = load_of(Mode.WRITE)
    await load.store()
    measured = await load.run(0)
    assert measured.write is not None
    assert measured.write.blocks > 50
    assert await load.clear(0) == (0, 0)


async def test_older_bytes_and_other_blocks_bytes_are_wrong(
    cluster: FakeCluster, load_of: Callable[..., MutableLoad]
) -> None:
    load = load_of(Mode.RANDWRITE)
    await load.store()
    before = dict(cluster.mutable.images)
    await load.run(0)
    after = dict(cluster.mutable.images)
    key = next(key for key in before if before[key].data != after[key].data)
    cluster.mutable.images[key] = after[key]._replace(data=before[key].data)
    wrong, _ = await load.clear(0)
    assert wrong > 0
    first, second = list(after)[:2]
    cluster.mutable.images |= {first: after[second], second: after[first], key: after[key]}
    assert (await load.clear(0))[0] >= 4


async def test_what_fails_is_counted(cluster: FakeCluster, load_of: Callable[..., MutableLoad]) -> None:
    load = load_of(Mode.RANDRW)
    await load.store()
    for worker in cluster.workers:
        worker.faults.status = {Method.WRITE: Status.NO_SPACE, Method.READ_RANGE: Status.IO_ERROR}
    measured = await load.run(0)
    assert set(measured.failures) == {"NO_SPACE", "IO_ERROR"}
    assert measured.longest_write_gap_s == pytest.approx(measured.seconds)
    with pytest.raises(EskerError, match=r"cannot store the data set: \{'NO_SPACE': 13\}"):
        await load.store()


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"chunk_bytes": 5000}, "--chunk-size 5000: chunks must be multiples of 4096"),
        ({"chunk_bytes": 33 * MIB}, "up to 32 MiB"),
        ({"block_bytes": 3 * 4096, "chunk_bytes": 65536}, "is no multiple of --bs"),
        ({"block_bytes": 65536, "iodepth": 32, "size_bytes": MIB}, "fewer blocks than 32 in flight"),
    ],
)
def test_options_that_do_not_fit_together(changes: dict[str, int], text: str) -> None:
    with pytest.raises(UserError, match=text):
        BenchOptions(mutable=True, **changes)  # type: ignore[arg-type]
