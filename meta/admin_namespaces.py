"""Namespaces as an operator sees them: their figures, and the begin of a removal.

A removal begins in one transaction: the name is free from then on, the cluster map no longer has the namespace (so that
workers refuse it), no report of its blocks is taken any more, and a record of the removal stands in its place, by which
`admin_removal.py` does the rest, on whichever server is the manager. Ids of namespaces are never given twice.
"""

from esker.meta import keys
from esker.meta.cache_table import newest_table
from esker.meta.catalog import Totals, read_totals
from esker.meta.chain_setup import TABLE_ID
from esker.meta.heartbeats import missing_drives
from esker.meta.namespaces import check_name
from esker.meta.records import StoredRemoval, pack, unpack
from esker.meta.routing import bump_version, read_all, read_routing, read_version
from esker.meta.store.base import KeyValue, Store, Transaction, after_key, after_prefix
from esker.wire.admin_messages import (
    NamespaceFigures,
    NamespaceFiguresGet,
    NamespaceFiguresReply,
    NamespaceRemoval,
    NamespaceRemove,
    NamespaceRemoveReply,
)
from esker.wire.errors import RequestFailed
from esker.wire.status import Status
from esker.wire.types import Geometry, Namespace

FIGURES_LIMIT_MAX = 1000
Found = tuple[Namespace, StoredRemoval | None]
"""A namespace, and its removal if it is being removed."""
REMOVE_LIMIT_MAX = 100
IDS_PASSED_OVER_MAX = 1_000_000
"""How many ids a removal may leave unused. No namespace ever had one further away, and none will soon."""


async def namespace_figures(store: Store, request: NamespaceFiguresGet) -> NamespaceFiguresReply:
    """A page of namespaces by id, with what the catalog has of them and how far removals are.

    Raises `RequestFailed` (BAD_REQUEST).
    """
    if not 1 <= request.limit <= FIGURES_LIMIT_MAX or not 0 <= request.after_id <= 0xFFFFFFFF:
        raise RequestFailed(Status.BAD_REQUEST, f"malformed page; allowed: limit 1 to {FIGURES_LIMIT_MAX}")

    async def body(transaction: Transaction) -> NamespaceFiguresReply:
        found = await (_called(transaction, request.name) if request.name else _page(transaction, request))
        if not found:
            return NamespaceFiguresReply(())
        ids = [namespace.namespace_id for namespace, _ in found]
        counters = (keys.counters_of(min(ids))[0], keys.counters_of(max(ids))[1])
        totals = await read_totals(transaction, counters)
        return NamespaceFiguresReply(tuple(_figures(namespace, totals, removal) for namespace, removal in found))

    return await store.run(body, what="reading the namespaces' figures")


async def _page(transaction: Transaction, request: NamespaceFiguresGet) -> list[Found]:
    """The next ones by id."""
    live_begin, removal_begin = keys.namespace(request.after_id), keys.removal(request.after_id)
    live = await _rows(transaction, after_key(live_begin), keys.namespaces()[1], request.limit)
    leaving = await _rows(transaction, after_key(removal_begin), keys.removals()[1], request.limit)
    found: list[Found] = [(unpack(Namespace, key, stored), None) for key, stored in live]
    for key, stored in leaving:
        removal = unpack(StoredRemoval, key, stored)
        found.append((removal.namespace, removal))
    return sorted(found, key=lambda each: each[0].namespace_id)[: request.limit]


async def _called(transaction: Transaction, name: str) -> list[Found]:
    """Those of this name: at most one that is live, and any number that is being removed."""
    found: list[Found] = [
        (removal.namespace, removal)
        for removal in await read_all(transaction, keys.removals(), StoredRemoval)
        if removal.namespace.name == name
    ]
    stored_id = await transaction.get(keys.namespace_name(name), snapshot=True)
    if stored_id is not None:
        key = keys.namespace(int.from_bytes(stored_id, "little"))
        stored = await transaction.get(key, snapshot=True)
        if stored is not None:
            found.append((unpack(Namespace, key, stored), None))
    return found


async def _rows(transaction: Transaction, begin: bytes, end: bytes, limit: int) -> list[KeyValue]:
    return await transaction.get_range(begin, end, limit=limit, snapshot=True)


def _figures(namespace: Namespace, totals: Totals, removal: StoredRemoval | None) -> NamespaceFigures:
    blocks, block_bytes = totals.get(namespace.namespace_id, (0, 0))
    if removal is None:
        return NamespaceFigures(namespace, blocks, block_bytes, None)
    progress = NamespaceRemoval(
        removal.started_ms, len(removal.chains_done), removal.chains, removal.chunks_removed, removal.waiting_for
    )
    return NamespaceFigures(namespace, blocks, block_bytes, progress)


