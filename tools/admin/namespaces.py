"""`esker admin namespaces`, `esker admin purge` and `esker admin blocks`.

A removal goes on in the metadata servers by itself; waiting for its end only looks on. Salts are secret and are never
printed.
"""

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec

from esker.tools.admin.link import ClusterLink
from esker.tools.admin.output import print_json, print_line, print_table, shown_key, shown_size, shown_time
from esker.tools.exit_codes import ExitCode
from esker.tools.progress import progress
from esker.wire.admin_messages import (
    NamespaceFigures,
    NamespaceFiguresGet,
    NamespaceFiguresReply,
    NamespaceRemove,
    NamespaceRemoveReply,
)
from esker.wire.errors import RequestFailed, UserError
from esker.wire.limits import OBJECT_BYTES
from esker.wire.messages import CatalogEntry, CatalogList, CatalogListReply, Method
from esker.wire.status import Status
from esker.wire.types import Namespace

LOOK_INTERVAL_S = 0.5
PURGE_PAGE = 100
TENANT_SEPARATOR = "/"


async def list_namespaces(cluster: str, *, as_json: bool) -> ExitCode:
    """All namespaces and their figures."""
    async with ClusterLink(cluster) as link:
        found = await link.namespaces()
    if as_json:
        print_json({"namespaces": [_as_dict(figures) for figures in found]})
        return ExitCode.FINE
    rows = [
        (
            each.namespace.namespace_id,
            each.namespace.name,
            each.namespace.mode,
            each.blocks,
            shown_size(each.block_bytes),
            _state(each),
        )
        for each in found
    ]
    print_table(["#id", "name", "mode", "#blocks", "#size", "state"], rows)
    return ExitCode.FINE


async def show_namespace(cluster: str, name: str, *, as_json: bool) -> ExitCode:
    """One namespace, with its geometry; also earlier ones of the name that are being removed."""
    async with ClusterLink(cluster) as link:
        found = await _named(link, name)
    if not found:
        raise _absent(name)
    if as_json:
        print_json({"namespaces": [_as_dict(figures) for figures in found]})
        return ExitCode.FINE
    for each in found:
        namespace = each.namespace
        lines: list[tuple[str, object]] = [
            ("id", namespace.namespace_id),
            ("state", _state(each)),
            ("blocks", each.blocks),
            ("size", f"{shown_size(each.block_bytes)} ({each.block_bytes} bytes), without replicas"),
            ("mode", namespace.mode),
            ("chain table", f"{namespace.table_id} version {namespace.table_version}"),
            ("older versions", ", ".join(map(str, namespace.older_versions)) or "none"),
            *msgspec.structs.asdict(namespace.geometry).items(),
        ]
        print_table(["field", "value"], lines, title=namespace.name)
    return ExitCode.FINE


async def remove_namespaces(
    cluster: str, *, name: str = "", tenant: str = "", strange: int = 0, wait_s: float | None, as_json: bool
) -> ExitCode:
    """Begins the removal of a namespace, of a tenant's, or of what drives hold of an id that is no namespace's, and
    waits for its end up to `wait_s` (None: not at all).

    `AGAIN` where the wait ends before the removal does, which goes on.
    """
    prefix = tenant and tenant.rstrip(TENANT_SEPARATOR) + TENANT_SEPARATOR
    if not name and not strange and not prefix.rstrip(TENANT_SEPARATOR):
        raise UserError("name the namespace, or the tenant whose namespaces are to be removed")
    async with ClusterLink(cluster) as link:
        removed = await (_begin_strange(link, strange) if strange else _begin(link, name, prefix))
        left = await _wait(link, {namespace.namespace_id for namespace in removed}, wait_s)
    if as_json:
        print_json({
            "removed": [{"id": each.namespace_id, "name": each.name} for each in removed],
            "under_way": [_as_dict(figures) for figures in left],
        })  # fmt: skip
    else:
        _explain(removed, left)
    return ExitCode.AGAIN if left and wait_s is not None else ExitCode.FINE


async def list_blocks(cluster: str, name: str, *, limit: int, after: str, as_json: bool) -> ExitCode:
    """A page of a namespace's blocks as the catalog has them, in object order; `after` is where the last page ended."""
    after_object = _object(after)
    async with ClusterLink(cluster) as link:
        live = [each for each in await _named(link, name) if each.removal is None]
        if not live:
            raise _absent(name)
        namespace_id = live[0].namespace.namespace_id
        entries = await _blocks(link, namespace_id, after_object, limit)
    # A page that is not full is the last one.
    next_after = entries[-1].object_id.hex() if len(entries) == limit else None
    if as_json:
        print_json({"namespace": name, "blocks": [_block(entry) for entry in entries], "next_after": next_after})
        return ExitCode.FINE
    rows = [
        (
            entry.object_id.hex(),
            shown_key(entry.key),
            entry.block_bytes,
            entry.chunk_count,
            entry.chain_id,
            shown_time(entry.created_ms),
        )
        for entry in entries
    ]
    print_table(["object", "key", "#bytes", "#chunks", "#chain", "created"], rows)
    if next_after is not None:
        print_line(f"more: --after {next_after}")
    return ExitCode.FINE


