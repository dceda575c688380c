"""What a drive has to tell the catalog: a bounded queue, sent in numbered reports, in order, each until it is taken.

Nothing on the data path waits for it. Entries that may have been lost are never lost silently: where the queue
overflowed, or an earlier life of this worker ended without telling everything, the drive keeps a mark that the catalog
must be checked against it, until a check has made up for it.
"""

import asyncio
import struct
import time
from collections import deque
from collections.abc import Sequence

from esker.chunkserver.engine.record import Record
from esker.chunkserver.engine.store import DriveStore
from esker.runtime.counters import Counters
from esker.runtime.logging import get_logger
from esker.wire.admin_messages import split_record_key
from esker.wire.errors import EskerError, RequestFailed
from esker.wire.messages import CatalogEntry, CatalogLag, CatalogReport, Empty, Method
from esker.wire.meta_client import MetaClient
from esker.wire.status import Status

log = get_logger("chunkserver.catalog")

CALL_TIMEOUT_S = 2.0
INTERVAL_S = 0.5
"""How long entries gather. With the time that a report takes, the catalog stays within a second of the drives."""
REPORT_ENTRIES = 500
WAITING_MAX = 100_000
STATE = "catalog"
_STATE = struct.Struct("<QB")
"""How many losses the catalog has not been checked for since, and whether a life of the worker has begun and not ended
with everything told."""


class CatalogReports:
    """Of one life of a worker; `life` is above those of all its earlier ones."""

    def __init__(self, store: DriveStore, meta: MetaClient, counters: Counters, life: int) -> None:
        self._store = store
        self._meta = meta
        self._counters = counters
        self._life = life
        self._waiting: deque[tuple[float, CatalogEntry]] = deque()
        self._sending: tuple[float, CatalogReport] | None = None
        self._number = 0
        self._added = 0
        self._dropped = 0
        self._overflowing = False
        kept = store.state_get(STATE)
        self._check_due, was_open = _STATE.unpack(kept) if kept is not None and len(kept) == _STATE.size else (0, 0)
        if was_open:
            self._check_due += 1
            log.warning("an earlier worker of this drive may not have told the catalog everything; it must be checked")
        self._keep(is_open=True)

    @property
    def added(self) -> int:
        """Entries so far."""
        return self._added

    @property
    def waiting(self) -> int:
        """Entries that have neither been taken nor dropped."""
        return len(self._waiting) + (len(self._sending[1].entries) if self._sending is not None else 0)

    @property
    def done(self) -> int:
        """Entries that were taken or dropped."""
        return self._added - self.waiting

    def lag(self) -> CatalogLag:
        """How far the catalog is behind."""
        oldest = self._sending[0] if self._sending is not None else self._waiting[0][0] if self._waiting else None
        lag_ms = 0 if oldest is None else int((time.monotonic() - oldest) * 1000)
        return CatalogLag(self.waiting, lag_ms, self._dropped, self._check_due)

    def add(self, entry: CatalogEntry) -> None:
        """Has the catalog told, soon."""
        self._added += 1
        self._waiting.append((time.monotonic(), entry))
        if len(self._waiting) > WAITING_MAX:
            self._waiting.popleft()
            self._drop(1, first=not self._overflowing)
            self._overflowing = True

    def learn(self, meta_servers: Sequence[str]) -> None:
        """Where reports may go besides: the metadata servers of a cluster map."""
        self._meta.learn(meta_servers)

    def checked(self, check_due: int) -> None:
        """The catalog agrees with the drive, as far as the first `check_due` losses go."""
        self._check_due = max(0, self._check_due - check_due)
        self._keep(is_open=True)

    async def run(self) -> None:
        """Tells the catalog, until cancelled."""
        while True:
            await asyncio.sleep(INTERVAL_S)
            while self.waiting and await self.send():
                pass

    async def send(self, timeout_s: float = CALL_TIMEOUT_S) -> bool:
        """Sends one report, the last one again where its outcome is not known. False: it was not taken yet."""
        if self._sending is None:
            if not self._waiting:
                return True
            self._overflowing = False
            taken = [self._waiting.popleft() for _ in range(min(REPORT_ENTRIES, len(self._waiting)))]
            self._number += 1
            entries = tuple(entry for _, entry in taken)
            report = CatalogReport(entries, self._store.drive_id, self._life, self._number)
            self._sending = (taken[0][0], report)
        _, report = self._sending
        try:
            await self._meta.call(Method.CATALOG_REPORT, report, Empty, timeout_s=timeout_s)
        except EskerError as error:
            if not isinstance(error, RequestFailed) or error.status is not Status.BAD_REQUEST:
                return False
            log.warning("the catalog refused a report", reason=str(error))
            self._drop(len(report.entries), first=True)
        self._sending = None
        return True

    async def finish(self, timeout_s: float) -> None:
        """The last reports of this life. If all get through, the next one has nothing to make up for."""
        deadline = time.monotonic() + timeout_s
        while self.waiting:
            left_s = deadline - time.monotonic()
            if left_s <= 0 or not await self.send(left_s):
                return
        self._keep(is_open=False)

    def _drop(self, count: int, *, first: bool) -> None:
        self._dropped += count
        self._counters.add("catalog_reports_dropped", count)
        if first:
            self._check_due += 1
            log.warning("the catalog misses blocks of this drive; it must be checked", dropped=self._dropped)
            self._keep(is_open=True)

    def _keep(self, *, is_open: bool) -> None:
        self._store.state_put(STATE, _STATE.pack(self._check_due, is_open), _kept, None)


def _kept(_: object, status: Status) -> None:
    if status is not Status.OK:
        log.warning("the drive does not keep whether the catalog must be checked", status=status.name)


def creation(record_key: bytes, record: Record) -> CatalogEntry:
    """What the catalog is told of a block whose chunk 0 this is."""
    chain_id, space, object_id, _ = split_record_key(record_key)
    return CatalogEntry(
        space,
        object_id,
        record.key,
        record.block_bytes,
        max(1, record.chunk_count),
        record.created_ms,
        record.version,
        chain_id,
    )


def removal(record_key: bytes, version: int) -> CatalogEntry:
    """What the catalog is told of a block whose chunk 0 of this version is gone."""
    chain_id, space, object_id, _ = split_record_key(record_key)
    return CatalogEntry(space, object_id, b"", 0, 0, 0, version, chain_id)
