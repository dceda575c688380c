"""`esker admin`: the catalog, namespaces and their blocks. `esker admin meta` is `admin_meta.py`'s; what there is of
nodes and chains is `admin_cluster.py`'s.
"""

from typing import Annotated

import typer

from esker.tools.commands import admin_cluster, admin_growth, admin_override, admin_scrub
from esker.tools.commands.admin_meta import meta_app
from esker.tools.commands.options import RunningCluster, finish, seconds

admin_app = typer.Typer(
    no_args_is_help=True, help="Look after a cluster: drives, chains, damage, catalog, namespaces, metadata."
)
catalog_app = typer.Typer(no_args_is_help=True, help="The list of blocks that the metadata servers keep.")
namespaces_app = typer.Typer(no_args_is_help=True, help="Namespaces: what they hold, and their removal.")
admin_cluster.register(admin_app)
admin_growth.register(admin_app)
admin_override.register(admin_app)
admin_scrub.register(admin_app)
admin_app.add_typer(catalog_app, name="catalog")
admin_app.add_typer(namespaces_app, name="namespaces")
admin_app.add_typer(meta_app, name="meta")

Json = Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")]
Wait = Annotated[
    str | None,
    typer.Option(help="Wait so long for the end of the removal, which goes on by itself.", metavar="TIME"),
]


@catalog_app.command("check")
def catalog_check(
    cluster: RunningCluster,
    repair: Annotated[bool, typer.Option("--repair", help="Have the drives tell the catalog what differs.")] = False,
    namespace: Annotated[str | None, typer.Option(help="Only this namespace.", metavar="NAME")] = None,
    json: Json = False,
) -> None:
    """Compare the catalog with what is on the drives, block by block.

    Exit code 6: something differs (still). 3: a worker is down, or blocks changed too fast to be compared.
    """
    from esker.runtime import logging
    from esker.tools.admin.catalog_command import run_catalog_check
    from esker.tools.running import run_command

    logging.configure("admin")
    finish(run_command(run_catalog_check(cluster, namespace, repair=repair, as_json=json)))


@namespaces_app.command("list")
def namespaces_list(cluster: RunningCluster, json: Json = False) -> None:
    """All namespaces, with blocks, bytes and how far removals are."""
    from esker.runtime import logging
    from esker.tools.admin.namespaces import list_namespaces
    from esker.tools.running import run_command

    logging.configure("admin")
    finish(run_command(list_namespaces(cluster, as_json=json)))


@namespaces_app.command("show")
def namespaces_show(
    name: Annotated[str, typer.Argument(help="Name of the namespace.")], cluster: RunningCluster, json: Json = False
) -> None:
    """One namespace, with its geometry."""
    from esker.runtime import logging
    from esker.tools.admin.namespaces import show_namespace
    from esker.tools.running import run_command

    logging.configure("admin")
    finish(run_command(show_namespace(cluster, name, as_json=json)))


@namespaces_app.command("remove")
def namespaces_remove(
    name: Annotated[str, typer.Argument(help="Name of the namespace.")],
    cluster: RunningCluster,
    wait: Wait = None,
    json: Json = False,
) -> None:
    """Remove a namespace with all its blocks, in the background.

    The name is free at once; clients that have it open are refused. Exit code 75: it was not over within --wait.
    """
    _remove(cluster, name=name, tenant="", wait=wait, json=json)


@admin_app.command("purge")
def purge(
    cluster: RunningCluster,
    tenant: Annotated[str, typer.Option(help="Every namespace whose name starts with TENANT/.")] = "",
    namespace: Annotated[str, typer.Option(help="This namespace.", metavar="NAME")] = "",
    strange: Annotated[
        int | None,
        typer.Option(
            "--id",
            help="Chunks of this namespace id, which a catalog check found unknown.",
            metavar="ID",
        ),
    ] = None,
    wait: Wait = None,
    json: Json = False,
) -> None:
    """Remove everything of a tenant, or one namespace, in the background. Exit codes as for namespaces remove."""
    from esker.wire.errors import UserError

    if strange is not None and not 1 <= strange <= 0xFFFFFFFF:
        raise UserError(
            f"--id {strange}; give a namespace id that a catalog check found unknown, from 1 to {0xFFFFFFFF}"
        )
    if sum(map(bool, (tenant, namespace, strange))) != 1:
        raise UserError("give one of --tenant, --namespace and --id")
    _remove(cluster, name=namespace, tenant=tenant, strange=strange or 0, wait=wait, json=json)


def _remove(cluster: str, *, name: str, tenant: str, strange: int = 0, wait: str | None, json: bool) -> None:
    from esker.runtime import logging
    from esker.tools.admin.namespaces import remove_namespaces
    from esker.tools.running import run_command

    logging.configure("admin")
    wait_s = None if wait is None else seconds(wait)
    finish(
        run_command(remove_namespaces(cluster, name=name, tenant=tenant, strange=strange, wait_s=wait_s, as_json=json))
    )


@admin_app.command("blocks")
def blocks(
    namespace: Annotated[str, typer.Argument(help="Name of the namespace.")],
    cluster: RunningCluster,
    limit: Annotated[int, typer.Option(min=1, max=1_000_000, help="At most so many.", metavar="N")] = 100,
    after: Annotated[str, typer.Option(help="Where the last page ended.", metavar="OBJECT")] = "",
    json: Json = False,
) -> None:
    """List the blocks of a namespace as the catalog has them, a page at a time."""
    from esker.runtime import logging
    from esker.tools.admin.namespaces import list_blocks
    from esker.tools.running import run_command

    logging.configure("admin")
    finish(run_command(list_blocks(cluster, namespace, limit=limit, after=after, as_json=json)))
