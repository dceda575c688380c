"""Sends updates of mutable chunks on to successors: patches as they came, or whole images as they are stored.

They go over the links of `forward.py`. What one turn of the loop sends to a drive goes out together; each update gets
exactly one answer. Its payload stays where it is until then.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence
from functools import partial
from typing import Any, Protocol

from esker.chunkserver.engine.image_record import ImageRecord
from esker.chunkserver.engine.images import Images
from esker.chunkserver.forward import Link
from esker.chunkserver.mutable_operations import MutableOperation
from esker.chunkserver.pool import Region, WorkerPool
from esker.chunkserver.replies import ItemReplies
from esker.chunkserver.whole_images import read_whole
from esker.craq import mutable_messages as craq
from esker.craq.messages import Forwarded, Unreadable
from esker.craq.replica import AnyEvent
from esker.runtime.counters import Counters
from esker.wire.codec import decode_body
from esker.wire.errors import EskerError
from esker.wire.limits import REQUEST_EXTENTS_MAX, REQUEST_PAYLOAD_BYTES_AIM
from esker.wire.messages import Method
from esker.wire.mutable_messages import (
    NO_CLIENT,
    UPDATE_EXTENT,
    UPDATE_RESULT,
    PatchKind,
    Update,
    UpdateReply,
)
from esker.wire.rpc_client import Connection
from esker.wire.status import Status

CONNECT_TIMEOUT_S = 1.0


class Runner(Protocol):
    """What is needed of the runner of mutable chunks."""

    def is_current(self, operation: MutableOperation) -> bool: ...

    def report(self, operation: MutableOperation, event: AnyEvent) -> None: ...


class _Item:
    """An update to send on."""

    __slots__ = ("answered", "at", "deadline", "fields", "payload_bytes", "region", "sums")

    def __init__(
        self,
        fields: list[object],
        sums: bytes,
        region: Region | None,
        at: int,
        payload_bytes: int,
        deadline: float,
        answered: Callable[[Status], None],
    ) -> None:
        self.fields = fields
        """Of UPDATE_EXTENT; the offset in memory is filled in later."""
        self.sums = sums
        self.region = region
        """Where the payload is; held until it is answered."""
        self.at = at
        self.payload_bytes = payload_bytes
        self.deadline = deadline
        self.answered = answered


_MEMORY_FIELD = 15


class UpdateLinks:
    """Of one drive, to all others. `link` gives the link to a drive."""

    def __init__(
        self, images: Images, pool: WorkerPool, counters: Counters, link: Callable[[str], Link], runner: Runner
    ) -> None:
        self._images = images
        self._pool = pool
        self._counters = counters
        self._link = link
        self._loop = asyncio.get_running_loop()
        self._runner = runner
        self._queues: dict[str, list[_Item]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def aclose(self) -> None:
        """Ends what is under way."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def forward(
        self, operation: MutableOperation, effect: craq.ForwardUpdate, record: ImageRecord | None
    ) -> AnyEvent | None:
        """Performs the effect. `record`: the stored image that is to be sent whole; None where that is not here."""
        image = effect.named.image
        if not effect.named.full:
            self._send(operation, effect, operation.region, operation.at, operation.payload_bytes)
            return None
        if image.absent:
            self._send(operation, effect, None, 0, 0)
            return None
        if record is None or (record.checksums, record.length) != (image.checksums, image.length_bytes):
            return Unreadable(effect.op)
        operation.slot_bytes = record.slot_bytes
        if record.length == 0:
            self._send(operation, effect, None, 0, 0)
            return None
        region = self._pool.allocate(record.length)
        if region is None:
            return Forwarded(effect.op, Status.BUSY)
        read_whole(self._images, record, region, partial(self._whole_read, operation, effect, region))
        return None

    def _whole_read(
        self, operation: MutableOperation, effect: craq.ForwardUpdate, region: Region, status: Status
    ) -> None:
        if not self._runner.is_current(operation):
            region.drop()
        elif status is Status.OK:
            self._counters.add("mutable_sent_whole")
            self._send(operation, effect, region, 0, effect.named.image.length_bytes)
            region.drop()  # held by what was queued
        else:
            region.drop()
            self._counters.add("mutable_image_corrupt")
            self._runner.report(operation, Unreadable(effect.op))

    def _send(
        self, operation: MutableOperation, effect: craq.ForwardUpdate, region: Region | None, at: int, size: int
    ) -> None:
        if region is not None:
            region.hold()

        def answered(status: Status) -> None:
            if region is not None:
                region.drop()
            self._runner.report(operation, Forwarded(effect.op, status))

        fields = _update_fields(operation, effect)
        item = _Item(fields, effect.named.image.checksums, region, at, size, operation.deadline, answered)
        drive = effect.successor
        queue = self._queues.get(drive)
        if queue is None:
            self._queues[drive] = [item]
            self._loop.call_soon(self._flush, drive)
        else:
            queue.append(item)

    def _flush(self, drive: str) -> None:
        queue = self._queues.pop(drive)
        link = self._link(drive)
        if link.connection is not None:
            for batch in _batches(queue):
                self._start(link, link.connection, batch)
        else:
            self._spawn(self._connect(link, queue))

    async def _connect(self, link: Link, queue: list[_Item]) -> None:
        try:
            connection = await link.connected(CONNECT_TIMEOUT_S)
        except (EskerError, asyncio.CancelledError) as error:
            for item in queue:
                item.answered(Status.UNAVAILABLE)
            if isinstance(error, asyncio.CancelledError):
                raise
            return
        for batch in _batches(queue):
            self._start(link, connection, batch)

    def _start(self, link: Link, connection: Connection, batch: Sequence[_Item]) -> None:
        memory_id = link.memory_id
        payload: list[memoryview] = []
        rows = []
        for item in batch:
            if item.region is not None:
                if memory_id:
                    item.fields[_MEMORY_FIELD] = item.region.offset + item.at
                elif item.payload_bytes:
                    payload.append(item.region.view[item.at : item.at + item.payload_bytes])
            rows.append(UPDATE_EXTENT.pack(*item.fields))
        left_s = max(item.deadline for item in batch) - self._loop.time()
        body = Update(b"".join(rows), b"".join(item.sums for item in batch), memory_id, max(1, int(left_s * 1000)))
        holds = [item.region for item in batch if item.region is not None] if payload else []
        for region in holds:
            region.hold()

        def released() -> None:
            for region in holds:
                region.drop()

        reply = ItemReplies(len(batch), _updated, lambda number, status: batch[number].answered(status), link.heard)
        link.expect(reply)
        connection.start(Method.UPDATE, body, reply, payload=payload, released=released)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _updated(body: bytes | bytearray) -> Iterable[tuple[Any, ...]]:
    return UPDATE_RESULT.iter_unpack(decode_body(UpdateReply, body).results)


