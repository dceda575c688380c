"""KV-cache clients of a cluster in memory."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from esker.client.fake import FakeCluster
from esker.kvclient import Geometry, KVCacheClient

Connect = Callable[..., Awaitable[KVCacheClient]]


@pytest.fixture
async def cluster(short_directory: Path) -> AsyncIterator[FakeCluster]:
    """Four workers, two replicas."""
    async with FakeCluster(short_directory) as made:
        yield made


@pytest.fixture
async def connect(cluster: FakeCluster) -> AsyncIterator[Connect]:
    """Connects clients; all are closed at the end."""
    async with AsyncExitStack() as stack:

        async def make(geometry: Geometry, namespace: str = "ns", **options: object) -> KVCacheClient:
            options.setdefault("pool_bytes", 32 * geometry.block_bytes_max)
            client = await KVCacheClient.connect(cluster.address, namespace, geometry, **options)  # type: ignore[arg-type]
            return await stack.enter_async_context(client)

        yield make


@pytest.fixture
def until() -> Callable[[Callable[[], bool]], Awaitable[None]]:
    """Lets the loop run until a condition holds."""

    async def wait(condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(10):
            while not condition():  # noqa: ASYNC110 - nothing tells when it changes
                await asyncio.sleep(0)

    return wait
