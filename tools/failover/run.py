"""Kills, or holds, one drive's worker after another under load, and measures each time what clients noticed.

The cluster is this command's own: as many drives as replicas by default, so that each death takes the head of some
chains, the middle of others and the tail of the rest. The next one waits until every replica serves again.
"""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import msgspec

from esker.client.mutable import ChunkClient
from esker.kvclient import Geometry, KVCacheClient
from esker.runtime.logging import get_logger
from esker.tools.dev_cluster import STEADY_S, DevCluster
from esker.tools.exit_codes import ExitCode
from esker.tools.failover.blocks import BLOCK_BYTES, BlockLoad
from esker.tools.failover.chunks import ChunkLoad
from esker.tools.inspect_cluster import view_cluster
from esker.tools.progress import progress
from esker.wire.errors import DeadlineExceeded, UserError
from esker.wire.limits import GIB, MIB

log = get_logger("tools.failover")

NAMESPACE = "esker-failover"
NEEDED_BYTES = GIB
CAPACITY_BYTES = 512 * MIB
QUIET_S = 0.5
"""Load without trouble before each death, so that a gap has a beginning."""
SETTLED_TIMEOUT_S = 120.0
POOL_BYTES = 4 * MIB


class How(StrEnum):
    """What is done to a worker."""

    KILL = "kill"
    """kill -9; its supervisor starts another."""
    STOP = "stop"
    """SIGSTOP, and SIGCONT after a while: it hangs and wakes up."""
    KILL_BOTH = "kill-both"
    """kill -9 of a worker and of the metadata server, the manager, at once."""


@dataclass(frozen=True, slots=True)
class FailoverOptions:
    """As on the command line. Raises `UserError` where they do not fit together."""

    how: How = How.KILL
    times: int = 20
    stop_s: float = 10.0
    timeout_s: float = 10.0
    drives: int = 3
    replicas: int = 3
    transport: str = "auto"
    directory: Path | None = None
    engine: str = "auto"

    def __post_init__(self) -> None:
        if self.replicas > self.drives:
            raise UserError(f"{self.replicas} replicas need at least as many drives; there are {self.drives}")
        if self.replicas < 2:
            raise UserError("with one replica there is nobody to fail over to; raise --replicas")


class Death(msgspec.Struct, frozen=True):
    """What one of them did to the clients, from the moment on until every replica served again."""

    drive: int
    write_gap_s: float
    """The longest time in which no mutable write of some chain ended well."""
    read_gap_s: float
    """Likewise of mutable reads."""
    kv_put_gap_s: float
    kv_slowest_read_s: float
    kv_reads: int
    kv_read_failures: int
    mutable_writes: int
    mutable_reads: int
    writes_unknown: int
    failures: int
    """Writes, reads and puts that ended as something else than a success or unknown, KV reads aside."""
    wrong_bytes: int
    """KV blocks, and mutable reads that saw something older than acknowledged, or what nobody wrote."""
    lost_writes: int
    """Acknowledged mutable writes and KV blocks that were not there in the end."""
    settled_s: float
    """Until every replica served again."""


class FailoverOutcome(msgspec.Struct, frozen=True):
    """All of them."""

    how: How
    stop_s: float
    drives: int
    replicas: int
    chains: int
    transport: str
    deaths: tuple[Death, ...]

    def exit_code(self) -> ExitCode:
        if any(death.wrong_bytes or death.lost_writes for death in self.deaths):
            return ExitCode.WRONG_BYTES
        failed = any(death.kv_read_failures or death.failures or death.writes_unknown for death in self.deaths)
        return ExitCode.DEGRADED if failed else ExitCode.FINE


async def run_failover(options: FailoverOptions) -> FailoverOutcome:
    """Does it all; the cluster is gone afterwards. Raises `EskerError` where a cluster does not heal in time."""
    async with AsyncExitStack() as stack:
        cluster = DevCluster(
            drives=options.drives,
            replicas=options.replicas,
            capacity_bytes=CAPACITY_BYTES,
            engine=options.engine,
            temporary_base=options.directory,
            needed_bytes=NEEDED_BYTES,
        )
        await stack.enter_async_context(cluster)
        view = await view_cluster(cluster.address)
        chains = len(view.routing.tables[0].chain_ids)
        geometry = Geometry(block_bytes_max=BLOCK_BYTES)
        kv = await KVCacheClient.connect(
            cluster.address, NAMESPACE, geometry, transport=options.transport, pool_bytes=POOL_BYTES
        )
        await stack.enter_async_context(kv)
        chunks = await ChunkClient.connect(cluster.address, transport=options.transport)
        await stack.enter_async_context(chunks)
        runner = _Runner(
            options,
            cluster,
            BlockLoad(kv, options.timeout_s),
            ChunkLoad(chunks, chains, options.timeout_s),
        )
        deaths = await runner.run()
    return FailoverOutcome(
        how=options.how,
        stop_s=options.stop_s if options.how is How.STOP else 0.0,
        drives=options.drives,
        replicas=options.replicas,
        chains=chains,
        transport=options.transport,
        deaths=tuple(deaths),
    )


