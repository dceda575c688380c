"""What a worker and a client hold in memory: a worker with many chunks, a client beside its pool.

Run as `python -m esker.tools.bench.memory_probe --dir DIR`; prints one JSON object. Memory is RssAnon + RssFile of
/proc/PID/status: shared memory (a client's pool, mapped by a worker) is its owner's.
"""

import json
import os
from pathlib import Path
from typing import Annotated

import typer

from esker.kvclient import Geometry, KVCacheClient, Status
from esker.runtime import logging
from esker.tools.dev_cluster import DevCluster
from esker.tools.exit_codes import ExitCode
from esker.tools.running import run_command
from esker.wire.limits import GIB, MIB

BLOCK_BYTES = 4096
BATCH = 2000
READ_ROUNDS = 2


def memory_bytes(pid: int | str) -> int:
    """RssAnon + RssFile of a process."""
    total = 0
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(("RssAnon:", "RssFile:")):
            total += int(line.split()[1]) * 1024
    return total


async def measure(directory: Path | None, chunks: int) -> dict[str, object]:
    """Memory of the one worker and of this client, empty and with `chunks` chunks written and read."""
    async with DevCluster(
        drives=1,
        replicas=1,
        capacity_bytes=4 * GIB,
        temporary_base=directory,
        needed_bytes=2 * GIB,
        scrub_bytes_per_s=0,
    ) as cluster:
        pid = next(process.pid for process in cluster.processes() if process.role == "worker")
        empty = memory_bytes(pid)
        client = await KVCacheClient.connect(cluster.address, "memory", Geometry(block_bytes_max=BLOCK_BYTES))
        value = bytes(BLOCK_BYTES)
        names = [os.urandom(32) for _ in range(chunks)]
        slots = client.pool.acquire(BATCH)
        for at in range(0, chunks, BATCH):
            part = names[at : at + BATCH]
            assert all(result.status is Status.OK for result in await client.put(part, [value] * len(part)))
        after_writes = memory_bytes(pid)
        for _ in range(READ_ROUNDS):
            for at in range(0, chunks, BATCH):
                part = names[at : at + BATCH]
                got = await client.get(part, slots[: len(part)])
                assert all(result.status is Status.OK for result in got)
        figures: dict[str, object] = {
            "chunks": chunks,
            "worker_empty_mib": round(empty / MIB, 1),
            "worker_after_writes_mib": round(after_writes / MIB, 1),
            "worker_after_reads_mib": round(memory_bytes(pid) / MIB, 1),
            "client_mib": round((memory_bytes("self")) / MIB, 1),
            "client_pool_mib": round(client.pool.size_bytes / MIB, 1),
        }
        for slot in slots:
            slot.release()
        await client.aclose()
        return figures


def main(directory: Annotated[Path | None, typer.Option("--dir")] = None, chunks: int = 100_000) -> None:
    """Measure the memory of a worker and of a client."""
    logging.configure("memory")

    async def probe() -> ExitCode:
        print(json.dumps(await measure(directory, chunks)))
        return ExitCode.FINE

    raise typer.Exit(run_command(probe()))


if __name__ == "__main__":
    typer.run(main)