async def _named(link: ClusterLink, name: str) -> Sequence[NamespaceFigures]:
    ask = NamespaceFiguresGet(name=name)
    return (await link.meta(Method.NAMESPACE_FIGURES, ask, NamespaceFiguresReply)).namespaces


async def _begin(link: ClusterLink, name: str, prefix: str) -> list[Namespace]:
    if name:
        try:
            reply = await link.meta(Method.NAMESPACE_REMOVE, NamespaceRemove(name), NamespaceRemoveReply)
        except RequestFailed as error:
            if error.status is Status.BAD_REQUEST:
                raise UserError(error.message) from error
            if error.status is not Status.NOT_FOUND:
                raise
            # Begun before: by somebody else, or by an attempt of ours whose answer was lost.
            begun = [each.namespace for each in await _named(link, name)]
            if not begun:
                raise _absent(name) from error
            return begun
        return list(reply.removed)
    removed: dict[int, Namespace] = {}
    while True:
        ask = NamespaceRemove(prefix=prefix, limit=PURGE_PAGE)
        page = (await link.order(Method.NAMESPACE_REMOVE, ask, NamespaceRemoveReply)).removed
        removed.update({namespace.namespace_id: namespace for namespace in page})
        if len(page) < PURGE_PAGE:
            return list(removed.values())


async def _begin_strange(link: ClusterLink, namespace_id: int) -> list[Namespace]:
    ask = NamespaceRemove(strange=namespace_id)
    return list((await link.order(Method.NAMESPACE_REMOVE, ask, NamespaceRemoveReply)).removed)


async def _wait(link: ClusterLink, removed: set[int], wait_s: float | None) -> list[NamespaceFigures]:
    """Those whose removal is not over yet."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + (wait_s or 0.0)
    most = 1
    with progress("removing", 100) as advance:
        while True:
            left = [each for each in await link.namespaces() if each.namespace.namespace_id in removed]
            blocks = sum(each.blocks for each in left)
            most = max(most, blocks)
            advance(100 - 100 * blocks // most, f"{len(left)} namespaces, {blocks} blocks left")
            if not left or loop.time() >= deadline:
                return left
            await asyncio.sleep(LOOK_INTERVAL_S)


async def _blocks(link: ClusterLink, namespace_id: int, after: bytes, limit: int) -> list[CatalogEntry]:
    found: list[CatalogEntry] = []
    while len(found) < limit:
        ask = CatalogList(namespace_id, found[-1].object_id if found else after, min(limit - len(found), 5000))
        page = (await link.meta(Method.CATALOG_LIST, ask, CatalogListReply)).entries
        found += page
        if len(page) < ask.limit:
            break
    return found


def _object(text: str) -> bytes:
    try:
        object_id = bytes.fromhex(text)
    except ValueError:
        object_id = b"?"
    if len(object_id) not in (0, OBJECT_BYTES):
        raise UserError(f"--after {text}; write the object id that the last page ended with, {2 * OBJECT_BYTES} digits")
    return object_id


def _absent(name: str) -> UserError:
    return UserError(f"there is no namespace {name!r}; esker admin namespaces list shows them")


def _state(figures: NamespaceFigures) -> str:
    removal = figures.removal
    if removal is None:
        return "live"
    done = f"{removal.chains_done} of {removal.chains} chains" if removal.chains else "not begun"
    waiting = f"; waiting for {removal.waiting_for}" if removal.waiting_for else ""
    return f"being removed: {done}, {removal.chunks_removed} chunks gone{waiting}"


def _as_dict(figures: NamespaceFigures) -> dict[str, Any]:
    namespace = figures.namespace
    removal = figures.removal
    return {
        "id": namespace.namespace_id,
        "name": namespace.name,
        "blocks": figures.blocks,
        "block_bytes": figures.block_bytes,
        "table_id": namespace.table_id,
        "table_version": namespace.table_version,
        "older_versions": list(namespace.older_versions),
        "mode": namespace.mode,
        "geometry": msgspec.structs.asdict(namespace.geometry),
        "removal": None if removal is None else msgspec.structs.asdict(removal),
    }


def _block(entry: CatalogEntry) -> dict[str, Any]:
    return {
        "object": entry.object_id.hex(),
        "key": shown_key(entry.key),
        "block_bytes": entry.block_bytes,
        "chunks": entry.chunk_count,
        "chain": entry.chain_id,
        "version": entry.version,
        "created_ms": entry.created_ms,
    }


def _explain(removed: Sequence[Namespace], left: Sequence[NamespaceFigures]) -> None:
    if not removed:
        print_line("there is nothing to remove")
    under_way = {each.namespace.namespace_id: each for each in left}
    for namespace in removed:
        figures = under_way.get(namespace.namespace_id)
        print_line(
            f"{namespace.name} (id {namespace.namespace_id}): {'removed' if figures is None else _state(figures)}"
        )
    if left:
        print_line("the metadata servers go on by themselves; esker admin namespaces list shows how far they are")
