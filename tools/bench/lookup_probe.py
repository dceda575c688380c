"""How long `match_prefix` and `exists` of many keys take while blocks are being written.

Run as `python -m esker.tools.bench.lookup_probe --dir DIR`. It starts a cluster of its own, stores the keys, then
alternates both lookups while another client process writes at a steady rate; prints one JSON object.
"""

import asyncio
import json
import os
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from esker.kvclient import Geometry, KVCacheClient, Status
from esker.runtime import logging
from esker.runtime.process import run
from esker.tools.dev_cluster import DevCluster
from esker.tools.exit_codes import ExitCode
from esker.tools.running import run_command
from esker.wire.limits import GIB, MIB

BLOCK_BYTES = 4096
STORE_BATCH = 1000
WRITE_BLOCK_BYTES = MIB
WRITER_START_TIMEOUT_S = 30.0


async def measure(
    directory: Path | None, drives: int, replicas: int, keys: int, write_mb_s: int, rounds: int
) -> dict[str, object]:
    """The figures: milliseconds of each lookup, and what was written meanwhile."""
    async with DevCluster(
        drives=drives,
        replicas=replicas,
        capacity_bytes=4 * GIB,
        temporary_base=directory,
        needed_bytes=4 * GIB,
        scrub_bytes_per_s=0,
    ) as cluster:
        names = [os.urandom(32) for _ in range(keys)]
        geometry = Geometry(block_bytes_max=BLOCK_BYTES, run_blocks=32)
        client = await KVCacheClient.connect(cluster.address, "lookups", geometry)
        value = bytes(BLOCK_BYTES)
        for at in range(0, keys, STORE_BATCH):
            part = names[at : at + STORE_BATCH]
            anchor = names[at - at % 32]
            stored = await client.put(part, [value] * len(part), start=at, anchor=anchor)
            assert all(result.status is Status.OK for result in stored), stored
        writer = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "esker.tools.bench.lookup_probe",
            "--writer",
            f"{cluster.address}:{write_mb_s}",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        try:
            assert writer.stdout is not None
            async with asyncio.timeout(WRITER_START_TIMEOUT_S):
                await writer.stdout.readline()  # it writes
            match_ms, exists_ms = [], []
            for _ in range(rounds):
                started = time.perf_counter()
                matched = await client.match_prefix(names)
                match_ms.append((time.perf_counter() - started) * 1000)
                assert matched == keys, matched
                started = time.perf_counter()
                present = await client.exists(names)
                exists_ms.append((time.perf_counter() - started) * 1000)
                assert all(present)
        finally:
            written, _ = await writer.communicate(b"")  # closes its stdin, which ends it
        await client.aclose()
        return {
            "keys": keys,
            "drives": drives,
            "match_prefix_ms": _percentiles(match_ms),
            "exists_ms": _percentiles(exists_ms),
            "written_mb_s": float(written),
        }


async def write(address: str, mb_s: int, stop: asyncio.Event) -> float:
    """Writes 1 MiB blocks at about `mb_s` until stdin ends; returns the rate reached."""
    client = await KVCacheClient.connect(address, "writes", Geometry(block_bytes_max=WRITE_BLOCK_BYTES))
    value = os.urandom(WRITE_BLOCK_BYTES)
    loop = asyncio.get_running_loop()
    started = loop.time()
    written = 0
    recent: list[list[bytes]] = []
    while not stop.is_set():
        names = [os.urandom(16) for _ in range(4)]
        results = await client.put(names, [value] * 4)
        written += sum(result.status is Status.OK for result in results) * WRITE_BLOCK_BYTES
        if not recent:
            print("writing", flush=True)
        recent.append(names)
        if len(recent) > 64:
            await client.remove(recent.pop(0))
        await asyncio.sleep(max(0.0, written / (mb_s * 1e6) - (loop.time() - started)))
    seconds = loop.time() - started
    await client.aclose()
    return written / 1e6 / seconds


def _percentiles(values: list[float]) -> dict[str, float]:
    ordered = sorted(values)
    return {
        name: round(ordered[min(len(ordered) - 1, int(share * len(ordered)))], 2)
        for name, share in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99))
    }


def main(
    directory: Annotated[Path | None, typer.Option("--dir")] = None,
    drives: int = 4,
    replicas: int = 2,
    keys: int = 10_000,
    write_mb_s: int = 200,
    rounds: int = 100,
    writer: Annotated[str, typer.Option(hidden=True)] = "",
) -> None:
    """Measure lookups under a steady load of writes."""
    logging.configure("lookups")
    if writer:
        address, _, rate = writer.rpartition(":")

        async def work(stop: asyncio.Event) -> int:
            print(await write(address, int(rate), stop))
            return 0

        raise typer.Exit(run(work, watch_stdin=True))

    async def probe() -> ExitCode:
        print(json.dumps(await measure(directory, drives, replicas, keys, write_mb_s, rounds)))
        return ExitCode.FINE

    raise typer.Exit(run_command(probe()))


if __name__ == "__main__":
    typer.run(main)
