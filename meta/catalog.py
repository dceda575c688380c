"""The block catalog: which blocks every namespace has, for listing and accounting. Truth is on the drives.

Workers report what their heads created and removed, in batches, in the background; a report may come twice, so a
batch is written against what is stored, and counters move only by the difference. Each namespace has two figures
(blocks, bytes), each in shards that transactions add to without reading, so reports do not conflict over them.
"""

from collections.abc import Sequence

from esker.meta import keys
from esker.meta.records import StoredBlock, pack, unpack
from esker.meta.store.base import Store, Transaction
from esker.wire.errors import RequestFailed
from esker.wire.limits import KEY_BYTES_MAX, OBJECT_BYTES
from esker.wire.messages import CatalogEntry, CatalogList, CatalogListReply
from esker.wire.status import Status

TRANSACTION_ENTRIES_MAX = 2000
"""Far below the store's 10 MB, and short enough not to hold up the loop."""
LIST_LIMIT_MAX = 10_000
REPORT_TIMEOUT_S = 10.0


class Catalog:
    """The catalog in a store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: set[int] = set()
        """Namespace ids that were seen to exist; they are never given again."""

    async def report(self, entries: Sequence[CatalogEntry]) -> None:
        """Write `entries`, later ones over earlier ones. Idempotent.

        Raises `RequestFailed` (BAD_REQUEST, NOT_FOUND for an unknown namespace; nothing of the batch is written then),
        `StoreError` (some of the batch may be written: report it again).
        """
        for entry in entries:
            _check(entry)
        await self._check_namespaces({entry.namespace_id for entry in entries})
        for first in range(0, len(entries), TRANSACTION_ENTRIES_MAX):
            # Of entries for one block only the last counts.
            part = {(e.namespace_id, e.object_id): e for e in entries[first : first + TRANSACTION_ENTRIES_MAX]}
            latest = list(part.values())

            async def body(transaction: Transaction, latest: list[CatalogEntry] = latest) -> None:
                await _write(transaction, latest)

            await self._store.run(body, what=f"catalog report of {len(latest)} blocks", timeout_s=REPORT_TIMEOUT_S)

    async def page(self, request: CatalogList) -> CatalogListReply:
        """Up to `limit` blocks of a namespace. Raises `RequestFailed` (BAD_REQUEST)."""
        if not 1 <= request.limit <= LIST_LIMIT_MAX:
            raise RequestFailed(Status.BAD_REQUEST, f"limit is {request.limit}; allowed: 1 to {LIST_LIMIT_MAX}")
        if len(request.after) not in (0, OBJECT_BYTES) or not 0 <= request.namespace_id <= 0xFFFFFFFF:
            raise RequestFailed(Status.BAD_REQUEST, "malformed namespace id or object id")
        begin, end = keys.blocks(request.namespace_id, request.after)

        async def body(transaction: Transaction) -> CatalogListReply:
            rows = await transaction.get_range(begin, end, limit=request.limit)
            return CatalogListReply(tuple(_entry(request.namespace_id, key, stored) for key, stored in rows))

        return await self._store.run(body, what="listing blocks")

    async def totals(self) -> dict[int, tuple[int, int]]:
        """(blocks, bytes) by namespace id."""

        async def body(transaction: Transaction) -> dict[int, tuple[int, int]]:
            totals: dict[int, list[int]] = {}
            for key, stored in await transaction.get_range(*keys.counters()):
                namespace_id, figure = keys.split_counter(key)
                totals.setdefault(namespace_id, [0, 0])[figure - keys.BLOCKS] += _signed(stored)
            return {namespace_id: (blocks, size) for namespace_id, (blocks, size) in totals.items()}

        return await self._store.run(body, what="reading the catalog's counters")

    async def _check_namespaces(self, wanted: set[int]) -> None:
        fresh = sorted(wanted - self._known)
        if not fresh:
            return

        async def body(transaction: Transaction) -> list[bytes | None]:
            return await transaction.get_many([keys.namespace(namespace_id) for namespace_id in fresh])

        found = await self._store.run(body, what="looking up namespaces")
        for namespace_id, stored in zip(fresh, found, strict=True):
            if stored is None:
                raise RequestFailed(Status.NOT_FOUND, f"there is no namespace {namespace_id}")
            self._known.add(namespace_id)


async def _write(transaction: Transaction, entries: Sequence[CatalogEntry]) -> None:
    """Write distinct blocks and move the counters by what changed."""
    entry_keys = [keys.block(entry.namespace_id, entry.object_id) for entry in entries]
    moved: dict[tuple[int, int], list[int]] = {}
    for entry, key, before in zip(entries, entry_keys, await transaction.get_many(entry_keys), strict=True):
        after = _stored(entry) if entry.created_ms else None
        if before == after:
            continue
        move = moved.setdefault((entry.namespace_id, entry.object_id[0] % keys.COUNTER_SHARDS), [0, 0])
        if before is not None:
            move[0] -= 1
            move[1] -= unpack(StoredBlock, key, before).block_bytes
        if after is not None:
            move[0] += 1
            move[1] += entry.block_bytes
            transaction.set(key, after)
        else:
            transaction.clear(key)
    for (namespace_id, shard), move in moved.items():
        for figure, amount in zip((keys.BLOCKS, keys.BYTES), move, strict=True):
            if amount:
                transaction.add(keys.counter(namespace_id, figure, shard), amount.to_bytes(8, "little", signed=True))


def _stored(entry: CatalogEntry) -> bytes:
    return pack(StoredBlock(entry.key, entry.block_bytes, entry.chunk_count, entry.created_ms))


def _entry(namespace_id: int, key: bytes, stored: bytes) -> CatalogEntry:
    block = unpack(StoredBlock, key, stored)
    return CatalogEntry(
        namespace_id, keys.block_object(key), block.key, block.block_bytes, block.chunk_count, block.created_ms
    )


def _signed(stored: bytes) -> int:
    return int.from_bytes(stored, "little", signed=True)


def _check(entry: CatalogEntry) -> None:
    if (
        len(entry.object_id) != OBJECT_BYTES
        or len(entry.key) > KEY_BYTES_MAX
        or not 1 <= entry.namespace_id <= 0xFFFFFFFF
        or entry.created_ms < 0
        or (entry.created_ms and (not entry.key or entry.block_bytes < 1 or entry.chunk_count < 1))
    ):
        raise RequestFailed(Status.BAD_REQUEST, f"malformed catalog entry: {entry}")
