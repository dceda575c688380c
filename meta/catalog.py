"""The block catalog: which blocks every namespace has, for listing and accounting. Truth is on the drives.

Workers report what their heads created and removed, in batches, in the background. A report may come twice or late, so
a drive's reports are taken in their order and each once, an entry never replaces or removes one of a higher version,
and counters move only by the difference to what is stored. Each namespace has two figures (blocks, bytes), each in
shards that transactions add to without reading, so reports do not conflict over them.

Every transaction that writes entries reads the namespaces' records: what is reported of a namespace after the begin of
its removal is passed over, whichever server it comes to.
"""

import struct
from collections.abc import Sequence

from esker.meta import keys
from esker.meta.catalog_record import StoredBlock, pack_block, unpack_block
from esker.meta.store.base import Store, Transaction
from esker.meta.store.errors import StoreFailed
from esker.runtime.logging import get_logger
from esker.wire.admin_messages import BLOCKS_MAX, CatalogGet
from esker.wire.errors import RequestFailed
from esker.wire.limits import KEY_BYTES_MAX, OBJECT_BYTES
from esker.wire.messages import CatalogEntry, CatalogList, CatalogListReply, CatalogReport
from esker.wire.status import Status

log = get_logger("meta.catalog")

TRANSACTION_ENTRIES_MAX = 2000
"""Far below the store's 10 MB, and short enough not to hold up the loop."""
LIST_LIMIT_MAX = 10_000
REPORT_TIMEOUT_S = 10.0
REPORT_PLACE = struct.Struct(">QQ")
"""Life and number of a report."""
_U64_MAX = 2**64 - 1
Totals = dict[int, tuple[int, int]]
"""(blocks, bytes) by namespace id."""


