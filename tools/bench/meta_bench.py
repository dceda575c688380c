"""How much one metadata server on the embedded store does: transactions, creations, point reads, bytes per block.

Run as `python -m esker.tools.bench.meta_bench --dir DIR`. Transactions are measured on the store itself, in this
process; the rest on a server in a process of its own, over its socket. Prints one JSON object.
"""

import asyncio
import json
import os
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random
from typing import Annotated

import typer

from esker.meta.store.base import Transaction
from esker.meta.store.embedded import open_embedded
from esker.runtime import logging
from esker.runtime.process import run
from esker.tools.child import Child, decode_answer
from esker.tools.dev_cluster import MetaUp
from esker.wire.admin_messages import BLOCKS_MAX, CatalogGet
from esker.wire.ids import block_objects
from esker.wire.limits import MIB
from esker.wire.messages import (
    CatalogEntry,
    CatalogListReply,
    CatalogReport,
    Empty,
    Join,
    JoinReply,
    Method,
    NamespaceOpen,
    NamespaceReply,
)
from esker.wire.rpc_client import Connection, TcpAddress
from esker.wire.types import Geometry, Namespace, Worker

START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 10.0
CALL_TIMEOUT_S = 30.0
STORED_KEYS = 100_000
KEY_BYTES = 32
FIRST_VERSION, CHAIN_ID = 5 << 40, 300
"""As large as in a cluster of many chains whose workers have been started a few times."""
Step = Callable[[int], Awaitable[int]]
"""One step of a numbered task; how much it did."""


