"""Replies that do not fit their requests: the connection ends, nothing is lost or believed, another attempt follows."""

import asyncio
from typing import Any

import pytest

from esker.client.mutable import ChunkClient, ChunkRead, ChunkWrite
from esker.wire.ids import NO_PUT_ID
from esker.wire.messages import (
    CREATE_RESULT,
    READ_RESULT,
    REMOVE_RESULT,
    CreateReply,
    Message,
    Method,
    ReadReply,
    RemoveReply,
)
from esker.wire.mutable_messages import READ_RANGE_RESULT, ReadRangeReply
from esker.wire.status import Status


def answers_once(worker: Any, method: Method, reply: Message) -> None:
    """The worker's next answer to this method is `reply`, whatever was asked."""
    for server in worker._servers:
        handlers = server.handlers
        really = handlers[int(method)]

        def handle(request: Any, handlers: Any = handlers, really: Any = really) -> None:
            handlers[int(method)] = really
            request.reply(reply)

        handlers[int(method)] = handle


@pytest.fixture
async def bugs() -> list[Any]:
    """What the loop was told of exceptions in callbacks."""
    found: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: found.append(context))
    return found


ABSENT = READ_RESULT.pack(0, Status.NOT_FOUND, 0, 0, 0, 0, NO_PUT_ID)


@pytest.mark.parametrize("transport", ["local", "tcp"])
@pytest.mark.parametrize(
    "reply",
    [
        ReadReply(ABSENT[:-1], b""),
        ReadReply(ABSENT + ABSENT, b""),
        ReadReply(ABSENT, bytes(8)),
        ReadReply(READ_RESULT.pack(1, Status.NOT_FOUND, 0, 0, 0, 0, NO_PUT_ID), b""),
        ReadReply(READ_RESULT.pack(0, Status.OK, 65537, 1, 65537, 1, NO_PUT_ID), bytes(16)),
        ReadReply(READ_RESULT.pack(0, Status.OK, 65536, 1, 65536, 1, NO_PUT_ID), b""),
    ],
)
async def test_a_read_goes_to_another_replica(make_rig: Any, bugs: list[Any], transport: str, reply: ReadReply) -> None:
    rig = await make_rig(transport, drives=2)
    (value,) = await rig.fill([0])
    answers_once(rig.cluster.workers[0], Method.READ, reply)
    rig.state(1).load_bytes += 1  # so that the first one is asked
    buffer = bytearray(65536)
    async with asyncio.timeout(20):
        ((_, status, *_),) = await rig.reads([0], [buffer]).run(60)
    assert (status, buffer) == (Status.OK, value)
    assert [rig.state(number).load_bytes for number in range(2)] == [0, 1]
    assert not bugs


@pytest.mark.parametrize(
    "results",
    [
        b"x",
        CREATE_RESULT.pack(1, Status.OK, 1, 1, NO_PUT_ID),
        CREATE_RESULT.pack(0, Status.BUSY, 0, 0, NO_PUT_ID) * 2,
    ],
)
async def test_creates_and_removals_are_repeated(make_rig: Any, bugs: list[Any], results: bytes) -> None:
    rig = await make_rig("tcp", drives=2)
    (worker, _), state = rig.cluster.workers, rig.state(0)
    answers_once(worker, Method.CREATE, CreateReply(results))
    async with asyncio.timeout(20):
        ((_, status, *_),) = await rig.creates([0], [b"x"]).run(60)
        assert status == Status.OK
        answers_once(worker, Method.REMOVE, RemoveReply(results[: REMOVE_RESULT.size] * 2))
        assert await rig.removes([0]).run(60) == [(Status.OK,)]
    assert state.creating_bytes == 0
    assert not bugs


ABSENT_RANGE = READ_RANGE_RESULT.pack(0, Status.NOT_FOUND, 0, 0, 0, 0)


@pytest.mark.parametrize(
    "reply",
    [
        ReadRangeReply(ABSENT_RANGE[:-1], b""),
        ReadRangeReply(ABSENT_RANGE * 2, b""),
        ReadRangeReply(ABSENT_RANGE, bytes(8)),
        ReadRangeReply(READ_RANGE_RESULT.pack(0, Status.OK, 1, 5, 1, 4), bytes(8)),
    ],
)
async def test_a_range_is_read_elsewhere(cluster: Any, connect: Any, bugs: list[Any], reply: ReadRangeReply) -> None:
    client: ChunkClient = await connect()
    (written,) = await client.write([ChunkWrite(bytes(16), 0, 0, b"value")])
    assert written.status is Status.OK
    for worker in cluster.workers:
        answers_once(worker, Method.READ_RANGE, reply)
    async with asyncio.timeout(20):
        (result,) = await client.read([ChunkRead(bytes(16), 0, 0, 5)], timeout_s=60)
    assert (result.status, bytes(result.data)) == (Status.OK, b"value")
    assert {state.load_bytes for state in client._workers.by_drive.values()} == {0}
    assert not bugs
