"""The baselines of `esker bench`, behind one interface: prepare once, measure turn by turn, leave nothing behind."""

from collections.abc import Sequence
from contextlib import AsyncExitStack
from enum import StrEnum
from typing import Protocol

import msgspec

from esker.tools.bench import baseline_socket, ring_job
from esker.tools.bench.fio import LAYOUT_BYTES_PER_S_MIN, FioBaseline
from esker.tools.bench.result import Figures, Measured, add_jobs
from esker.tools.bench.workload import Workload
from esker.tools.child import Child
from esker.tools.running import all_or_none
from esker.wire.errors import EskerError, UserError


class BaselineName(StrEnum):
    """What esker is compared with."""

    RING = "ring"
    FIO = "fio"
    SOCKET = "socket"
    NONE = "none"


class Baseline(Protocol):
    """One baseline, prepared."""

    description: str

    async def turn(self, turn: int, sync_every: int) -> dict[str, Figures]:
        """Measures once. Figures by direction: `read`, `write`. `sync_every` writes are made durable together."""


async def open_baseline(
    name: BaselineName, stack: AsyncExitStack, directories: Sequence[str], workload: Workload, jobs: int
) -> Baseline | None:
    """Prepares the baseline; `stack` ends its processes and removes its files.

    Raises `UserError` when the baseline cannot be had: no directory, no fio, a workload it does not know.
    """
    if name is BaselineName.NONE:
        return None
    if name is BaselineName.SOCKET:
        return await Socket.open(stack, workload, jobs)
    if not directories:
        raise UserError(
            f"the baseline {name} needs the drives' directories: give them with --baseline-dir, "
            "or use --baseline socket or --baseline none"
        )
    if name is BaselineName.FIO:
        fio = FioBaseline(directories, workload, jobs)
        stack.callback(fio.close)
        return Fio(fio)
    return await Ring.open(stack, directories, workload, jobs)


class Ring:
    """esker's own ring on plain files, one process per job."""

    def __init__(self, children: list[Child], engine: str, runtime_s: float) -> None:
        self.description = f"raw, {engine}"
        self._children = children
        self._runtime_s = runtime_s

    @classmethod
    async def open(cls, stack: AsyncExitStack, directories: Sequence[str], workload: Workload, jobs: int) -> "Ring":
        children = []
        for job in range(jobs):
            child = await Child.start(f"raw job {job}", ["-m", ring_job.MODULE])
            children.append(await stack.enter_async_context(child))
        patience_s = 30 + jobs * workload.blocks * workload.block_bytes / LAYOUT_BYTES_PER_S_MIN
        prepared = await all_or_none(
            child.ask(
                ring_job.Prepare(list(directories), msgspec.structs.replace(workload, seed=workload.seed + job)),
                ring_job.Prepared,
                patience_s,
            )
            for job, child in enumerate(children)
        )
        return cls(children, prepared[0].engine, workload.runtime_s)

    async def turn(self, turn: int, sync_every: int) -> dict[str, Figures]:
        measured = await all_or_none(
            child.ask(ring_job.Run(turn, sync_every), Measured, self._runtime_s + 2 * ring_job.DRAIN_TIMEOUT_S)
            for child in self._children
        )
        for job in measured:
            if job.failures:
                raise EskerError(f"the baseline's I/O failed: {job.failures}")
        return figures_by_direction(measured)


class Fio:
    """fio, one process with a thread per job."""

    description = "fio, io_uring"

    def __init__(self, fio: FioBaseline) -> None:
        self._fio = fio

    async def turn(self, turn: int, sync_every: int) -> dict[str, Figures]:
        return await self._fio.turn(sync_every)


class Socket:
    """Raw loopback TCP, one stream between two processes per job. Whatever esker does, it only receives blocks."""

    description = "raw TCP"

    def __init__(self, baseline: baseline_socket.SocketBaseline, workload: Workload) -> None:
        self._baseline = baseline
        self._workload = workload

    @classmethod
    async def open(cls, stack: AsyncExitStack, workload: Workload, jobs: int) -> "Socket":
        ends = []
        for job in range(2 * jobs):
            child = await Child.start(f"socket end {job}", ["-m", baseline_socket.MODULE])
            ends.append(await stack.enter_async_context(child))
        baseline = baseline_socket.SocketBaseline(ends[:jobs], ends[jobs:], workload.block_bytes, workload.runtime_s)
        return cls(baseline, workload)

    async def turn(self, turn: int, sync_every: int) -> dict[str, Figures]:
        received = figures_by_direction(await self._baseline.turn())["read"]
        mode = self._workload.mode
        return {name: received for name, wanted in (("read", mode.reads), ("write", mode.writes)) if wanted}


def figures_by_direction(jobs: Sequence[Measured]) -> dict[str, Figures]:
    """One turn's figures of the directions that the jobs measured."""
    found = {}
    for name in ("read", "write"):
        flows = [(job.seconds, flow) for job in jobs if (flow := getattr(job, name)) is not None]
        if flows:
            found[name] = add_jobs(flows)
    return found
