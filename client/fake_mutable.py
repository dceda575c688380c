"""Mutable chunks of the fake cluster: what a head, and any serving replica, answers about them.

Every serving replica of a chain has the same chunks here, at every moment, so there is no protocol between them; what
a client can see of it is kept: versions grow, a write is done once however often it comes, old chain versions and
replicas that do not serve are refused. Faults are the worker's own (`Faults`).
"""

import os
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from esker.client.fake_faults import Faults
from esker.wire.checksum import checksums
from esker.wire.codec import decode_body
from esker.wire.columns import rows
from esker.wire.memory import ForeignMemory
from esker.wire.messages import Method
from esker.wire.mutable_columns import WriteRow, covered, range_rows, write_rows
from esker.wire.mutable_messages import (
    CHUNK_EXTENT,
    CHUNK_STAT_RESULT,
    READ_RANGE_RESULT,
    WRITE_RESULT,
    ChunkStat,
    ChunkStatReply,
    PatchKind,
    ReadRange,
    ReadRangeReply,
    Write,
    WriteReply,
)
from esker.wire.rpc_server import Request
from esker.wire.status import Status

MutableKey = tuple[int, bytes, int]
"""Chain id, object, index."""


class FakeImage(NamedTuple):
    """A mutable chunk in one version."""

    data: bytes | None
    version: int
    truncate_version: int


ABSENT = FakeImage(None, 0, 0)


class MutableStore:
    """What all serving replicas of a fake cluster have."""

    def __init__(self) -> None:
        self.images: dict[MutableKey, FakeImage] = {}
        self.channels: dict[tuple[int, bytes, int], tuple[int, int, int, int]] = {}
        """(chain, client, channel) → sequence, status, version, length of its last write."""
        self.applied = 0
        """So many changes took effect."""
        self.next_version = 1

    def change(self, client: bytes, row: WriteRow, data: bytes) -> tuple[Status, int, int]:
        """(status, version, length) of a write, done now unless it was before."""
        channel = (row.chain_id, client, row.channel)
        last = self.channels.get(channel)
        if last is not None and row.sequence <= last[0]:
            return (Status(last[1]), last[2], last[3]) if row.sequence == last[0] else (Status.CONDITION, 0, 0)
        key = (row.chain_id, row.object_id, row.chunk_index)
        image = self.images.get(key, ABSENT)
        if row.kind != PatchKind.REMOVE and row.truncate_version < image.truncate_version:
            return Status.CONDITION, 0, 0
        if row.kind == PatchKind.REMOVE and image.data is None:
            return Status.NOT_FOUND, 0, 0
        old, version = image.data or b"", self.next_version
        truncate_version = max(image.truncate_version, row.truncate_version)
        self.next_version += 1
        self.applied += 1
        if row.kind == PatchKind.REMOVE:
            after = FakeImage(None, version, 0)
        elif row.kind == PatchKind.TRUNCATE:
            after = FakeImage(old[: row.length].ljust(row.length, b"\0"), version, truncate_version)
        else:
            head = old[: row.offset].ljust(row.offset, b"\0")
            after = FakeImage(head + data + old[row.offset + row.length :], version, truncate_version)
        self.images[key] = after
        length = len(after.data or b"")
        self.channels[channel] = (row.sequence, Status.OK, version, length)
        return Status.OK, version, length


class Owner(Protocol):
    """The fake worker, as its mutable chunks see it."""

    faults: Faults
    requests: list[Method]

    def memory(self, memory_id: int) -> ForeignMemory:
        """A client's memory."""

    def refusal(self, chain_id: int, chain_version: int, *, to_head: bool) -> Status:
        """OK where this worker may answer for the chain, else why not."""

    def unless_held(self, request: Request, answer: Callable[[], None]) -> None:
        """Calls `answer` now, or later as told."""


