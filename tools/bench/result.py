"""What a turn of the benchmark measured, and what is made of several.

Owns: how figures of jobs are added up, how turns become medians. Must not know: who measured.
Bandwidth counts the blocks' own bytes, in bytes per second; latencies are in microseconds, per block, from the call
that asked for the block to the end of that call.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from statistics import median

import msgspec

LATENCY_PERCENTILES = {"p50": 0.50, "p90": 0.90, "p99": 0.99, "p999": 0.999, "max": 1.0}


class Flow(msgspec.Struct):
    """What one job moved in one direction."""

    bytes: int = 0
    blocks: int = 0
    latencies_us: dict[int, int] = msgspec.field(default_factory=dict)
    """How many blocks took how long, to three significant digits."""


class Measured(msgspec.Struct):
    """One turn of one job."""

    seconds: float
    read: Flow | None = None
    write: Flow | None = None
    per_drive_bytes: dict[str, int] = msgspec.field(default_factory=dict)
    failures: dict[str, int] = msgspec.field(default_factory=dict)
    """Blocks that did not end well, by status."""
    wrong_blocks: int = 0
    fsyncs: int = 0
    longest_write_gap_s: float = 0.0
    """The longest time in which no write ended well; 0 where none was wanted."""


class Figures(msgspec.Struct, frozen=True):
    """A direction's figures over one turn (all jobs) or over the turns (medians)."""

    bw_bytes: float
    iops: float
    lat_us: dict[str, float]


def rounded_us(seconds: float) -> int:
    """A latency in whole microseconds, to three significant digits, so that a table of them stays small."""
    value = int(seconds * 1e6)
    if value < 1000:
        return value
    step = int(10 ** (len(str(value)) - 3))
    return (value + step // 2) // step * step


def flow_of(latencies_s: Iterable[tuple[float, int]], block_bytes: int) -> Flow:
    """The flow of calls that each took so long for so many blocks of `block_bytes`."""
    table: Counter[int] = Counter()
    for seconds, blocks in latencies_s:
        table[rounded_us(seconds)] += blocks
    total = table.total()
    return Flow(bytes=total * block_bytes, blocks=total, latencies_us=dict(table))


def percentiles(table: dict[int, int]) -> dict[str, float]:
    """Nearest-rank percentiles of a table value → count; all 0 for an empty one."""
    ordered = sorted(table.items())
    total = sum(table.values())
    found = {}
    for name, share in LATENCY_PERCENTILES.items():
        rank = max(1, -int(-total * share // 1))
        found[name] = 0.0
        below = 0
        for value, count in ordered:
            below += count
            if below >= rank:
                found[name] = float(value)
                break
    return found


def add_jobs(jobs: Sequence[tuple[float, Flow]]) -> Figures:
    """One turn's figures from its jobs' (seconds, flow): rates add up, latencies go into one table."""
    table: Counter[int] = Counter()
    for _, flow in jobs:
        table.update(flow.latencies_us)
    return Figures(
        bw_bytes=sum(flow.bytes / seconds for seconds, flow in jobs),
        iops=sum(flow.blocks / seconds for seconds, flow in jobs),
        lat_us=percentiles(table),
    )


def medians(turns: Sequence[Figures]) -> Figures:
    """The median of every figure over the turns."""
    return Figures(
        bw_bytes=median(turn.bw_bytes for turn in turns),
        iops=median(turn.iops for turn in turns),
        lat_us={name: median(turn.lat_us[name] for turn in turns) for name in turns[0].lat_us},
    )


def add_counts(tables: Iterable[dict[str, int]]) -> dict[str, int]:
    """Counts by name, added up."""
    total: Counter[str] = Counter()
    for table in tables:
        total.update(table)
    return dict(sorted(total.items()))
