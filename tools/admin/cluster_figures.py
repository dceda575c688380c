"""What an operator is told of workers, chains and targets: made of the cluster map, heartbeats and workers' counters.

Pure, apart from `look`, which asks within a bounded time and takes what it gets. Knows nothing of how it is printed.
"""

import asyncio
from dataclasses import dataclass, field
from enum import StrEnum

from esker.craq.membership import ADMITTED
from esker.tools.admin.link import ClusterLink
from esker.wire.errors import EskerError
from esker.wire.limits import WORKER_LEASE_MARGIN_S, WORKER_LEASE_S
from esker.wire.messages import ClusterStatus, ClusterStatusReply, Empty, Method, StatsReply, WorkerStatus
from esker.wire.types import Chain, Replica, TargetState

COUNTERS_TIMEOUT_S = 2.0
READ_ERRORS_MANY = 10
"""A drive on which more reads failed is reported."""
SILENT_S = WORKER_LEASE_S + WORKER_LEASE_MARGIN_S


class ChainState(StrEnum):
    """A chain in a word."""

    WHOLE = "whole"
    """Every replica serves."""
    DEGRADED = "degraded"
    """Fewer serve than there are."""
    READ_ONLY = "read-only"
    """Fewer serve than it takes to acknowledge a write."""
    DOWN = "down"
    """None serves."""


@dataclass(frozen=True, slots=True)
class ClusterFigures:
    """The cluster at one moment. A worker that did not answer has no counters."""

    status: ClusterStatusReply
    counters: dict[str, dict[str, int]] = field(default_factory=dict)
    """By drive id."""

    @property
    def chains(self) -> tuple[Chain, ...]:
        return self.status.routing.chains

    def up(self, worker: WorkerStatus) -> bool:
        """Whether the worker was heard of lately."""
        return 0 <= worker.seconds_since_heartbeat < SILENT_S

    def total(self, name: str) -> int:
        """The counter's sum over the workers that answered."""
        return sum(counters.get(name, 0) for counters in self.counters.values())

    def troubles(self) -> list[tuple[WorkerStatus, str]]:
        """Drives that somebody should look after, and why, as far as their workers told."""
        found = []
        for worker in self.status.workers:
            counters = self.counters.get(worker.worker.drive_id, {})
            if counters.get("drive_failed"):
                found.append(
                    (worker, "takes no more writes; its log says why; replace the drive, or restart its worker")
                )
            if counters.get("read_errors", 0) >= READ_ERRORS_MANY:
                found.append(
                    (worker, f"{counters['read_errors']} reads failed since its worker started; check the drive")
                )
            if counters.get("damaged_chunks"):
                found.append((worker, f"{counters['damaged_chunks']} chunks are damaged and not repaired"))
        return found

    def healthy(self) -> bool:
        """Whether nothing needs anybody's attention."""
        whole = all(chain_state(chain) is ChainState.WHOLE for chain in self.chains)
        up = all(self.up(worker) for worker in self.status.workers)
        return bool(self.status.manager) and whole and up and not self.troubles()


async def look(cluster: str, *, counters: bool = False) -> ClusterFigures:
    """Raises `UserError` for a bad address, `ConnectionFailed` where no metadata server answers."""
    async with ClusterLink(cluster) as link:
        status = await link.meta(Method.CLUSTER_STATUS, ClusterStatus(), ClusterStatusReply)
        return ClusterFigures(status, await counters_of(link, status) if counters else {})


async def counters_of(link: ClusterLink, status: ClusterStatusReply) -> dict[str, dict[str, int]]:
    """The counters of all workers that answer in time, by drive id."""
    answers = await asyncio.gather(*(_counters(link, each) for each in status.workers))
    return {
        each.worker.drive_id: answer for each, answer in zip(status.workers, answers, strict=True) if answer is not None
    }


async def _counters(link: ClusterLink, status: WorkerStatus) -> dict[str, int] | None:
    try:
        async with asyncio.timeout(COUNTERS_TIMEOUT_S):
            return (await link.worker(status.worker, Method.STATS, Empty(), StatsReply)).counters
    except (EskerError, TimeoutError):
        return None


def chain_state(chain: Chain) -> ChainState:
    """The chain in a word."""
    serving = sum(replica.state is TargetState.SERVING for replica in chain.replicas)
    if not serving:
        return ChainState.DOWN
    if serving < chain.min_replicas:
        return ChainState.READ_ONLY
    return ChainState.WHOLE if serving == len(chain.replicas) else ChainState.DEGRADED


def admitted(replica: Replica, incarnation: str) -> bool:
    """Whether the replica takes part in writes in the present life of its worker."""
    return replica.state in ADMITTED and replica.incarnation == incarnation
