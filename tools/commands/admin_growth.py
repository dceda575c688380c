"""`esker admin replace-drive`, `drain`, `expand`, `remove-node` and `balance`."""

from typing import Annotated

import typer

from esker.tools.commands.options import RunningCluster, finish, seconds

Json = Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only show what would change.")]
NoWait = Annotated[bool, typer.Option("--no-wait", help="Do not wait for the end; it goes on by itself.")]
Timeout = Annotated[str, typer.Option(help="Wait at most so long for the end.", metavar="TIME")]
WAIT = "24h"


def replace_drive(
    old: Annotated[str, typer.Argument(help="Drive to be replaced, up or dead.", metavar="OLD")],
    new: Annotated[str, typer.Argument(help="Drive that takes over: joined, up, in no chains.", metavar="NEW")],
    cluster: RunningCluster,
    force: Annotated[
        bool, typer.Option("--force", help="Also if NEW is in chains, or shares a node with other replicas.")
    ] = False,
    dry_run: DryRun = False,
    no_wait: NoWait = False,
    timeout: Timeout = WAIT,
    json: Json = False,
) -> None:
    """Put a new drive in the place of an old one, in all of its chains.

    Exit code 75: it was not over within --timeout, and goes on by itself.
    """
    from esker.runtime import logging
    from esker.tools.admin.growth import run_replace
    from esker.tools.running import run_command

    logging.configure("admin")
    wait_s = None if no_wait else seconds(timeout)
    finish(run_command(run_replace(cluster, old, new, force=force, dry_run=dry_run, wait_s=wait_s, as_json=json)))


def drain(
    name: Annotated[str, typer.Argument(help="Drive by its id, or node by its name.", metavar="NODE|DRIVE")],
    cluster: RunningCluster,
    cancel: Annotated[
        bool, typer.Option("--cancel", help="Call off a drain or a replacement; chains that have left stay away.")
    ] = False,
    dry_run: DryRun = False,
    no_wait: NoWait = False,
    timeout: Timeout = WAIT,
    json: Json = False,
) -> None:
    """Have other drives take over all chains of a drive or node, which then may be removed.

    Exit code 75: it was not over within --timeout, and goes on by itself.
    """
    from esker.runtime import logging
    from esker.tools.admin.growth import run_drain
    from esker.tools.running import run_command

    logging.configure("admin")
    wait_s = None if no_wait else seconds(timeout)
    finish(run_command(run_drain(cluster, name, cancel=cancel, dry_run=dry_run, wait_s=wait_s, as_json=json)))


def expand(cluster: RunningCluster, dry_run: DryRun = False, json: Json = False) -> None:
    """Make chains for drives that have none; new blocks go there too from then on. Nothing is moved."""
    from esker.runtime import logging
    from esker.tools.admin.growth import run_expand
    from esker.tools.running import run_command

    logging.configure("admin")
    finish(run_command(run_expand(cluster, dry_run=dry_run, as_json=json)))


def remove_node(
    name: Annotated[str, typer.Argument(help="Node by its name, or drive by its id.", metavar="NODE|DRIVE")],
    cluster: RunningCluster,
    json: Json = False,
) -> None:
    """Remove an empty node or drive from the cluster: it never joins again, and what is on its disks stays there."""
    from esker.runtime import logging
    from esker.tools.admin.growth import run_remove_node
    from esker.tools.running import run_command

    logging.configure("admin")
    finish(run_command(run_remove_node(cluster, name, as_json=json)))


def balance(cluster: RunningCluster, json: Json = False) -> None:
    """How evenly chains lie over drives and nodes, and on whom the loss of a node would fall."""
    from esker.runtime import logging
    from esker.tools.admin.growth import run_balance
    from esker.tools.running import run_command

    logging.configure("admin")
    finish(run_command(run_balance(cluster, as_json=json)))


def register(app: typer.Typer) -> None:
    """Makes these commands of `app`."""
    app.command("replace-drive")(replace_drive)
    app.command("remove-node")(remove_node)
    for command in (drain, expand, balance):
        app.command()(command)
