"""Replays against a real cluster: exact hits, every byte checked, and what happens when things fail."""

import asyncio
import math
import os
import shutil
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from itertools import count, cycle
from pathlib import Path
from random import Random
from typing import cast

import msgspec
import pytest
import pytest_asyncio

from esker.kvclient import Geometry, KVCacheClient, PutResult, Slot, Status
from esker.tools.dev_cluster import DevCluster
from esker.tools.exit_codes import ExitCode
from esker.tools.replay.command import ReplayOptions, replay, run_replay_command
from esker.tools.replay.contents import BlockContents, block_keys
from esker.tools.replay.replayer import Replayer
from esker.tools.trace.format import TraceRequest, read_trace, write_trace
from esker.tools.trace.generate import generate_trace
from esker.tools.trace.presets import CONVERSATION
from esker.tools.trace.stats import trace_stats
from esker.wire.errors import UserError

MIB = 1 << 20
REQUESTS = list(generate_trace(replace(CONVERSATION, requests=60), 1))
STATS = trace_stats(REQUESTS)
ANYWHERE = Path("unused")
NUMBERS = count()
ON_THE_CLUSTER = pytest.mark.asyncio(loop_scope="module")
"""Tests on the module's cluster run on its loop."""


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def cluster() -> AsyncIterator[DevCluster]:
    async with DevCluster(drives=2, replicas=1, capacity_bytes=512 * MIB) as started:
        yield started


@pytest.fixture
async def fragile() -> AsyncIterator[DevCluster]:
    """A cluster of the test's own, to be hurt: the more a worker died, the later it is started again."""
    async with DevCluster(drives=2, replicas=1, capacity_bytes=256 * MIB) as started:
        yield started


def options(**changes: object) -> ReplayOptions:
    """Options with a namespace that nobody else uses, unless told."""
    fresh = ReplayOptions(trace=ANYWHERE, namespace=f"test-{next(NUMBERS)}")
    return replace(fresh, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("block_bytes", "transport"), [(4096, "local"), (4096, "tcp"), (1000, "auto"), (65536, "auto")]
)
@ON_THE_CLUSTER
async def test_one_client_counts_the_traces_own_hits(cluster: DevCluster, block_bytes: int, transport: str) -> None:
    found = await replay(options(block_bytes=block_bytes, transport=transport), REQUESTS, cluster.address)
    assert (found.requests, found.blocks) == (STATS.requests, STATS.blocks)
    assert (found.hit_blocks, found.put_blocks, found.wrong_blocks) == (STATS.hit_blocks, STATS.unique_blocks, 0)
    assert found.read_bytes == STATS.hit_blocks * block_bytes
    assert found.written_bytes == STATS.unique_blocks * block_bytes
    assert found.read_seconds > 0
    assert 0 < found.request_latency_ms["p50"] <= found.request_latency_ms["p90"] <= found.request_latency_ms["p99"]
    assert found.transport == ("local" if transport == "auto" else transport)
    assert found.exit_code() is ExitCode.FINE


@ON_THE_CLUSTER
async def test_a_second_replay_finds_every_block(cluster: DevCluster) -> None:
    same = options()
    await replay(same, REQUESTS, cluster.address)
    again = await replay(same, REQUESTS, cluster.address)
    assert (again.hit_blocks, again.put_blocks) == (STATS.blocks, 0)


@ON_THE_CLUSTER
async def test_clients_share_the_work(cluster: DevCluster) -> None:
    shared = options(clients=4)
    found = await replay(shared, REQUESTS, cluster.address)
    assert (found.requests, found.blocks, found.wrong_blocks) == (STATS.requests, STATS.blocks, 0)
    # Clients that race on a block are both told that it is stored.
    assert found.put_blocks >= STATS.unique_blocks
    assert (await replay(replace(shared, clients=1), REQUESTS, cluster.address)).hit_blocks == STATS.blocks
    assert found.hit_blocks <= STATS.hit_blocks
    assert found.exit_code() is ExitCode.FINE


