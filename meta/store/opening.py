"""Opens a store by what a user calls it: `embedded:DIRECTORY` or `fdb:CLUSTER_FILE`."""

from pathlib import Path

from esker.meta.store.base import Store
from esker.meta.store.embedded import open_embedded
from esker.meta.store.fdb_opening import open_foundationdb
from esker.wire.errors import UserError


async def open_store(name: str, *, fdb_prefix: str) -> Store:
    """The store called `name`. Raises `UserError` for anything else, and for what is wrong with the store itself."""
    engine, colon, path = name.partition(":")
    if not colon or not path or engine not in ("embedded", "fdb"):
        raise UserError(f"metadata store {name!r}; write embedded:DIRECTORY or fdb:CLUSTER_FILE")
    if engine == "embedded":
        return await open_embedded(Path(path))
    return await open_foundationdb(Path(path), prefix=fdb_prefix.encode())
