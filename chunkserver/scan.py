"""SCAN, REPORT_BLOCKS and CATALOG_CHECKED: what a drive has, for whoever compares or clears it.

A page is read in slices with a turn of the loop between them, so that clients' reads never wait behind a scan. Which
writes are under way is told as of before the first record was read: what is not in the page's stretch by its end, and
was not under way then, came later.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

from xxhash import xxh3_64_intdigest

from esker.chunkserver.catalog_reports import CatalogReports, creation, removal
from esker.chunkserver.engine.errors import CorruptRecord, DriveFailed
from esker.chunkserver.engine.record import RECORD_KEY_BYTES, Record, chain_prefix, record_key
from esker.chunkserver.engine.store import DriveStore
from esker.wire.admin_messages import (
    BLOCK_PLACE,
    BLOCKS_MAX,
    SCAN_ROW,
    SCAN_ROWS_MAX,
    CatalogChecked,
    ReportBlocks,
    ReportBlocksReply,
    Scan,
    ScanReply,
    space_before,
    split_record_key,
)
from esker.wire.codec import decode_body
from esker.wire.columns import rows
from esker.wire.errors import RequestFailed
from esker.wire.ids import chunk_id
from esker.wire.messages import Empty
from esker.wire.rpc_server import Request
from esker.wire.status import Status

SLICE_RECORDS = 256
"""Records between two turns of the loop: about a millisecond."""
PAGE_RECORDS_MAX = 16 * 1024
"""Records that one page looks at, however few of them are asked for."""
REPORTS_WAITING_MAX = 20_000
"""With more entries waiting for the catalog, none is added on request."""

Item = tuple[bytes, Record]


class Writes(Protocol):
    """The writes under way, as a scan sees them."""

    def under_way(self, space: int) -> int:
        """How many, of the space (0: of all)."""


class ScanService:
    """Serves one drive. `routing_version` is the worker's; `refresh` is called where it is too old for a request."""

    def __init__(
        self,
        store: DriveStore,
        writes: Writes,
        reports: CatalogReports,
        routing_version: Callable[[], int],
        refresh: Callable[[], None],
        ready: Callable[[int, int], bool],
    ) -> None:
        """`ready(chain id, chain version)`: whether this worker takes part in the chain in that version and has nothing
        of an earlier one under way.
        """
        self._store = store
        self._writes = writes
        self._reports = reports
        self._routing_version = routing_version
        self._refresh = refresh
        self._ready = ready
        self._loop = asyncio.get_running_loop()

    def scan(self, request: Request) -> None:
        """Handles SCAN."""
        message = decode_body(Scan, request.body)
        _check(message)
        if self._routing_version() < message.routing_version:
            self._refresh()
            raise RequestFailed(
                Status.NOT_READY, f"this worker's cluster map is older than version {message.routing_version}"
            )
        if message.chain_version and not self._ready(message.chain_id, message.chain_version):
            self._refresh()
            raise RequestFailed(
                Status.NOT_READY, f"not part of chain {message.chain_id} in version {message.chain_version}, or not yet"
            )
        after = message.after
        if message.space:
            after = max(after, space_before(message.chain_id, message.space))
        self._slice(request, message, _Page(after, self._writes.under_way(message.space), digests=message.digests))

    def _slice(self, request: Request, message: Scan, page: "_Page") -> None:
        if request.connection.stream.closed:
            return
        limit = min(SLICE_RECORDS, message.limit - page.count)
        try:
            found, next_after, _ = self._store.scan(message.chain_id or None, page.after, limit)
        except DriveFailed as failure:
            request.fail(failure.status, failure.message)
            return
        page.looked_at += limit
        wanted = []
        for item in found:
            _, space, _, index = split_record_key(item[0])
            if message.space and space != message.space:
                next_after = None
                break
            if index == 0 or not message.first_chunks:
                wanted.append(item)
        page.add(wanted)
        if next_after is None:
            page.reply(request, b"")
        elif page.count >= message.limit or page.looked_at >= PAGE_RECORDS_MAX:
            page.reply(request, next_after)
        else:
            page.after = next_after
            self._loop.call_soon(self._slice, request, message, page)

    def report_blocks(self, request: Request) -> None:
        """Handles REPORT_BLOCKS."""
        message = decode_body(ReportBlocks, request.body)
        places = rows(BLOCK_PLACE, message.blocks, BLOCKS_MAX)
        if message.report and self._reports.waiting + len(places) > REPORTS_WAITING_MAX:
            raise RequestFailed(Status.BUSY, f"{self._reports.waiting} entries wait for the catalog")
        found: list[Item] = []
        with self._store.reader() as reader:
            for object_id, chain_id, version in places:
                key = record_key(chain_id, chunk_id(message.space, object_id))
                try:
                    record = reader.record(key)
                except CorruptRecord:
                    record = None  # counted and logged by the store; nobody can read such a block
                if record is not None:
                    found.append((key, record))
                if message.report:
                    self._reports.add(removal(key, version) if record is None else creation(key, record))
        packed, keys = _packed(found)
        request.reply(ReportBlocksReply(packed, keys, self._reports.added, self._reports.done))

    def checked(self, request: Request) -> None:
        """Handles CATALOG_CHECKED."""
        self._reports.checked(decode_body(CatalogChecked, request.body).check_due)
        request.reply(Empty())


