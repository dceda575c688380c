"""Reads the cluster map: the whole routing at one version, kept until the version changes.

The version stands under one key and every change of a worker, chain or table bumps it in its own transaction, so one
small read tells whether the kept routing still holds, whichever metadata server made the change.
"""

from typing import TypeVar

import msgspec

from esker.meta import keys
from esker.meta.records import ClusterRecord, unpack
from esker.meta.store.base import Store, Transaction
from esker.meta.store.errors import StoreFailed
from esker.wire.types import Chain, ChainTable, Routing, Worker

S = TypeVar("S", bound=msgspec.Struct)
_ONE = (1).to_bytes(8, "little")


def bump_version(transaction: Transaction) -> None:
    """Part of every transaction that changes the routing."""
    transaction.add(keys.ROUTING_VERSION, _ONE)


async def read_cluster(transaction: Transaction) -> ClusterRecord:
    """The cluster record, which exists since the first start."""
    stored = await transaction.get(keys.CLUSTER)
    if stored is None:
        raise StoreFailed("the metadata store has no cluster record; restore a backup")
    return unpack(ClusterRecord, keys.CLUSTER, stored)


async def read_all(transaction: Transaction, key_range: keys.KeyRange, kind: type[S]) -> list[S]:
    """Every struct of a key range, in key order."""
    return [unpack(kind, key, value) for key, value in await transaction.get_range(*key_range)]


async def read_routing(transaction: Transaction) -> Routing:
    """The whole routing."""
    cluster = await read_cluster(transaction)
    return Routing(
        cluster_id=cluster.cluster_id,
        version=await _read_version(transaction),
        workers=tuple(await read_all(transaction, keys.drives(), Worker)),
        chains=tuple(await read_all(transaction, keys.chains(), Chain)),
        tables=tuple(await read_all(transaction, keys.tables(), ChainTable)),
        drives_expected=cluster.drives_expected,
        replicas=cluster.replicas,
    )


async def read_placement(transaction: Transaction, table_id: int, version: int) -> bytes:
    """Slot table of a chain-table version. Raises `StoreFailed` if a part of it is missing."""
    wanted = [keys.placement(table_id, version, part) for part in range(keys.PLACEMENT_PARTS)]
    parts = [part for part in await transaction.get_many(wanted) if part is not None]
    if len(parts) < len(wanted):
        raise StoreFailed(f"the slot table of chain table {table_id} version {version} is missing; restore a backup")
    return b"".join(parts)


class RoutingCache:
    """The newest routing, re-read only when its version changed."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._kept: Routing | None = None

    async def newest(self) -> Routing:
        """The routing as of now. Raises `StoreError`."""
        routing = await self._store.run(self._read, what="reading the cluster map")
        if self._kept is None or routing.version > self._kept.version:
            self._kept = routing
        return routing

    async def _read(self, transaction: Transaction) -> Routing:
        kept = self._kept
        if kept is not None and await _read_version(transaction) == kept.version:
            return kept
        return await read_routing(transaction)


async def _read_version(transaction: Transaction) -> int:
    return int.from_bytes(await transaction.get(keys.ROUTING_VERSION) or b"", "little")
