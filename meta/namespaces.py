"""KV namespaces: opened by name with a geometry and a mode, made on first use, refused to a client whose own differ.

A namespace is laid out over one version of its mode's chain table; after an expansion also over older ones, in which
blocks may still be found.
"""

import re
from collections.abc import Callable

from esker.meta import keys
from esker.meta.cache_table import CacheTable, newest_table
from esker.meta.chain_setup import TABLE_ID
from esker.meta.heartbeats import missing_drives
from esker.meta.records import pack, unpack
from esker.meta.routing import read_all, read_placement, read_routing
from esker.meta.store.base import Store, Transaction
from esker.meta.store.errors import StoreFailed
from esker.wire.errors import RequestFailed
from esker.wire.messages import NamespaceListReply, NamespaceOpen, NamespaceReply
from esker.wire.status import Status
from esker.wire.types import NAME_CHARS_MAX, Geometry, Namespace, NamespaceMode

SALT_BYTES = 32
NAMESPACE_ID_MAX = 2**32 - 1
_NAME = re.compile(r"[A-Za-z0-9._/-]+")


def check_name(name: str) -> None:
    """Raises `RequestFailed` (BAD_REQUEST) for a name that no namespace may have."""
    if len(name) > NAME_CHARS_MAX or not _NAME.fullmatch(name):
        shown = name if len(name) <= NAME_CHARS_MAX else name[:NAME_CHARS_MAX] + "..."
        raise RequestFailed(
            Status.BAD_REQUEST,
            f"namespace name {shown!r}; allowed: 1 to {NAME_CHARS_MAX} characters of A-Z a-z 0-9 . _ / -",
        )


def differences(has: Geometry, asked: Geometry) -> str:
    """The fields in which two resolved geometries differ, both values each; empty if they are the same."""
    return "; ".join(
        f"{field}: namespace has {getattr(has, field)!r}, you asked {getattr(asked, field)!r}"
        for field in has.__struct_fields__
        if getattr(has, field) != getattr(asked, field)
    )


async def open_namespace(
    store: Store,
    request: NamespaceOpen,
    random_bytes: Callable[[int], bytes],
    cache_table: CacheTable | None = None,
) -> tuple[NamespaceReply, bool]:
    """The namespace of that name with its slot tables, and whether it was made just now.

    `random_bytes` gives the salt of a new one. Raises `RequestFailed`: BAD_REQUEST (name or geometry out of range),
    GEOMETRY (it exists with another geometry or mode), NOT_FOUND (absent and not to be made), NOT_READY (the cluster
    has no chains yet).
    """
    check_name(request.name)
    try:
        geometry = request.geometry.resolved()
    except ValueError as error:
        raise RequestFailed(Status.BAD_REQUEST, str(error)) from error
    salt = random_bytes(SALT_BYTES)

    async def body(transaction: Transaction) -> tuple[NamespaceReply, bool]:
        namespace = await _find(transaction, request.name)
        made = namespace is None
        if namespace is None:
            if not request.create:
                raise RequestFailed(Status.NOT_FOUND, f"there is no namespace {request.name!r}")
            namespace = await _create(transaction, request, geometry, salt, cache_table or CacheTable())
        elif namespace.mode is not request.mode:
            raise RequestFailed(
                Status.GEOMETRY,
                f"namespace {request.name!r} has mode {namespace.mode.value!r}, you asked {request.mode.value!r}; "
                "a namespace keeps the mode that it was made with",
            )
        elif different := differences(namespace.geometry, geometry):
            raise RequestFailed(Status.GEOMETRY, f"namespace {request.name!r} has another geometry: {different}")
        versions = (namespace.table_version, *namespace.older_versions)
        slots, *older = [await read_placement(transaction, namespace.table_id, version) for version in versions]
        return NamespaceReply(namespace, slots, tuple(older)), made

    return await store.run(body, what=f"opening namespace {request.name}")


async def list_namespaces(store: Store) -> NamespaceListReply:
    """All namespaces, by id."""

    async def body(transaction: Transaction) -> list[Namespace]:
        return await read_all(transaction, keys.namespaces(), Namespace)

    return NamespaceListReply(tuple(await store.run(body, what="listing namespaces")))


async def _find(transaction: Transaction, name: str) -> Namespace | None:
    stored_id = await transaction.get(keys.namespace_name(name))
    if stored_id is None:
        return None
    key = keys.namespace(int.from_bytes(stored_id, "little"))
    stored = await transaction.get(key)
    if stored is None:
        raise StoreFailed(f"namespace {name} has a name but no record; run esker admin meta check, or restore a backup")
    return unpack(Namespace, key, stored)


async def _create(
    transaction: Transaction, request: NamespaceOpen, geometry: Geometry, salt: bytes, cache_table: CacheTable
) -> Namespace:
    routing = await read_routing(transaction)
    table = newest_table(routing, TABLE_ID)
    if table is None:
        raise RequestFailed(Status.NOT_READY, f"the cluster has no chains yet: {missing_drives(routing)}")
    if request.mode is NamespaceMode.CACHE:
        table = await cache_table.ensure(transaction, routing)
    last_id = int.from_bytes(await transaction.get(keys.NAMESPACE_LAST) or b"", "little")
    if last_id >= NAMESPACE_ID_MAX:
        raise RequestFailed(Status.NO_SPACE, "all namespace ids have been used")
    namespace = Namespace(last_id + 1, request.name, geometry, salt, table.table_id, table.version, mode=request.mode)
    stored_id = namespace.namespace_id.to_bytes(4, "little")
    transaction.set(keys.NAMESPACE_LAST, stored_id)
    transaction.set(keys.namespace_name(request.name), stored_id)
    transaction.set(keys.namespace(namespace.namespace_id), pack(namespace))
    return namespace
