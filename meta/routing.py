"""Reads the cluster map: the whole routing at one version, kept until the version changes.

The version stands under one key and every change of a worker, chain, table or metadata server bumps it in its own
transaction, so one small read tells whether the kept routing still holds, whichever metadata server made the change,
and a watch of that key tells when it does not.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import msgspec

from esker.meta import keys
from esker.meta.records import ClusterRecord, MetaServer, unpack
from esker.meta.store.base import Store, Transaction, Watch
from esker.meta.store.errors import StoreError, StoreFailed
from esker.runtime.logging import get_logger
from esker.wire.types import Chain, ChainGoal, ChainTable, Leaving, Routing, Worker

log = get_logger("meta.routing")

S = TypeVar("S", bound=msgspec.Struct)
_ONE = (1).to_bytes(8, "little")

CHECK_INTERVAL_S = 5.0
"""A watch may be lost, so the version is read this often all the same."""
CONFIRMED_S = 2 * CHECK_INTERVAL_S
"""A routing that was not confirmed for so long is not handed out without asking the store."""
FAILURE_PAUSE_S = 0.5


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
    servers = await read_all(transaction, keys.meta_servers(), MetaServer)
    return Routing(
        cluster_id=cluster.cluster_id,
        version=await read_version(transaction),
        workers=tuple(await read_all(transaction, keys.drives(), Worker)),
        chains=tuple(await read_all(transaction, keys.chains(), Chain)),
        tables=tuple(await read_all(transaction, keys.tables(), ChainTable)),
        drives_expected=cluster.drives_expected,
        replicas=cluster.replicas,
        meta_servers=tuple(server.address for server in servers),
        namespace_last=int.from_bytes(await transaction.get(keys.NAMESPACE_LAST) or b"", "little"),
        namespaces=tuple(keys.namespace_id(key) for key, _ in await transaction.get_range(*keys.namespaces())),
        goals=tuple(await read_all(transaction, keys.chain_goals(), ChainGoal)),
        leaving=tuple(await read_all(transaction, keys.all_leaving(), Leaving)),
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

    def __init__(self, store: Store, clock: Callable[[], float] | None = None) -> None:
        """`clock` never jumps; by default the store's."""
        self._store = store
        self._clock = clock or store.retry.clock
        self._kept: Routing | None = None
        self._confirmed_s = 0.0

    @property
    def known(self) -> Routing | None:
        """The newest routing that was read here; None: none was."""
        return self._kept

    async def newest(self) -> Routing:
        """The routing as of now. Raises `StoreError`."""
        return self._keep(await self._store.run(self._read, what="reading the cluster map"))

    async def recent(self, at_least: int = 0) -> Routing:
        """The routing as of a moment ago, without the store's help while `follow` runs. Raises `StoreError`.

        `at_least` is a version that the caller has seen elsewhere: it never gets an older one.
        """
        kept = self._kept
        if kept is None or kept.version < at_least or self._clock() - self._confirmed_s > CONFIRMED_S:
            return await self.newest()
        return kept

    async def follow(self, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        """Keep what `recent` hands out up to date, until cancelled."""
        silent = False
        while True:
            try:
                routing, watch = await self._store.run(self._read_and_watch, what="watching the cluster map")
                self._keep(routing)
                silent = False
                try:
                    await watch.wait(CHECK_INTERVAL_S)
                finally:
                    watch.cancel()
            except StoreError as error:
                if not silent:
                    log.warning("the cluster map cannot be watched", reason=str(error))
                silent = True
                await sleep(FAILURE_PAUSE_S)

    def _keep(self, routing: Routing) -> Routing:
        self._confirmed_s = self._clock()
        if self._kept is None or routing.version > self._kept.version:
            self._kept = routing
        return self._kept

    async def _read(self, transaction: Transaction) -> Routing:
        kept = self._kept
        if kept is not None and await read_version(transaction) == kept.version:
            return kept
        return await read_routing(transaction)

    async def _read_and_watch(self, transaction: Transaction) -> tuple[Routing, Watch]:
        routing = await self._read(transaction)
        return routing, await transaction.watch(keys.ROUTING_VERSION)


async def read_version(transaction: Transaction) -> int:
    """The routing's version, as this transaction sees it."""
    return int.from_bytes(await transaction.get(keys.ROUTING_VERSION) or b"", "little")
