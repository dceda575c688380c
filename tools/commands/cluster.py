"""`esker dev` and `esker demo`."""

from pathlib import Path
from typing import Annotated

import typer

from esker.tools.commands.options import finish, size


def dev(
    directory: Annotated[
        Path | None, typer.Argument(help="Where everything stands; made if absent. Default: ./esker-dev.")
    ] = None,
    drives: Annotated[int | None, typer.Option(min=1, max=64, help="Drives.", show_default="4")] = None,
    replicas: Annotated[int | None, typer.Option(min=1, max=8, help="Copies of every block.", show_default="2")] = None,
    capacity: Annotated[
        str | None, typer.Option(help="Hard cap on each drive.", metavar="SIZE", show_default="10GiB")
    ] = None,
    port: Annotated[
        int | None, typer.Option(help="Port of the metadata server.", show_default="9380 or the last one if free")
    ] = None,
    engine: Annotated[str, typer.Option(help="Block I/O: auto, io_uring or threads.")] = "auto",
    resync_rate: Annotated[
        str | None,
        typer.Option(
            help="How fast each drive brings returning replicas up to date, per second.",
            metavar="SIZE",
            show_default="that of chunkserver",
        ),
    ] = None,
    scrub_rate: Annotated[
        str | None,
        typer.Option(
            help="How fast each drive's chunks are verified once a week, per second; 0: only on request.",
            metavar="SIZE",
            show_default="that of chunkserver",
        ),
    ] = None,
    ephemeral: Annotated[
        bool, typer.Option("--ephemeral", help="In a new directory (below DIR, if given) that is removed at the end.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout once the cluster is ready.")] = False,
) -> None:
    """Run a whole cluster on this machine, on loopback, until Ctrl-C. A second start finds its data again."""
    from esker.runtime import logging
    from esker.tools.dev import make_cluster, run_dev
    from esker.tools.running import run_command

    logging.configure("dev")
    cluster = make_cluster(
        directory,
        drives=drives,
        replicas=replicas,
        capacity_bytes=None if capacity is None else size(capacity),
        port=port,
        engine=engine,
        ephemeral=ephemeral,
        resync_bytes_per_s=None if resync_rate is None else size(resync_rate),
        scrub_bytes_per_s=None if scrub_rate is None else size(scrub_rate),
    )
    finish(run_command(run_dev(cluster, as_json=json)))


def demo() -> None:
    """Show it all in under two minutes: a cluster in a temporary directory, a trace, a benchmark, a summary."""
    from esker.runtime import logging
    from esker.tools.demo import run_demo
    from esker.tools.running import run_command

    logging.configure("demo")
    finish(run_command(run_demo()))
