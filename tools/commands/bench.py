"""`esker bench`."""

from pathlib import Path
from typing import Annotated

import typer

from esker.tools.commands.options import Cluster, Directory, Drives, Mode, Replicas, finish, seconds, size
from esker.wire.types import NamespaceMode

WORKLOAD = "Workload"
COMPARISON = "Comparison"
CLUSTER = "Cluster"


def bench(
    rw: Annotated[
        str, typer.Option(help="read, randread, write, randwrite or randrw.", rich_help_panel=WORKLOAD)
    ] = "randread",
    bs: Annotated[str, typer.Option(help="Block size, a multiple of 4k.", rich_help_panel=WORKLOAD)] = "1m",
    iodepth: Annotated[int, typer.Option(help="Blocks in flight per job.", rich_help_panel=WORKLOAD)] = 16,
    iodepth_batch: Annotated[
        int | None,
        typer.Option(
            help="Blocks per get or put call.",
            show_default="half the depth, at most 64, so that two calls are in flight",
            rich_help_panel=WORKLOAD,
        ),
    ] = None,
    numjobs: Annotated[int, typer.Option(min=1, max=64, help="Client processes.", rich_help_panel=WORKLOAD)] = 1,
    dataset: Annotated[
        str,
        typer.Option(
            "--size", help="Data set of all jobs; when writing, at most this much per turn.", rich_help_panel=WORKLOAD
        ),
    ] = "1g",
    runtime: Annotated[str, typer.Option(help="Length of one turn.", rich_help_panel=WORKLOAD)] = "5s",
    verify: Annotated[
        bool,
        typer.Option(
            "--verify",
            help="Compare contents too. Checksums are verified in any case; this costs bandwidth.",
            rich_help_panel=WORKLOAD,
        ),
    ] = False,
    mutable: Annotated[
        bool,
        typer.Option(
            "--mutable",
            help="Parts of mutable chunks, written in place (what files are made of), instead of blocks.",
            rich_help_panel=WORKLOAD,
        ),
    ] = False,
    chunk_size: Annotated[
        str, typer.Option(help="Of mutable chunks: a multiple of the block size.", rich_help_panel=WORKLOAD)
    ] = "1m",
    seed: Annotated[int, typer.Option(min=0, help="Of the contents and of the order.", rich_help_panel=WORKLOAD)] = 0,
    baseline: Annotated[
        str,
        typer.Option(
            help="ring (the raw drive through the same ring), fio, socket (a raw TCP stream), or none.",
            rich_help_panel=COMPARISON,
        ),
    ] = "ring",
    repeat: Annotated[
        int, typer.Option(min=1, max=1000, help="Turns; medians are reported.", rich_help_panel=COMPARISON)
    ] = 3,
    baseline_dir: Annotated[
        list[Path] | None,
        typer.Option(
            help="Where the baseline's files go. Default: the drives' directories.", rich_help_panel=COMPARISON
        ),
    ] = None,
    output_format: Annotated[str, typer.Option(help="normal or json.", rich_help_panel=COMPARISON)] = "normal",
    cluster: Cluster = None,
    directory: Directory = None,
    drives: Drives = 4,
    replicas: Replicas = 2,
    mode: Mode = NamespaceMode.REPLICATED,
    transport: Annotated[str, typer.Option(help="auto, tcp, or local (same host).", rich_help_panel=CLUSTER)] = "auto",
    engine: Annotated[
        str, typer.Option(help="Block I/O of a cluster of its own: auto, io_uring or threads.", rich_help_panel=CLUSTER)
    ] = "auto",
) -> None:
    """Measure a cluster in fio's vocabulary, and in turn the raw drive (or socket) beneath it.

    Writes create new blocks, durable on every replica before they count; they are removed after each turn.

    Latencies are those of the calls, per block.

    With --mutable, blocks are parts of chunks that are there, written in place again and again.
    """
    from esker.runtime import logging
    from esker.tools.bench.command import run_bench_command
    from esker.tools.bench.options import BenchOptions, baseline_named, mode_named
    from esker.tools.running import run_command
    from esker.wire.errors import UserError

    if output_format not in ("normal", "json"):
        raise UserError(f"--output-format {output_format}; allowed: normal, json")
    logging.configure("bench")
    options = BenchOptions(
        mode=mode_named(rw),
        block_bytes=size(bs),
        iodepth=iodepth,
        batch=iodepth_batch,
        numjobs=numjobs,
        size_bytes=size(dataset),
        runtime_s=seconds(runtime),
        repeat=repeat,
        verify=verify,
        baseline=baseline_named(baseline),
        baseline_directories=tuple(baseline_dir or ()),
        transport=transport,
        cluster=cluster,
        directory=directory,
        drives=drives,
        replicas=replicas,
        namespace_mode=mode,
        seed=seed,
        engine=engine,
        mutable=mutable,
        chunk_bytes=size(chunk_size),
    )
    finish(run_command(run_bench_command(options, machine=output_format == "json")))
