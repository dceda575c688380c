"""`esker replay`."""

from pathlib import Path
from typing import Annotated

import typer

from esker.tools.commands.options import Cluster, Directory, Drives, Mode, Replicas, finish, size
from esker.wire.types import NamespaceMode


def replay(
    trace: Annotated[Path, typer.Argument(help="Trace in Mooncake's format: one JSON object a line.")],
    block_bytes: Annotated[
        str, typer.Option(help="Size of every block; at 4k a long trace fits a small disk.", metavar="SIZE")
    ] = "4k",
    requests: Annotated[int | None, typer.Option(min=1, help="Only the first N requests.", metavar="N")] = None,
    clients: Annotated[
        int, typer.Option(min=1, max=256, help="Requests under way at a time, each by a client of its own.")
    ] = 1,
    speed: Annotated[
        float | None,
        typer.Option(help="Times the trace's own pace; 1: in real time.", show_default="as fast as possible"),
    ] = None,
    transport: Annotated[str, typer.Option(help="auto, tcp, or local (same host).")] = "auto",
    namespace: Annotated[
        str | None, typer.Option(help="Namespace to use; its blocks stay.", show_default="esker-replay/BLOCK_BYTES")
    ] = None,
    mode: Mode = NamespaceMode.REPLICATED,
    json: Annotated[bool, typer.Option("--json", help="The summary as one JSON object on stdout.")] = False,
    cluster: Cluster = None,
    directory: Directory = None,
    drives: Drives = 4,
    replicas: Replicas = 2,
    capacity: Annotated[
        str | None,
        typer.Option(
            help="Hard cap on each drive of a cluster of its own.", metavar="SIZE", show_default="room for everything"
        ),
    ] = None,
) -> None:
    """Replay a KV-cache request trace: match the prefix, get and check the hits, put the rest.

    Contents follow from the block's id, so every byte that is read is checked.
    """
    from esker.runtime import logging
    from esker.tools.replay.command import ReplayOptions, run_replay_command
    from esker.tools.running import run_command

    logging.configure("replay")
    options = ReplayOptions(
        trace=trace,
        block_bytes=size(block_bytes),
        requests=requests,
        clients=clients,
        speed=speed,
        transport=transport,
        namespace=namespace,
        mode=mode,
        cluster=cluster,
        directory=directory,
        drives=drives,
        replicas=replicas,
        capacity_bytes=None if capacity is None else size(capacity),
    )
    finish(run_command(run_replay_command(options, as_json=json)))
