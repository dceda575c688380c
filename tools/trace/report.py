"""Prints a trace's figures: a table for people or one JSON object for machines."""

import sys

import msgspec
from rich.console import Console
from rich.table import Table

from esker.tools.trace.stats import TraceStats


def print_stats(stats: TraceStats, *, title: str, as_json: bool) -> None:
    """Prints to stdout."""
    if as_json:
        sys.stdout.write(msgspec.json.encode(stats).decode() + "\n")
        return
    table = Table(title=title, title_justify="left", show_header=False)
    table.add_column(style="bold")
    table.add_column(justify="right")
    for name, value in (
        ("requests", f"{stats.requests:,}"),
        ("duration", f"{stats.duration_s:,.0f} s"),
        ("blocks", f"{stats.blocks:,}"),
        ("blocks per request", f"{stats.blocks_per_request:.2f}"),
        ("unique blocks", f"{stats.unique_blocks:,}"),
        ("prefix-hit blocks", f"{stats.hit_blocks:,}"),
        ("share of prefix hits", f"{stats.hit_share:.2%}"),
        ("requests sharing more than one block", f"{stats.continuing_share:.2%}"),
        ("blocks used by one request only", f"{stats.used_once_share:.2%}"),
        ("input tokens", _points(stats.input_length)),
        ("output tokens", _points(stats.output_length)),
        ("blocks of a request", _points(stats.request_blocks)),
        ("prefix-hit blocks of a request", _points(stats.request_hit_blocks)),
    ):
        table.add_row(name, value)
    Console(markup=False).print(table)


def _points(distribution: dict[str, int]) -> str:
    return "  ".join(f"{name} {value:,}" for name, value in distribution.items())
