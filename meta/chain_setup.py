"""Makes the cluster's chains once all expected drives have joined.

One transaction writes all chains, the first version of the chain table and its slot table, so a cluster has either no
chains or a complete set. Drives that join later get none until the cluster is expanded. `layout.py` makes the plan.
"""

import asyncio

import msgspec

from esker.meta import keys
from esker.meta.layout import DriveSite, chain_weights, in_turn, min_replicas, plan_chains
from esker.meta.records import pack
from esker.meta.routing import bump_version, read_all, read_cluster
from esker.meta.store.base import Store, Transaction
from esker.wire.placement import build_slot_table
from esker.wire.types import Chain, ChainTable, Replica, Worker

TABLE_ID = 1
CACHE_TABLE_ID = 2
"""Of the chains of one replica, made when they are first asked for (`cache_table.py`)."""
SETUP_TIMEOUT_S = 30.0

Plan = tuple[list[Chain], ChainTable, bytes]
"""The chains, their table and its slot table."""


class ChainSetup:
    """`ensure` is called after every join. Keeps the last plan, which takes half a minute for thousands of drives: who
    stops waiting for it leaves it to the next one.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._asked: tuple[list[DriveSite], int] | None = None
        self._planning: asyncio.Future[Plan] | None = None

    async def ensure(self) -> bool:
        """Make the chains if it is time; whether this call made them. Raises `StoreError`."""
        return await self._store.run(self._ensure, what="making the chains", timeout_s=SETUP_TIMEOUT_S)

    async def _ensure(self, transaction: Transaction) -> bool:
        if await transaction.get_range(*keys.tables(), limit=1):
            return False
        cluster = await read_cluster(transaction)
        workers = await read_all(transaction, keys.drives(), Worker)
        if len(workers) < cluster.drives_expected:
            return False
        sites = in_turn([DriveSite(worker.drive_id, worker.node_id, worker.capacity_bytes) for worker in workers])
        chains, table, slots = await self._plan(sites, cluster.replicas)
        lives = {worker.drive_id: worker.incarnation for worker in workers}
        for chain in chains:
            transaction.set(keys.chain(chain.chain_id), pack(_in_these_lives(chain, lives)))
        write_table(transaction, table, slots)
        bump_version(transaction)
        return True

    async def _plan(self, sites: list[DriveSite], replicas: int) -> Plan:
        if self._planning is None or self._asked != (sites, replicas):
            # Hundreds of chains take about a second: too long for the loop.
            self._asked = (sites, replicas)
            self._planning = asyncio.ensure_future(asyncio.to_thread(_make, sites, replicas))
        return await asyncio.shield(self._planning)


def write_table(transaction: Transaction, table: ChainTable, slots: bytes) -> None:
    """Store a version of a chain table with its slot table."""
    transaction.set(keys.table(table.table_id, table.version), pack(table))
    half_bytes = len(slots) // keys.PLACEMENT_PARTS
    for part in range(keys.PLACEMENT_PARTS):
        key = keys.placement(table.table_id, table.version, part)
        transaction.set(key, slots[part * half_bytes : (part + 1) * half_bytes])


def _in_these_lives(chain: Chain, lives: dict[str, str]) -> Chain:
    """The chain with all replicas admitted in the present lives of their workers."""
    replicas = tuple(msgspec.structs.replace(each, incarnation=lives[each.drive_id]) for each in chain.replicas)
    return msgspec.structs.replace(chain, replicas=replicas)


def _make(sites: list[DriveSite], replicas: int) -> Plan:
    members = plan_chains(sites, replicas)
    floor = min_replicas(replicas)
    chains = [
        Chain(number, 1, tuple(Replica(drive_id) for drive_id in chain), floor)
        for number, chain in enumerate(members, start=1)
    ]
    table = ChainTable(TABLE_ID, 1, tuple(chain.chain_id for chain in chains), tuple(chain_weights(sites, members)))
    return chains, table, build_slot_table(table.chain_ids, table.weights)
