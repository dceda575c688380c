"""Requests about mutable chunks as they travel; every field is the test's choice."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from esker.wire.checksum import checksums
from esker.wire.codec import decode_body
from esker.wire.limits import MIB
from esker.wire.messages import Method
from esker.wire.mutable_columns import RangeRow
from esker.wire.mutable_messages import (
    CHUNK_EXTENT,
    CHUNK_STAT_RESULT,
    READ_RANGE_EXTENT,
    READ_RANGE_RESULT,
    VERSION_QUERY_RESULT,
    WRITE_EXTENT,
    WRITE_RESULT,
    ChunkStat,
    ChunkStatReply,
    PatchKind,
    ReadRange,
    ReadRangeReply,
    VersionQuery,
    VersionQueryReply,
    Write,
    WriteReply,
)
from esker.wire.status import Status

from .raw_client import RawClient, object_of

CLIENT = b"client of tests!"


class Patch(NamedTuple):
    """One extent of a WRITE."""

    number: int = 1
    data: bytes | None = None
    offset: int = 0
    length: int = 0
    kind: PatchKind = PatchKind.WRITE
    channel: int = 0
    sequence: int = 1
    truncate_version: int = 0
    chain: int = 1
    chain_version: int = 1
    slot_bytes: int = MIB
    memory_at: int = 0


class Written(NamedTuple):
    """What a WRITE's extent was answered."""

    status: Status
    version: int
    length: int


