"""Where the rows come from: a store that is there, or none."""

import os
from pathlib import Path

import pytest

from esker.meta import keys
from esker.meta.admin import AdminService
from esker.meta.admin_raw import FIRST_KEY
from esker.meta.catalog import Catalog
from esker.meta.store.base import KEY_END
from esker.meta.store.embedded import open_embedded
from esker.meta.store.memory import MemoryStore
from esker.tools.admin.link import ClusterLink
from esker.tools.admin.meta_source import RemoteRows, open_rows
from esker.wire.errors import ConnectionFailed, UserError
from esker.wire.messages import Method
from esker.wire.rpc_server import Identity, Request, RpcServer

from ...meta.conftest import join_all


@pytest.mark.parametrize("name", ["absent", "empty"])
async def test_a_store_is_never_made_to_be_looked_at(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="there is no metadata store in"):
        async with open_rows(None, f"embedded:{tmp_path / name}", ""):
            pass
    assert [found for _, *found in os.walk(tmp_path)] == [[["empty"], []], [[], []]]


async def test_a_store_that_is_there_is_read(tmp_path: Path) -> None:
    await (await open_embedded(tmp_path / "store")).aclose()
    async with open_rows(None, f"embedded:{tmp_path / 'store'}", "") as rows:
        assert not (await rows.page(FIRST_KEY, KEY_END, 10)).rows


async def test_another_server_is_asked_where_one_ends_in_the_midst_of_a_snapshot() -> None:
    def hang_up(request: Request) -> None:
        request.connection.stream.close()

    store = MemoryStore()
    await join_all(store, 2)
    whole = AdminService(store, Catalog(store)).snapshot_handler()
    servers = [RpcServer({Method.META_SNAPSHOT: handler}, Identity("c1", "", "i")) for handler in (hang_up, whole)]
    ports = [await server.listen_tcp("127.0.0.1", 0) for server in servers]
    try:
        async with ClusterLink(",".join(f"127.0.0.1:{port}" for port in ports)) as link:
            _, rows = await RemoteRows(link).snapshot()
            assert keys.drive("d1") in dict(rows)
            await servers.pop().aclose()
            with pytest.raises(ConnectionFailed):
                await RemoteRows(link).snapshot()
    finally:
        for server in servers:
            await server.aclose()
        await store.aclose()