async def rate(tasks: int, seconds: float, step: Step) -> dict[str, float]:
    """`step` by `tasks` tasks for `seconds`: what they did per second, and how long a step took."""
    times_ms: list[float] = []
    done = 0
    begun = time.perf_counter()

    async def work(number: int) -> None:
        nonlocal done
        while (started := time.perf_counter()) - begun < seconds:
            step_done = await step(number)
            done += step_done
            times_ms.append((time.perf_counter() - started) * 1000)

    await asyncio.gather(*(work(number) for number in range(tasks)))
    elapsed = time.perf_counter() - begun
    times_ms.sort()
    return {
        "per_s": round(done / elapsed),
        "step_p50_ms": round(times_ms[len(times_ms) // 2], 2),
        "step_p99_ms": round(times_ms[int(len(times_ms) * 0.99)], 2),
    }


async def transactions(directory: Path, seconds: float, tasks: int) -> dict[str, float]:
    """Durable transactions that read one key and write it, each another one."""
    store = await open_embedded(directory)
    chance = Random(1)

    async def fill(transaction: Transaction) -> None:
        for number in range(STORED_KEYS):
            transaction.set(b"%08d" % number, bytes(40))

    await store.run(fill, what="fill", timeout_s=START_TIMEOUT_S)

    async def step(number: int) -> int:
        key = b"%08d" % chance.randrange(STORED_KEYS)

        async def change(transaction: Transaction) -> None:
            value = await transaction.get(key)
            assert value is not None
            transaction.set(key, value[:-1] + bytes([(value[-1] + 1) % 256]))

        await store.run(change, what="change")
        return 1

    before = store.statistics()
    figures = await rate(tasks, seconds, step)
    after = store.statistics()
    groups = after["store_groups"] - before["store_groups"]
    figures["per_group"] = round((after["store_commits"] - before["store_commits"]) / groups, 1)
    await store.aclose()
    return figures


class Server:
    """A metadata server of one drive that nobody serves, with a namespace."""

    namespace: Namespace

    def __init__(self, child: Child, address: TcpAddress) -> None:
        self._child = child
        self._address = address
        self._connections: list[Connection] = []

    @classmethod
    async def start(cls, directory: Path) -> "Server":
        arguments = ["--store", f"embedded:{directory}", "--drives", "1", "--replicas", "1", "--port", "0"]
        child = await Child.start("meta", ["-m", "esker", "meta", "--json", "--watch-stdin", *arguments])
        up = decode_answer(await child.line(START_TIMEOUT_S), MetaUp)
        server = cls(child, TcpAddress(up.host, up.port))
        connection = await server.connect()
        worker = Worker("bench", "bench", "127.0.0.1", 1, "", "", "bench", 1 << 40)
        await connection.call(Method.JOIN, Join(worker), JoinReply, timeout_s=CALL_TIMEOUT_S)
        opening = NamespaceOpen("bench", Geometry(block_bytes_max=MIB))
        reply = await connection.call(Method.NAMESPACE_OPEN, opening, NamespaceReply, timeout_s=CALL_TIMEOUT_S)
        server.namespace = reply.namespace
        return server

    async def connect(self) -> Connection:
        self._connections.append(await Connection.connect(self._address, role="tool"))
        return self._connections[-1]

    async def aclose(self) -> None:
        for connection in self._connections:
            await connection.aclose()
        await self._child.stop(STOP_TIMEOUT_S)

    def entries(self, count: int) -> tuple[CatalogEntry, ...]:
        """Blocks that the catalog does not have yet, as a worker would report them."""
        names = [os.urandom(KEY_BYTES) for _ in range(count)]
        now_ms = time.time_ns() // 1_000_000
        objects = block_objects(names, self.namespace.salt)
        return tuple(
            CatalogEntry(self.namespace.namespace_id, object_id, name, MIB, 1, now_ms, version, CHAIN_ID)
            for version, (name, object_id) in enumerate(zip(names, objects, strict=True), FIRST_VERSION)
        )


async def creations(server: Server, seconds: float, workers: int, objects: list[bytes]) -> dict[str, float]:
    """Blocks reported by `workers` at once; their objects are added to `objects`."""
    connections = [await server.connect() for _ in range(workers)]

    async def step(number: int) -> int:
        entries = server.entries(BLOCKS_MAX)
        await connections[number].call(Method.CATALOG_REPORT, CatalogReport(entries), Empty, timeout_s=CALL_TIMEOUT_S)
        objects.extend(entry.object_id for entry in entries)
        return len(entries)

    return await rate(workers, seconds, step)


async def point_reads(
    server: Server, seconds: float, clients: int, batch: int, objects: list[bytes]
) -> dict[str, float]:
    """Records read by key, `batch` of them a request, by `clients` connections at once."""
    connections = [await server.connect() for _ in range(clients)]
    chance = Random(1)

    async def step(number: int) -> int:
        wanted = chance.choices(objects, k=batch)
        request = CatalogGet(server.namespace.namespace_id, b"".join(wanted))
        reply = await connections[number].call(Method.CATALOG_GET, request, CatalogListReply, timeout_s=CALL_TIMEOUT_S)
        assert len(reply.entries) == batch
        return batch

    return await rate(clients, seconds, step)


async def measure(base: Path | None, seconds: float, clients: int, batch: int, tasks: int) -> dict[str, object]:
    """All figures."""
    with tempfile.TemporaryDirectory(dir=base, prefix="esker-meta-bench-") as temporary:
        directory = Path(temporary)
        found: dict[str, object] = {"transactions": await transactions(directory / "store", seconds, tasks)}
        server = await Server.start(directory / "server")
        objects: list[bytes] = []
        try:
            found["creations"] = await creations(server, seconds, 4, objects)
            found["point_reads"] = await point_reads(server, seconds, clients, batch, objects)
            found["point_reads_one_a_request"] = await point_reads(server, seconds, clients, 1, objects)
        finally:
            await server.aclose()
        size_bytes = (directory / "server" / "store.mdb").stat().st_size
        found["blocks"] = len(objects)
        found["file_bytes_per_block"] = round(size_bytes / len(objects), 1)
        return found


def main(
    directory: Annotated[Path | None, typer.Option("--dir", help="Where the stores are made, and removed.")] = None,
    seconds: Annotated[float, typer.Option(help="Length of each part.")] = 3.0,
    clients: Annotated[int, typer.Option(help="Connections that read.")] = 16,
    batch: Annotated[int, typer.Option(help="Keys of a read request.", min=1, max=BLOCKS_MAX)] = 64,
    tasks: Annotated[int, typer.Option(help="Transactions at once.")] = 256,
) -> None:
    """Measure a metadata server on the embedded store."""
    logging.configure("meta_bench")

    async def work(stop: asyncio.Event) -> int:
        print(json.dumps(await measure(directory, seconds, clients, batch, tasks), indent=2))
        return 0

    raise typer.Exit(run(work))


if __name__ == "__main__":
    typer.run(main)