class MutableClient:
    """On a raw client's connection. Numbers sequences itself, one channel per patch, unless told."""

    def __init__(self, raw: RawClient, client: bytes = CLIENT, chain_version: int = 1) -> None:
        self.raw = raw
        self.client = client
        self.chain_version = chain_version
        self._sequence = 0

    async def write(self, number: int, data: bytes, offset: int = 0, **others: Any) -> Written:
        return (await self.send([self.patch(number=number, data=data, offset=offset, **others)]))[0]

    async def truncate(self, number: int, length: int, truncate_version: int = 0, **others: Any) -> Written:
        patch = self.patch(
            number=number, length=length, kind=PatchKind.TRUNCATE, truncate_version=truncate_version, **others
        )
        return (await self.send([patch]))[0]

    async def remove(self, number: int, **others: Any) -> Written:
        return (await self.send([self.patch(number=number, kind=PatchKind.REMOVE, **others)]))[0]

    def patch(self, **fields: Any) -> Patch:
        if "sequence" not in fields:
            self._sequence += 1
            fields["sequence"] = self._sequence
        return Patch(**{"chain_version": self.chain_version, **fields})

    async def send(
        self,
        patches: Sequence[Patch],
        *,
        sums: bytes | None = None,
        memory_id: int = 0,
        budget_ms: int = 10_000,
    ) -> list[Written]:
        """A WRITE of these, and its answers in their order."""
        _, answer = self.start(patches, sums=sums, memory_id=memory_id, budget_ms=budget_ms)
        await answer.wait()
        rows = [
            row for body in answer.bodies for row in WRITE_RESULT.iter_unpack(decode_body(WriteReply, body).results)
        ]
        found = {row[0]: Written(Status(row[1]), row[2], row[3]) for row in rows}
        assert len(found) == len(rows) == len(patches), "each extent is answered once"
        return [found[number] for number in range(len(patches))]

    def start(
        self,
        patches: Sequence[Patch],
        *,
        sums: bytes | None = None,
        memory_id: int = 0,
        budget_ms: int = 10_000,
    ) -> Any:
        """Sends it; the request's id and its reply to come."""
        rows, own_sums, payload = [], [], []
        for patch in patches:
            length = patch.length if patch.data is None else len(patch.data)
            rows.append(
                WRITE_EXTENT.pack(
                    object_of(patch.number),
                    0,
                    patch.chain,
                    patch.chain_version,
                    patch.kind,
                    patch.channel,
                    patch.sequence,
                    patch.offset,
                    length,
                    patch.truncate_version,
                    patch.slot_bytes,
                    patch.memory_at,
                )
            )
            if patch.data is not None:
                own_sums.append(checksums(memoryview(patch.data)))
                payload.append(memoryview(patch.data))
        body = Write(self.client, b"".join(rows), b"".join(own_sums) if sums is None else sums, memory_id, budget_ms)
        return self.raw.start(Method.WRITE, body, [] if memory_id else payload)

    async def read(
        self, number: int, offset: int = 0, length: int = MIB, *, chain: int = 1, chain_version: int = 0
    ) -> bytes | Status:
        """The bytes asked for, verified, or why there are none."""
        answer = await self.read_rows([(number, offset, length)], chain=chain, chain_version=chain_version)
        row, data = answer[0]
        if row[1] != Status.OK:
            return Status(row[1])
        start = row[4]
        return data[offset - start if data else 0 :][:length]

    async def read_rows(
        self,
        ranges: Sequence[tuple[int, int, int]],
        *,
        chain: int = 1,
        chain_version: int = 0,
        memory_id: int = 0,
        places: Sequence[int] = (),
        budget_ms: int = 10_000,
    ) -> dict[int, tuple[tuple[Any, ...], bytes]]:
        """Rows of READ_RANGE_RESULT by extent number, each with its verified data (none of registered memory)."""
        chain_version = chain_version or self.chain_version
        extents = b"".join(
            READ_RANGE_EXTENT.pack(
                object_of(number), 0, chain, chain_version, offset, length, places[at] if places else 0
            )
            for at, (number, offset, length) in enumerate(ranges)
        )
        _, answer = self.raw.start(Method.READ_RANGE, ReadRange(extents, memory_id, budget_ms))
        await answer.wait()
        payload = b"".join(answer.payload)
        found: dict[int, tuple[tuple[Any, ...], bytes]] = {}
        at = 0
        for body in answer.bodies:
            reply = decode_body(ReadRangeReply, body)
            sums_at = 0
            for row in READ_RANGE_RESULT.iter_unpack(reply.results):
                size = row[5]
                sums = reply.checksums[sums_at : sums_at + 8 * -(-size // 65536)]
                sums_at += len(sums)
                data = b""
                if not memory_id:
                    data = payload[at : at + size]
                    at += size
                    assert not data or checksums(memoryview(data)) == sums, "what was read does not verify"
                assert row[0] not in found
                found[row[0]] = (row, data if not memory_id else sums)
            assert sums_at == len(reply.checksums)
        assert at == len(payload)
        assert len(found) == len(ranges)
        return found

    async def stat(self, number: int, *, chain: int = 1, chain_version: int = 0) -> tuple[Status, int, int, int]:
        """Status, version, length, truncate version."""
        extent = CHUNK_EXTENT.pack(object_of(number), 0, chain, chain_version or self.chain_version)
        _, answer = self.raw.start(Method.CHUNK_STAT, ChunkStat(extent, 10_000))
        await answer.wait()
        ((_, status, version, length, truncated),) = CHUNK_STAT_RESULT.iter_unpack(
            decode_body(ChunkStatReply, answer.bodies[0]).results
        )
        return Status(status), version, length, truncated

    async def version(self, number: int, *, chain: int = 1, chain_version: int = 0) -> tuple[Status, int]:
        """What VERSION_QUERY says."""
        extent = CHUNK_EXTENT.pack(object_of(number), 0, chain, chain_version or self.chain_version)
        _, answer = self.raw.start(Method.VERSION_QUERY, VersionQuery(extent, 10_000))
        await answer.wait()
        ((_, status, version),) = VERSION_QUERY_RESULT.iter_unpack(
            decode_body(VersionQueryReply, answer.bodies[0]).results
        )
        return Status(status), version


def room(offset: int, length: int) -> int:
    """How much registered memory a range needs."""
    return RangeRow(b"", 0, 0, 0, offset, length, 0).room
