"""Removes namespaces in the background, on the server that is the manager: their chunks from the drives, then their
entries from the catalog.

Everything that must survive is in the record of the removal: which chains are through, how many chunks went. What was
under way when a server died is done again, which changes nothing, as chunks are removed by scanning for them. A chain
is through once each of its replicas was scanned by a worker that refuses the namespace already, from its begin to its
end, without a chunk and without a write under way. A worker that does not answer holds up only its chains: the others
go on, and the record says what is waited for.

Knows nothing of how workers are reached (`admin_drives.py`) nor of who may begin a removal (`admin_namespaces.py`).
"""

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence

import msgspec

from esker.meta import keys
from esker.meta.admin_drives import Drives
from esker.meta.admin_namespaces import removals_under_way
from esker.meta.catalog import Catalog
from esker.meta.manager import Manager, NotManager
from esker.meta.records import StoredRemoval, pack
from esker.meta.routing import RoutingCache
from esker.meta.store.base import Store, Transaction
from esker.meta.store.errors import StoreError
from esker.runtime.logging import get_logger
from esker.wire.admin_messages import SCAN_ROW, Scan, space_before, split_record_key
from esker.wire.errors import EskerError
from esker.wire.ids import NO_PUT_ID
from esker.wire.messages import REMOVE_EXTENT
from esker.wire.status import Status
from esker.wire.types import Chain, Routing, TargetState, Worker

log = get_logger("meta.removal")

LOOK_INTERVAL_S = 1.0
"""How often the manager looks for removals, and tries again what was held up."""
CHAINS_AT_A_TIME = 4
BATCH_CHUNKS = 1000
SAVE_INTERVAL_S = 1.0
PASSES_MAX = 3
"""Scans of one replica before its chain is put off: somebody still writes there."""
ANY_VERSION = 0
_GONE = (Status.OK, Status.NOT_FOUND)


class HeldUp(EskerError):
    """A chain cannot be cleared at the moment; the text says why."""


