"""`esker admin force-chain` and `set-min-replicas`."""

from typing import Annotated

import typer

from esker.tools.commands.options import RunningCluster, finish, seconds

Json = Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")]
Timeout = Annotated[str, typer.Option(help="Give up after this time.", metavar="TIME")]
ID_MAX = 0xFFFFFFFF


def force_chain(
    chain: Annotated[int, typer.Argument(min=1, max=ID_MAX, help="Chain that nobody serves.", metavar="CHAIN")],
    serve: Annotated[str, typer.Option("--serve", help="Drive that shall serve what it has.", metavar="DRIVE")],
    cluster: RunningCluster,
    lose: Annotated[
        bool, typer.Option("--yes-lose-data", help="Do it: what only the other replicas have is lost for good.")
    ] = False,
    timeout: Timeout = "10s",
    json: Json = False,
) -> None:
    """Have a drive serve a chain whose last serving replicas are lost.

    Without --yes-lose-data it only shows what is known of the replicas, and exits with 2.

    Exit code 3: it was refused, as a replica serves or will, or the drive cannot.
    """
    from esker.runtime import logging
    from esker.tools.admin.overrides import run_force_chain
    from esker.tools.running import run_command

    logging.configure("admin")
    timeout_s = seconds(timeout)
    finish(run_command(run_force_chain(cluster, chain, serve, lose_data=lose, timeout_s=timeout_s, as_json=json)))


def set_min_replicas(
    minimum: Annotated[int, typer.Argument(min=1, help="Replicas that must serve.", metavar="N")],
    cluster: RunningCluster,
    table: Annotated[
        int | None, typer.Option(min=1, max=ID_MAX, help="Only the chains of this table.", metavar="ID")
    ] = None,
    chain: Annotated[int | None, typer.Option(min=1, max=ID_MAX, help="Only this chain.", metavar="ID")] = None,
    timeout: Timeout = "10s",
    json: Json = False,
) -> None:
    """Set how many replicas of a chain must serve for writes to be acknowledged.

    Exit code 3: done, but fewer serve of some chains now, so that these take no writes.
    """
    from esker.runtime import logging
    from esker.tools.admin.overrides import run_set_min_replicas
    from esker.tools.running import run_command
    from esker.wire.errors import UserError

    if table is not None and chain is not None:
        raise UserError("give one of --table and --chain, or neither for all chains")
    logging.configure("admin")
    timeout_s = seconds(timeout)
    work = run_set_min_replicas(cluster, minimum, table or 0, chain or 0, timeout_s=timeout_s, as_json=json)
    finish(run_command(work))


def register(app: typer.Typer) -> None:
    """Makes these commands of `app`."""
    for command in (force_chain, set_min_replicas):
        app.command()(command)
