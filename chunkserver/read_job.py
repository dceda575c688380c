"""A READ under way: what is left to be taken up, what is finished and not yet sent."""

import asyncio
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

from esker.chunkserver.pool import Region
from esker.wire.memory import ForeignMemory
from esker.wire.messages import READ_EXTENT, Read
from esker.wire.rpc_server import Request

Extent = tuple[int, tuple[Any, ...]]
"""Number in the request, and its row."""


class Share:
    """How much of the pool waits for one connection: being read for it, or to be taken by its peer."""

    __slots__ = ("__weakref__", "held_bytes")

    def __init__(self) -> None:
        self.held_bytes = 0


class ReadJob:
    """A READ under way."""

    __slots__ = (
        "alarm",
        "checksums",
        "deadline",
        "extents",
        "memory",
        "payload",
        "queued",
        "ready_bytes",
        "regions",
        "request",
        "results",
        "share",
        "singly",
        "space",
        "stalled",
        "touched",
        "unsettled",
    )

    def __init__(
        self,
        request: Request,
        read: Read,
        count: int,
        memory: ForeignMemory | None,
        share: Share,
        deadline: float,
    ) -> None:
        self.request = request
        self.share = share
        self.space = read.space
        self.memory = memory
        self.deadline = deadline
        self.extents: Iterator[Extent] = enumerate(READ_EXTENT.iter_unpack(read.extents))
        self.stalled = False  # the next extent waits for pool memory
        self.queued = True  # it has a place among the jobs whose extents are taken up
        self.singly = False  # a read of several chunks at once failed: each is to fail by itself
        self.alarm: asyncio.TimerHandle | None = None  # ends that wait at the deadline
        self.unsettled = count  # extents without a result
        self.touched = False
        self.ready_bytes = 0  # of data in `results`
        self.results: list[bytes] = []
        self.checksums: list[bytes] = []
        self.payload: list[memoryview] = []
        self.regions: list[Region] = []

    def put_back(self, extents: Iterable[Extent]) -> None:
        """These are the next to be taken up."""
        self.extents = chain(list(extents), self.extents)
