"""The chain table of cache mode: one chain of one replica on every drive, made when it is first asked for.

A drive's cache chain keeps its id and its weight in all later versions of the table, as placement hashes the id: so the
weight is the drive's capacity, not a share of the others'. Every drive that has joined by then, and is not being
emptied, gets a chain; which ones join later versions is the expansion's matter.
"""

import asyncio
from collections.abc import Sequence

from esker.meta import keys
from esker.meta.chain_setup import CACHE_TABLE_ID, write_table
from esker.meta.layout import DriveSite, in_turn
from esker.meta.records import pack
from esker.meta.routing import bump_version
from esker.meta.store.base import Transaction
from esker.wire.limits import MIB
from esker.wire.placement import WEIGHT_MAX, build_slot_table
from esker.wire.types import Chain, ChainTable, Replica, Routing, Worker

_WEIGHT_BITS = 7


class CacheTable:
    """Keeps the last plan, as its slot table takes a while to compute and a transaction may run more than once."""

    def __init__(self) -> None:
        self._planned: tuple[tuple[int, ...], tuple[int, ...], bytes] | None = None

    async def ensure(self, transaction: Transaction, routing: Routing) -> ChainTable:
        """The newest version of the table; made now if there is none. `routing` is as this transaction sees it."""
        table = newest_table(routing, CACHE_TABLE_ID)
        if table is not None:
            return table
        leaving = {each.drive_id for each in routing.leaving}
        workers = [worker for worker in routing.workers if worker.drive_id not in leaving]
        chains = cache_chains(workers or routing.workers, max(chain.chain_id for chain in routing.chains) + 1)
        weights = {worker.drive_id: cache_weight(worker.capacity_bytes) for worker in routing.workers}
        table = ChainTable(
            CACHE_TABLE_ID,
            1,
            tuple(chain.chain_id for chain in chains),
            tuple(weights[chain.replicas[0].drive_id] for chain in chains),
        )
        for chain in chains:
            transaction.set(keys.chain(chain.chain_id), pack(chain))
        write_table(transaction, table, await self._slots(table))
        bump_version(transaction)
        return table

    async def _slots(self, table: ChainTable) -> bytes:
        if self._planned is None or self._planned[:2] != (table.chain_ids, table.weights):
            slots = await asyncio.to_thread(build_slot_table, table.chain_ids, table.weights)
            self._planned = (table.chain_ids, table.weights, slots)
        return self._planned[2]


def cache_chains(workers: Sequence[Worker], first_id: int) -> list[Chain]:
    """A chain on each worker's drive, admitted in its present life; neighbours are on different nodes if possible."""
    lives = {worker.drive_id: worker.incarnation for worker in workers}
    sites = in_turn([DriveSite(worker.drive_id, worker.node_id, worker.capacity_bytes) for worker in workers])
    return [
        Chain(chain_id, 1, (Replica(site.drive_id, incarnation=lives[site.drive_id]),))
        for chain_id, site in enumerate(sites, start=first_id)
    ]


def cache_weight(capacity_bytes: int) -> int:
    """Of the chain on a drive of this capacity: in MiB, rounded down by less than a sixtieth.

    Drives of about the same size share a weight, as the slot table of few weights is computed much sooner.
    """
    weight = min(WEIGHT_MAX, max(1, capacity_bytes // MIB))
    spare_bits = max(0, weight.bit_length() - _WEIGHT_BITS)
    return weight >> spare_bits << spare_bits


def newest_table(routing: Routing, table_id: int) -> ChainTable | None:
    """The newest version of a chain table; None: there is none."""
    versions = [table for table in routing.tables if table.table_id == table_id]
    return max(versions, key=lambda table: table.version, default=None)