class RemovalJob:
    """Of one server; does nothing while another one is the manager."""

    def __init__(
        self,
        store: Store,
        manager: Manager,
        routing: RoutingCache,
        drives: Drives,
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._catalog = Catalog(store)
        self._manager = manager
        self._routing = routing
        self._drives = drives
        self._sleep = sleep
        self._clock = clock
        self.tasks: list[asyncio.Task[None]] = []
        """The background work; it ends only by `aclose`, or by a bug."""

    def start(self) -> None:
        """Look for removals from now on."""
        self.tasks = [asyncio.ensure_future(self._run())]

    async def aclose(self) -> None:
        """Stop where it is."""
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        await self._drives.aclose()

    async def _run(self) -> None:
        silent = False
        while True:
            await self._sleep(LOOK_INTERVAL_S)
            try:
                with contextlib.suppress(NotManager):
                    await self.step()
                silent = False
            except StoreError as error:
                if not silent:
                    log.warning("removals of namespaces wait for the metadata store", reason=str(error))
                silent = True

    async def step(self) -> None:
        """Bring every removal as far as it gets now. Raises `NotManager`, `StoreError`."""
        if not self._manager.term:
            return
        for removal in await removals_under_way(self._store):
            await self._advance(removal)

    async def _advance(self, removal: StoredRemoval) -> None:
        routing = await self._routing.newest()
        progress = _Progress(removal, len(routing.chains), self._clock())
        gate = asyncio.Semaphore(CHAINS_AT_A_TIME)
        reasons: list[str] = []

        async def clear(chain: Chain) -> None:
            async with gate:
                if not self._manager.term:
                    raise NotManager("the removal goes on at another server")
                try:
                    await self._clear_chain(progress, chain, routing)
                except EskerError as error:
                    if isinstance(error, NotManager | StoreError):
                        raise
                    reasons.append(f"chain {chain.chain_id}: {error}")
                else:
                    progress.done.add(chain.chain_id)
                    await self._save(progress)

        left = [chain for chain in routing.chains if chain.chain_id not in progress.done]
        ends = await asyncio.gather(*(clear(chain) for chain in left), return_exceptions=True)
        for end in ends:
            if end is not None:
                raise end
        if reasons:
            more = f" (and {len(reasons) - 1} more chains)" if len(reasons) > 1 else ""
            progress.waiting_for = min(reasons) + more
            await self._save(progress)
            return
        while await self._catalog.clear_page(removal.namespace.namespace_id):
            if not self._manager.term:
                raise NotManager("the removal goes on at another server")
        await self._end(removal)

    async def _clear_chain(self, progress: "_Progress", chain: Chain, routing: Routing) -> None:
        """Raises `EskerError` saying why the chain could not be cleared."""
        workers = {worker.drive_id: worker for worker in routing.workers}
        serving = [replica.drive_id for replica in chain.replicas if replica.state is TargetState.SERVING]
        if not serving:
            raise HeldUp("no replica is serving")
        places = [_worker(workers, drive_id) for drive_id in serving]
        for place in places:
            for _ in range(PASSES_MAX):
                if await self._pass(progress, chain, place, places[0]):
                    break
            else:
                raise HeldUp(f"writes of the namespace are still under way on drive {place.drive_id}")

    async def _pass(self, progress: "_Progress", chain: Chain, place: Worker, head: Worker) -> bool:
        """Remove what one replica has, through the head; whether it had nothing and nothing can come any more."""
        space = progress.removal.namespace.namespace_id
        after = space_before(chain.chain_id, space)
        clear = True
        while True:
            scan = Scan(chain.chain_id, after, BATCH_CHUNKS, space, routing_version=progress.removal.routing_version)
            page = await self._drives.scan(place, scan)
            clear = clear and page.writes_under_way == 0
            rows = [row[0] for row in SCAN_ROW.iter_unpack(page.rows)]
            if rows:
                clear = False
                progress.chunks += await self._remove(chain, head, space, rows)
                if self._clock() - progress.saved_s >= SAVE_INTERVAL_S:
                    await self._save(progress)
            if not page.next_after:
                return clear
            after = page.next_after

    async def _remove(self, chain: Chain, head: Worker, space: int, record_keys: Sequence[bytes]) -> int:
        """How many chunks went. Raises `HeldUp` unless all of them are gone."""
        extents = []
        for record_key in record_keys:
            _, _, object_id, index = split_record_key(record_key)
            extents.append(REMOVE_EXTENT.pack(object_id, index, chain.chain_id, chain.version, ANY_VERSION, NO_PUT_ID))
        counts = Counter(await self._drives.remove(head, space, extents))
        failed = sorted(status for status in counts if status not in _GONE)
        if failed:
            told = ", ".join(f"{counts[status]} {status.name}" for status in failed)
            raise HeldUp(f"drive {head.drive_id} did not remove every chunk: {told}")
        return counts[Status.OK]

    async def _save(self, progress: "_Progress") -> None:
        """Keep how far the removal has come."""
        key = keys.removal(progress.removal.namespace.namespace_id)
        progress.saved_s = self._clock()

        async def body(transaction: Transaction) -> None:
            stored = await transaction.get(key)
            if stored is not None and stored != (now := pack(progress.record())):
                transaction.set(key, now)

        what = f"progress of the removal of namespace {progress.removal.namespace.name}"
        await self._manager.transact(body, what=what)

    async def _end(self, removal: StoredRemoval) -> None:
        namespace = removal.namespace

        async def body(transaction: Transaction) -> None:
            transaction.clear(keys.removal(namespace.namespace_id))
            transaction.clear_range(*keys.counters_of(namespace.namespace_id))

        await self._manager.transact(body, what=f"end of the removal of namespace {namespace.name}")
        log.info("a namespace is removed", name=namespace.name, id=namespace.namespace_id)


class _Progress:
    """How far a removal has come in this server's hands."""

    def __init__(self, removal: StoredRemoval, chains: int, now_s: float) -> None:
        self.removal = removal
        self.done = set(removal.chains_done)
        self.chunks = removal.chunks_removed
        self.waiting_for = ""
        self.saved_s = now_s
        self._chains = chains

    def record(self) -> StoredRemoval:
        return msgspec.structs.replace(
            self.removal,
            chains_done=tuple(sorted(self.done)),
            chains=self._chains,
            chunks_removed=self.chunks,
            waiting_for=self.waiting_for,
        )


def _worker(workers: dict[str, Worker], drive_id: str) -> Worker:
    worker = workers.get(drive_id)
    if worker is None:
        raise HeldUp(f"no worker of drive {drive_id} has joined")
    return worker
