"""`esker admin meta`: the metadata store's state, rows, check, backup and restore."""

from pathlib import Path
from typing import Annotated

import typer

from esker.tools.commands.options import RunningCluster, finish

meta_app = typer.Typer(no_args_is_help=True, help="The metadata store: state, rows, check, backup and restore.")

Json = Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")]
Cluster = Annotated[
    str | None,
    typer.Option(
        "--cluster",
        envvar="ESKER_CLUSTER",
        help="Metadata server(s) of a running cluster, HOST:PORT[,HOST:PORT].",
        metavar="ADDRESS",
    ),
]
Store = Annotated[
    str | None,
    typer.Option(
        help="The store itself, where no server runs: embedded:DIRECTORY or fdb:CLUSTER_FILE. Goes before --cluster.",
        metavar="STORE",
    ),
]
FdbPrefix = Annotated[
    str, typer.Option(help="Before every key in FoundationDB, as it was given to the servers.", metavar="PREFIX")
]


@meta_app.command("status")
def status(cluster: RunningCluster, json: Json = False) -> None:
    """Engine and version, manager, metadata servers, sizes, and how far the catalog is behind the drives.

    Exit code 3: a metadata server does not answer, or none is the manager.
    """
    from esker.runtime import logging
    from esker.tools.admin.meta_status import run_meta_status
    from esker.tools.running import run_command

    logging.configure("admin")
    finish(run_command(run_meta_status(cluster, as_json=json)))


@meta_app.command("dump")
def dump(
    table: Annotated[str | None, typer.Argument(help="Only this table.", show_default="all")] = None,
    limit: Annotated[int, typer.Option(min=0, help="At most so many rows; 0: all.", metavar="N")] = 1000,
    after: Annotated[
        str, typer.Option(help="Begin after this key, as a dump prints it under `more`.", metavar="KEY")
    ] = "",
    cluster: Cluster = None,
    store: Store = None,
    fdb_prefix: FdbPrefix = "esker/",
    json: Annotated[bool, typer.Option("--json", help="One JSON object per row.")] = False,
) -> None:
    """Print rows of the metadata store, decoded."""
    from esker.runtime import logging
    from esker.tools.admin.meta_dump import run_dump
    from esker.tools.running import run_command

    logging.configure("admin")
    finish(run_command(run_dump(cluster, store, fdb_prefix, table=table, limit=limit, after=after, as_json=json)))


@meta_app.command("get")
def get(
    row: Annotated[
        list[str],
        typer.Argument(help="Table and the parts of the key, such as: chain 3; or: key KEY, as errors print it."),
    ],
    cluster: Cluster = None,
    store: Store = None,
    fdb_prefix: FdbPrefix = "esker/",
    json: Json = False,
) -> None:
    """Print one row of the metadata store, decoded."""
    from esker.runtime import logging
    from esker.tools.admin.meta_dump import run_get
    from esker.tools.running import run_command

    logging.configure("admin")
    finish(run_command(run_get(cluster, store, fdb_prefix, words=row, as_json=json)))


@meta_app.command("check")
def check(
    repair: Annotated[
        bool, typer.Option("--repair", help="Mend rows of which the rest of the metadata tells what they must be.")
    ] = False,
    cluster: Cluster = None,
    store: Store = None,
    fdb_prefix: FdbPrefix = "esker/",
    json: Json = False,
) -> None:
    """Check that all tables fit each other, and the counters the blocks.

    Exit code 6: something is wrong (still). 3: blocks changed too fast to be counted.
    """
    from esker.runtime import logging
    from esker.tools.admin.meta_check import run_meta_check
    from esker.tools.running import run_command

    logging.configure("admin")
    finish(run_command(run_meta_check(cluster, store, fdb_prefix, repair=repair, as_json=json)))


@meta_app.command("backup")
def backup(
    file: Annotated[Path, typer.Argument(help="File to write; it must not be there.")],
    cluster: Cluster = None,
    store: Store = None,
    fdb_prefix: FdbPrefix = "esker/",
    json: Json = False,
) -> None:
    """Write all metadata to a file while the cluster works.

    Everything is of one moment but the blocks of the catalog, which are of the moments at which they were read.
    """
    from esker.runtime import logging
    from esker.tools.admin.meta_backup import run_backup
    from esker.tools.running import run_command

    logging.configure("admin")
    finish(run_command(run_backup(cluster, store, fdb_prefix, file, as_json=json)))


@meta_app.command("restore")
def restore(
    file: Annotated[Path, typer.Argument(help="A file that backup wrote.")],
    store: Annotated[
        str, typer.Option(help="The store to fill: embedded:DIRECTORY or fdb:CLUSTER_FILE.", metavar="STORE")
    ],
    force: Annotated[bool, typer.Option("--force", help="Lose what is in the store.")] = False,
    fdb_prefix: FdbPrefix = "esker/",
    json: Json = False,
) -> None:
    """Fill an empty store from a backup, while no metadata server runs over it."""
    from esker.runtime import logging
    from esker.tools.admin.meta_backup import run_restore
    from esker.tools.running import run_command

    logging.configure("admin")
    finish(run_command(run_restore(file, store, fdb_prefix, force=force, as_json=json)))
