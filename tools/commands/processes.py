"""`esker meta` and `esker chunkserver`: the cluster's processes by themselves.

Both print one line on stdout once they serve (`--json`: one JSON object, for a parent) and run until SIGINT or
SIGTERM, or, with `--watch-stdin`, until the end of stdin.
"""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from esker.tools.commands.options import size

if TYPE_CHECKING:
    from esker.chunkserver.supervisor import WorkerState

WatchStdin = Annotated[
    bool, typer.Option("--watch-stdin", hidden=True, help="End with stdin, which must be a pipe that a parent holds.")
]
Json = Annotated[bool, typer.Option("--json", help="Say where it listens as one JSON object a line.")]
Insecure = Annotated[
    bool,
    typer.Option(
        "--insecure", help="Listen on an address that other machines reach, without authentication: trusted networks."
    ),
]


def meta(
    drives: Annotated[int, typer.Option(help="Drives that must have joined before chains are made.")],
    store: Annotated[
        str,
        typer.Option(
            help="Where metadata is kept: embedded:DIRECTORY for one server, fdb:CLUSTER_FILE for any number of them.",
            metavar="STORE",
        ),
    ],
    replicas: Annotated[int, typer.Option(help="Copies of every block.")] = 2,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0: any free one.")] = 9380,
    advertise: Annotated[
        str, typer.Option(help="Host under which others reach this server.", show_default="that of --host")
    ] = "",
    fdb_prefix: Annotated[
        str, typer.Option(help="Before every key in FoundationDB; another one for each cluster.", metavar="PREFIX")
    ] = "esker/",
    insecure: Insecure = False,
    json: Json = False,
    watch_stdin: WatchStdin = False,
) -> None:
    """Run a metadata server: one on the embedded store, or any number on FoundationDB."""
    import msgspec

    from esker.meta.main import MetaConfig, ServerAddress, serve
    from esker.runtime import logging

    logging.configure("meta")
    config = MetaConfig(
        store=store,
        drives_expected=drives,
        replicas=replicas,
        host=host,
        port=port,
        advertise=advertise,
        fdb_prefix=fdb_prefix,
        insecure=insecure,
    )

    def ready(address: ServerAddress) -> None:
        if json:
            print(msgspec.json.encode(address).decode(), flush=True)
        else:
            print(f"cluster {address.cluster_id}: metadata server on {address.host}:{address.port}", flush=True)

    async def main(stop: asyncio.Event) -> int:
        await serve(config, ready, stop)
        return 0

    _run(main, json, watch_stdin)


def chunkserver(
    cluster: Annotated[
        str, typer.Option(envvar="ESKER_CLUSTER", help="Metadata server(s), HOST:PORT[,HOST:PORT].", metavar="ADDRESS")
    ],
    drive: Annotated[list[Path], typer.Option(help="Directory of a drive; give it once per drive.")],
    capacity: Annotated[str, typer.Option(help="Hard cap on what is stored on each drive.", metavar="SIZE")],
    port: Annotated[
        list[int] | None,
        typer.Option(help="Port of a drive's worker, in the drives' order; 0: any free one.", show_default="any"),
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on, by which others reach this node.")] = "127.0.0.1",
    any_port: Annotated[
        bool, typer.Option("--any-port", hidden=True, help="Ports are wishes: any other will do where one is taken.")
    ] = False,
    node_id: Annotated[str | None, typer.Option(help="Name of this node.", show_default="host name")] = None,
    engine: Annotated[str, typer.Option(help="Block I/O: auto, io_uring or threads.")] = "auto",
    resync_rate: Annotated[
        str,
        typer.Option(help="How fast each drive brings returning replicas up to date, per second.", metavar="SIZE"),
    ] = "200m",
    scrub_rate: Annotated[
        str,
        typer.Option(
            help="How fast each drive's chunks are verified once a week, per second; 0: only on request.",
            metavar="SIZE",
        ),
    ] = "20m",
    insecure: Insecure = False,
    json: Json = False,
    watch_stdin: WatchStdin = False,
) -> None:
    """Run a node's chunk server: a supervisor, and one worker process per drive."""
    import socket

    from esker.chunkserver.config import ChunkserverConfig, DriveConfig
    from esker.chunkserver.main import serve
    from esker.chunkserver.supervisor import WorkerState
    from esker.runtime import logging
    from esker.wire.errors import UserError

    logging.configure("chunkserver")
    capacity_bytes = size(capacity)
    ports = port or []
    if len(ports) not in (0, len(drive)):
        raise UserError(f"{len(drive)} drives and {len(ports)} ports; give every drive a port, or none")
    drives = tuple(
        DriveConfig(str(directory), capacity_bytes, ports[number] if ports else 0, port_is_wish=any_port)
        for number, directory in enumerate(drive)
    )
    config = ChunkserverConfig(
        cluster=cluster,
        drives=drives,
        node_id=node_id if node_id is not None else socket.gethostname(),
        host=host,
        insecure=insecure,
        engine=engine,
        resync_bytes_per_s=size(resync_rate),
        scrub_bytes_per_s=size(scrub_rate),
    )

    def changed(worker: WorkerState) -> None:
        print(_worker_json(worker) if json else _worker_text(worker, host), flush=True)

    async def main(stop: asyncio.Event) -> int:
        await serve(config, changed, stop)
        return 0

    _run(main, json, watch_stdin)


def _worker_json(worker: "WorkerState") -> str:
    import msgspec

    return msgspec.json.encode(
        {
            "directory": worker.drive.directory,
            "pid": worker.pid,
            "port": worker.port,
            "drive_id": worker.drive_id,
            "engine": worker.engine,
            "trouble": worker.trouble,
            "failure": worker.failure,
        }
    ).decode()


def _worker_text(worker: "WorkerState", host: str) -> str:
    if worker.failure:
        return f"{worker.drive.directory} cannot be served: {worker.failure}"
    if worker.trouble:
        return f"{worker.drive.directory} cannot be served yet: {worker.trouble}"
    return f"{worker.drive.directory}: drive {worker.drive_id} on {host}:{worker.port}, pid {worker.pid}"


def _run(main: Callable[[asyncio.Event], Awaitable[int]], json: bool, watch_stdin: bool) -> NoReturn:
    """Runs a server's main to its end; a parent that reads JSON also gets why it failed as JSON."""
    from esker.runtime import process
    from esker.runtime.errors import SettingError
    from esker.tools.child import failed_line
    from esker.tools.exit_codes import exit_code_of
    from esker.wire.errors import EskerError

    try:
        code = process.run(main, watch_stdin=watch_stdin)
    except (EskerError, SettingError) as error:
        if not json:
            raise
        print(failed_line(error), flush=True)
        code = exit_code_of(error)
    raise typer.Exit(code)
