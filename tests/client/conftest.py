"""A client's lower half, connected to a cluster in memory."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from esker.client.batch import Row
from esker.client.buffers import BufferPool, Slot
from esker.client.chains import ChainRoutes
from esker.client.channel import Transport
from esker.client.creates import CreateBatch
from esker.client.fake import TABLE_ID, TABLE_VERSION, FakeCluster
from esker.client.mutable import ChunkClient
from esker.client.reads import ReadBatch
from esker.client.removes import ANY_PUT_ID, ANY_VERSION, RemoveBatch
from esker.client.routing import RoutingCache
from esker.client.staging import Staging
from esker.client.workers import Workers, WorkerState
from esker.wire.ids import NO_PUT_ID
from esker.wire.meta_client import MetaClient, parse_addresses
from esker.wire.status import Status

SPACE = 7


def object_id(number: int) -> bytes:
    """An object id per number."""
    return number.to_bytes(16, "big")


class Rig:
    """Workers, routes and a pool of 16 slots of 64 KiB. Chunk `n` of the helpers lies on chain number n % chains."""

    def __init__(self, cluster: FakeCluster, transport: Transport) -> None:
        self.cluster = cluster
        self.pool = BufferPool(65536, 16)
        self.meta = MetaClient(parse_addresses(cluster.address))
        self.routing = RoutingCache(self.meta, lambda routing: self.workers.apply(routing))
        self.workers = Workers(transport, [self.pool], self.routing.refresh, "test")
        self.staging = Staging(self.workers, 65536)
        self.routes: ChainRoutes

    async def open(self) -> None:
        """Connects."""
        self.workers.apply(await self.routing.load(5))
        await self.workers.wait_tried(5)
        self.routes = ChainRoutes(self.workers, TABLE_ID, TABLE_VERSION)

    async def aclose(self) -> None:
        """Disconnects."""
        await self.staging.stop()
        await self.workers.aclose()
        self.staging.close()
        await self.routing.aclose()
        await self.meta.aclose()
        self.pool.close()

    def state(self, number: int) -> WorkerState:
        """The client's view of worker `number`."""
        return self.workers.by_drive[f"drive{number}"]

    def chain(self, number: int) -> int:
        """The chain that chunk `number` lies on."""
        return number % self.routes.chain_count

    def reads(self, numbers: list[int], views: list[Any], slots: list[Slot] | None = None) -> ReadBatch:
        """A read of these chunks."""
        return ReadBatch(
            self.staging,
            self.routes,
            SPACE,
            objects=[object_id(number) for number in numbers],
            indexes=[0] * len(numbers),
            chains=[self.chain(number) for number in numbers],
            views=[memoryview(view) for view in views],
            slots=slots if slots is not None else [None] * len(numbers),
            offsets=[slot.offset for slot in slots] if slots is not None else [0] * len(numbers),
        )

    async def read_slots(self, numbers: list[int], slots: list[Slot], timeout_s: float = 5) -> list[Row]:
        """Reads into slots of the pool."""
        return await self.reads(numbers, [slot.view for slot in slots], slots).run(timeout_s)

    def creates(self, numbers: list[int], values: list[Any], slots: list[Slot] | None = None) -> CreateBatch:
        """A create of these chunks."""
        return CreateBatch(
            self.workers,
            self.routes,
            SPACE,
            65536,
            objects=[object_id(number) for number in numbers],
            indexes=[0] * len(numbers),
            chains=[self.chain(number) for number in numbers],
            views=[memoryview(value) for value in values],
            slots=slots if slots is not None else [None] * len(numbers),
            offsets=[slot.offset for slot in slots] if slots is not None else [0] * len(numbers),
            blocks=[(len(value), 1, NO_PUT_ID) for value in values],
            keys=[b"key%d" % number for number in numbers],
        )

    def removes(self, numbers: list[int], conditions: list[tuple[int, bytes]] | None = None) -> RemoveBatch:
        """A removal of these chunks."""
        return RemoveBatch(
            self.workers,
            self.routes,
            SPACE,
            objects=[object_id(number) for number in numbers],
            indexes=[0] * len(numbers),
            chains=[self.chain(number) for number in numbers],
            conditions=conditions or [(ANY_VERSION, ANY_PUT_ID)] * len(numbers),
        )

    async def fill(self, numbers: list[int], value_bytes: int = 65536) -> list[bytes]:
        """Creates these chunks with bytes of their own; returns the values."""
        values = [bytes([number % 251 + 1]) * value_bytes for number in numbers]
        rows = await self.creates(numbers, values).run(5)
        assert statuses(rows) == [Status.OK] * len(numbers)
        return values


def statuses(rows: list[Row]) -> list[Status]:
    """The statuses of READ_RESULT or CREATE_RESULT rows."""
    return [Status(row[1]) for row in rows]


MakeRig = Callable[..., Awaitable[Rig]]


@pytest.fixture
async def make_rig(short_directory: Path) -> AsyncIterator[MakeRig]:
    """Makes clients with a cluster each (or of `cluster`); all are closed at the end."""
    async with AsyncExitStack() as stack:

        async def make(
            transport: str = "auto", drives: int = 4, replicas: int = 2, cluster: FakeCluster | None = None
        ) -> Rig:
            if cluster is None:
                cluster = await stack.enter_async_context(
                    FakeCluster(short_directory, drives=drives, replicas=replicas)
                )
            rig = Rig(cluster, Transport(transport))
            stack.push_async_callback(rig.aclose)
            await rig.open()
            return rig

        yield make


@pytest.fixture
def until() -> Callable[[Callable[[], bool]], Awaitable[None]]:
    """Lets the loop run until a condition holds."""

    async def wait(condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(10):
            while not condition():  # noqa: ASYNC110 - nothing tells when it changes
                await asyncio.sleep(0)

    return wait


@pytest.fixture
async def cluster(short_directory: Path) -> AsyncIterator[FakeCluster]:
    """Four drives, chains of three replicas."""
    async with FakeCluster(short_directory, drives=4, replicas=3) as cluster:
        yield cluster


@pytest.fixture
async def connect(cluster: FakeCluster) -> AsyncIterator[Callable[..., Awaitable[ChunkClient]]]:
    """Makes clients of mutable chunks of `cluster`; all are closed at the end."""
    async with AsyncExitStack() as stack:

        async def make(transport: str = "tcp", **others: Any) -> ChunkClient:
            client = await ChunkClient.connect(cluster.address, transport=transport, **others)
            return await stack.enter_async_context(client)

        yield make