class _Runner:
    def __init__(self, options: FailoverOptions, cluster: DevCluster, blocks: BlockLoad, chunks: ChunkLoad) -> None:
        self._options = options
        self._cluster = cluster
        self._blocks = blocks
        self._chunks = chunks
        self._loop = asyncio.get_running_loop()

    async def run(self) -> list[Death]:
        await self._cluster.settled(SETTLED_TIMEOUT_S)
        await self._blocks.store()
        deaths: list[Death] = []
        async with self._loads():
            with progress("failing over", self._options.times) as advance:
                for number in range(self._options.times):
                    deaths.append(await self._death(number % self._options.drives))
                    advance(number + 1, f"writes paused {deaths[-1].write_gap_s:.2f} s")
        await self._chunks.remove()
        await self._blocks.remove()
        return deaths

    @asynccontextmanager
    async def _loads(self) -> AsyncIterator[None]:
        self._blocks.start()
        self._chunks.start()
        try:
            yield
        finally:
            await asyncio.gather(self._blocks.stop(), self._chunks.stop())

    async def _death(self, drive: int) -> Death:
        if not await self._chunks.flows(SETTLED_TIMEOUT_S):
            raise DeadlineExceeded(f"not every chain took writes again within {SETTLED_TIMEOUT_S:g} s")
        # A metadata server that died soon after its start is started again only after a while.
        await asyncio.sleep(STEADY_S if self._options.how is How.KILL_BOTH else QUIET_S)
        self._chunks.forget()
        self._blocks.forget()
        began_s = self._loop.time()
        log.info("a worker is struck", how=self._options.how, number=drive)
        await self._strike(drive)
        await self._cluster.settled(SETTLED_TIMEOUT_S)
        settled_s = self._loop.time() - began_s
        log.info("every replica serves again", after_s=round(settled_s, 3))
        await self._chunks.flows(SETTLED_TIMEOUT_S)
        self._chunks.check()
        self._blocks.check()
        mutable, blocks = self._chunks.counts(), self._blocks.counts()
        return Death(
            drive=drive,
            write_gap_s=mutable.write_gap_s,
            read_gap_s=mutable.read_gap_s,
            kv_put_gap_s=blocks.put_gap_s,
            kv_slowest_read_s=blocks.slowest_read_s,
            kv_reads=blocks.reads,
            kv_read_failures=blocks.read_failures,
            mutable_writes=mutable.writes,
            mutable_reads=mutable.reads,
            writes_unknown=mutable.writes_unknown,
            failures=mutable.writes_failed + mutable.reads_failed + blocks.puts_failed,
            wrong_bytes=blocks.wrong_blocks + mutable.wrong_reads,
            lost_writes=await self._chunks.lost() + await self._blocks.lost(),
            settled_s=settled_s,
        )

    async def _strike(self, drive: int) -> None:
        """Returns once the worker is back, or runs again."""
        if self._options.how is How.STOP:
            workers = [process for process in self._cluster.processes() if process.role == "worker"]
            pid = workers[drive].pid
            os.kill(pid, signal.SIGSTOP)
            try:
                await asyncio.sleep(self._options.stop_s)
            finally:
                try:
                    os.kill(pid, signal.SIGCONT)
                except ProcessLookupError:  # its supervisor gave it up
                    await self._cluster.restarted(pid)
            return
        pids = [self._cluster.kill_worker(drive)]
        if self._options.how is How.KILL_BOTH:
            pids.append(self._cluster.kill_meta())
        for pid in pids:
            await self._cluster.restarted(pid)


def how_named(name: str) -> How:
    """The way called `name`. Raises `UserError` for another name."""
    try:
        return How(name)
    except ValueError:
        raise UserError(f"--how {name}; allowed: {', '.join(How)}") from None