class _Page:
    """A SCAN under way."""

    def __init__(self, after: bytes, writes_under_way: int, *, digests: bool) -> None:
        self.after = after
        self.count = 0
        self.looked_at = 0
        self._rows: list[bytes] = []
        self._keys: list[bytes] = []
        self._digests: list[bytes] | None = [] if digests else None
        self._writes_under_way = writes_under_way

    def add(self, items: Sequence[Item]) -> None:
        packed, keys = _packed(items)
        self._rows.append(packed)
        self._keys.append(keys)
        if self._digests is not None:
            self._digests += [digest(record.checksums) for _, record in items]
        self.count += len(items)

    def reply(self, request: Request, next_after: bytes) -> None:
        rows, keys, digests = b"".join(self._rows), b"".join(self._keys), b"".join(self._digests or ())
        request.reply(ScanReply(rows, keys, next_after, self._writes_under_way, digests))


def _check(message: Scan) -> None:
    if not 1 <= message.limit <= SCAN_ROWS_MAX or len(message.after) not in (0, RECORD_KEY_BYTES):
        raise RequestFailed(
            Status.BAD_REQUEST, f"a page of {message.limit} rows after {len(message.after)} bytes; "
            f"allowed: 1 to {SCAN_ROWS_MAX} rows after a record key of {RECORD_KEY_BYTES} bytes, or none"
        )  # fmt: skip
    if not 0 <= message.chain_id <= 0xFFFFFFFF or not 0 <= message.space <= 0xFFFFFFFF:
        raise RequestFailed(Status.BAD_REQUEST, "a chain id or space out of range")
    if message.chain_id and message.after and not message.after.startswith(chain_prefix(message.chain_id)):
        raise RequestFailed(Status.BAD_REQUEST, f"the page begins on another chain than {message.chain_id}")
    if message.chain_version and not message.chain_id:
        raise RequestFailed(Status.BAD_REQUEST, "a chain version without a chain")
    if message.space and not message.chain_id:
        raise RequestFailed(Status.BAD_REQUEST, "the records of one space stand together only within a chain")


def digest(checksums: bytes) -> bytes:
    """What stands for a record's checksums in a scan."""
    return xxh3_64_intdigest(checksums).to_bytes(8, "little")


def _packed(items: Sequence[Item]) -> tuple[bytes, bytes]:
    """The rows of SCAN_ROW and the keys."""
    packed = [
        SCAN_ROW.pack(
            key,
            record.version,
            record.length,
            record.block_bytes,
            record.chunk_count,
            record.put_id,
            record.created_ms,
            len(record.key),
        )
        for key, record in items
    ]
    return b"".join(packed), b"".join(record.key for _, record in items)
