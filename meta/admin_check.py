"""Whether the tables of the metadata store fit each other: a pure look at all rows but the catalog's blocks.

Chains name drives that have joined, chain tables name chains and have their slot tables, namespaces stand under their
names and lie over a table, ids were not given twice, counters and reports belong to something. Where the rest of the
metadata says what a row must be, a finding carries the repair: what the row has, and what it should have. Everything
else only a backup can mend.
"""

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain as joined
from typing import TypeVar

from esker.meta import keys
from esker.meta.admin_decode import decoded_value, split_key, table_of
from esker.meta.records import ClusterRecord, RemovedDrive, StoredRemoval
from esker.meta.store.errors import StoreError, printable
from esker.wire.admin_messages import MetaRow
from esker.wire.limits import PLACEMENT_SLOTS
from esker.wire.types import Chain, ChainGoal, ChainTable, Leaving, Namespace, Worker

S = TypeVar("S")
_SLOTS_BYTES = 2 * PLACEMENT_SLOTS

Change = tuple[bytes, bytes | None, bytes | None]
"""Key, what stands there now (None: nothing), what should (None: nothing)."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is wrong."""

    table: str
    key: str
    problem: str
    repair: tuple[Change, ...] = ()
    """Empty: it cannot be repaired from what else is known."""


