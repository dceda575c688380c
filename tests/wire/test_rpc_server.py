"""Requests at the server: each ends once, payload lands where its handler says, a bug or a lost peer harms no other."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from esker.wire import rpc_server
from esker.wire.codec import decode_body
from esker.wire.errors import ConnectionFailed, DeadlineExceeded, RequestFailed
from esker.wire.framing import Kind, encode
from esker.wire.messages import Cancel, Empty, Failure, Method, ReleaseMemory, StatsReply
from esker.wire.rpc_client import Connection, TcpAddress, UnixAddress
from esker.wire.rpc_server import Request, RpcServer, unary
from esker.wire.status import Status

from ..waiting import until
from .peers import IDENTITY, WAIT_S, BarePeer, Served, serving
from .streams import noise

FAILURES = [status for status in Status if status is not Status.OK]


class Held:
    """A handler that keeps its requests, and notes what else it is told."""

    def __init__(self, memory: bytearray | None = None) -> None:
        self.requests: list[Request] = []
        self.told: list[str] = []
        self._memory = memory

    def __call__(self, request: Request) -> Sequence[memoryview] | None:
        self.requests.append(request)
        request.on_payload = lambda: self.told.append("payload")
        request.on_cancel = lambda: self.told.append("cancel")
        request.on_lost = lambda: self.told.append("lost")
        return None if self._memory is None else [memoryview(self._memory)]

    async def one(self, count: int = 1) -> Request:
        """The newest request, once there are `count`."""
        await until(lambda: len(self.requests) >= count, "a request")
        return self.requests[-1]


async def stats(request: Empty) -> StatsReply:
    return StatsReply({"answered": 1})


async def refuse(request: ReleaseMemory) -> Empty:
    raise RequestFailed(Status(request.memory_id), "because")


async def stumble(request: Empty) -> Empty:
    raise ZeroDivisionError("oops")


def stumble_at_once(request: Request) -> None:
    raise ZeroDivisionError("oops at once")


HANDLERS = {
    Method.STATS: unary(Empty, stats),
    Method.RELEASE_MEMORY: unary(ReleaseMemory, refuse),
    Method.JOIN: unary(Empty, stumble),
    Method.HEARTBEAT: stumble_at_once,
}


async def call(connection: Connection, method: Method = Method.STATS) -> StatsReply:
    return await connection.call(method, Empty(), StatsReply, timeout_s=WAIT_S)


@pytest.mark.parametrize("status", FAILURES)
async def test_a_refusal_travels_with_its_status_and_reason(status: Status, short_directory: Path) -> None:
    async with serving(short_directory, HANDLERS) as served:
        connection = await served.connect()
        with pytest.raises(RequestFailed, match=f"^{status.name}: because$") as failure:
            await connection.call(Method.RELEASE_MEMORY, ReleaseMemory(status), Empty, timeout_s=WAIT_S)
        assert (failure.value.status, failure.value.message) == (status, "because")
        await call(connection)
        await connection.aclose()


@pytest.mark.parametrize("body", [b"", b"\xc0", b"\x91\xa1x", b"\x91\xcb" + bytes(8), b"\xff" * 100, b"\x91" * 5000])
async def test_a_body_that_is_not_the_methods_is_a_bad_request(body: bytes, short_directory: Path) -> None:
    async with serving(short_directory, HANDLERS) as served:
        peer = await BarePeer.greeted(served.tcp)
        peer.request(Method.RELEASE_MEMORY, 1, body)
        answer = await peer.frame()
        assert (answer.kind, answer.code, answer.request_id) == (Kind.REPLY, Status.BAD_REQUEST, 1)
        assert decode_body(Failure, answer.body).message.startswith("malformed ReleaseMemory: ")
        peer.request(Method.STATS, 2, Empty())
        assert (await peer.frame()).code == Status.OK
        peer.close()


@pytest.mark.parametrize("method", [0, Method.HELLO, Method.READ, 999, 65535])
async def test_a_method_that_is_not_served_is_a_bad_request(method: int, short_directory: Path) -> None:
    async with serving(short_directory, HANDLERS) as served:
        peer = await BarePeer.greeted(served.tcp)
        peer.request(method, 1, Empty(), payload=noise(100_000))
        answer = await peer.frame()
        assert answer.code == Status.BAD_REQUEST
        assert decode_body(Failure, answer.body).message == f"method {int(method)} is not served here"
        peer.request(Method.STATS, 2, Empty())
        assert (await peer.frame()).code == Status.OK
        peer.close()


@pytest.mark.parametrize(("method", "what"), [(Method.JOIN, "oops"), (Method.HEARTBEAT, "oops at once")])
async def test_a_bug_in_a_handler_fails_its_request_and_is_logged(
    method: Method, what: str, short_directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(short_directory, HANDLERS) as served:
        connection = await served.connect()
        with pytest.raises(RequestFailed, match=f"^INTERNAL: ZeroDivisionError: {what}$"):
            await call(connection, method)
        assert f"a handler failed method={method.name}" in caplog.text
        assert "Traceback" in caplog.text
        await call(connection)
        await connection.aclose()


async def test_a_request_id_in_use_ends_the_connection(short_directory: Path, caplog: pytest.LogCaptureFixture) -> None:
    held = Held()
    async with serving(short_directory, {Method.READ: held}) as served:
        peer = await BarePeer.greeted(served.tcp)
        peer.request(Method.READ, 5, Empty())
        peer.request(Method.READ, 5, Empty())
        assert await peer.ended() == b""
        assert "request id 5 is in use" in caplog.text
        assert held.told == ["cancel"]
        peer.close()


async def test_a_request_id_may_be_used_again_after_the_answer(short_directory: Path) -> None:
    async with serving(short_directory, HANDLERS) as served:
        peer = await BarePeer.greeted(served.tcp)
        for _ in range(3):
            peer.request(Method.STATS, 5, Empty())
            assert (await peer.frame()).code == Status.OK
        peer.close()


async def test_too_many_requests_on_a_connection_are_refused_until_some_have_ended(
    short_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rpc_server, "REQUESTS_PER_CONNECTION_MAX", 3)
    held = Held()
    async with serving(short_directory, {**HANDLERS, Method.READ: held}) as served:
        peer = await BarePeer.greeted(served.tcp)
        for number in range(4):
            peer.request(Method.READ, number, Empty(), payload=b"payload")
        answer = await peer.frame()
        assert (answer.request_id, answer.code) == (3, Status.BUSY)
        other = await served.connect()
        await call(other)  # other connections are not concerned
        held.requests[0].reply(Empty())
        assert (await peer.frame()).request_id == 0
        peer.request(Method.STATS, 4, Empty())
        assert (await peer.frame()).code == Status.OK
        peer.close()
        await other.aclose()


async def test_payload_lands_in_the_memory_that_the_handler_names(short_directory: Path) -> None:
    memory = bytearray(300_000)
    held = Held(memory)
    async with serving(short_directory, {Method.CREATE: held}) as served:
        peer = await BarePeer.greeted(served.unix)
        peer.request(Method.CREATE, 1, b"the body", noise(len(memory)))
        await until(lambda: held.told, "the payload")
        assert held.told == ["payload"]
        assert memory == noise(len(memory))
        request = held.requests[0]
        assert (request.method, request.request_id, request.payload_bytes) == (Method.CREATE, 1, len(memory))
        assert request.body == b"the body"
        request.fail(Status.NO_SPACE, "full")
        assert (await peer.frame()).code == Status.NO_SPACE
        peer.close()


async def test_replies_in_parts_with_payload_end_with_the_last(short_directory: Path) -> None:
    held = Held()
    async with serving(short_directory, {Method.READ: held}) as served:
        peer = await BarePeer.greeted(served.tcp)
        peer.request(Method.READ, 1, Empty())
        request = await held.one()
        sent: list[int] = []
        payload = noise(2_000_000)
        view = memoryview(payload)
        request.reply(StatsReply({"part": 1}), [view[:7], view[7:]], more=True, on_sent=lambda: sent.append(1))
        request.reply(StatsReply({"part": 2}), more=True, on_sent=lambda: sent.append(2))
        request.reply(StatsReply({"part": 3}), [view[:9]], on_sent=lambda: sent.append(3))
        frames = [await peer.frame() for _ in range(3)]
        assert [frame.kind for frame in frames] == [Kind.PARTIAL, Kind.PARTIAL, Kind.REPLY]
        assert [frame.payload for frame in frames] == [payload, b"", payload[:9]]
        assert [decode_body(StatsReply, frame.body).counters["part"] for frame in frames] == [1, 2, 3]
        await until(lambda: sent == [1, 2, 3], "all memory handed back")
        peer.close()


# Cancellation


async def test_a_cancel_is_confirmed_when_the_request_has_ended_and_not_before(short_directory: Path) -> None:
    held = Held()
    async with serving(short_directory, {**HANDLERS, Method.READ: held}) as served:
        peer = await BarePeer.greeted(served.tcp)
        peer.request(Method.READ, 1, Empty())
        peer.request(Method.CANCEL, 2, Cancel(1))
        peer.request(Method.CANCEL, 3, Cancel(1))
        peer.request(Method.STATS, 4, Empty())
        assert (await peer.frame()).request_id == 4
        assert held.told == ["cancel"]
        assert held.requests[0].cancelled
        held.requests[0].fail(Status.CANCELLED, "")
        frames = [await peer.frame() for _ in range(3)]
        assert [(frame.request_id, frame.code) for frame in frames] == [
            (1, Status.CANCELLED),
            (2, Status.OK),
            (3, Status.OK),
        ]
        peer.close()


async def test_a_cancel_of_what_is_not_under_way_is_confirmed_at_once(short_directory: Path) -> None:
    async with serving(short_directory, HANDLERS) as served:
        connection = await served.connect()
        await call(connection)
        for request_id in (2, 77, 2**64 - 1):
            await connection.call(Method.CANCEL, Cancel(request_id), Empty, timeout_s=WAIT_S)
        await connection.aclose()


async def test_a_malformed_cancel_is_a_bad_request(short_directory: Path) -> None:
    async with serving(short_directory, HANDLERS) as served:
        peer = await BarePeer.greeted(served.tcp)
        peer.request(Method.CANCEL, 1, b"\xff")
        assert (await peer.frame()).code == Status.BAD_REQUEST
        peer.request(Method.STATS, 2, Empty())
        assert (await peer.frame()).code == Status.OK
        peer.close()


async def test_cancels_of_one_request_are_bounded(short_directory: Path) -> None:
    held = Held()
    async with serving(short_directory, {Method.READ: held}) as served:
        peer = await BarePeer.greeted(served.tcp)
        peer.request(Method.READ, 0, Empty())
        for number in range(rpc_server.CANCELS_PER_REQUEST_MAX + 1):
            peer.request(Method.CANCEL, 1 + number, Cancel(0))
        answer = await peer.frame()
        assert (answer.request_id, answer.code) == (1 + rpc_server.CANCELS_PER_REQUEST_MAX, Status.BUSY)
        peer.close()


# Lost connections


async def test_a_connection_lost_inside_a_payload_frees_its_memory(short_directory: Path) -> None:
    memory = bytearray(1000)
    held = Held(memory)
    closed: list[str] = []
    async with serving(short_directory, {Method.CREATE: held}) as served:
        peer = await BarePeer.greeted(served.tcp)
        peer.request(Method.CREATE, 1, Empty(), noise(1000))
        await until(lambda: held.told == ["payload"], "the first payload")
        held.requests[0].connection.on_close.append(lambda: closed.append(",".join(held.told)))
        peer.give(encode(Kind.REQUEST, Method.CREATE, 2, b"", 1000) + noise(999))
        await held.one(2)
        peer.close()
        await until(lambda: "lost" in held.told, "the end")
        assert closed == ["payload"]  # told first, and once
        assert held.told == ["payload", "lost", "cancel", "cancel"]
        assert all(request.cancelled for request in held.requests)
        held.requests[0].reply(Empty(), on_sent=lambda: closed.append("sent"))  # goes nowhere, hands memory back
        held.requests[1].fail(Status.INTERNAL, "")
        assert closed == ["payload", "sent"]


async def test_whoever_cancelled_is_not_told_again_when_the_connection_ends(short_directory: Path) -> None:
    held = Held()
    async with serving(short_directory, {Method.READ: held}) as served:
        peer = await BarePeer.greeted(served.tcp)
        peer.request(Method.READ, 1, Empty())
        peer.request(Method.CANCEL, 2, Cancel(1))
        await until(lambda: held.told == ["cancel"], "the cancel")
        peer.close()
        await until(lambda: not served.server._connections, "the end")
        assert held.told == ["cancel"]


# The end of the server


async def test_closing_ends_tasks_connections_and_listeners(short_directory: Path) -> None:
    ended: list[str] = []

    async def forever(request: Empty) -> Empty:
        try:
            return await asyncio.get_running_loop().create_future()
        finally:
            ended.append("task")

    server = RpcServer({Method.ROUTING: unary(Empty, forever)}, IDENTITY)
    path = short_directory / "socket"
    await server.listen_unix(str(path))
    port = await server.listen_tcp("127.0.0.1", 0)
    served = Served(server, TcpAddress("127.0.0.1", port), UnixAddress(str(path)))
    connection = await served.connect()
    waiting = asyncio.ensure_future(call(connection, Method.ROUTING))
    await until(lambda: server._tasks, "the request")
    await server.aclose()
    assert ended == ["task"]
    assert not path.exists()
    with pytest.raises(RequestFailed, match="UNAVAILABLE: the server is stopping"):
        await waiting
    await until(lambda: connection.closed, "the end of the connection")
    with pytest.raises(ConnectionFailed, match=f"cannot connect to 127.0.0.1:{port}: "):
        await served.connect()
    await server.aclose()


async def test_requests_that_come_while_others_are_being_ended_end_too(short_directory: Path) -> None:
    running: list[int] = []

    async def linger(request: ReleaseMemory) -> Empty:
        running.append(request.memory_id)
        try:
            return await asyncio.get_running_loop().create_future()
        finally:
            if request.memory_id == 1:
                peer.request(Method.RELEASE_MEMORY, 2, ReleaseMemory(2))
                await until(lambda: 2 in running, "the second request")
            running.remove(request.memory_id)

    async with serving(short_directory, {Method.RELEASE_MEMORY: unary(ReleaseMemory, linger)}) as served:
        peer = await BarePeer.greeted(served.tcp)
        peer.request(Method.RELEASE_MEMORY, 1, ReleaseMemory(1))
        await until(lambda: running == [1], "the first request")
        await served.server.aclose()
        assert running == []
        peer.close()


async def test_a_deadline_at_the_client_leaves_the_connection_usable(short_directory: Path) -> None:
    held = Held()
    async with serving(short_directory, {**HANDLERS, Method.READ: held}) as served:
        connection = await served.connect()
        with pytest.raises(DeadlineExceeded, match=f"^{served.tcp} did not answer READ within 0.05 s$"):
            await connection.call(Method.READ, Empty(), Empty, timeout_s=0.05)
        held.requests[0].reply(Empty())  # too late: thrown away
        await call(connection)
        await connection.aclose()
