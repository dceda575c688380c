"""Where a development cluster keeps its metadata: in its own directory, or where `ESKER_DEV_STORE` says.

With `ESKER_DEV_STORE=fdb:CLUSTER_FILE` every cluster that `esker dev`, `bench`, `replay`, `demo` and the tests start
has its metadata in that FoundationDB cluster, under a random prefix that its directory remembers.
"""

import os
import secrets
from pathlib import Path

from esker.meta.store.base import KEY_END, Transaction
from esker.meta.store.fdb_opening import open_foundationdb

STORE_VARIABLE = "ESKER_DEV_STORE"
PREFIX_FILE = "fdb-prefix"
_FDB = "fdb:"


def store_arguments(directory: Path) -> list[str]:
    """Options of `esker meta` for the cluster whose metadata directory this is."""
    store = os.environ.get(STORE_VARIABLE, "")
    if not store.startswith(_FDB):
        return ["--store", store or f"embedded:{directory}"]
    path = directory / PREFIX_FILE
    if not path.exists():
        directory.mkdir(exist_ok=True)
        path.write_text(f"esker-dev/{secrets.token_hex(8)}/", encoding="ascii")
    return ["--store", store, "--fdb-prefix", path.read_text(encoding="ascii")]


async def remove_metadata(directory: Path) -> None:
    """Remove what a cluster that is not to come back left outside its directory. Raises `EskerError`."""
    path = directory / PREFIX_FILE
    if not path.exists():
        return
    cluster_file = Path(os.environ[STORE_VARIABLE].removeprefix(_FDB))
    store = await open_foundationdb(cluster_file, prefix=path.read_text(encoding="ascii").encode())
    try:
        await store.run(_clear, what="removal of the cluster's metadata")
    finally:
        await store.aclose()


async def _clear(transaction: Transaction) -> None:
    transaction.clear_range(b"", KEY_END)
