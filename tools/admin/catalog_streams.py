"""A namespace's blocks in object order, from two sides: as the heads of its chains have them, and as the catalog does.

Both come in pages, the next one of each under way while one is looked at, so memory stays bounded however many blocks
there are. A chain whose head does not answer is left out from there on and named in `failures`.
"""

import asyncio
from collections.abc import AsyncGenerator
from heapq import heappop, heappush
from typing import NamedTuple

from esker.tools.admin.link import ClusterLink, head_of
from esker.tools.running import all_or_none
from esker.wire.admin_messages import SCAN_ROW, Scan, ScanReply, split_record_key
from esker.wire.errors import EskerError
from esker.wire.messages import CatalogEntry, CatalogList, CatalogListReply, Method
from esker.wire.types import Chain, Worker

SCAN_PAGE = 1024
SCAN_ROWS_HELD_MAX = 262_144
"""Over all chains: with many chains the pages are smaller."""
SCAN_PAGE_MIN = 32
CATALOG_PAGE = 2000


class Block(NamedTuple):
    """A block as a head has it, in the catalog's terms."""

    object_id: bytes
    chain_id: int
    key: bytes
    block_bytes: int
    chunk_count: int
    created_ms: int
    version: int

    def agrees(self, entry: CatalogEntry) -> bool:
        """Whether the catalog has this. `created_ms` is not compared: each replica notes it by its own clock, and the
        catalog has that of whoever was the head then.
        """
        return (entry.key, entry.block_bytes, entry.chunk_count, entry.version, entry.chain_id) == (
            self.key,
            self.block_bytes,
            self.chunk_count,
            self.version,
            self.chain_id,
        )


def blocks_in(rows: bytes, keys: bytes) -> list[Block]:
    """The blocks in the columns of a `ScanReply` or a `ReportBlocksReply`."""
    found = []
    at = 0
    for record_key, version, _, block_bytes, chunk_count, _, created_ms, key_bytes in SCAN_ROW.iter_unpack(rows):
        chain_id, _, object_id, _ = split_record_key(record_key)
        key = keys[at : at + key_bytes]
        at += key_bytes
        found.append(Block(object_id, chain_id, key, block_bytes, max(1, chunk_count), created_ms, version))
    return found


class DriveSide:
    """A namespace as the drives have it. Iterate `blocks` once; then `failures` says what is missing in it."""

    def __init__(self, link: ClusterLink, space: int, chains: list[Chain], workers: dict[str, Worker]) -> None:
        self._link = link
        self._space = space
        self._chains = chains
        self._workers = workers
        self._limit = max(SCAN_PAGE_MIN, min(SCAN_PAGE, SCAN_ROWS_HELD_MAX // max(1, len(chains))))
        self.failures: dict[int, str] = {}
        """Why a chain's blocks are not all there, by chain id."""

    async def blocks(self) -> AsyncGenerator[Block, None]:
        """All blocks by object id."""
        streams = [self._chain_blocks(chain) for chain in self._chains]
        heap: list[tuple[bytes, int, Block]] = []
        try:
            firsts = await all_or_none(anext(stream, None) for stream in streams)
            for number, block in enumerate(firsts):
                if block is not None:
                    heappush(heap, (block.object_id, number, block))
            while heap:
                _, number, block = heappop(heap)
                yield block
                following = await anext(streams[number], None)
                if following is not None:
                    heappush(heap, (following.object_id, number, following))
        finally:
            for stream in streams:
                await stream.aclose()

    async def _chain_blocks(self, chain: Chain) -> AsyncGenerator[Block, None]:
        head = head_of(chain, self._workers)
        if head is None:
            self.failures[chain.chain_id] = f"chain {chain.chain_id} has no worker at its head"
            return
        page: asyncio.Task[ScanReply] | None = None
        try:
            page = asyncio.ensure_future(self._page(head, chain, b""))
            while page is not None:
                reply = await page
                page = asyncio.ensure_future(self._page(head, chain, reply.next_after)) if reply.next_after else None
                for block in blocks_in(reply.rows, reply.keys):
                    yield block
        except EskerError as error:
            self.failures[chain.chain_id] = f"chain {chain.chain_id}, drive {head.drive_id}: {error}"
        finally:
            if page is not None:
                page.cancel()
                await asyncio.gather(page, return_exceptions=True)

    async def _page(self, head: Worker, chain: Chain, after: bytes) -> ScanReply:
        scan = Scan(chain.chain_id, after, self._limit, self._space, first_chunks=True)
        return await self._link.worker(head, Method.SCAN, scan, ScanReply)


async def catalog_entries(
    link: ClusterLink, namespace_id: int, after: bytes = b""
) -> AsyncGenerator[CatalogEntry, None]:
    """The catalog's entries of a namespace by object id; each page of a version of its own."""

    async def page(after: bytes) -> tuple[CatalogEntry, ...]:
        ask = CatalogList(namespace_id, after, CATALOG_PAGE)
        return (await link.meta(Method.CATALOG_LIST, ask, CatalogListReply)).entries

    coming: asyncio.Task[tuple[CatalogEntry, ...]] | None = asyncio.ensure_future(page(after))
    try:
        while coming is not None:
            entries = await coming
            coming = asyncio.ensure_future(page(entries[-1].object_id)) if len(entries) == CATALOG_PAGE else None
            for entry in entries:
                yield entry
    finally:
        if coming is not None:
            coming.cancel()
            await asyncio.gather(coming, return_exceptions=True)
