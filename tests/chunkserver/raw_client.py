"""Requests to a drive worker as they travel, without a client's good manners: tests choose every field."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from esker.wire.checksum import checksums
from esker.wire.codec import decode_body
from esker.wire.errors import EskerError
from esker.wire.ids import NO_PUT_ID
from esker.wire.limits import ALIGN_BYTES, MIB
from esker.wire.messages import (
    CREATE_EXTENT,
    CREATE_RESULT,
    LOOKUP_KEY,
    READ_EXTENT,
    READ_RESULT,
    REMOVE_EXTENT,
    REMOVE_RESULT,
    Create,
    CreateReply,
    Empty,
    Lookup,
    LookupReply,
    MemoryRegistered,
    Message,
    Method,
    Read,
    ReadReply,
    RegisterMemory,
    Remove,
    RemoveReply,
    StatsReply,
)
from esker.wire.rpc_client import Address, Connection
from esker.wire.status import Status

SPACE = 7
TIMEOUT_S = 30.0


def object_of(number: int) -> bytes:
    """A 16-byte object id."""
    return number.to_bytes(16, "big")


def content(number: int, length: int = ALIGN_BYTES) -> bytes:
    """Bytes that differ from page to page and from number to number."""
    pages = -(-length // ALIGN_BYTES)
    return b"".join(b"%08d-%08d".ljust(64, b".") % (number, page) * 64 for page in range(pages))[:length]


class Answer:
    """The reply to a request that was started: its frames' bodies and payload."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.payload: list[bytearray] = []
        self._done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._done.add_done_callback(lambda done: done.cancelled() or done.exception())

    def on_reply(self, body: bytes | bytearray, payload_bytes: int) -> Sequence[memoryview] | None:
        self.bodies.append(bytes(body))
        if not payload_bytes:
            return None
        self.payload.append(bytearray(payload_bytes))
        return [memoryview(self.payload[-1])]

    def on_payload(self) -> None:
        pass

    def on_done(self, error: EskerError | None) -> None:
        if error is None:
            self._done.set_result(None)
        else:
            self._done.set_exception(error)

    @property
    def over(self) -> bool:
        return self._done.done()

    async def wait(self) -> None:
        """Waits for the end of the request; raises what it failed with."""
        async with asyncio.timeout(TIMEOUT_S):
            await asyncio.shield(self._done)


@dataclass(frozen=True)
class ReadAnswer:
    """What a READ gave, by extent number."""

    status: dict[int, Status] = field(default_factory=dict)
    rows: dict[int, tuple[Any, ...]] = field(default_factory=dict)
    data: dict[int, bytes] = field(default_factory=dict)
    """Only of extents whose data came as payload."""
    sums: dict[int, bytes] = field(default_factory=dict)


class RawClient:
    """A connection to a worker."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    @classmethod
    async def connect(cls, address: Address, role: str = "client", peer_id: str = "") -> "RawClient":
        return cls(await Connection.connect(address, role=role, peer_id=peer_id, timeout_s=TIMEOUT_S))

    async def __aenter__(self) -> "RawClient":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.connection.aclose()

    def start(self, method: Method, body: Message, payload: Sequence[memoryview] = ()) -> tuple[int, Answer]:
        """Sends a request; its id, and its reply to come."""
        answer = Answer()
        return self.connection.start(method, body, answer, payload=payload), answer

    async def register(self, fd: int, length_bytes: int) -> int:
        """Hands memory over; its id."""
        reply = await self.connection.call(
            Method.REGISTER_MEMORY, RegisterMemory(length_bytes), MemoryRegistered, timeout_s=TIMEOUT_S, fds=(fd,)
        )
        return reply.memory_id

    async def stats(self) -> dict[str, int]:
        return (await self.connection.call(Method.STATS, Empty(), StatsReply, timeout_s=TIMEOUT_S)).counters

    # READ

    async def read(
        self,
        extents: Sequence[tuple[int, int, int]],
        *,
        chain: int = 1,
        index: int = 0,
        memory_id: int = 0,
        budget_ms: int = 10_000,
    ) -> ReadAnswer:
        """Reads (number of the object, room, offset in memory) each."""
        _, answer = self.start(Method.READ, read_body(extents, chain, index, memory_id, budget_ms))
        await answer.wait()
        return read_answer(answer)

    async def read_one(self, number: int, room: int = MIB, **others: Any) -> bytes | Status:
        """The chunk's bytes, verified, or the status why not."""
        found = await self.read([(number, room, 0)], **others)
        if found.status[0] is not Status.OK:
            return found.status[0]
        assert checksums(memoryview(found.data[0])) == found.sums[0], "a worker passed on bytes that do not verify"
        return found.data[0]

    async def lookup(self, numbers: Sequence[int], chain: int = 1) -> bytes:
        keys = b"".join(LOOKUP_KEY.pack(object_of(number), chain) for number in numbers)
        reply = await self.connection.call(Method.LOOKUP, Lookup(SPACE, keys), LookupReply, timeout_s=TIMEOUT_S)
        return reply.present

    # CREATE, REMOVE

    async def create(self, values: dict[int, bytes], **others: Any) -> dict[int, Status]:
        """Creates objects by number from payload; see `create_body` for the rest."""
        body = create_body(values, **others)
        payload = [] if body.memory_id else [memoryview(value) for value in values.values()]
        _, answer = self.start(Method.CREATE, body, payload)
        await answer.wait()
        numbers = list(values)
        return {numbers[at]: status for at, status in create_statuses(answer).items()}

    async def confirm(self, values: dict[int, bytes], **others: Any) -> dict[int, Status]:
        """Asks whether a successor has these."""
        _, answer = self.start(Method.CONFIRM, create_body(values, **others))
        await answer.wait()
        numbers = list(values)
        return {numbers[at]: status for at, status in create_statuses(answer).items()}

    async def remove(
        self,
        number: int,
        *,
        chain: int = 1,
        chain_version: int = 1,
        version: int = 0,
        put_id: bytes = NO_PUT_ID,
        budget_ms: int = 10_000,
    ) -> Status:
        extent = REMOVE_EXTENT.pack(object_of(number), 0, chain, chain_version, version, put_id)
        _, answer = self.start(Method.REMOVE, Remove(SPACE, extent, budget_ms))
        await answer.wait()
        results = b"".join(decode_body(RemoveReply, body).results for body in answer.bodies)
        ((_, status),) = REMOVE_RESULT.iter_unpack(results)
        return Status(status)