async def begin_removal(store: Store, request: NamespaceRemove, now_ms: int) -> NamespaceRemoveReply:
    """Begin to remove the namespaces that the request names. Raises `RequestFailed`: BAD_REQUEST, NOT_FOUND (by name
    only; a prefix may fit none).
    """
    given = sum(map(bool, (request.name, request.prefix, request.strange)))
    if given != 1 or not 1 <= request.limit <= REMOVE_LIMIT_MAX or not 0 <= request.strange <= 0xFFFFFFFF:
        raise RequestFailed(Status.BAD_REQUEST, "give one of name, prefix and id, and a limit of 1 to 100")
    if request.strange:
        return await _remove_strange(store, request.strange, now_ms)
    check_name(request.name or request.prefix)

    async def body(transaction: Transaction) -> NamespaceRemoveReply:
        # An attempt before this one may have been committed without an answer.
        before = [
            removal.namespace
            for removal in await read_all(transaction, keys.removals(), StoredRemoval)
            if removal.started_ms == now_ms and _fits(removal.namespace.name, request)
        ]
        names = await _named(transaction, request)
        if request.name and not names and not before:
            raise RequestFailed(Status.NOT_FOUND, f"there is no namespace {request.name!r}")
        return NamespaceRemoveReply((*before, *[await _begin(transaction, name, now_ms) for name in names]))

    what = f"removal of namespace {request.name}" if request.name else f"removal of namespaces {request.prefix}*"
    return await store.run(body, what=what)


def _fits(name: str, request: NamespaceRemove) -> bool:
    return name == request.name if request.name else name.startswith(request.prefix)


async def _named(transaction: Transaction, request: NamespaceRemove) -> list[bytes]:
    """Keys of the namespaces' names."""
    if request.name:
        key = keys.namespace_name(request.name)
        return [] if await transaction.get(key) is None else [key]
    prefix = keys.namespace_name(request.prefix)
    rows = await transaction.get_range(prefix, after_prefix(prefix), limit=request.limit)
    return [key for key, _ in rows]


async def _begin(transaction: Transaction, name_key: bytes, now_ms: int) -> Namespace:
    stored_id = await transaction.get(name_key)
    assert stored_id is not None, "the name was read in this transaction"
    namespace_id = int.from_bytes(stored_id, "little")
    key = keys.namespace(namespace_id)
    stored = await transaction.get(key)
    if stored is None:
        raise RequestFailed(
            Status.CONFLICT, f"namespace {namespace_id} has a name but no record; run esker admin meta check --repair"
        )
    namespace = unpack(Namespace, key, stored)
    bump_version(transaction)
    # Read after the write: the version in which the namespace is gone.
    removal = StoredRemoval(namespace, now_ms, await read_version(transaction))
    transaction.clear(name_key)
    transaction.clear(key)
    transaction.set(keys.removal(namespace_id), pack(removal))
    return namespace


async def _remove_strange(store: Store, namespace_id: int, now_ms: int) -> NamespaceRemoveReply:
    """Begin to remove what no namespace of the metadata owns: left from before a restore, or of a removed namespace."""

    async def body(transaction: Transaction) -> NamespaceRemoveReply:
        stored = await transaction.get(keys.namespace(namespace_id))
        if stored is not None:
            name = unpack(Namespace, keys.namespace(namespace_id), stored).name
            raise RequestFailed(Status.BAD_REQUEST, f"id {namespace_id} is namespace {name!r}; remove it by its name")
        key = keys.removal(namespace_id)
        stored = await transaction.get(key)
        if stored is not None:
            return NamespaceRemoveReply((unpack(StoredRemoval, key, stored).namespace,))
        routing = await read_routing(transaction)
        table = newest_table(routing, TABLE_ID)
        if table is None:
            raise RequestFailed(Status.NOT_READY, f"the cluster has no chains yet: {missing_drives(routing)}")
        if routing.namespace_last < namespace_id <= routing.namespace_last + IDS_PASSED_OVER_MAX:
            # So that workers refuse the id, and it is never given.
            transaction.set(keys.NAMESPACE_LAST, namespace_id.to_bytes(4, "little"))
        bump_version(transaction)
        # A removal looks on all chains; the table only has to be one that there is.
        geometry = Geometry(block_bytes_max=1).resolved()
        namespace = Namespace(namespace_id, f"unknown-{namespace_id}", geometry, b"", table.table_id, table.version)
        transaction.set(key, pack(StoredRemoval(namespace, now_ms, await read_version(transaction))))
        return NamespaceRemoveReply((namespace,))

    return await store.run(body, what=f"removal of namespace id {namespace_id}")


async def removals_under_way(store: Store) -> list[StoredRemoval]:
    """All removals, the oldest namespace first."""

    async def body(transaction: Transaction) -> list[StoredRemoval]:
        return await read_all(transaction, keys.removals(), StoredRemoval)

    return await store.run(body, what="reading the removals of namespaces")
