"""What the runner of the chain replicas knows of an operation, and of the request it came in."""

import asyncio
from collections.abc import Callable
from typing import Any

from esker.chunkserver.engine.record import record_key
from esker.chunkserver.engine.slot_files import Slot
from esker.chunkserver.pool import Region
from esker.craq import messages as craq
from esker.craq.replica import ChainReplica
from esker.wire.ids import chunk_id
from esker.wire.rpc_server import Request
from esker.wire.status import Status

SyncEnded = Callable[[Status], None]


class Batch:
    """A CREATE, CONFIRM, REPLACE or REMOVE under way; or what this worker does by itself (no request)."""

    __slots__ = ("flush_soon", "left", "ops", "region", "request", "results", "timer")

    def __init__(self, request: Request | None, count: int, region: Region | None) -> None:
        self.request = request
        self.left = count
        self.region = region
        self.results: list[bytes] = []
        self.ops: list[int] = []
        self.flush_soon = False
        self.timer: asyncio.TimerHandle | None = None


class Operation:
    """What the runner knows of one operation."""

    __slots__ = (
        "at",
        "batch",
        "chain_version",
        "content",
        "created_ms",
        "deadline",
        "event",
        "index",
        "length",
        "number",
        "object_id",
        "record_key",
        "region",
        "replaces",
        "replica",
        "slot",
        "slot_bytes",
        "space",
        "stored_version",
        "sync_ended",
    )

    def __init__(self, batch: Batch, number: int, replica: ChainReplica, space: int, row: tuple[Any, ...]) -> None:
        self.batch = batch
        self.number = number
        self.replica = replica
        self.space = space
        self.object_id: bytes = row[0]
        self.index: int = row[1]
        self.record_key = record_key(row[2], chunk_id(space, row[0], row[1]))
        self.event: craq.Arrival
        """Set as soon as the operation has its number."""
        self.content: craq.Content | None = None
        """What a write makes durable."""
        self.region: Region | None = None
        self.at = 0
        self.length = 0
        self.slot: Slot | None = None
        self.slot_bytes = 0
        self.deadline = 0.0
        self.stored_version = 0
        self.replaces = 0
        """Version of what is stored here already; 0: nothing, or it is not known."""
        self.created_ms = 0
        self.chain_version = 0
        """When, and in which version of the chain, the chunk that is written was made; 0: now, and in the present
        one.
        """
        self.sync_ended: SyncEnded | None = None
        """Who waits for the end of a sync or a repair."""

    @property
    def for_catalog(self) -> bool:
        """Whether the catalog follows this chunk's record on this drive: chunk 0 stands for its block, at the head."""
        return self.index == 0 and self.replica.is_head

    @property
    def gone_for_catalog(self) -> bool:
        """Whether the catalog is told of this chunk's removal: also by a syncing replica, whose surplus it may list."""
        return self.index == 0 and (self.replica.is_head or self.replica.syncing)

    def hand_over(self, region: Region) -> None:
        """From now on the operation's memory is `region`, whose hold it takes over."""
        if self.region is not None:
            self.region.drop()
        self.region, self.at = region, 0

    def forward_row(self, version: int, content: craq.Content) -> tuple[object, ...]:
        """The row of CREATE_EXTENT by which a successor gets `content`."""
        chain = self.replica.chain
        return (
            self.object_id,
            self.index,
            chain.chain_id,
            chain.version,
            content.length_bytes,
            0,
            version,
            content.block_bytes,
            content.chunk_count,
            content.put_id,
            len(content.key),
        )
