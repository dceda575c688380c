"""The part of a drive's worker that serves mutable chunks, put together."""

from collections.abc import Callable

from esker.chunkserver.cluster_view import ClusterView
from esker.chunkserver.engine.io import IoEngine
from esker.chunkserver.engine.store import DriveStore
from esker.chunkserver.memories import ClientMemories
from esker.chunkserver.mutable_queries import QueryService
from esker.chunkserver.mutable_reads import RangeService
from esker.chunkserver.mutable_runner import MutableRunner
from esker.chunkserver.mutable_scan import ImageScanService
from esker.chunkserver.mutable_writes import MutableWriteService
from esker.chunkserver.pool import WorkerPool
from esker.chunkserver.runner import ReplicaRunner
from esker.runtime.counters import Counters
from esker.wire.messages import Method
from esker.wire.rpc_server import Handler


class MutablePart:
    """See the module."""

    def __init__(
        self,
        store: DriveStore,
        engine: IoEngine,
        pool: WorkerPool,
        memories: ClientMemories,
        counters: Counters,
        runner: ReplicaRunner,
        view: ClusterView,
        lease_live: Callable[[int, int], bool],
        refresh: Callable[[], None],
    ) -> None:
        """`lease_live(chain id, chain version)`: whether the worker's lease for the chain is live at this moment;
        `refresh` asks for the newest cluster map.
        """
        self._replicas = replicas = view.replicas
        self.runner = MutableRunner(store, pool, counters, runner, view.link, lease_live, engine.submit)
        self._writes = MutableWriteService(self.runner, runner, pool, memories, counters, replicas, refresh)
        self._reads = RangeService(store.images, self.runner, pool, memories, counters, replicas, refresh)
        self._queries = QueryService(store.images, self.runner, pool, counters, replicas, refresh)
        self._scans = ImageScanService(store.images, replicas, view.ready, refresh, view.fail_drive, runner.dispatch)
        self.runner.on_ended = lambda replica: self._scans.look((replica,))

    def handlers(self) -> dict[Method, Handler]:
        """What it serves."""
        return {
            Method.WRITE: self._writes.write,
            Method.UPDATE: self._writes.update,
            Method.READ_RANGE: self._reads.read,
            Method.CHUNK_STAT: self._queries.stat,
            Method.VERSION_QUERY: self._queries.version,
            Method.FETCH_IMAGE: self._queries.fetch,
            Method.SCAN_IMAGES: self._scans.scan,
            Method.CHANNELS: self._scans.channels,
        }

    def look(self) -> None:
        """To be called right after chains may have changed, before anything else is."""
        self._scans.look(self._replicas.values())
        self.runner.recovery.look(self._replicas.values())

    def counters(self) -> dict[str, int]:
        """Figures of this moment."""
        return {"mutable_under_way": self.runner.busy, "mutable_to_recover": self.runner.recovery.waiting}

    async def aclose(self) -> None:
        """Begins nothing by itself any more."""
        self._scans.close()
        await self.runner.aclose()
