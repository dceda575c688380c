"""The metadata store's rows for `esker admin meta`: through a running metadata server, or straight from the store.

`RemoteRows` needs a server and works with every engine; `LocalRows` opens the store itself, for when no server can (an
embedded store is then locked against servers, and the other way round).
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Protocol

from esker.meta.admin_raw import meta_change, meta_page, meta_snapshot
from esker.meta.store.base import Store
from esker.meta.store.directory import MARKER
from esker.meta.store.opening import open_store
from esker.tools.admin.link import QUESTION_TIMEOUT_S, ClusterLink
from esker.wire.admin_messages import (
    META_PAGE_ROWS_MAX,
    MetaChange,
    MetaChangeReply,
    MetaPage,
    MetaPageReply,
    MetaRow,
    MetaSnapshot,
)
from esker.wire.codec import decode_body
from esker.wire.errors import ConnectionFailed, DeadlineExceeded, EskerError, UserError
from esker.wire.messages import Method
from esker.wire.rpc_client import Connection

SNAPSHOT_TIMEOUT_S = 30.0
PAGE_ROWS = 5000
Change = tuple[bytes, bytes | None, bytes | None]


class Rows(Protocol):
    """Where the rows come from."""

    async def page(self, begin: bytes, end: bytes, limit: int) -> MetaPageReply:
        """Rows from `begin` to before `end`, of one version."""

    async def snapshot(self) -> tuple[int, list[MetaRow]]:
        """Everything but the catalog's blocks, and its version."""

    async def change(self, rows: Sequence[Change], why: str) -> None:
        """Changes rows that are still as expected. Raises `RequestFailed` (CONFLICT) where one is not."""


class RemoteRows:
    """`Rows` of a running cluster."""

    def __init__(self, link: ClusterLink) -> None:
        self._link = link

    async def page(self, begin: bytes, end: bytes, limit: int) -> MetaPageReply:
        return await self._link.meta(Method.META_PAGE, MetaPage(begin, end, limit), MetaPageReply)

    async def snapshot(self) -> tuple[int, list[MetaRow]]:
        failure: EskerError = ConnectionFailed("no metadata server is known")
        for address in self._link.meta_addresses:
            try:
                connection = await Connection.connect(address, role="tool", timeout_s=QUESTION_TIMEOUT_S)
            except ConnectionFailed as error:
                failure = error
                continue
            try:
                return await _snapshot_over(connection)
            except (ConnectionFailed, DeadlineExceeded) as error:
                failure = error
            finally:
                await connection.aclose()
        raise failure

    async def change(self, rows: Sequence[Change], why: str) -> None:
        await self._link.meta(Method.META_CHANGE, MetaChange(tuple(rows), why), MetaChangeReply)


class LocalRows:
    """`Rows` of a store that this process has open."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def page(self, begin: bytes, end: bytes, limit: int) -> MetaPageReply:
        return await meta_page(self._store, MetaPage(begin, end, limit))

    async def snapshot(self) -> tuple[int, list[MetaRow]]:
        pages = await meta_snapshot(self._store)
        return pages[0].version, [row for page in pages for row in page.rows]

    async def change(self, rows: Sequence[Change], why: str) -> None:
        await meta_change(self._store, MetaChange(tuple(rows), why))


@asynccontextmanager
async def open_rows(cluster: str | None, store: str | None, fdb_prefix: str) -> AsyncIterator[Rows]:
    """Of the cluster, or of the store; exactly one must be given. Raises `UserError`."""
    if store is not None:
        engine, _, path = store.partition(":")
        if engine == "embedded" and path and not (Path(path) / MARKER).is_file():
            raise UserError(f"there is no metadata store in {path}; give the directory of one")
        opened = await open_store(store, fdb_prefix=fdb_prefix)
        try:
            yield LocalRows(opened)
        finally:
            await opened.aclose()
    elif cluster is not None:
        async with ClusterLink(cluster) as link:
            yield RemoteRows(link)
    else:
        raise UserError(
            "say whose metadata: --cluster HOST:PORT (or ESKER_CLUSTER) of a running one, or --store where none runs"
        )


async def all_rows(rows: Rows, begin: bytes, end: bytes) -> AsyncGenerator[list[MetaRow], None]:
    """A range in pages, each of a version of its own; the next one is under way while one is looked at."""
    coming: asyncio.Task[MetaPageReply] | None = asyncio.ensure_future(rows.page(begin, end, PAGE_ROWS))
    try:
        while coming is not None:
            page = await coming
            coming = None
            if not page.over:
                after = page.rows[-1][0] + b"\x00" if page.rows else begin
                coming = asyncio.ensure_future(rows.page(after, end, PAGE_ROWS))
            yield list(page.rows)
    finally:
        if coming is not None:
            coming.cancel()
            await asyncio.gather(coming, return_exceptions=True)


async def _snapshot_over(connection: Connection) -> tuple[int, list[MetaRow]]:
    pages = _Pages()
    request = connection.start(Method.META_SNAPSHOT, MetaSnapshot(), pages)
    try:
        async with asyncio.timeout(SNAPSHOT_TIMEOUT_S):
            await pages.over
    except TimeoutError:
        raise DeadlineExceeded(
            f"{connection.address} did not send its metadata within {SNAPSHOT_TIMEOUT_S:g} s"
        ) from None
    finally:
        connection.forget(request)
    return pages.version, pages.rows


class _Pages:
    """Collects the replies to META_SNAPSHOT."""

    def __init__(self) -> None:
        self.version = 0
        self.rows: list[MetaRow] = []
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def on_reply(self, body: bytes | bytearray, payload_bytes: int) -> None:
        page = decode_body(MetaPageReply, body)
        self.version = page.version
        self.rows += page.rows

    def on_payload(self) -> None:
        raise AssertionError("no memory was named")

    def on_done(self, error: EskerError | None) -> None:
        if self.over.done():
            return
        if error is None:
            self.over.set_result(None)
        else:
            self.over.set_exception(error)


assert PAGE_ROWS <= META_PAGE_ROWS_MAX