@ON_THE_CLUSTER
async def test_requests_longer_than_a_window_are_read_and_written_whole(
    cluster: DevCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("esker.tools.replay.command.WINDOW_BLOCKS_MAX", 3)
    found = await replay(options(), REQUESTS, cluster.address)
    assert (found.hit_blocks, found.put_blocks) == (STATS.hit_blocks, STATS.unique_blocks)


@ON_THE_CLUSTER
async def test_wrong_bytes_are_found_and_end_the_hits(cluster: DevCluster) -> None:
    same = options(namespace=None)
    request = TraceRequest(timestamp=0, input_length=5, hash_ids=(1, 2, 3, 4))
    await replay(same, [request], cluster.address)
    keys = block_keys((2,))
    async with await KVCacheClient.connect(
        cluster.address, "esker-replay/4096", Geometry(block_bytes_max=4096)
    ) as client:
        assert await client.remove(keys) == [Status.OK]
        assert (await client.put(keys, [bytes(4096)]))[0].status is Status.OK
    found = await replay(same, [request], cluster.address)
    assert (found.hit_blocks, found.wrong_blocks) == (1, 1)
    assert found.exit_code() is ExitCode.WRONG_BYTES


async def test_a_dead_worker_is_reported_and_after_its_restart_all_goes_on(fragile: DevCluster) -> None:
    same = options()
    await replay(same, REQUESTS[:20], fragile.address)
    supervisor = fragile.processes()[1].pid
    os.kill(supervisor, signal.SIGSTOP)
    try:
        pid = fragile.kill_worker(0)
        found = await replay(same, REQUESTS, fragile.address)
    finally:
        os.kill(supervisor, signal.SIGCONT)
    assert (found.requests, found.wrong_blocks) == (STATS.requests, 0)
    assert found.unavailable > 0
    assert found.exit_code() is ExitCode.DEGRADED
    await fragile.restarted(pid)
    await fragile.settled()
    again = await replay(same, REQUESTS, fragile.address)
    assert again.exit_code() is ExitCode.FINE
    assert again.put_blocks == STATS.unique_blocks - found.put_blocks - trace_stats(REQUESTS[:20]).unique_blocks


class Recorder:
    """A client that notes what was acknowledged, and calls `on_put` before each put."""

    def __init__(self, client: KVCacheClient, on_put: Callable[[], Awaitable[None]]) -> None:
        self.pool = client.pool
        self.match_prefix = client.match_prefix
        self.get = client.get
        self.acknowledged: set[bytes] = set()
        self._client = client
        self._on_put = on_put

    async def put(self, keys: Sequence[bytes], values: Sequence[Slot], start: int) -> list[PutResult]:
        await self._on_put()
        results = await self._client.put(keys, values, start=start)
        good = (Status.OK, Status.EXISTS)
        self.acknowledged.update(key for key, result in zip(keys, results, strict=True) if result.status in good)
        return results


class Killer:
    """Every tenth call, kills a process a few milliseconds later, once the one killed before is back."""

    def __init__(self, cluster: DevCluster, seed: int) -> None:
        self._cluster = cluster
        self._random = Random(seed)
        self._calls = 0
        self._killing: asyncio.Task[None] | None = None
        self._kills = cycle([lambda: cluster.kill_worker(0), cluster.kill_meta, lambda: cluster.kill_worker(1)])
        self.kills = 0

    async def on_put(self) -> None:
        self._calls += 1
        if self._calls % 10 == 5:
            await self.recovered()
            self._killing = asyncio.ensure_future(self._kill())

    async def recovered(self) -> None:
        if self._killing is not None:
            await self._killing

    async def _kill(self) -> None:
        # An instant in the midst of the put, not a wait for anything.
        await asyncio.sleep(self._random.random() * 0.005)
        self.kills += 1
        await self._cluster.restarted(next(self._kills)())


@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_kills_in_the_midst_of_a_replay_lose_and_tear_nothing(fragile: DevCluster, seed: int) -> None:
    killer = Killer(fragile, seed)
    hash_ids = sorted({hash_id for request in REQUESTS for hash_id in request.hash_ids})
    contents = BlockContents(4096)
    geometry = Geometry(block_bytes_max=4096)
    async with await KVCacheClient.connect(
        fragile.address, f"kills-{seed}", geometry, pool_bytes=1024 * 4096
    ) as client:
        recorder = Recorder(client, killer.on_put)
        replayer = Replayer([cast(KVCacheClient, recorder)], contents, 64, speed=None, progress=lambda tally: None)
        await replayer.run(iter(REQUESTS))
        assert replayer.tally.wrong_blocks == 0
        assert killer.kills >= 5
        await killer.recovered()
    async with await KVCacheClient.connect(
        fragile.address, f"kills-{seed}", geometry, pool_bytes=1024 * 4096
    ) as client:
        keys = block_keys(hash_ids)
        slots = client.pool.acquire(len(keys))
        results = await client.get(keys, slots)
        there = {
            key
            for key, slot, result, hash_id in zip(keys, slots, results, hash_ids, strict=True)
            if result.status is Status.OK and contents.matches(slot.view, hash_id)
        }
        assert recorder.acknowledged <= there
        assert len(recorder.acknowledged) > len(keys) // 2
        assert {result.status for result in results} <= {Status.OK, Status.NOT_FOUND}
        assert len(there) == sum(result.status is Status.OK for result in results), "none is torn or wrong"


@ON_THE_CLUSTER
async def test_a_namespace_of_another_geometry_is_refused_with_both(cluster: DevCluster) -> None:
    await replay(options(namespace="mine"), REQUESTS[:1], cluster.address)
    with pytest.raises(UserError, match=r"(?s)mine.*4096.*8192"):
        await replay(options(namespace="mine", block_bytes=8192), REQUESTS[:1], cluster.address)


async def test_full_drives_drop_blocks_and_the_replay_goes_on() -> None:
    async with DevCluster(drives=1, replicas=1, capacity_bytes=16 * MIB) as small:
        found = await replay(options(block_bytes=65536), REQUESTS, small.address)
    assert found.no_space > 0
    assert found.put_blocks > 0
    assert found.wrong_blocks == 0
    assert found.exit_code() is ExitCode.DEGRADED


@ON_THE_CLUSTER
async def test_pace_follows_the_trace(cluster: DevCluster) -> None:
    requests = [TraceRequest(timestamp=at, input_length=1, hash_ids=(at + 1,)) for at in (0, 100, 300)]
    found = await replay(options(speed=2.0), requests, cluster.address)
    assert found.seconds >= 0.15


async def test_a_cluster_of_its_own_is_big_enough_and_leaves_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = tmp_path / "trace.jsonl"
    write_trace(trace, REQUESTS)
    drives = tmp_path / "drives"
    code = await run_replay_command(
        ReplayOptions(trace=trace, requests=30, directory=drives, drives=2, replicas=2), as_json=True
    )
    assert code is ExitCode.FINE
    summary = msgspec.json.decode(capsys.readouterr().out)
    expected = trace_stats(REQUESTS[:30])
    assert summary["hit_blocks"] == expected.hit_blocks
    assert summary["put_blocks"] == expected.unique_blocks
    assert {"requests", "blocks", "wrong_blocks", "read_bytes", "read_seconds", "written_bytes"} <= set(summary)
    assert set(summary["request_latency_ms"]) == {"p50", "p90", "p99"}
    assert os.listdir(tmp_path) == [trace.name]


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"block_bytes": 0}, "multiples of 8"),
        ({"block_bytes": 4097}, "multiples of 8"),
        ({"block_bytes": 1 << 40}, "multiples of 8"),
        ({"speed": 0.0}, "speed"),
        ({"speed": math.nan}, "speed"),
        ({"speed": math.inf}, "speed"),
        ({"namespace": ""}, "--namespace is empty"),
        ({"drives": 1, "replicas": 2}, "at least as many drives"),
        ({"cluster": "h:1", "directory": Path("/tmp")}, "--dir"),
    ],
)
def test_options_that_do_not_fit_are_refused(changes: dict[str, object], complaint: str) -> None:
    with pytest.raises(UserError, match=complaint):
        options(**changes)


@pytest.mark.timeout(500)
async def test_the_published_trace_gives_its_own_hits(tmp_path: Path) -> None:
    path = os.environ.get("ESKER_TEST_TRACE")
    if not path:
        pytest.skip("ESKER_TEST_TRACE does not name the published conversation trace")
    requests = list(read_trace(Path(path)))
    base = Path("/dev/shm") if shutil.disk_usage("/dev/shm").free >= 4096 * MIB else tmp_path
    # Drives in memory halve the time.
    async with DevCluster(drives=4, replicas=1, capacity_bytes=1024 * MIB, temporary_base=base) as cluster:
        found = await replay(options(), requests, cluster.address)
    assert (found.requests, found.blocks) == (12_031, 288_500)
    assert (found.hit_blocks, found.put_blocks, found.wrong_blocks) == (105_710, 182_790, 0)
    assert found.exit_code() is ExitCode.FINE
