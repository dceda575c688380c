"""The `esker chunkserver` process: the supervisor of a node's drives."""

import asyncio
from collections.abc import Callable

from esker.chunkserver.config import ChunkserverConfig
from esker.chunkserver.supervisor import Supervisor, WorkerState
from esker.wire.errors import UserError
from esker.wire.listen import check_listen_address


async def serve(config: ChunkserverConfig, changed: Callable[[WorkerState], None], stop: asyncio.Event) -> None:
    """Serves until `stop`. `changed` is called whenever a worker became ready, is in trouble or failed for good.

    Raises `UserError`, with every drive's reason, when no drive can be served.
    """
    for drive in config.drives:
        await check_listen_address(config.host, drive.port, config.insecure)
    supervisor = Supervisor(config, changed)
    if not await supervisor.run(stop):
        reasons = "; ".join(f"{worker.drive.directory}: {worker.failure}" for worker in supervisor.workers)
        raise UserError(f"no drive can be served: {reasons}")
