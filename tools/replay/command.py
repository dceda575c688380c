"""`esker replay` from options to exit code: with the cluster that was named, or one of its own with room for all."""

import asyncio
import math
import sys
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table

from esker.kvclient import Geometry, KVCacheClient
from esker.runtime.sizes import format_size
from esker.tools.dev_cluster import DevCluster
from esker.tools.exit_codes import ExitCode
from esker.tools.inspect_cluster import transport_of
from esker.tools.progress import progress
from esker.tools.replay.contents import BlockContents
from esker.tools.replay.replayer import Replayer
from esker.tools.replay.tally import Summary, Tally
from esker.tools.trace.format import TraceRequest, read_trace
from esker.wire.errors import UserError
from esker.wire.limits import CHUNK_BYTES_MAX, GIB, MIB, aligned
from esker.wire.meta_client import parse_addresses
from esker.wire.types import NamespaceMode

POOL_BYTES_AIM = 256 * MIB
"""Memory for blocks in flight, of all clients together."""
WINDOW_BLOCKS_MAX = 512
CAPACITY_SLACK = 1.3
"""Blocks are placed by hash: a drive may get more than its share."""
BASE_BYTES = 512 * MIB
"""What a cluster needs beside blocks: indexes, reserves, files grown ahead."""


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    """The options, as on the command line. Raises `UserError` where they do not fit together."""

    trace: Path
    block_bytes: int = 4096
    requests: int | None = None
    clients: int = 1
    speed: float | None = None
    """Of the trace's own time; None: as fast as possible."""
    transport: str = "auto"
    namespace: str | None = None
    """None: one for each block size and mode."""
    mode: NamespaceMode = NamespaceMode.REPLICATED
    cluster: str | None = None
    directory: Path | None = None
    drives: int = 4
    replicas: int = 2
    capacity_bytes: int | None = None
    """Of each drive of a cluster of its own; None: room for every block of the trace."""

    def __post_init__(self) -> None:
        if not 8 <= self.block_bytes <= CHUNK_BYTES_MAX or self.block_bytes % 8:
            raise UserError(f"--block-bytes {self.block_bytes}; allowed: multiples of 8 up to {CHUNK_BYTES_MAX}")
        if self.speed is not None and not 0 < self.speed < math.inf:
            raise UserError(f"--speed {self.speed:g}; give a factor above 0, or leave it out for as fast as possible")
        if self.namespace == "":
            raise UserError("--namespace is empty; give a name, or leave it out for one of each block size")
        if self.replicas > self.drives:
            raise UserError(f"{self.replicas} replicas need at least as many drives; there are {self.drives}")
        if self.cluster is not None and self.directory is not None:
            raise UserError("--dir is for a cluster of its own; leave it out with --cluster")
        if self.cluster is not None:
            parse_addresses(self.cluster)

    @property
    def own_namespace(self) -> str:
        """The one to use where none was named."""
        kind = "" if self.mode is NamespaceMode.REPLICATED else f"-{self.mode}"
        return f"esker-replay{kind}/{self.block_bytes}"

    @property
    def copies(self) -> int:
        """Of every block."""
        return 1 if self.mode is NamespaceMode.CACHE else self.replicas

    @property
    def window_blocks(self) -> int:
        """Blocks per get or put call at most, so that all clients' pools stay within bounds."""
        share_bytes = POOL_BYTES_AIM // self.clients
        return max(1, min(WINDOW_BLOCKS_MAX, share_bytes // aligned(self.block_bytes)))


async def replay(options: ReplayOptions, requests: list[TraceRequest], address: str) -> Summary:
    """Replays the requests on the cluster at `address`, with a progress bar where stderr is a terminal."""
    async with AsyncExitStack() as stack:
        geometry = Geometry(block_bytes_max=options.block_bytes)
        clients = [
            await stack.enter_async_context(
                await KVCacheClient.connect(
                    address,
                    options.namespace or options.own_namespace,
                    geometry,
                    mode=options.mode,
                    transport=options.transport,
                    pool_bytes=options.window_blocks * aligned(options.block_bytes),
                )
            )
            for _ in range(options.clients)
        ]
        transport = transport_of(clients[0])
        with progress("replaying", len(requests)) as advance:

            def show(tally: Tally) -> None:
                share = tally.hit_blocks / tally.blocks if tally.blocks else 0.0
                advance(tally.requests, f"{share:.1%} hits, {tally.wrong_blocks} wrong")

            replayer = Replayer(
                clients, BlockContents(options.block_bytes), options.window_blocks, speed=options.speed, progress=show
            )
            await replayer.run(iter(requests))
        return replayer.tally.summary(
            clients=options.clients, block_bytes=options.block_bytes, transport=transport, cluster=address
        )


def own_cluster(options: ReplayOptions, requests: list[TraceRequest]) -> DevCluster:
    """A cluster with the asked capacity, else with room for every block of the trace."""
    unique = len({hash_id for request in requests for hash_id in request.hash_ids})
    stored_bytes = unique * aligned(options.block_bytes) * options.copies
    capacity_bytes = options.capacity_bytes
    if capacity_bytes is None:
        capacity_bytes = int(stored_bytes / options.drives * CAPACITY_SLACK) + GIB
    return DevCluster(
        drives=options.drives,
        replicas=options.replicas,
        capacity_bytes=capacity_bytes,
        temporary_base=options.directory,
        needed_bytes=min(stored_bytes, capacity_bytes * options.drives) + BASE_BYTES,
        scrub_bytes_per_s=0,  # What is read is compared.
    )


async def run_replay_command(options: ReplayOptions, *, as_json: bool) -> ExitCode:
    """Replays, prints, and returns the exit code."""
    requests = await asyncio.to_thread(lambda: list(read_trace(options.trace, options.requests)))
    if options.cluster is not None:
        summary = await replay(options, requests, options.cluster)
    else:
        async with own_cluster(options, requests) as cluster:
            summary = await replay(options, requests, cluster.address)
    if as_json:
        sys.stdout.write(msgspec.json.encode(summary).decode() + "\n")
    else:
        Console().print(summary_table(summary))
    return summary.exit_code()


def summary_table(summary: Summary) -> Table:
    """The summary for people."""
    table = Table(title="replay", title_justify="left", show_header=False)
    table.add_column(style="bold")
    table.add_column(justify="right")

    def rate(size_bytes: int, seconds: float) -> str:
        return f"{format_size(size_bytes)}, {size_bytes / seconds / 1e9:.2f} GB/s" if seconds else "nothing"

    rows = [
        ("requests", f"{summary.requests:,} in {summary.seconds:.1f} s by {summary.clients} client(s)"),
        ("blocks", f"{summary.blocks:,} of {format_size(summary.block_bytes)}"),
        ("prefix hits", f"{summary.hit_blocks:,} ({summary.hit_share:.2%})"),
        ("stored", f"{summary.put_blocks:,}"),
        ("wrong bytes", f"{summary.wrong_blocks:,} blocks"),
        ("read", rate(summary.read_bytes, summary.read_seconds)),
        ("written", rate(summary.written_bytes, summary.write_seconds)),
        ("request latency", "  ".join(f"{name} {ms:,.1f} ms" for name, ms in summary.request_latency_ms.items())),
        ("transport", summary.transport),
    ]
    for name, count in (
        ("unavailable", summary.unavailable),
        ("timed out", summary.timeout),
        ("no space", summary.no_space),
        ("missed after match", summary.missed_after_match),
        ("failed requests", summary.failed_requests),
    ):
        if count:
            rows.append((name, f"{count:,}"))
    for name, value in rows:
        table.add_row(name, value)
    return table
