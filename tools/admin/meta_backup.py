"""`esker admin meta backup` and `esker admin meta restore`.

A backup has everything that outlives processes: the cluster map, namespaces and removals at one version of the store,
then the catalog's blocks in pages, each of a version of its own. What describes running processes (metadata servers,
the manager lease, workers' reports) is left out, and the catalog's counters are counted anew.

A restore fills an empty store that no server has open. Whoever knows the cluster from before the restore must take the
restored map and chains for newer than its own, and ids that may have been given since the backup must not be given
again: so the versions of the map and of every chain, and the last namespace id, leap ahead. A restore that did not get
to its end leaves a cluster record that no server accepts.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing
from pathlib import Path

import msgspec

from esker import __version__
from esker.meta import keys
from esker.meta.admin_check import CounterSum, blocks_counted
from esker.meta.admin_decode import table_of
from esker.meta.admin_raw import FIRST_KEY, in_pages
from esker.meta.catalog_record import unpack_block
from esker.meta.records import ClusterRecord, MetaServer, pack, unpack
from esker.meta.registry import BEAT_INTERVAL_S
from esker.meta.routing import read_all
from esker.meta.store.base import KEY_END, Store, Transaction
from esker.meta.store.errors import StoreError
from esker.meta.store.opening import open_store
from esker.tools.admin.backup_file import FORMAT, BackupHeader, BackupWriter, Kind, checked_header, read_backup
from esker.tools.admin.meta_source import Rows, all_rows, open_rows
from esker.tools.admin.output import print_json, print_line, shown_size, shown_time
from esker.tools.exit_codes import ExitCode
from esker.tools.progress import Advance, progress
from esker.wire.admin_messages import MetaRow
from esker.wire.errors import UserError
from esker.wire.types import Chain

OF_PROCESSES = frozenset({"meta-server", "manager", "manager-beats", "counter", "report"})
"""Tables that are not backed up."""
UNFINISHED = b"\x00a restore of this store did not get to its end; restore again with --force"
"""Stands for the cluster record while a restore is under way: no format of a record."""
ROUTING_LEAP = 1 << 20
NAMESPACE_LEAP = 1000
CHAIN_LEAP = 10_000
BATCH_ROWS = 2000
BATCH_BYTES = 1_000_000
BATCH_TIMEOUT_S = 30.0


async def run_backup(cluster: str | None, store: str | None, fdb_prefix: str, path: Path, *, as_json: bool) -> ExitCode:
    """Writes a backup to a new file. Raises `UserError`, `EskerError`."""
    async with open_rows(cluster, store, fdb_prefix) as rows:
        header, writer = await write_backup(rows, path)
    if as_json:
        print_json(
            {"file": str(path), "rows": writer.rows, "bytes": writer.size_bytes, "cluster_id": header.cluster_id}
        )
    else:
        print_line(f"{path}: cluster {header.cluster_id}, {writer.rows} rows, {shown_size(writer.size_bytes)}")
    return ExitCode.FINE


async def write_backup(rows: Rows, path: Path) -> tuple[BackupHeader, BackupWriter]:
    """The backup of what `rows` has."""
    version, found = await rows.snapshot()
    kept = [row for row in found if _is_kept(row[0])]
    cluster = unpack(ClusterRecord, keys.CLUSTER, dict(kept).get(keys.CLUSTER, b""))
    header = BackupHeader(FORMAT, __version__, cluster.cluster_id, time.time_ns() // 1_000_000, version)
    with BackupWriter(path, header) as writer, progress("backing up", max(1, blocks_counted(found))) as advance:
        for page in in_pages(kept):
            writer.add(Kind.SNAPSHOT, page)
        async with aclosing(all_rows(rows, *keys.all_blocks())) as pages:
            async for blocks in pages:
                if blocks:
                    writer.add(Kind.CATALOG, blocks)
                advance(writer.rows - len(kept), shown_size(writer.size_bytes))
    return header, writer


async def run_restore(path: Path, store: str, fdb_prefix: str, *, force: bool, as_json: bool) -> ExitCode:
    """Fills a store from a backup. Raises `UserError`: the file or the store is not fit for it."""
    header, rows = checked_header(path)
    opened = await open_store(store, fdb_prefix=fdb_prefix)
    try:
        await check_target(opened, store, force=force)
        with progress("restoring", max(1, rows)) as advance:
            await restore(opened, path, advance)
    finally:
        await opened.aclose()
    if as_json:
        print_json({"store": store, "rows": rows, "cluster_id": header.cluster_id, "created_ms": header.created_ms})
    else:
        print_line(
            f"{store}: cluster {header.cluster_id} as of {shown_time(header.created_ms)}, {rows} rows; start its "
            "metadata servers, then run esker admin catalog check --repair for what has happened since"
        )
    return ExitCode.FINE


async def restore(store: Store, path: Path, advance: Advance) -> None:
    """Empties the store and fills it from a backup that was checked."""
    await _mark_unfinished(store)
    await _clear(store)
    # Also for a backup from before the first namespace.
    await _write(store, [(keys.NAMESPACE_LAST, NAMESPACE_LEAP.to_bytes(4, "little"))])
    counters: dict[int, CounterSum] = {}
    cluster = b""
    done = 0
    async for batch in _batches(path):
        rows = []
        for key, value in batch:
            if key == keys.CLUSTER:
                cluster = value
            elif key.startswith(keys.all_blocks()[0]):
                # Blocks of namespaces that are younger than the snapshot have nobody to belong to.
                if (sums := counters.get(keys.namespace_id(key))) is not None:
                    sums.add(keys.block_object(key), _size_bytes(key, value))
                    rows.append((key, value))
            else:
                rows.append((key, _leapt(key, value)))
                if key.startswith((keys.namespaces()[0], keys.removals()[0])):
                    namespace_id = keys.namespace_id(key)
                    counters[namespace_id] = CounterSum(namespace_id)
        await _write(store, rows)
        done += len(batch)
        advance(done, "")
    changes = [change for sums in counters.values() for each in sums.findings({}) for change in each.repair]
    figures = [(key, value) for key, _, value in changes if value is not None]
    for at in range(0, len(figures), BATCH_ROWS):
        await _write(store, figures[at : at + BATCH_ROWS])
    await _write(store, [(keys.CLUSTER, cluster)])


async def check_target(
    store: Store, name: str, *, force: bool, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
) -> None:
    """Raises `UserError` where a restore would lose something that nobody gave up, or disturb running servers."""

    async def look(transaction: Transaction) -> tuple[bool, list[MetaServer]]:
        return (
            bool(await transaction.get_range(FIRST_KEY, KEY_END, limit=1)),
            await read_all(transaction, keys.meta_servers(), MetaServer),
        )

    filled, servers = await store.run(look, what="looking at the store")
    if not filled:
        return
    if not force:
        raise UserError(f"{name} is not empty; restore into another store, or give --force to lose what is there")
    if servers and not store.exclusive:
        await sleep(2.5 * BEAT_INTERVAL_S)
        _, later = await store.run(look, what="looking at the store")
        alive = [server.address for server in later if server not in servers]
        if alive:
            raise UserError(f"metadata servers are running over {name}, at {', '.join(alive)}; stop them first")


async def _mark_unfinished(store: Store) -> None:
    async def body(transaction: Transaction) -> None:
        transaction.set(keys.CLUSTER, UNFINISHED)

    await store.run(body, what="begin of a restore", timeout_s=BATCH_TIMEOUT_S)


async def _clear(store: Store) -> None:
    """Everything but the mark, page by page."""
    begin = keys.CLUSTER + b"\x00"

    async def before(transaction: Transaction) -> None:
        transaction.clear_range(FIRST_KEY, keys.CLUSTER)

    async def page(transaction: Transaction) -> int:
        rows = await transaction.get_range(begin, KEY_END, limit=BATCH_ROWS, snapshot=True)
        if rows:
            transaction.clear_range(begin, rows[-1][0] + b"\x00")
        return len(rows)

    await store.run(before, what="emptying the store", timeout_s=BATCH_TIMEOUT_S)
    while await store.run(page, what="emptying the store", timeout_s=BATCH_TIMEOUT_S):
        pass


async def _write(store: Store, rows: Sequence[MetaRow]) -> None:
    async def body(transaction: Transaction) -> None:
        for key, value in rows:
            transaction.set(key, value)

    await store.run(body, what="restoring", timeout_s=BATCH_TIMEOUT_S)


async def _batches(path: Path) -> AsyncIterator[list[MetaRow]]:
    """The backup's rows in parts that a transaction takes."""
    for _, rows in read_backup(path):
        batch: list[MetaRow] = []
        size = 0
        for row in rows:
            batch.append(row)
            size += len(row[0]) + len(row[1])
            if len(batch) >= BATCH_ROWS or size >= BATCH_BYTES:
                yield batch
                batch, size = [], 0
        if batch:
            yield batch


def _leapt(key: bytes, value: bytes) -> bytes:
    first, end = keys.chains()
    if first <= key < end:
        chain = unpack(Chain, key, value)
        return pack(msgspec.structs.replace(chain, version=chain.version + CHAIN_LEAP))
    leap = {keys.ROUTING_VERSION: ROUTING_LEAP, keys.NAMESPACE_LAST: NAMESPACE_LEAP}.get(key, 0)
    if not leap:
        return value
    highest = (1 << 8 * len(value)) - 1
    return min(int.from_bytes(value, "little") + leap, highest).to_bytes(len(value), "little")


def _is_kept(key: bytes) -> bool:
    table = table_of(key)
    return table is None or table.name not in OF_PROCESSES


def _size_bytes(key: bytes, value: bytes) -> int:
    try:
        return unpack_block(key, value).block_bytes
    except StoreError:
        return 0  # damaged already when it was backed up; a check of the catalog mends it