def _update_fields(operation: MutableOperation, effect: craq.ForwardUpdate) -> list[object]:
    named, image, event = effect.named, effect.named.image, operation.event
    kind, offset, length, truncate_version = PatchKind.WRITE, 0, image.length_bytes, image.truncate_version
    if image.absent:
        kind, length = PatchKind.REMOVE, 0
    elif not named.full:
        assert isinstance(event, craq.Update)
        patch = event.patch
        kind, truncate_version = PatchKind(patch.kind), patch.truncate_version
        offset, length = patch.offset, patch.length_bytes
    chain = operation.replica.chain
    origin = effect.origin
    return [
        operation.object_id,
        operation.chunk_index,
        chain.chain_id,
        chain.version,
        kind,
        named.full,
        named.hop,
        named.previous,
        image.version,
        offset,
        length,
        truncate_version,
        image.length_bytes,
        image.truncate_version,
        operation.slot_bytes,
        0,
        NO_CLIENT if origin is None else origin.client,
        0 if origin is None else origin.channel,
        0 if origin is None else origin.sequence,
    ]


def _batches(queue: list[_Item]) -> list[list[_Item]]:
    """Items that one request can carry; their order is kept."""
    batches: list[list[_Item]] = []
    size = 0
    for item in queue:
        if (
            not batches
            or len(batches[-1]) >= REQUEST_EXTENTS_MAX
            or size + item.payload_bytes > REQUEST_PAYLOAD_BYTES_AIM
        ):
            batches.append([])
            size = 0
        batches[-1].append(item)
        size += item.payload_bytes
    return batches
