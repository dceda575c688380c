"""The outcome of `esker bench`: one JSON object for machines, or a table for people."""

import sys
from collections.abc import Sequence

import msgspec
from rich.console import Console
from rich.table import Table

from esker.runtime.sizes import format_size
from esker.tools.bench.options import BenchOptions
from esker.tools.bench.result import Figures, medians
from esker.tools.exit_codes import ExitCode

Directions = dict[str, Figures]
"""Figures by direction, `read` and `write`."""


class Turn(msgspec.Struct, frozen=True):
    """One round: esker, then the baseline."""

    esker: Directions
    raw: Directions | None
    sync_every: int
    longest_write_gap_s: float = 0.0
    """Of the job that waited longest (mutable chunks)."""


class Outcome(msgspec.Struct, frozen=True):
    """Everything a run measured."""

    options: BenchOptions
    turns: list[Turn]
    baseline_description: str
    transport: str
    drives: int
    replicas: int
    per_drive_bytes: dict[str, int]
    failures: dict[str, int]
    wrong_blocks: int

    def exit_code(self) -> ExitCode:
        if self.wrong_blocks:
            return ExitCode.WRONG_BYTES
        return ExitCode.DEGRADED if self.failures else ExitCode.FINE


def medians_by_direction(turns: Sequence[Directions]) -> Directions:
    """The median of every figure over the turns."""
    return {name: medians([turn[name] for turn in turns]) for name in turns[0]}


def total_bw_bytes(directions: Directions) -> float:
    """Both directions' bandwidth."""
    return sum(figures.bw_bytes for figures in directions.values())


def as_json(outcome: Outcome) -> dict[str, object]:
    """The machine-readable outcome. A workload of one direction has its figures directly in `esker` and `raw`."""
    options = outcome.options
    esker = medians_by_direction([turn.esker for turn in outcome.turns])
    raws = [turn.raw for turn in outcome.turns if turn.raw is not None]
    raw = medians_by_direction(raws) if raws else None
    return {
        "rw": str(options.mode),
        "esker": _figures_json(esker),
        "raw": _figures_json(raw) if raw else None,
        "ratio": total_bw_bytes(esker) / total_bw_bytes(raw) if raw else None,
        "baseline": str(options.baseline),
        "baseline_description": outcome.baseline_description,
        "transport": outcome.transport,
        "bs": options.block_bytes,
        "mutable": options.mutable,
        "chunk_bytes": options.chunk_bytes if options.mutable else 0,
        "longest_write_gap_s": max(turn.longest_write_gap_s for turn in outcome.turns),
        "iodepth": options.iodepth,
        "iodepth_batch": options.workload.batch,
        "numjobs": options.numjobs,
        "runtime_s": options.runtime_s,
        "dataset_bytes": options.dataset_bytes,
        "sync": "fdatasync" if options.mode.writes else "none",
        "sync_every": _sync_every(outcome),
        "drives": outcome.drives,
        "mode": str(options.namespace_mode),
        "replicas": outcome.replicas,
        "verify": options.verify,
        "per_drive_bytes": outcome.per_drive_bytes,
        "failures": outcome.failures,
        "wrong_blocks": outcome.wrong_blocks,
        "repeat": len(outcome.turns),
        "turns": [
            {
                "esker": _figures_json(turn.esker),
                "raw": _figures_json(turn.raw) if turn.raw else None,
                "sync_every": turn.sync_every,
                "longest_write_gap_s": turn.longest_write_gap_s,
            }
            for turn in outcome.turns
        ],
    }


def _figures_json(directions: Directions) -> dict[str, object]:
    parts = {name: msgspec.to_builtins(figures) for name, figures in directions.items()}
    if len(parts) == 1:
        only: dict[str, object] = next(iter(parts.values()))
        return only
    return {
        "bw_bytes": total_bw_bytes(directions),
        "iops": sum(figures.iops for figures in directions.values()),
        **parts,
    }


def _sync_every(outcome: Outcome) -> int:
    """Writes per `fdatasync`, of the middle turn; 0 where nothing is written."""
    if not outcome.options.mode.writes:
        return 0
    return sorted(turn.sync_every for turn in outcome.turns)[len(outcome.turns) // 2]


def print_outcome(outcome: Outcome, *, machine: bool) -> None:
    """Prints to stdout."""
    if machine:
        sys.stdout.write(msgspec.json.encode(as_json(outcome)).decode() + "\n")
        return
    console = Console()
    console.print(_figures_table(outcome))
    total = sum(outcome.per_drive_bytes.values())
    if total:
        shares = "  ".join(f"{drive[:8]} {count / total:.1%}" for drive, count in outcome.per_drive_bytes.items())
        console.print(f"bytes per drive: {shares}")
    if outcome.options.mode.writes:
        console.print(f"every write durable before its ack: {_sync_every(outcome)} writes per fdatasync, raw alike")
        if outcome.options.mutable:
            gap_s = max(turn.longest_write_gap_s for turn in outcome.turns)
            console.print(f"longest time without a write that ended: {1000 * gap_s:,.0f} ms")
    for name, count in outcome.failures.items():
        console.print(f"[red]{count:,} blocks ended as {name}[/red]")
    if outcome.wrong_blocks:
        console.print(f"[bold red]{outcome.wrong_blocks:,} blocks had wrong bytes[/bold red]")


def _figures_table(outcome: Outcome) -> Table:
    options = outcome.options
    what = f"in mutable chunks of {format_size(options.chunk_bytes)}" if options.mutable else "blocks"
    table = Table(
        title=f"{options.mode} of {format_size(options.block_bytes)} {what}, {options.iodepth} in flight\n"
        f"{options.workload.batch} per call, {options.numjobs} job(s), {outcome.transport} transport, "
        f"{outcome.drives} drives, {outcome.replicas} replica(s)\nmedians of {len(outcome.turns)} turn(s)",
        title_justify="left",
    )
    for name in ("", "MB/s", "blocks/s", "p50 µs", "p99 µs", "ratio"):
        table.add_column(name, justify="right" if name else "left")
    esker = medians_by_direction([turn.esker for turn in outcome.turns])
    raws = [turn.raw for turn in outcome.turns if turn.raw is not None]
    raw = medians_by_direction(raws) if raws else {}
    for direction, figures in esker.items():
        beneath = raw.get(direction)
        ratio = f"{figures.bw_bytes / beneath.bw_bytes:.2f}" if beneath and beneath.bw_bytes else ""
        label = f" {direction}" if len(esker) > 1 else ""
        table.add_row(f"esker{label}", *_cells(figures), ratio)
        if beneath:
            table.add_row(f"{outcome.baseline_description}{label}", *_cells(beneath), "")
    return table


def _cells(figures: Figures) -> tuple[str, str, str, str]:
    return (
        f"{figures.bw_bytes / 1e6:,.0f}",
        f"{figures.iops:,.0f}",
        f"{figures.lat_us['p50']:,.0f}",
        f"{figures.lat_us['p99']:,.0f}",
    )