class FakeMutable:
    """The handlers of one worker."""

    def __init__(self, owner: Owner, store: MutableStore) -> None:
        self._owner = owner
        self._store = store

    def handlers(self) -> dict[Method, Callable[[Request], Sequence[memoryview] | None]]:
        """By method."""
        return {Method.WRITE: self._write, Method.READ_RANGE: self._read_range, Method.CHUNK_STAT: self._stat}

    def _write(self, request: Request) -> Sequence[memoryview] | None:
        self._owner.requests.append(request.method)
        message = decode_body(Write, request.body)
        extents = write_rows(message)
        buffers = [memoryview(bytearray(row.payload_bytes)) for row, _ in extents]
        answer = self._change_all
        if message.memory_id:
            memory = self._owner.memory(message.memory_id)

            def take() -> None:
                for (row, _), buffer in zip(extents, buffers, strict=True):
                    if len(buffer):
                        memory.copy_from(row.memory_at, [buffer])
                answer(request, message, extents, buffers)

            self._owner.unless_held(request, take)
            return None
        whole = [buffer for buffer in buffers if len(buffer)]
        if not whole:
            self._owner.unless_held(request, lambda: answer(request, message, extents, buffers))
            return None
        request.on_payload = lambda: self._owner.unless_held(
            request, lambda: answer(request, message, extents, buffers)
        )
        return whole

    def _change_all(
        self,
        request: Request,
        message: Write,
        extents: Sequence[tuple[WriteRow, bytes]],
        buffers: Sequence[memoryview],
    ) -> None:
        faults, results = self._owner.faults, []
        for number, ((row, sums), buffer) in enumerate(zip(extents, buffers, strict=True)):
            status = self._owner.refusal(row.chain_id, row.chain_version, to_head=True)
            version = length = 0
            if status is Status.OK:
                status = faults.status.get(Method.WRITE, Status.OK)
            if status is Status.OK and len(buffer) and checksums(buffer) != sums:
                status = Status.CHECKSUM
            if status is Status.OK:
                status, version, length = self._store.change(message.client, row, bytes(buffer))
                if faults.unfinished:
                    faults.unfinished -= 1
                    status = Status.CHAIN_VERSION
            results.append(WRITE_RESULT.pack(number, status, version, length))
        request.reply(WriteReply(b"".join(results)))

    def _read_range(self, request: Request) -> None:
        self._owner.requests.append(request.method)
        self._owner.unless_held(request, lambda: self._answer_ranges(request))

    def _answer_ranges(self, request: Request) -> None:
        message = decode_body(ReadRange, request.body)
        results, sums, payload = [], [], []
        for number, row in enumerate(range_rows(message.extents)):
            status = self._status(Method.READ_RANGE, row.chain_id, row.chain_version)
            image = self._store.images.get((row.chain_id, row.object_id, row.chunk_index), ABSENT)
            start = end = length = 0
            if status is Status.OK and image.data is None:
                status = Status.NOT_FOUND
            if status is Status.OK and image.data is not None:
                length = len(image.data)
                start, end = covered(row.offset, row.length, length)
                part = image.data[start:end]
                if part:
                    sums.append(checksums(memoryview(part)))
                    if self._owner.faults.corrupt:
                        part = bytes([part[0] ^ 1]) + part[1:]
                    if message.memory_id:
                        os.pwrite(self._owner.memory(message.memory_id).fd, part, row.memory_at)
                    else:
                        payload.append(memoryview(part))
            results.append(READ_RANGE_RESULT.pack(number, status, image.version, length, start, end - start))
        request.reply(ReadRangeReply(b"".join(results), b"".join(sums)), payload)

    def _stat(self, request: Request) -> None:
        self._owner.requests.append(request.method)
        self._owner.unless_held(request, lambda: self._answer_stat(request))

    def _answer_stat(self, request: Request) -> None:
        message = decode_body(ChunkStat, request.body)
        results = []
        for number, (object_id, index, chain_id, chain_version) in enumerate(rows(CHUNK_EXTENT, message.extents)):
            status = self._status(Method.CHUNK_STAT, chain_id, chain_version)
            image = self._store.images.get((chain_id, object_id, index), ABSENT)
            if status is Status.OK and image.data is None:
                status = Status.NOT_FOUND
            length = len(image.data or b"")
            results.append(CHUNK_STAT_RESULT.pack(number, status, image.version, length, image.truncate_version))
        request.reply(ChunkStatReply(b"".join(results)))

    def _status(self, method: Method, chain_id: int, chain_version: int) -> Status:
        status = self._owner.refusal(chain_id, chain_version, to_head=False)
        return self._owner.faults.status.get(method, Status.OK) if status is Status.OK else status
