"""A drive's upkeep, put together: repairs, and the scrubber that finds work for them."""

import asyncio

from esker.chunkserver.engine.io import IoEngine
from esker.chunkserver.engine.store import DriveStore
from esker.chunkserver.image_upkeep import ImageKind, ImageMender, Mender
from esker.chunkserver.repair import RepairService
from esker.chunkserver.runner import ReplicaRunner
from esker.chunkserver.scrub import Blocks, Scrubber
from esker.chunkserver.verify import BlockSource, ImageSource, Verifier
from esker.craq.replica import ChainReplica
from esker.runtime.counters import Counters
from esker.wire.messages import Method
from esker.wire.rpc_server import Handler


class Upkeep:
    """Of one drive. `replicas` is the drive's, by chain id; `scrub_bytes_per_s` is the scrubber's (0: on request)."""

    def __init__(
        self,
        store: DriveStore,
        engine: IoEngine,
        runner: ReplicaRunner,
        replicas: dict[int, ChainReplica],
        counters: Counters,
        mutable: Mender,
        scrub_bytes_per_s: int,
    ) -> None:
        self._store = store
        self._runner = runner
        blocks = Verifier(BlockSource(store), engine.submit)
        images = Verifier(ImageSource(store.images), engine.submit)
        mend_image = ImageMender(images, mutable, replicas).mend
        self.repairs = RepairService(runner, replicas, counters, store.drive_id, mend_image)
        self.scrubber = Scrubber(
            store,
            (Blocks(store, blocks, self.repairs), ImageKind(store.images, images, self.repairs)),
            counters,
            scrub_bytes_per_s,
            lambda: engine.in_flight == 0 and runner.busy <= runner.syncs,
        )
        self.handlers: dict[Method, Handler] = {
            Method.DAMAGED: self.repairs.damaged,
            Method.SCRUB: self.scrubber.scrub,
        }
        self._scrub: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begins to scrub when it is time."""
        self._scrub = asyncio.ensure_future(self.scrubber.run())

    def counters(self) -> dict[str, int]:
        """Figures of this moment."""
        return {
            **self.scrubber.counters(),
            "damaged_chunks": len(self._runner.damaged),
            "suspects_waiting": self.repairs.waiting,
            "drive_failed": int(self._store.failed is not None),
        }

    async def aclose(self) -> None:
        """Ends everything; a pass under way goes on from here at the next start."""
        if self._scrub is not None:
            self._scrub.cancel()
            await asyncio.gather(self._scrub, return_exceptions=True)
            self._scrub = None
            self.scrubber.save()
        await self.repairs.aclose()
        await self._runner.repair_copies.aclose()
