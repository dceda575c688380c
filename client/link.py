"""A client's connections to one cluster: its metadata servers, the cluster map, the workers, and staging memory.

Owns the order in which they begin and end; knows nothing of what is asked over them.
"""

import os
from collections.abc import Callable, Sequence
from typing import NamedTuple

from esker.client.buffers import BufferPool
from esker.client.channel import Transport
from esker.client.routing import RoutingCache
from esker.client.staging import Staging
from esker.client.workers import Workers
from esker.wire.meta_client import MetaClient
from esker.wire.rpc_client import TcpAddress
from esker.wire.types import Routing


class DriveFigures(NamedTuple):
    """Totals since the client connected, and how each worker that is up is reached; by drive id."""

    read_bytes: dict[str, int]
    written_bytes: dict[str, int]
    transports: dict[str, Transport]


class ClusterLink:
    """Begins with the metadata servers; the workers come with `connect_workers`. `aclose` ends what there is."""

    def __init__(self, addresses: Sequence[TcpAddress]) -> None:
        self.meta = MetaClient(addresses)
        self.routing = RoutingCache(self.meta, self._new_map)
        self.on_map: Callable[[Routing], None] | None = None
        """Told of each new map after the workers."""
        self._workers: Workers | None = None
        self._stagings: list[Staging] = []

    @property
    def workers(self) -> Workers:
        """There after `connect_workers`."""
        assert self._workers is not None, "connect them first"
        return self._workers

    async def connect_workers(
        self, first_map: Routing, transport: Transport, pools: Sequence[BufferPool], timeout_s: float
    ) -> Workers:
        """Returns when each worker was tried once, or `timeout_s` passed.

        Raises `UserError` where the transport that was asked for cannot be had.
        """
        self._workers = Workers(transport, pools, self.routing.refresh, os.urandom(16).hex())
        self._workers.apply(first_map)
        await self._workers.wait_tried(timeout_s)
        return self._workers

    def staging(self, slot_bytes: int) -> Staging:
        """Staging memory that ends with the connections."""
        self._stagings.append(Staging(self.workers, slot_bytes))
        return self._stagings[-1]

    def figures(self) -> DriveFigures:
        """As they are now."""
        states = self.workers.by_drive
        return DriveFigures(
            {drive: state.read_bytes for drive, state in states.items()},
            {drive: state.written_bytes for drive, state in states.items()},
            {
                drive: Transport.LOCAL if state.channel.local else Transport.TCP
                for drive, state in states.items()
                if state.channel is not None
            },
        )

    async def aclose(self) -> None:
        """Ends everything: staging memory is freed when nobody fills it any more."""
        for staging in self._stagings:
            await staging.stop()
        if self._workers is not None:
            await self._workers.aclose()
        for staging in self._stagings:
            staging.close()
        await self.routing.aclose()
        await self.meta.aclose()

    def abandon_in_child(self) -> None:
        """In a forked child: closes its copies of the connections, and nothing that it shares with its parent."""
        self.meta.abandon_in_child()
        if self._workers is not None:
            self._workers.abandon_in_child()

    def _new_map(self, routing: Routing) -> None:
        if self._workers is not None:
            self._workers.apply(routing)
        if self.on_map is not None:
            self.on_map(routing)
