"""The metadata store's rows as they are, for operators' tools: pages, one consistent snapshot, guarded changes.

A page has one version of its own. The snapshot has everything but the blocks of the catalog at one version: these
tables are small enough to be read within a transaction's 5 s, while the catalog is not, and is reconciled with the
drives anyway. A change names what it expects to find, so that a tool that looked some time ago changes nothing that
has changed since.
"""

from collections.abc import Iterator, Sequence

from esker.meta import keys
from esker.meta.store.base import KEY_END, Store, Transaction
from esker.meta.store.errors import printable
from esker.wire.admin_messages import (
    META_CHANGES_MAX,
    META_PAGE_BYTES_AIM,
    META_PAGE_ROWS_MAX,
    MetaChange,
    MetaChangeReply,
    MetaPage,
    MetaPageReply,
    MetaRow,
)
from esker.wire.errors import RequestFailed
from esker.wire.status import Status

FIRST_KEY = b"\x00"
SLICE_ROWS = 100
"""Rows may be large: a page is read in slices until it has bytes enough."""


async def meta_page(store: Store, request: MetaPage) -> MetaPageReply:
    """A page of rows, cut where it has several MiB. Raises `RequestFailed` (BAD_REQUEST)."""
    if not 1 <= request.limit <= META_PAGE_ROWS_MAX or not FIRST_KEY <= request.begin <= request.end <= KEY_END:
        raise RequestFailed(
            Status.BAD_REQUEST, f"malformed range of metadata keys; allowed: limit 1 to {META_PAGE_ROWS_MAX}"
        )

    async def body(transaction: Transaction) -> MetaPageReply:
        rows: list[MetaRow] = []
        size = 0
        over = False
        begin = request.begin
        while not over and len(rows) < request.limit and size < META_PAGE_BYTES_AIM:
            limit = min(SLICE_ROWS, request.limit - len(rows))
            found = await transaction.get_range(begin, request.end, limit=limit, snapshot=True)
            rows += found
            size += sum(len(key) + len(value) for key, value in found)
            over = len(found) < limit
            if found:
                begin = found[-1][0] + b"\x00"
        return MetaPageReply(await transaction.read_version(), tuple(rows), over)

    return await store.run(body, what="reading metadata")


async def meta_snapshot(store: Store) -> list[MetaPageReply]:
    """Everything but the catalog's blocks at one version, in pages."""
    blocks_begin, blocks_end = keys.all_blocks()

    async def body(transaction: Transaction) -> tuple[int, list[MetaRow]]:
        rows = await transaction.get_range(FIRST_KEY, blocks_begin, snapshot=True)
        rows += await transaction.get_range(blocks_end, KEY_END, snapshot=True)
        return await transaction.read_version(), rows

    version, rows = await store.run(body, what="reading all metadata")
    pages = list(in_pages(rows))
    return [MetaPageReply(version, tuple(page), number == len(pages)) for number, page in enumerate(pages, 1)]


async def meta_change(store: Store, request: MetaChange) -> MetaChangeReply:
    """Raises `RequestFailed`: BAD_REQUEST; CONFLICT where a row is not as expected, naming it."""
    if not 1 <= len(request.rows) <= META_CHANGES_MAX or not request.why:
        raise RequestFailed(Status.BAD_REQUEST, f"a change has a reason and 1 to {META_CHANGES_MAX} rows")
    wanted = [key for key, _, _ in request.rows]
    if len(set(wanted)) < len(wanted) or not all(FIRST_KEY <= key < KEY_END for key in wanted):
        raise RequestFailed(Status.BAD_REQUEST, "a change names each row once")

    async def body(transaction: Transaction) -> MetaChangeReply:
        found = await transaction.get_many(wanted)
        # An attempt before this one may have been committed without an answer.
        if found != [new for _, _, new in request.rows]:
            for (key, expected, new), now in zip(request.rows, found, strict=True):
                if now != expected:
                    raise RequestFailed(Status.CONFLICT, f"{printable(key)} has changed meanwhile; look again")
                if new is None:
                    transaction.clear(key)
                else:
                    transaction.set(key, new)
        return MetaChangeReply(await transaction.read_version())

    return await store.run(body, what=request.why)


def in_pages(rows: Sequence[MetaRow]) -> Iterator[list[MetaRow]]:
    """The rows in pages of several MiB; one empty page where there are none."""
    page: list[MetaRow] = []
    size = 0
    for row in rows:
        page.append(row)
        size += len(row[0]) + len(row[1])
        if size >= META_PAGE_BYTES_AIM:
            yield page
            page, size = [], 0
    if page or not rows:
        yield page