class Catalog:
    """The catalog in a store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def report(self, report: CatalogReport) -> int:
        """Write the report's entries, later ones over earlier ones; how many of them were passed over because their
        namespace does not exist (any more). Idempotent.

        Raises `RequestFailed` (BAD_REQUEST; nothing is written then), `StoreError` (some of it may be written: report
        it again).
        """
        _check_report(report)
        parts = [
            report.entries[first : first + TRANSACTION_ENTRIES_MAX]
            for first in range(0, len(report.entries), TRANSACTION_ENTRIES_MAX)
        ]
        passed_over = 0
        for number, part in enumerate(parts, 1):

            async def body(
                transaction: Transaction, part: Sequence[CatalogEntry] = part, last: bool = number == len(parts)
            ) -> int:
                if await _was_taken(transaction, report):
                    return 0
                if last and report.drive_id and not await _was_removed(transaction, report.drive_id):
                    transaction.set(keys.report(report.drive_id), REPORT_PLACE.pack(report.life, report.number))
                return await _write(transaction, part)

            what = f"catalog report of {len(part)} entries"
            passed_over += await self._store.run(body, what=what, timeout_s=REPORT_TIMEOUT_S)
        return passed_over

    async def page(self, request: CatalogList) -> CatalogListReply:
        """Up to `limit` blocks of a namespace. Raises `RequestFailed` (BAD_REQUEST)."""
        if not 1 <= request.limit <= LIST_LIMIT_MAX:
            raise RequestFailed(Status.BAD_REQUEST, f"limit is {request.limit}; allowed: 1 to {LIST_LIMIT_MAX}")
        if len(request.after) not in (0, OBJECT_BYTES) or not 0 <= request.namespace_id <= 0xFFFFFFFF:
            raise RequestFailed(Status.BAD_REQUEST, "malformed namespace id or object id")
        begin, end = keys.blocks(request.namespace_id, request.after)

        async def body(transaction: Transaction) -> CatalogListReply:
            rows = await transaction.get_range(begin, end, limit=request.limit, snapshot=True)
            return CatalogListReply(tuple(_entry(request.namespace_id, key, stored) for key, stored in rows))

        return await self._store.run(body, what="listing blocks")

    async def some(self, request: CatalogGet) -> CatalogListReply:
        """The entries of these objects, those that are there. Raises `RequestFailed` (BAD_REQUEST)."""
        count, rest = divmod(len(request.objects), OBJECT_BYTES)
        if rest or not 1 <= count <= BLOCKS_MAX or not 0 <= request.namespace_id <= 0xFFFFFFFF:
            raise RequestFailed(Status.BAD_REQUEST, f"malformed namespace id, or not 1 to {BLOCKS_MAX} object ids")
        wanted = [
            keys.block(request.namespace_id, request.objects[at : at + OBJECT_BYTES])
            for at in range(0, len(request.objects), OBJECT_BYTES)
        ]

        async def body(transaction: Transaction) -> CatalogListReply:
            found = await transaction.get_many(wanted, snapshot=True)
            return CatalogListReply(
                tuple(
                    _entry(request.namespace_id, key, stored)
                    for key, stored in zip(wanted, found, strict=True)
                    if stored is not None
                )
            )

        return await self._store.run(body, what="looking up blocks")

    async def totals(self) -> Totals:
        """The figures of all namespaces."""
        return await self._store.run(read_totals, what="reading the catalog's counters")

    async def clear_page(self, namespace_id: int) -> int:
        """Drop up to `TRANSACTION_ENTRIES_MAX` entries of a namespace that is being removed; how many there were."""

        async def body(transaction: Transaction) -> int:
            rows = await transaction.get_range(*keys.blocks(namespace_id), limit=TRANSACTION_ENTRIES_MAX)
            moved = _Moves()
            for key, stored in rows:
                transaction.clear(key)
                moved.gone(namespace_id, keys.block_object(key), _size_bytes(key, stored))
            moved.add_to(transaction)
            return len(rows)

        return await self._store.run(body, what="dropping a removed namespace's blocks", timeout_s=REPORT_TIMEOUT_S)


async def read_totals(transaction: Transaction, counters: keys.KeyRange | None = None) -> Totals:
    """The figures of all namespaces, or of those whose counters are in the range. No conflict when they change."""
    totals: dict[int, list[int]] = {}
    for key, stored in await transaction.get_range(*(counters or keys.counters()), snapshot=True):
        namespace_id, figure = keys.split_counter(key)
        totals.setdefault(namespace_id, [0, 0])[figure - keys.BLOCKS] += int.from_bytes(stored, "little", signed=True)
    return {namespace_id: (blocks, size) for namespace_id, (blocks, size) in totals.items()}


class _Moves:
    """By how much a transaction moves counters: [blocks, bytes] by namespace and shard."""

    def __init__(self) -> None:
        self._moved: dict[tuple[int, int], list[int]] = {}

    def gone(self, namespace_id: int, object_id: bytes, size_bytes: int) -> None:
        self._move(namespace_id, object_id, -1, -size_bytes)

    def new(self, namespace_id: int, object_id: bytes, size_bytes: int) -> None:
        self._move(namespace_id, object_id, 1, size_bytes)

    def add_to(self, transaction: Transaction) -> None:
        for (namespace_id, shard), move in self._moved.items():
            for figure, amount in zip((keys.BLOCKS, keys.BYTES), move, strict=True):
                if amount:
                    operand = amount.to_bytes(8, "little", signed=True)
                    transaction.add(keys.counter(namespace_id, figure, shard), operand)

    def _move(self, namespace_id: int, object_id: bytes, blocks: int, size_bytes: int) -> None:
        move = self._moved.setdefault((namespace_id, keys.counter_shard(object_id)), [0, 0])
        move[0] += blocks
        move[1] += size_bytes


async def _was_taken(transaction: Transaction, report: CatalogReport) -> bool:
    """Whether this report of its drive, or one after it, was taken already."""
    if not report.drive_id:
        return False
    stored = await transaction.get(keys.report(report.drive_id))
    return stored is not None and REPORT_PLACE.unpack(stored) >= (report.life, report.number)


async def _was_removed(transaction: Transaction, drive_id: str) -> bool:
    """Whether the cluster has forgotten the drive. What its worker still had to tell is true all the same."""
    return await transaction.get(keys.removed_drive(drive_id)) is not None


async def _write(transaction: Transaction, entries: Sequence[CatalogEntry]) -> int:
    """Write entries and move the counters by what changed; how many entries were passed over."""
    namespaces = sorted({entry.namespace_id for entry in entries})
    records = await transaction.get_many([keys.namespace(namespace_id) for namespace_id in namespaces])
    known = {number for number, record in zip(namespaces, records, strict=True) if record is not None}
    by_key: dict[bytes, list[CatalogEntry]] = {}
    passed_over = 0
    for entry in entries:
        if entry.namespace_id in known:
            by_key.setdefault(keys.block(entry.namespace_id, entry.object_id), []).append(entry)
        else:
            passed_over += 1
    moved = _Moves()
    for (key, told), before in zip(by_key.items(), await transaction.get_many(list(by_key)), strict=True):
        after = _after(key, before, told)
        if before == after:
            continue
        namespace_id, object_id = told[0].namespace_id, told[0].object_id
        if before is not None:
            moved.gone(namespace_id, object_id, _size_bytes(key, before))
        if after is not None:
            moved.new(namespace_id, object_id, _size_bytes(key, after))
            transaction.set(key, after)
        else:
            transaction.clear(key)
    moved.add_to(transaction)
    return passed_over


def _after(key: bytes, stored: bytes | None, told: Sequence[CatalogEntry]) -> bytes | None:
    """What is stored of a block once it was told so, in this order."""
    for entry in told:
        if stored is None or _version(key, stored) <= entry.version:
            stored = pack_block(_block(entry)) if entry.created_ms else None
    return stored


def _block(entry: CatalogEntry) -> StoredBlock:
    return StoredBlock(entry.key, entry.block_bytes, entry.chunk_count, entry.created_ms, entry.chain_id, entry.version)


def _stored_block(key: bytes, stored: bytes) -> StoredBlock:
    """The block under `key`; one of no size and the lowest version where that is damaged, so that any report wins."""
    try:
        return unpack_block(key, stored)
    except StoreFailed as error:
        log.error("a damaged entry of the catalog", reason=str(error))
        return StoredBlock(b"", 0, 0, 0, 0, 0)


def _size_bytes(key: bytes, stored: bytes) -> int:
    return _stored_block(key, stored).block_bytes


def _version(key: bytes, stored: bytes) -> int:
    return _stored_block(key, stored).version


def _entry(namespace_id: int, key: bytes, stored: bytes) -> CatalogEntry:
    block = _stored_block(key, stored)
    return CatalogEntry(
        namespace_id,
        keys.block_object(key),
        block.key,
        block.block_bytes,
        block.chunk_count,
        block.created_ms,
        block.version,
        block.chain_id,
    )


def _check_report(report: CatalogReport) -> None:
    if not (0 <= report.life <= _U64_MAX and 0 <= report.number <= _U64_MAX and len(report.drive_id) <= KEY_BYTES_MAX):
        raise RequestFailed(Status.BAD_REQUEST, "malformed drive id, life or number of a catalog report")
    for entry in report.entries:
        _check(entry)


def _check(entry: CatalogEntry) -> None:
    if (
        len(entry.object_id) != OBJECT_BYTES
        or len(entry.key) > KEY_BYTES_MAX
        or not 1 <= entry.namespace_id <= 0xFFFFFFFF
        or entry.created_ms < 0
        or not 0 <= entry.version <= _U64_MAX
        or not 0 <= entry.chain_id <= 0xFFFFFFFF
        or (entry.created_ms and (not entry.key or entry.block_bytes < 1 or entry.chunk_count < 1))
    ):
        raise RequestFailed(Status.BAD_REQUEST, f"malformed catalog entry: {entry}")
