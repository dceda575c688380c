"""`esker bench` from options to exit code: with the cluster that was named, or one of its own for the run."""

from contextlib import AsyncExitStack

from esker.tools.bench.baseline import BaselineName
from esker.tools.bench.bench import run_bench
from esker.tools.bench.options import BenchOptions
from esker.tools.bench.report import Outcome, print_outcome
from esker.tools.dev_cluster import DevCluster
from esker.tools.exit_codes import ExitCode
from esker.wire.limits import GIB, MIB

CAPACITY_SLACK = 1.5
"""Blocks are placed by hash: a drive may get more than its share."""
BASE_BYTES = 512 * MIB
"""What a cluster needs beside blocks: indexes, reserves, files grown ahead."""


async def measure(options: BenchOptions) -> Outcome:
    """Runs the benchmark; a cluster of its own is gone afterwards."""
    directories = [str(directory) for directory in options.baseline_directories]
    if options.cluster is not None:
        return await run_bench(options, options.cluster, directories)
    async with AsyncExitStack() as stack:
        cluster = await stack.enter_async_context(own_cluster(options))
        return await run_bench(options, cluster.address, directories or cluster.drive_directories)


def own_cluster(options: BenchOptions) -> DevCluster:
    """A cluster with room for the data set, which nothing but the load reads."""
    raw_bytes = options.dataset_bytes if options.baseline in (BaselineName.RING, BaselineName.FIO) else 0
    return DevCluster(
        drives=options.drives,
        replicas=options.replicas,
        capacity_bytes=int(options.stored_bytes / options.drives * CAPACITY_SLACK) + GIB,
        engine=options.engine,
        temporary_base=options.directory,
        needed_bytes=options.stored_bytes + raw_bytes + BASE_BYTES,
        scrub_bytes_per_s=0,
    )


async def run_bench_command(options: BenchOptions, *, machine: bool) -> ExitCode:
    """Measures, prints, and returns the exit code."""
    outcome = await measure(options)
    print_outcome(outcome, machine=machine)
    return outcome.exit_code()