def read_body(
    extents: Sequence[tuple[int, int, int]], chain: int = 1, index: int = 0, memory_id: int = 0, budget_ms: int = 10_000
) -> Read:
    """A READ of (number of the object, room, offset in memory) each."""
    packed = b"".join(
        READ_EXTENT.pack(object_of(number), index, chain, room, offset) for number, room, offset in extents
    )
    return Read(SPACE, packed, memory_id, budget_ms)


def read_answer(answer: Answer) -> ReadAnswer:
    """The reply to a READ, taken apart."""
    found = ReadAnswer()
    payload = b"".join(answer.payload)
    data_at = 0
    for body in answer.bodies:
        reply = decode_body(ReadReply, body)
        sums_at = 0
        for row in READ_RESULT.iter_unpack(reply.results):
            number, status, length = row[0], Status(row[1]), row[2]
            assert number not in found.status, f"extent {number} was answered twice"
            found.status[number] = status
            found.rows[number] = row
            if status is Status.OK:
                end = sums_at + 8 * -(-length // 65536)
                found.sums[number] = reply.checksums[sums_at:end]
                sums_at = end
                if answer.payload:
                    found.data[number] = payload[data_at : data_at + length]
                    data_at += length
        assert sums_at == len(reply.checksums)
    assert data_at == len(payload)
    return found


def create_body(
    values: dict[int, bytes],
    *,
    chain: int = 1,
    chain_version: int = 1,
    slot_bytes: int = 64 * 1024,
    sums: bytes | None = None,
    offsets: Sequence[int] = (),
    memory_id: int = 0,
    version: int = 0,
    put_id: bytes = NO_PUT_ID,
    budget_ms: int = 10_000,
) -> Create:
    """A CREATE of objects by number. `offsets` are those in registered memory, in bytes."""
    extents, keys = [], []
    for at, (number, value) in enumerate(values.items()):
        key = b"key %d" % number
        keys.append(key)
        offset = offsets[at] // ALIGN_BYTES if offsets else 0
        extents.append(
            CREATE_EXTENT.pack(
                object_of(number), 0, chain, chain_version, len(value), offset, version, len(value), 1, put_id, len(key)
            )
        )
    if sums is None:
        sums = b"".join(checksums(memoryview(value)) for value in values.values())
    return Create(SPACE, slot_bytes, b"".join(extents), sums, b"".join(keys), memory_id, budget_ms)


def create_rows_of(answer: Answer) -> dict[int, tuple[Any, ...]]:
    """The rows of the reply to a CREATE, by extent number."""
    results = b"".join(decode_body(CreateReply, body).results for body in answer.bodies)
    rows = list(CREATE_RESULT.iter_unpack(results))
    by_number = {row[0]: row for row in rows}
    assert len(by_number) == len(rows), "an extent was answered twice"
    return by_number


def create_statuses(answer: Answer) -> dict[int, Status]:
    """The statuses of the reply to a CREATE, by extent number."""
    return {number: Status(row[1]) for number, row in create_rows_of(answer).items()}