class MetadataCheck:
    """Looks at one snapshot. `findings` says what is wrong; the tables are what could be decoded."""

    def __init__(self, rows: Iterable[MetaRow]) -> None:
        self._rows = dict(rows)
        self.findings: list[Finding] = []
        self._damaged: set[bytes] = set()
        self._values: dict[str, dict[bytes, object]] = {}
        for key, value in self._rows.items():
            self._decode(key, value)
        self.namespaces = {each.namespace_id: each for each in self._all("namespace", Namespace).values()}
        self.removals = {each.namespace.namespace_id: each for each in self._all("removal", StoredRemoval).values()}

    def run(self) -> list[Finding]:
        """All checks."""
        drives = {worker.drive_id for worker in self._all("drive", Worker).values()}
        cluster = self._cluster()
        chains = self._chains(drives, cluster)
        tables = self._tables(chains)
        self._placements(tables)
        self._check_namespaces(tables)
        self._names()
        self._last_id()
        self._counters()
        self._reports(drives)
        self._goals(drives, chains)
        return self.findings

    def _decode(self, key: bytes, value: bytes) -> None:
        table = table_of(key)
        if table is None:
            self._add("unknown", key, "no table of this esker has such keys")
            return
        try:
            split_key(table, key)
            self._values.setdefault(table.name, {})[key] = decoded_value(table, key, value)
        except (StoreError, ValueError) as error:
            self._damaged.add(key)
            self._add(table.name, key, f"damaged: {error}")

    def _all(self, table: str, kind: type[S]) -> dict[bytes, S]:
        return {key: value for key, value in self._values.get(table, {}).items() if isinstance(value, kind)}

    def _add(self, table: str, key: bytes, problem: str, *repair: Change) -> None:
        self.findings.append(Finding(table, printable(key), problem, repair))

    def _drop(self, table: str, key: bytes, problem: str, *owners: bytes) -> None:
        """The row may go, as it belongs to nothing, unless one of its `owners` is there but cannot be read."""
        keep = any(owner in self._damaged for owner in owners)
        self._add(table, key, problem, *([] if keep else [(key, self._rows[key], None)]))

    def _cluster(self) -> ClusterRecord | None:
        records = self._all("cluster", ClusterRecord)
        if keys.CLUSTER not in self._rows:
            self._add("cluster", keys.CLUSTER, "there is no cluster record")
        if keys.ROUTING_VERSION not in self._rows:
            self._add("routing-version", keys.ROUTING_VERSION, "the cluster map has no version")
        return records.get(keys.CLUSTER)

    def _chains(self, drives: set[str], cluster: ClusterRecord | None) -> dict[int, Chain]:
        chains = self._all("chain", Chain)
        for key, chain in chains.items():
            for problem in _chain_problems(chain, drives, cluster):
                self._add("chain", key, problem)
            if keys.chain(chain.chain_id) != key:
                self._add("chain", key, f"it says that it is chain {chain.chain_id}")
        return {chain.chain_id: chain for chain in chains.values()}

    def _tables(self, chains: dict[int, Chain]) -> dict[tuple[int, int], ChainTable]:
        found = self._all("chain-table", ChainTable)
        named: set[int] = set()
        for key, table in found.items():
            absent = [chain_id for chain_id in table.chain_ids if chain_id not in chains]
            if absent:
                self._add("chain-table", key, f"it names chains that do not exist: {absent[:5]}")
            if len(table.weights) != len(table.chain_ids) or len(set(table.chain_ids)) != len(table.chain_ids):
                self._add("chain-table", key, "its chains are not distinct, or have not one weight each")
            if keys.table(table.table_id, table.version) != key:
                self._add("chain-table", key, f"it says that it is table {table.table_id} version {table.version}")
            named.update(table.chain_ids)
        if found:
            for chain_id in sorted(set(chains) - named):
                self._add("chain", keys.chain(chain_id), "no chain table names it")
        return {(table.table_id, table.version): table for table in found.values()}

    def _placements(self, tables: dict[tuple[int, int], ChainTable]) -> None:
        wanted: set[bytes] = set()
        for (table_id, version), table in tables.items():
            parts = [keys.placement(table_id, version, part) for part in range(keys.PLACEMENT_PARTS)]
            wanted.update(parts)
            slots = b"".join(self._rows.get(part, b"") for part in parts)
            if len(slots) != _SLOTS_BYTES:
                self._add("placement", parts[0], f"its slot table has {len(slots)} bytes instead of {_SLOTS_BYTES}")
                continue
            highest = max(struct.unpack(f"<{PLACEMENT_SLOTS}H", slots))
            if highest >= len(table.chain_ids):
                self._add("placement", parts[0], f"its slot table names chain {highest} of {len(table.chain_ids)}")
        for key in self._values.get("placement", {}):
            if key not in wanted:
                self._drop("placement", key, "it belongs to no chain table", keys.table_of_placement(key))

    def _check_namespaces(self, tables: dict[tuple[int, int], ChainTable]) -> None:
        live = self._all("namespace", Namespace).items()
        leaving = ((key, removal.namespace) for key, removal in self._all("removal", StoredRemoval).items())
        for key, namespace in joined(live, leaving):
            table = "namespace" if key.startswith(keys.namespaces()[0]) else "removal"
            for version in (namespace.table_version, *namespace.older_versions):
                if (namespace.table_id, version) not in tables:
                    what = f"chain table {namespace.table_id} version {version}"
                    self._add(table, key, f"namespace {namespace.name} lies over {what}, which does not exist")
            if keys.namespace_id(key) != namespace.namespace_id:
                self._add(table, key, f"it says that it is namespace {namespace.namespace_id}")
        for namespace_id in sorted(self.namespaces.keys() & self.removals.keys()):
            self._add("removal", keys.removal(namespace_id), "the namespace is live and being removed at once")

    def _names(self) -> None:
        owners: dict[bytes, int] = {}
        for namespace in self.namespaces.values():
            key = keys.namespace_name(namespace.name)
            if key in owners:
                self._add("namespace", key, f"namespaces {owners[key]} and {namespace.namespace_id} share the name")
            owners[key] = namespace.namespace_id
        for key, namespace_id in self._all("namespace-name", int).items():
            if key not in owners:
                problem = f"the name leads to namespace {namespace_id}, which has it not"
                self._drop("namespace-name", key, problem, keys.namespace(namespace_id))
        for key, namespace_id in owners.items():
            stored, right = self._rows.get(key), namespace_id.to_bytes(4, "little")
            if stored != right:
                problem = f"namespace {namespace_id} cannot be found by its name"
                self._add("namespace-name", key, problem, (key, stored, right))

    def _last_id(self) -> None:
        last = self._all("namespace-last", int).get(keys.NAMESPACE_LAST, 0)
        highest = max(self.namespaces.keys() | self.removals.keys(), default=0)
        if last < highest:
            stored = self._rows.get(keys.NAMESPACE_LAST)
            repair = (keys.NAMESPACE_LAST, stored, highest.to_bytes(4, "little"))
            problem = f"ids up to {last} are said to be given, but there is a namespace {highest}"
            self._add("namespace-last", keys.NAMESPACE_LAST, problem, repair)

    def _counters(self) -> None:
        for key in self._all("counter", int):
            namespace_id, _ = keys.split_counter(key)
            if namespace_id not in self.namespaces and namespace_id not in self.removals:
                problem = f"it counts for namespace {namespace_id}, which does not exist"
                self._drop("counter", key, problem, keys.namespace(namespace_id), keys.removal(namespace_id))

    def _reports(self, drives: set[str]) -> None:
        for key in self._values.get("report", {}):
            drive_id = key[1:].decode()
            if drive_id not in drives:
                self._drop("report", key, "no such drive has joined", keys.drive(drive_id))

    def _goals(self, drives: set[str], chains: dict[int, Chain]) -> None:
        for key, goal in self._all("chain-goal", ChainGoal).items():
            strangers = [drive_id for drive_id in goal.drives if drive_id not in drives]
            if goal.chain_id not in chains or strangers:
                owners = [keys.chain(goal.chain_id), *map(keys.drive, strangers)]
                problem = f"it is of chain {goal.chain_id}, or names drives, that do not exist"
                self._drop("chain-goal", key, problem, *owners)
        for key, leaving in self._all("leaving", Leaving).items():
            if leaving.drive_id not in drives:
                self._drop("leaving", key, "no such drive has joined", keys.drive(leaving.drive_id))
        for key, removed in self._all("removed-drive", RemovedDrive).items():
            if removed.drive_id in drives:
                self._add("removed-drive", key, f"drive {removed.drive_id} was removed, but is in the cluster")


