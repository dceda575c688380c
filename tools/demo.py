"""`esker demo`: a cluster in a temporary directory, a replayed conversation trace, a measured read, one summary.

Made to fit any machine: under two minutes on two cores, under 4 GiB of disk, nothing left behind.
"""

import sys
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.table import Table

from esker.runtime.sizes import format_size
from esker.tools.bench.bench import run_bench
from esker.tools.bench.options import BenchOptions
from esker.tools.bench.report import Outcome, medians_by_direction
from esker.tools.dev_cluster import DevCluster
from esker.tools.exit_codes import ExitCode
from esker.tools.replay.command import ReplayOptions, replay
from esker.tools.replay.tally import Summary
from esker.tools.trace.format import TraceRequest
from esker.tools.trace.generate import generate_trace
from esker.tools.trace.presets import CONVERSATION
from esker.tools.trace.stats import TraceStats, trace_stats
from esker.wire.limits import GIB, KIB, MIB

DRIVES = 4
REPLICAS = 2
REQUESTS = 500
BLOCK_BYTES = 64 * KIB
BENCH = BenchOptions(block_bytes=MIB, iodepth=16, size_bytes=256 * MIB, runtime_s=2.0, repeat=3)
NEEDED_BYTES = 3 * GIB


async def run_demo(requests: int = REQUESTS, bench: BenchOptions = BENCH) -> ExitCode:
    """Runs it all and prints the summary."""
    notes = Console(stderr=True, highlight=False)
    trace = list(generate_trace(replace(CONVERSATION, requests=requests), seed=0))
    stats = trace_stats(trace)
    notes.print(f"starting a cluster: {DRIVES} drives, {REPLICAS} replicas")
    async with DevCluster(
        drives=DRIVES, replicas=REPLICAS, capacity_bytes=2 * GIB, needed_bytes=NEEDED_BYTES, scrub_bytes_per_s=0
    ) as cluster:
        notes.print(f"replaying {stats.requests:,} requests, {stats.blocks:,} blocks of {format_size(BLOCK_BYTES)}")
        summary = await _replay(trace, cluster.address)
        turns_s = 2 * bench.runtime_s * bench.repeat
        notes.print(f"measuring reads of {format_size(bench.block_bytes)} blocks, about {turns_s:.0f} s")
        outcome = await run_bench(bench, cluster.address, cluster.drive_directories)
    Console(file=sys.stdout, highlight=False).print(_table(stats, summary, outcome))
    return max(summary.exit_code(), outcome.exit_code(), _expected(stats, summary))


async def _replay(trace: list[TraceRequest], address: str) -> Summary:
    return await replay(ReplayOptions(trace=Path("generated"), block_bytes=BLOCK_BYTES), trace, address)


def _expected(stats: TraceStats, summary: Summary) -> ExitCode:
    """With room for everything the replay's hits are the trace's own."""
    return ExitCode.FINE if summary.hit_blocks == stats.hit_blocks else ExitCode.DEGRADED


def _table(stats: TraceStats, summary: Summary, outcome: Outcome) -> Table:
    table = Table(title="esker demo", title_justify="left", show_header=False, show_lines=True)
    table.add_column(style="bold")
    table.add_column()
    latency = summary.request_latency_ms
    table.add_row("cluster", f"{DRIVES} drives, {REPLICAS} replicas of every block, one metadata server, on loopback")
    table.add_row(
        "conversation trace",
        f"{summary.requests:,} requests, {summary.blocks:,} blocks of {format_size(summary.block_bytes)} "
        f"in {summary.seconds:.1f} s",
    )
    table.add_row(
        "prefix hits",
        f"{summary.hit_blocks:,} blocks, {summary.hit_share:.2%} (the trace's own: {stats.hit_blocks:,})",
    )
    table.add_row(
        "wrong bytes", f"{summary.wrong_blocks} blocks of {format_size(summary.read_bytes)} read and compared"
    )
    table.add_row(
        "replay",
        f"read {_rate(summary.read_bytes, summary.read_seconds)}, written durably "
        f"{_rate(summary.written_bytes, summary.write_seconds)} x {REPLICAS}; "
        f"a request waits {latency['p50']:.1f} ms at the median, {latency['p99']:.1f} ms at p99",
    )
    options = outcome.options
    esker = medians_by_direction([turn.esker for turn in outcome.turns])["read"]
    raws = [turn.raw for turn in outcome.turns if turn.raw is not None]
    raw = medians_by_direction(raws)["read"]
    table.add_row(
        f"random reads, {format_size(options.block_bytes)}",
        f"{esker.bw_bytes / 1e9:.2f} GB/s with checksums verified, {options.iodepth} in flight, "
        f"{outcome.transport} transport;\nthe raw drive through the same ring: {raw.bw_bytes / 1e9:.2f} GB/s "
        f"(ratio {esker.bw_bytes / raw.bw_bytes:.2f})",
    )
    total = sum(outcome.per_drive_bytes.values())
    table.add_row("share per drive", "  ".join(f"{count / total:.1%}" for count in outcome.per_drive_bytes.values()))
    return table


def _rate(size_bytes: int, seconds: float) -> str:
    return f"{size_bytes / seconds / 1e9:.2f} GB/s" if seconds else "nothing"
