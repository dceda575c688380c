"""Who belongs to the cluster: its identity, and the drives' workers as they join.

A join replaces what is recorded of a drive (a restarted worker has a new incarnation and address) and bumps the
routing version. Two workers must never serve one drive, so before a recorded worker is replaced by another
incarnation its address is asked whether that very incarnation still answers there. A drive that knows less of its joins
than the record is an earlier copy of its directory, which lacks what was acknowledged since; it must never be taken for
a replica that served last. Chains are `chain_setup.py`'s.
"""

from collections.abc import Awaitable, Callable, Sequence

from esker.meta import keys
from esker.meta.records import ClusterRecord, RemovedDrive, pack, unpack
from esker.meta.routing import bump_version, read_cluster
from esker.meta.store.base import Store, Transaction
from esker.wire.errors import RequestFailed, UserError
from esker.wire.limits import REPLICAS_MAX
from esker.wire.status import Status
from esker.wire.types import Worker

Probe = Callable[[Worker], Awaitable[bool]]
"""Whether the recorded incarnation answers at the recorded address, within a bounded time."""

DRIVES_MAX = 4096
NAME_BYTES_MAX = 255


async def found_cluster(store: Store, fresh: ClusterRecord, *, any_id: bool) -> ClusterRecord:
    """The store's cluster; made as `fresh` on the first start.

    Raises `UserError` if the store's cluster has other figures than `fresh` (or another id, unless `any_id`).
    """

    async def body(transaction: Transaction) -> ClusterRecord:
        if await transaction.get(keys.CLUSTER) is None:
            transaction.set(keys.CLUSTER, pack(fresh))
            bump_version(transaction)
            return fresh
        return await read_cluster(transaction)

    found = await store.run(body, what="start of the cluster")
    checks = [
        ("drives", found.drives_expected, fresh.drives_expected),
        ("replicas", found.replicas, fresh.replicas),
        ("cluster id", found.cluster_id, found.cluster_id if any_id else fresh.cluster_id),
    ]
    for name, has, asked in checks:
        if has != asked:
            raise UserError(
                f"this cluster was made with {name} {has}, but {name} {asked} was asked; "
                f"start it with {has}, or use another directory for a new cluster"
            )
    return found


def check_sizes(drives_expected: int, replicas: int) -> None:
    """Raises `UserError` for figures that no cluster can have."""
    if not 1 <= drives_expected <= DRIVES_MAX:
        raise UserError(f"drives is {drives_expected}; allowed: 1 to {DRIVES_MAX}")
    most = min(REPLICAS_MAX, drives_expected)
    if not 1 <= replicas <= most:
        raise UserError(
            f"replicas is {replicas}; allowed with {drives_expected} drives: 1 to {most}, "
            "as each replica needs a drive of its own"
        )


async def join(store: Store, worker: Worker, probe: Probe, lives: Sequence[str] = ()) -> None:
    """Record that `worker` serves its drive, which may have joined last in one of `lives`.

    Raises `RequestFailed`: BAD_REQUEST for a malformed worker; FORBIDDEN while another worker serves the drive, where
    the drive was removed from the cluster, and where its directory is an earlier copy; BUSY if two workers of the drive
    join at once.
    """
    _check_worker(worker)
    key = keys.drive(worker.drive_id)

    async def recorded(transaction: Transaction) -> Worker | None:
        stored = await transaction.get(key)
        return None if stored is None else unpack(Worker, key, stored)

    async def record(transaction: Transaction) -> None:
        removed = await transaction.get(keys.removed_drive(worker.drive_id))
        if removed is not None:
            raise RequestFailed(
                Status.FORBIDDEN,
                _removed_text(unpack(RemovedDrive, keys.removed_drive(worker.drive_id), removed)),
            )
        found = await recorded(transaction)
        if found == worker:
            return
        if found is not None and found.incarnation not in allowed:
            raise RequestFailed(Status.BUSY, f"another worker of drive {worker.drive_id} is joining; try again")
        transaction.set(key, pack(worker))
        bump_version(transaction)

    what = f"join of drive {worker.drive_id}"
    before = await store.run(recorded, what=what)
    allowed = {worker.incarnation}
    if before is not None and before.incarnation != worker.incarnation:
        if 0 < worker.join <= before.join and before.incarnation not in lives:
            raise RequestFailed(
                Status.FORBIDDEN,
                f"this is an earlier copy of the directory of drive {worker.drive_id}: it knows of {worker.join - 1} "
                f"joins, the cluster of {before.join}, so it lacks what was written since. Bring the newest one back; "
                f"where that is lost, give an empty directory, and run esker admin replace-drive {worker.drive_id} NEW",
            )
        if await probe(before):
            raise RequestFailed(
                Status.FORBIDDEN,
                f"drive {worker.drive_id} is served by a live worker at {before.host}:{before.port} "
                f"(node {before.node_id}); stop that one first. A drive's directory must not be copied",
            )
        allowed.add(before.incarnation)
    await store.run(record, what=what)


def _removed_text(removed: RemovedDrive) -> str:
    how = f"replaced by drive {removed.replaced_by}" if removed.replaced_by else "removed by an operator"
    return (
        f"drive {removed.drive_id} is not in this cluster any more: it was {how}. What is on it stays there; "
        "to use the disk again give an empty directory"
    )


def _check_worker(worker: Worker) -> None:
    for name in ("drive_id", "node_id", "host", "incarnation"):
        value = getattr(worker, name)
        if not 1 <= len(value.encode()) <= NAME_BYTES_MAX:
            raise RequestFailed(Status.BAD_REQUEST, f"{name} has {len(value.encode())} bytes; allowed: 1 to 255")
    if not 1 <= worker.port <= 65535:
        raise RequestFailed(Status.BAD_REQUEST, f"port is {worker.port}; allowed: 1 to 65535")
    if worker.capacity_bytes < 1:
        raise RequestFailed(Status.BAD_REQUEST, f"capacity_bytes is {worker.capacity_bytes}; allowed: 1 and up")