def _chain_problems(chain: Chain, drives: set[str], cluster: ClusterRecord | None) -> Iterator[str]:
    members = [replica.drive_id for replica in chain.replicas]
    strangers = [drive_id for drive_id in members if drive_id not in drives]
    if strangers:
        yield f"it names drives that never joined: {', '.join(strangers)}"
    if not members or len(set(members)) != len(members):
        yield "it has no replicas, or two on one drive"
    if cluster is not None and len(members) > 2 * cluster.replicas:  # as many while all of them are being exchanged
        yield f"it has {len(members)} replicas where the cluster keeps {cluster.replicas}"
    if not 1 <= chain.min_replicas <= max(1, len(members)) or chain.version < 1 or chain.chain_id < 1:
        yield "its id, version or least number of replicas is out of range"


class CounterSum:
    """Counts a namespace's blocks as they come by, in the shards of its counters."""

    def __init__(self, namespace_id: int) -> None:
        self._namespace_id = namespace_id
        self._sums = [[0, 0] for _ in range(keys.COUNTER_SHARDS)]

    def add(self, object_id: bytes, block_bytes: int) -> None:
        """A block."""
        entry = self._sums[keys.counter_shard(object_id)]
        entry[0] += 1
        entry[1] += block_bytes

    def findings(self, stored: dict[bytes, bytes]) -> list[Finding]:
        """Where the counters' rows differ from what was counted."""
        found = []
        for shard, sums in enumerate(self._sums):
            for figure, right in zip((keys.BLOCKS, keys.BYTES), sums, strict=True):
                key = keys.counter(self._namespace_id, figure, shard)
                now = stored.get(key)
                if int.from_bytes(now or b"", "little", signed=True) != right:
                    value = right.to_bytes(8, "little", signed=True)
                    what = "blocks" if figure == keys.BLOCKS else "bytes"
                    shown = int.from_bytes(now or b"", "little", signed=True)
                    problem = f"shard {shard} of namespace {self._namespace_id} says {shown} {what}, there are {right}"
                    found.append(Finding("counter", printable(key), problem, ((key, now, value),)))
        return found


def blocks_counted(rows: Iterable[MetaRow]) -> int:
    """How many blocks the counters among the rows say there are; those that are damaged say nothing."""
    total = 0
    for key, value in rows:
        table = table_of(key)
        if table is not None and table.name == "counter":
            try:
                is_blocks = split_key(table, key)["figure"] == keys.BLOCKS
                total += decoded_value(table, key, value) if is_blocks else 0
            except (StoreError, ValueError):
                continue
    return total
