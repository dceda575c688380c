"""Runs the benchmark: prepares esker's load and the baseline, then measures them in turn, `repeat` times.

Owns: the order of things and their deadlines. While one side is measured the other is idle; both data sets stand on
the drives for the whole run. What is written in a turn is removed after it, outside the clock.
"""

from collections.abc import Sequence
from contextlib import AsyncExitStack

from esker.tools.bench import client_job, mutable_job
from esker.tools.bench.baseline import Baseline, figures_by_direction, open_baseline
from esker.tools.bench.options import BenchOptions
from esker.tools.bench.report import Outcome, Turn, total_bw_bytes
from esker.tools.bench.result import Measured, add_counts
from esker.tools.child import Child
from esker.tools.inspect_cluster import ClusterView, view_cluster
from esker.tools.progress import progress
from esker.tools.running import all_or_none
from esker.wire.limits import MIB

SETUP_BYTES_PER_S_MIN = 20 * MIB
"""Storing, comparing or removing the data set slower than this is given up."""
SETUP_TIMEOUT_S = 60.0


class EskerLoad:
    """esker's side: one client process per job."""

    def __init__(self, children: Sequence[Child], options: BenchOptions, cluster: str) -> None:
        self._children = children
        self._options = options
        self._cluster = cluster
        self._patience_s = SETUP_TIMEOUT_S + options.dataset_bytes / SETUP_BYTES_PER_S_MIN
        self.transport = options.transport
        self.per_drive_bytes: dict[str, int] = {}
        self.failures: dict[str, int] = {}
        self.wrong_blocks = 0

    @classmethod
    async def open(cls, stack: AsyncExitStack, options: BenchOptions, cluster: str) -> "EskerLoad":
        """Starts the jobs and has them store what will be read."""
        children = []
        for job in range(options.numjobs):
            module = mutable_job.MODULE if options.mutable else client_job.MODULE
            child = await Child.start(f"client job {job}", ["-m", module])
            children.append(await stack.enter_async_context(child))
        load = cls(children, options, cluster)
        opened = await all_or_none(
            child.ask(
                client_job.Open(
                    cluster,
                    options.namespace,
                    options.transport,
                    options.workload,
                    options.verify,
                    options.chunk_bytes,
                    options.namespace_mode,
                ),
                client_job.Opened,
                load._patience_s,
            )
            for child in children
        )
        load.transport = opened[0].transport
        return load

    async def turn(self, turn: int) -> list[Measured]:
        """One turn of all jobs at once."""
        patience_s = self._options.runtime_s + SETUP_TIMEOUT_S
        measured = await all_or_none(child.ask(client_job.Run(turn), Measured, patience_s) for child in self._children)
        self.per_drive_bytes = add_counts([self.per_drive_bytes, *(job.per_drive_bytes for job in measured)])
        self.failures = add_counts([self.failures, *(job.failures for job in measured)])
        self.wrong_blocks += sum(job.wrong_blocks for job in measured)
        return measured

    async def clear(self, turn: int) -> None:
        """Removes what a turn wrote (after comparing it, with `verify`); turn -1: the data set."""
        cleared = await all_or_none(
            child.ask(client_job.Clear(turn), client_job.Cleared, self._patience_s) for child in self._children
        )
        self.wrong_blocks += sum(job.wrong_blocks for job in cleared)


async def run_bench(options: BenchOptions, cluster: str, directories: Sequence[str]) -> Outcome:
    """Measures the cluster at `cluster`; `directories` are where its drives stand, for the baseline."""
    async with AsyncExitStack() as stack:
        baseline = await open_baseline(options.baseline, stack, directories, options.workload, options.numjobs)
        load = await EskerLoad.open(stack, options, cluster)
        turns = []
        with progress("measuring", options.repeat) as advance:
            for turn in range(options.repeat):
                turns.append(await _round(turn, options, cluster, load, baseline))
                advance(turn + 1, f"{total_bw_bytes(turns[-1].esker) / 1e6:,.0f} MB/s")
        if options.mode.reads or options.mutable:
            await load.clear(-1)
        view = await view_cluster(cluster)
    return Outcome(
        options=options,
        turns=turns,
        baseline_description=baseline.description if baseline else "",
        transport=load.transport,
        drives=len(view.routing.workers),
        replicas=options.copies(view.routing.replicas),
        per_drive_bytes=load.per_drive_bytes,
        failures=load.failures,
        wrong_blocks=load.wrong_blocks,
    )


async def _round(turn: int, options: BenchOptions, cluster: str, load: EskerLoad, baseline: Baseline | None) -> Turn:
    writes = options.mode.writes
    before = await view_cluster(cluster, counters=True) if writes else None
    jobs = await load.turn(turn)
    esker = figures_by_direction(jobs)
    sync_every = 1
    if before is not None:
        sync_every = writes_per_commit(before, await view_cluster(cluster, counters=True))
        await load.clear(turn)
    raw = await baseline.turn(turn, sync_every) if baseline is not None else None
    gap_s = max(job.longest_write_gap_s for job in jobs)
    return Turn(esker=esker, raw=raw, sync_every=sync_every, longest_write_gap_s=gap_s)


def writes_per_commit(before: ClusterView, after: ClusterView) -> int:
    """How many writes the workers made durable together, on average, between the two views; at least 1."""
    records = after.total("commit_records") - before.total("commit_records")
    commits = after.total("commits") - before.total("commits")
    return max(1, round(records / commits)) if commits else 1
