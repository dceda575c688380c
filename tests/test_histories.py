"""The clients that record histories, on a cluster in memory: what is right passes, what goes back in time does not."""

from pathlib import Path

import pytest

from esker.client.fake import FakeCluster
from esker.client.fake_mutable import FakeImage, MutableKey

from .cluster.histories import acting
from .linearizability import NotLinearizable, require_linearizable
from .waiting import until


async def test_a_right_cluster_gives_linearizable_histories(short_directory: Path) -> None:
    async with FakeCluster(short_directory, drives=3, replicas=3) as cluster:
        async with acting(cluster.address, clients=4, chunks=3, seed=1) as actors:
            await actors.writes_flow()
            await until(lambda: len(actors.operations) >= 300, "operations")
        require_linearizable(actors.operations)
        assert {"Read OK", "Write OK", "Truncate OK", "Remove OK"} <= set(actors.ended)


async def test_a_cluster_that_forgets_writes_is_found_out(short_directory: Path) -> None:
    async with FakeCluster(short_directory, drives=3, replicas=3) as cluster:
        async with acting(cluster.address, clients=4, chunks=1, seed=2) as actors:
            await actors.writes_flow()
            before: dict[MutableKey, FakeImage] = {}
            for _ in range(30):
                before = dict(cluster.mutable.images)
                await actors.writes_flow()
                cluster.mutable.images.update(before)
        with pytest.raises(NotLinearizable):
            require_linearizable(actors.operations)
