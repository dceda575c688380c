"""The outcome of `esker failover`: one JSON object for machines, or a table for people."""

import sys
from statistics import median

import msgspec
from rich.console import Console
from rich.table import Table

from esker.tools.failover.run import FailoverOutcome, How

_GAPS = {
    "write_gap_s": "mutable write gap",
    "read_gap_s": "mutable read gap",
    "kv_put_gap_s": "KV put gap",
    "kv_slowest_read_s": "slowest KV read",
    "settled_s": "all serve again",
}
_COUNTS = {
    "kv_reads": "KV blocks read",
    "kv_read_failures": "KV reads that failed",
    "mutable_writes": "mutable writes",
    "mutable_reads": "mutable reads",
    "writes_unknown": "mutable writes without an answer",
    "failures": "other failures",
    "wrong_bytes": "wrong bytes",
    "lost_writes": "acknowledged writes lost",
}


def as_json(outcome: FailoverOutcome) -> dict[str, object]:
    """Everything, with the median and the worst of each time (seconds) and the sum of each count."""
    found: dict[str, object] = msgspec.to_builtins(outcome)
    gaps = {name: [float(getattr(death, name)) for death in outcome.deaths] for name in _GAPS}
    return found | {
        "median": {name: median(values) for name, values in gaps.items()},
        "worst": {name: max(values) for name, values in gaps.items()},
        "total": {name: sum(getattr(death, name) for death in outcome.deaths) for name in _COUNTS},
    }


def print_outcome(outcome: FailoverOutcome, *, machine: bool) -> None:
    """Prints to stdout."""
    if machine:
        sys.stdout.write(msgspec.json.encode(as_json(outcome)).decode() + "\n")
        return
    Console(file=sys.stdout, highlight=False).print(_table(outcome))


def _table(outcome: FailoverOutcome) -> Table:
    what = {
        How.KILL: "a worker killed",
        How.STOP: f"a worker held for {outcome.stop_s:g} s",
        How.KILL_BOTH: "a worker and the metadata server killed",
    }[outcome.how]
    table = Table(
        title=f"{len(outcome.deaths)} times {what}\n{outcome.drives} drives, {outcome.replicas} replicas, "
        f"{outcome.chains} chains, transport {outcome.transport}",
        title_justify="left",
    )
    for name in ("", "median", "worst"):
        table.add_column(name, justify="right" if name else "left")
    for field, name in _GAPS.items():
        values = [float(getattr(death, field)) for death in outcome.deaths]
        table.add_row(name, f"{median(values):.2f} s", f"{max(values):.2f} s")
    table.add_section()
    for field, name in _COUNTS.items():
        counts = [int(getattr(death, field)) for death in outcome.deaths]
        table.add_row(name, "total", f"{sum(counts):,}")
    return table
