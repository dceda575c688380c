"""Real clusters for tests: blocks whose content follows from their key, processes held down, drives looked into."""

import os
import random
import signal
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from esker.chunkserver.engine.io import open_engine
from esker.chunkserver.engine.record import Record
from esker.chunkserver.engine.store import DriveStore
from esker.kvclient import Geometry, KVCacheClient, Status
from esker.tools.dev_cluster import DevCluster
from esker.tools.inspect_cluster import ClusterView, view_cluster
from esker.wire.limits import KIB, MIB
from esker.wire.messages import CatalogEntry, CatalogList, CatalogListReply, Method
from esker.wire.meta_client import MetaClient, parse_addresses

from ..waiting import until

SINGLE = Geometry(block_bytes_max=16 * KIB)
STRIPED = Geometry(block_bytes_max=64 * KIB, stripe_unit_bytes=16 * KIB)
CAPACITY_BYTES = 64 * MIB


@asynccontextmanager
async def running(
    directory: Path, *, drives: int = 2, replicas: int = 2, capacity_bytes: int = CAPACITY_BYTES
) -> AsyncIterator[DevCluster]:
    """A cluster in `directory`; a second one there finds the first one's data.

    On any free port, not the usual one: whoever else starts a cluster must not take that of a server that was killed.
    """
    async with DevCluster(
        directory, drives=drives, replicas=replicas, capacity_bytes=capacity_bytes, port=0
    ) as cluster:
        yield cluster


async def connect(cluster: DevCluster, geometry: Geometry = SINGLE, **others: object) -> KVCacheClient:
    """A client of the namespace that has this geometry."""
    name = f"of-{geometry.block_bytes_max}-{geometry.stripe_unit_bytes}"
    return await KVCacheClient.connect(cluster.address, name, geometry, pool_bytes=4 * MIB, **others)  # type: ignore[arg-type]


def key_of(number: int) -> bytes:
    return b"block %06d" % number


def value_of(number: int, length_bytes: int, variant: int = 0) -> bytes:
    """`length_bytes` that follow from the number and the variant alone."""
    return random.Random(f"{number} {variant}").randbytes(length_bytes)


async def get_all(client: KVCacheClient, numbers: Sequence[int], **others: object) -> list[bytes | Status]:
    """The blocks' bytes, or why there are none."""
    room = client.geometry.block_bytes_max
    buffers = [bytearray(room) for _ in numbers]
    results = await client.get([key_of(number) for number in numbers], buffers, **others)  # type: ignore[arg-type]
    return [
        bytes(buffer[: result.length]) if result.status is Status.OK else result.status
        for result, buffer in zip(results, buffers, strict=True)
    ]


async def put_all(client: KVCacheClient, values: dict[int, bytes], **others: object) -> dict[int, Status]:
    """Puts blocks by number; the outcome of each."""
    keys = [key_of(number) for number in values]
    results = await client.put(keys, list(values.values()), **others)  # type: ignore[arg-type]
    return {number: result.status for number, result in zip(values, results, strict=True)}


async def put_through(client: KVCacheClient, values: dict[int, bytes]) -> None:
    """Puts these blocks until all are there, as whoever cannot do without them would."""

    async def put() -> bool:
        return set((await put_all(client, values)).values()) <= {Status.OK, Status.EXISTS}

    await until(put, "the puts got through")


async def view(cluster: DevCluster) -> ClusterView:
    """Routing and all counters."""
    return await view_cluster(cluster.address, counters=True)


async def catalog(cluster: DevCluster, client: KVCacheClient) -> dict[bytes, CatalogEntry]:
    """The catalog's blocks of the client's namespace, by key."""
    meta = MetaClient(parse_addresses(cluster.address), role="tool")
    entries: dict[bytes, CatalogEntry] = {}
    after = b""
    try:
        while True:
            ask = CatalogList(client._keyspace.space, after, 500)
            page = (await meta.call(Method.CATALOG_LIST, ask, CatalogListReply, timeout_s=10)).entries
            if not page:
                return entries
            entries |= {entry.key: entry for entry in page}
            after = page[-1].object_id
    finally:
        await meta.aclose()


def worker_pid(cluster: DevCluster, number: int) -> int:
    return [process.pid for process in cluster.processes() if process.role == "worker"][number]


@contextmanager
def down(cluster: DevCluster, number: int) -> Iterator[int]:
    """Within it a drive's worker is dead, and stays dead: its supervisor is held. Gives the dead worker's pid."""
    (supervisor,) = [process.pid for process in cluster.processes() if process.role == "chunkserver"]
    os.kill(supervisor, signal.SIGSTOP)
    try:
        yield cluster.kill_worker(number)
    finally:
        os.kill(supervisor, signal.SIGCONT)


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    """Within it the process makes no move."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


@contextmanager
def opened(directories: Iterable[str]) -> Iterator[list[DriveStore]]:
    """The drives of a cluster that has ended."""
    engine = open_engine("threads")
    stores: list[DriveStore] = []
    try:
        for directory in directories:
            stores.append(DriveStore.open(directory, cluster_id="", capacity_bytes=CAPACITY_BYTES, engine=engine))
        yield stores
    finally:
        for store in stores:
            store.close()
        engine.close()


def records_by_key(store: DriveStore) -> dict[bytes, list[Record]]:
    """A drive's records of every block, by the block's key."""
    found: dict[bytes, list[Record]] = {}
    after = b""
    while True:
        page = store.scan(None, after)
        for _, record in page.items:
            found.setdefault(record.key, []).append(record)
        if page.next_after is None:
            return found
        after = page.next_after
