"""`esker meta` and `esker chunkserver`: the cluster's processes by themselves.

Both print one line on stdout once they serve (`--json`: one JSON object, for a parent) and run until SIGINT or
SIGTERM, or, with `--watch-stdin`, until the end of stdin.
"""

import asyncio
from pathlib import Path
from typing import Annotated

import typer

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
    directory: Annotated[Path, typer.Option("--dir", help="Directory of the metadata store; made if absent.")],
    drives: Annotated[int, typer.Option(help="Drives that must have joined before chains are made.")],
    replicas: Annotated[int, typer.Option(help="Copies of every block.")] = 2,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0: any free one.")] = 9380,
    insecure: Insecure = False,
    json: Json = False,
    watch_stdin: WatchStdin = False,
) -> None:
    """Run the metadata server of a cluster (exactly one, on the embedded store)."""
    import msgspec

    from esker.meta.main import MetaConfig, ServerAddress, serve
    from esker.runtime import logging, process

    logging.configure("meta")
    config = MetaConfig(
        directory=str(directory), drives_expected=drives, replicas=replicas, host=host, port=port, insecure=insecure
    )

    def ready(address: ServerAddress) -> None:
        if json:
            print(msgspec.json.encode(address).decode(), flush=True)
        else:
            print(f"cluster {address.cluster_id}: metadata server on {address.host}:{address.port}", flush=True)

    async def main(stop: asyncio.Event) -> int:
        await serve(config, ready, stop)
        return 0

    raise typer.Exit(process.run(main, watch_stdin=watch_stdin))
