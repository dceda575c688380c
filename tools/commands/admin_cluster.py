"""`esker admin status`, `nodes`, `chains` and `targets`."""

from typing import Annotated

import typer

from esker.tools.commands.options import RunningCluster, finish

Json = Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")]


def status(cluster: RunningCluster, json: Json = False) -> None:
    """The cluster in a few lines. Exit code 3: something needs attention."""
    from esker.runtime import logging
    from esker.tools.admin.cluster_commands import run_status
    from esker.tools.running import run_command

    logging.configure("admin")
    finish(run_command(run_status(cluster, as_json=json)))


def nodes(cluster: RunningCluster, json: Json = False) -> None:
    """Every drive's worker, node by node: when it was heard, in how many chains it serves, what it holds."""
    from esker.runtime import logging
    from esker.tools.admin.cluster_commands import run_nodes
    from esker.tools.running import run_command

    logging.configure("admin")
    finish(run_command(run_nodes(cluster, as_json=json)))


def chains(
    cluster: RunningCluster,
    unsettled: Annotated[bool, typer.Option("--unsettled", help="Only those that are not whole.")] = False,
    json: Json = False,
) -> None:
    """All chains with their replicas, head first."""
    from esker.runtime import logging
    from esker.tools.admin.cluster_commands import run_chains
    from esker.tools.running import run_command

    logging.configure("admin")
    finish(run_command(run_chains(cluster, unsettled=unsettled, as_json=json)))


def targets(
    cluster: RunningCluster,
    drive: Annotated[str, typer.Option(help="Only those of this drive.", metavar="ID")] = "",
    json: Json = False,
) -> None:
    """Every replica's place on its drive."""
    from esker.runtime import logging
    from esker.tools.admin.cluster_commands import run_targets
    from esker.tools.running import run_command

    logging.configure("admin")
    finish(run_command(run_targets(cluster, drive=drive, as_json=json)))


def register(app: typer.Typer) -> None:
    """Makes these commands of `app`."""
    for command in (status, nodes, chains, targets):
        app.command()(command)
