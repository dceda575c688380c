"""A look at a running cluster from outside: its routing and its workers' counters.

Owns: bounded questions to the metadata server and the workers. Must not know: what the answers are wanted for.
"""

import asyncio
from dataclasses import dataclass, field

from esker.client.mutable import ChunkClient
from esker.kvclient import KVCacheClient
from esker.wire.errors import EskerError
from esker.wire.messages import Empty, GetRouting, Method, RoutingReply, StatsReply
from esker.wire.meta_client import MetaClient, parse_addresses
from esker.wire.rpc_client import Connection, TcpAddress
from esker.wire.types import Routing, Worker

TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class ClusterView:
    """The cluster at one moment. A worker that did not answer has no counters."""

    routing: Routing
    counters: dict[str, dict[str, int]] = field(default_factory=dict)
    """By drive id."""

    def total(self, name: str) -> int:
        """The counter's sum over the workers."""
        return sum(counters.get(name, 0) for counters in self.counters.values())


async def view_cluster(cluster: str, *, counters: bool = False, timeout_s: float = TIMEOUT_S) -> ClusterView:
    """The routing, and with `counters` what every worker that answers counts.

    Raises `ConnectionFailed` when no metadata server answers within `timeout_s`, `UserError` for a bad address.
    """
    meta = MetaClient(parse_addresses(cluster), role="tool")
    try:
        reply = await meta.call(Method.ROUTING, GetRouting(0), RoutingReply, timeout_s=timeout_s)
    finally:
        await meta.aclose()
    assert reply.routing is not None, "version 0 is never the newest"
    if not counters:
        return ClusterView(reply.routing)
    workers = reply.routing.workers
    answers = await asyncio.gather(*(worker_counters(worker, timeout_s) for worker in workers))
    return ClusterView(
        reply.routing,
        {worker.drive_id: answer for worker, answer in zip(workers, answers, strict=True) if answer is not None},
    )


async def worker_counters(worker: Worker, timeout_s: float = TIMEOUT_S) -> dict[str, int] | None:
    """What the worker counts, or None when it does not answer within `timeout_s`."""
    try:
        connection = await Connection.connect(TcpAddress(worker.host, worker.port), role="tool", timeout_s=timeout_s)
    except EskerError:
        return None
    try:
        reply = await connection.call(Method.STATS, Empty(), StatsReply, timeout_s=timeout_s)
    except EskerError:
        return None
    finally:
        await connection.aclose()
    return reply.counters


def transport_of(client: KVCacheClient | ChunkClient) -> str:
    """How the client reaches its workers: `local`, `tcp`, `mixed`, or `none` while it reaches none."""
    found = {str(transport) for transport in client.statistics().transports.values()}
    return found.pop() if len(found) == 1 else "mixed" if found else "none"
