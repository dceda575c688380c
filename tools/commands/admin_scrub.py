"""`esker admin scrub`."""

from typing import Annotated

import typer

from esker.tools.commands.options import RunningCluster, finish, seconds, size


def scrub(
    cluster: RunningCluster,
    names: Annotated[
        list[str] | None, typer.Argument(help="Drives by their ids, or nodes by their names.", metavar="DRIVE|NODE")
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="All drives.")] = False,
    status: Annotated[bool, typer.Option("--status", help="Only tell how far it is; of all drives, or these.")] = False,
    wait: Annotated[
        str | None, typer.Option(help="Wait so long for the end of the pass, which goes on by itself.", metavar="TIME")
    ] = None,
    rate: Annotated[
        str | None, typer.Option(help="How fast each drive reads in this pass, per second.", metavar="SIZE")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Verify everything that drives hold, and replace what is damaged from other replicas. A pass under way goes on.

    Exit code 6: chunks are damaged and not repaired. 3: a worker did not answer. 75: not through within --wait.
    """
    from esker.chunkserver.config import SCRUB_BYTES_PER_S_MIN
    from esker.chunkserver.scrub import RATE_MAX
    from esker.runtime import logging
    from esker.runtime.sizes import format_size
    from esker.tools.admin.scrub_command import run_scrub
    from esker.tools.running import run_command
    from esker.wire.errors import UserError

    logging.configure("admin")
    if every and names:
        raise UserError("give drives and nodes, or --all, not both")
    if status and (wait is not None or rate is not None):
        raise UserError("--status starts nothing; leave out --wait and --rate")
    if not (every or names or status):
        raise UserError("name the drives or nodes to scrub, or give --all; esker admin nodes lists them")
    rate_bytes_per_s = 0 if rate is None else size(rate)
    if rate is not None and not SCRUB_BYTES_PER_S_MIN <= rate_bytes_per_s <= RATE_MAX:
        allowed = f"{format_size(SCRUB_BYTES_PER_S_MIN)} to {format_size(RATE_MAX)}"
        raise UserError(f"--rate {rate}; allowed: {allowed}")
    wait_s = None if wait is None else seconds(wait)
    work = run_scrub(
        cluster, names or (), start=not status, wait_s=wait_s, rate_bytes_per_s=rate_bytes_per_s, as_json=json
    )
    finish(run_command(work))


def register(app: typer.Typer) -> None:
    """Makes the command one of `app`'s."""
    app.command()(scrub)
