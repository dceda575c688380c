"""`esker failover`."""

from typing import Annotated

import typer

from esker.tools.commands.options import Directory, finish, seconds
from esker.tools.exit_codes import ExitCode


def failover(
    times: Annotated[int, typer.Option("--times", "-n", min=1, max=10_000, help="How often.")] = 20,
    how: Annotated[
        str, typer.Option(help="kill (-9), stop (SIGSTOP, then SIGCONT), or kill-both (with the metadata server).")
    ] = "kill",
    stop_for: Annotated[str, typer.Option(help="How long a worker hangs with --how stop.", metavar="TIME")] = "10s",
    timeout: Annotated[str, typer.Option(help="Deadline of each operation of the load.", metavar="TIME")] = "10s",
    drives: Annotated[int, typer.Option(min=2, max=64, help="Drives of the cluster.")] = 3,
    replicas: Annotated[int, typer.Option(min=2, max=8, help="Copies of everything.")] = 3,
    transport: Annotated[str, typer.Option(help="auto, tcp, or local (same host).")] = "auto",
    engine: Annotated[str, typer.Option(help="Block I/O: auto, io_uring or threads.")] = "auto",
    directory: Directory = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout, with every single death.")] = False,
) -> None:
    """Kill one drive's worker after another under load, and report what clients noticed.

    It starts a cluster of its own, reads and puts KV blocks, and writes and reads a mutable chunk on every chain.

    All of it is compared; after each death it looks whether everything that was acknowledged is there.
    """
    from esker.runtime import logging
    from esker.tools.failover.report import print_outcome
    from esker.tools.failover.run import FailoverOptions, how_named, run_failover
    from esker.tools.running import run_command

    logging.configure("failover")
    options = FailoverOptions(
        how=how_named(how),
        times=times,
        stop_s=seconds(stop_for),
        timeout_s=seconds(timeout),
        drives=drives,
        replicas=replicas,
        transport=transport,
        directory=directory,
        engine=engine,
    )

    async def command() -> ExitCode:
        outcome = await run_failover(options)
        print_outcome(outcome, machine=json)
        return outcome.exit_code()

    finish(run_command(command()))
