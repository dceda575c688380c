"""A connection at the client: every wait has an end, replies go where they belong, forgotten ones nowhere."""

import asyncio
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from esker.wire.codec import encode_body
from esker.wire.errors import ConnectionFailed, DeadlineExceeded, ProtocolError, RequestFailed
from esker.wire.framing import Kind, encode
from esker.wire.messages import Empty, Failure, HelloReply, Method, ReadReply, StatsReply
from esker.wire.rpc_client import Address, Connection, TcpAddress, UnixAddress
from esker.wire.rpc_server import unary
from esker.wire.status import Status

from ..waiting import until
from .peers import WAIT_S, BarePeer, Replies, bare_server, serving
from .streams import noise


async def stats(request: Empty) -> StatsReply:
    return StatsReply({"answered": 1})


async def connected(address: TcpAddress, next_peer: Callable[[], Any]) -> tuple[Connection, BarePeer]:
    """A connection to the bare server, and its other end."""
    connecting = asyncio.ensure_future(Connection.connect(address, role="client", timeout_s=WAIT_S))
    peer: BarePeer = await next_peer()
    await peer.greet()
    return await connecting, peer


@pytest.fixture
def refusing() -> Iterator[TcpAddress]:
    """An address that is taken, but where nobody listens."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        yield TcpAddress(*sock.getsockname())


# Connecting


@pytest.mark.parametrize(
    ("address", "why"),
    [
        (TcpAddress("host.invalid", 1), ".*"),
        (TcpAddress("\0", 1), ".*"),
        (TcpAddress("x" * 70, 1), ".*"),
        (UnixAddress("/nowhere/socket"), "No such file or directory"),
        (UnixAddress("/tmp/" + "x" * 200), ".*too long"),
        (UnixAddress("/tmp/a\0b"), ".*"),
    ],
    ids=["no host", "null in host", "long host", "no path", "long path", "null in path"],
)
async def test_an_address_that_leads_nowhere_is_named(address: Address, why: str) -> None:
    with pytest.raises(ConnectionFailed, match=f"^cannot connect to {address}: {why}"):
        await Connection.connect(address, role="client", timeout_s=WAIT_S)


async def test_where_nobody_listens_the_address_is_named(refusing: TcpAddress) -> None:
    with pytest.raises(ConnectionFailed, match=f"^cannot connect to {refusing}: Connection refused$"):
        await Connection.connect(refusing, role="client", timeout_s=WAIT_S)


async def test_whoever_accepts_and_says_nothing_is_given_up_in_time() -> None:
    async with bare_server() as (address, _):
        with pytest.raises(ConnectionFailed, match=f"^{address} accepted the connection but did not shake hands: "):
            await Connection.connect(address, role="client", timeout_s=0.05)


async def test_whoever_does_not_even_accept_is_given_up_in_time() -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener:
        host, port = listener.getsockname()
        waiting = []
        try:
            for _ in range(4):  # fills the backlog, so that the next one gets no answer
                waiting.append(socket.socket())
                waiting[-1].setblocking(False)
                waiting[-1].connect_ex((host, port))
            with pytest.raises(ConnectionFailed, match=r"did not accept a connection within 0\.05 s"):
                await Connection.connect(TcpAddress(host, port), role="client", timeout_s=0.05)
        finally:
            for sock in waiting:
                sock.close()


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n" + bytes(30), "bad magic"),
        (encode(Kind.REQUEST, Method.HELLO, 1, b""), "a request where a reply was due"),
        (encode(Kind.REPLY, 0, 1, b"")[:20], "inside a frame"),
        (b"", "the connection was closed"),
    ],
    ids=["http", "request", "cut short", "nothing"],
)
async def test_whoever_answers_otherwise_is_no_server_of_ours(said: bytes, why: str) -> None:
    async with bare_server() as (address, next_peer):
        connecting = asyncio.ensure_future(Connection.connect(address, role="client", timeout_s=WAIT_S))
        peer = await next_peer()
        await peer.frame()
        peer.give(said)
        peer.close()
        with pytest.raises(
            ConnectionFailed, match=f"^{address} accepted the connection but did not shake hands: .*{why}"
        ):
            await connecting


async def test_a_refusal_of_the_handshake_is_told_as_it_is() -> None:
    async with bare_server() as (address, next_peer):
        connecting = asyncio.ensure_future(Connection.connect(address, role="client", timeout_s=WAIT_S))
        peer = await next_peer()
        hello = await peer.frame()
        peer.reply(hello.request_id, Failure("version 2 only"), code=Status.UNSUPPORTED_VERSION)
        with pytest.raises(RequestFailed, match="UNSUPPORTED_VERSION: version 2 only"):
            await connecting


async def test_giving_up_the_wait_closes_the_connection() -> None:
    async with bare_server() as (address, next_peer):
        connecting = asyncio.ensure_future(Connection.connect(address, role="client", timeout_s=WAIT_S))
        peer = await next_peer()
        await peer.frame()
        connecting.cancel()
        assert await peer.ended() == b""
        with pytest.raises(asyncio.CancelledError):
            await connecting


def test_every_address_of_a_host_is_tried(refusing: TcpAddress, monkeypatch: pytest.MonkeyPatch) -> None:
    port = 0

    def resolve(host: str, *_: Any, **__: Any) -> list[Any]:
        if host != "two-addresses":
            return original(host, *_, **__)
        family = (socket.AF_INET, socket.SOCK_STREAM, 6, "")
        return [(*family, ("127.0.0.1", refusing.port)), (*family, ("127.0.0.1", port))]

    async def main() -> None:
        nonlocal port
        async with bare_server() as (address, next_peer):
            port = address.port
            connection, _ = await connected(TcpAddress("two-addresses", 1), next_peer)
            await connection.aclose()

    original = socket.getaddrinfo
    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    # asyncio's own loop, which resolves names through the function that is replaced here
    with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
        runner.run(main())


# Calls


async def test_answers_find_their_calls_in_any_order() -> None:
    async with bare_server() as (address, next_peer):
        connection, peer = await connected(address, next_peer)
        calls = [
            asyncio.ensure_future(connection.call(Method.STATS, Empty(), StatsReply, timeout_s=WAIT_S))
            for _ in range(3)
        ]
        requests = [await peer.frame() for _ in range(3)]
        for number, request in reversed(list(enumerate(requests))):
            peer.reply(request.request_id, StatsReply({"number": number}))
        assert [(await answer).counters["number"] for answer in calls] == [0, 1, 2]
        await connection.aclose()


async def test_a_lost_connection_fails_every_call_under_way_each_with_an_error_of_its_own() -> None:
    async with bare_server() as (address, next_peer):
        connection, peer = await connected(address, next_peer)
        calls = [
            asyncio.ensure_future(connection.call(Method.STATS, Empty(), StatsReply, timeout_s=WAIT_S))
            for _ in range(2)
        ]
        for _ in range(2):
            await peer.frame()
        peer.give(encode(Kind.REPLY, 0, 2, b"body")[:-1])
        peer.close()
        errors = await asyncio.gather(*calls, return_exceptions=True)
        for error in errors:
            assert isinstance(error, ConnectionFailed)
            assert str(error) == f"{address}: the peer closed the connection inside a frame"
        assert errors[0] is not errors[1]
        assert connection.closed
        with pytest.raises(ConnectionFailed, match=f"^{address}: not connected$"):
            await connection.call(Method.STATS, Empty(), StatsReply, timeout_s=WAIT_S)


async def test_closing_fails_what_is_under_way() -> None:
    async with bare_server() as (address, next_peer):
        connection, peer = await connected(address, next_peer)
        waiting = asyncio.ensure_future(connection.call(Method.STATS, Empty(), StatsReply, timeout_s=WAIT_S))
        await peer.frame()
        await connection.aclose()
        with pytest.raises(ConnectionFailed, match="the connection was closed"):
            await waiting
        assert await peer.ended() == b""


async def test_a_call_ends_at_its_deadline_and_its_late_answer_is_nobodys() -> None:
    async with bare_server() as (address, next_peer):
        connection, peer = await connected(address, next_peer)
        with pytest.raises(DeadlineExceeded, match=f"^{address} did not answer STATS within 0.02 s$"):
            await connection.call(Method.STATS, Empty(), StatsReply, timeout_s=0.02)
        late = await peer.frame()
        waiting = asyncio.ensure_future(connection.call(Method.STATS, Empty(), StatsReply, timeout_s=WAIT_S))
        request = await peer.frame()
        peer.reply(late.request_id, StatsReply({"late": 1}), noise(100_000))
        peer.reply(late.request_id, Failure("later still"), code=Status.INTERNAL)
        peer.reply(request.request_id, StatsReply({"in time": 1}))
        assert (await waiting).counters == {"in time": 1}
        await connection.aclose()


async def test_a_body_that_cannot_be_encoded_is_no_request() -> None:
    async with bare_server() as (address, next_peer):
        connection, _ = await connected(address, next_peer)
        with pytest.raises(UnicodeEncodeError):
            await connection.call(Method.STATS, Failure("\udc80"), StatsReply, timeout_s=WAIT_S)
        assert connection._calls == {}
        await connection.aclose()


async def test_a_status_that_nobody_knows_is_a_failure_all_the_same() -> None:
    async with bare_server() as (address, next_peer):
        connection, peer = await connected(address, next_peer)
        for code, body in ((999, encode_body(Failure("?"))), (int(Status.INTERNAL), b"\xff")):
            waiting = asyncio.ensure_future(connection.call(Method.STATS, Empty(), StatsReply, timeout_s=WAIT_S))
            peer.reply((await peer.frame()).request_id, body, code=code)
            with pytest.raises(ProtocolError, match=f"a failure with unknown status {code}"):
                await waiting
        await connection.aclose()


async def test_an_answer_that_is_not_the_calls_is_refused() -> None:
    async with bare_server() as (address, next_peer):
        connection, peer = await connected(address, next_peer)
        waiting = asyncio.ensure_future(connection.call(Method.STATS, Empty(), StatsReply, timeout_s=WAIT_S))
        peer.reply((await peer.frame()).request_id, HelloReply(1, "", "", ""))
        with pytest.raises(RequestFailed, match="malformed StatsReply"):
            await waiting
        await connection.aclose()


# Replies in parts


async def test_parts_arrive_in_order_with_their_payload_and_then_the_end() -> None:
    memory = bytearray(50_000)
    async with bare_server() as (address, next_peer):
        connection, peer = await connected(address, next_peer)
        replies = Replies(lambda size: [memoryview(memory)[:1000], memoryview(memory)[1000:size]])
        released: list[int] = []
        payload = [memoryview(b"pay"), memoryview(b"load")]
        request_id = connection.start(
            Method.READ, Empty(), replies, payload=payload, released=lambda: released.append(1)
        )
        request = await peer.frame()
        assert (request.request_id, request.payload) == (request_id, b"payload")
        assert released == [1]
        peer.reply(request_id, ReadReply(b"1", b""), noise(len(memory)), more=True)
        peer.reply(request_id, ReadReply(b"2", b""), more=True)
        peer.reply(request_id, ReadReply(b"3", b""), noise(2000))
        await replies.done()
        assert replies.calls == ["reply 50000", "payload", "reply 0", "reply 2000", "payload", "done"]
        assert [reply.results for reply in replies.decoded(ReadReply)] == [b"1", b"2", b"3"]
        assert replies.error is None
        assert memory == noise(2000) + noise(len(memory))[2000:]
        await connection.aclose()


async def test_payload_that_a_reply_does_not_want_is_thrown_away() -> None:
    async with bare_server() as (address, next_peer):
        connection, peer = await connected(address, next_peer)
        replies = Replies()
        request_id = connection.start(Method.READ, Empty(), replies)
        await peer.frame()
        peer.reply(request_id, Empty(), noise(100_000), more=True)
        peer.reply(request_id, Empty(), noise(100_000))
        await replies.done()
        assert replies.calls == ["reply 100000", "reply 100000", "done"]
        await connection.aclose()


async def test_a_failure_ends_a_request_in_parts() -> None:
    async with bare_server() as (address, next_peer):
        connection, peer = await connected(address, next_peer)
        replies = Replies()
        request_id = connection.start(Method.READ, Empty(), replies)
        peer.reply(request_id, Empty(), more=True)
        peer.reply(request_id, Failure("gone"), noise(5000), code=Status.IO_ERROR)
        peer.reply(request_id, Empty())
        await replies.done()
        assert replies.calls == ["reply 0", "done"]
        assert isinstance(replies.error, RequestFailed)
        assert str(replies.error) == "IO_ERROR: gone"
        await connection.aclose()


async def test_a_lost_connection_ends_a_request_in_parts_in_the_midst_of_its_payload() -> None:
    async with bare_server() as (address, next_peer):
        connection, peer = await connected(address, next_peer)
        replies = Replies(lambda size: [memoryview(bytearray(size))])
        request_id = connection.start(Method.READ, Empty(), replies)
        peer.give(encode(Kind.REPLY, 0, request_id, b"", 1000) + noise(999))
        await until(lambda: replies.calls, "the reply")
        peer.close()
        await replies.done()
        assert replies.calls == ["reply 1000", "done"]
        assert isinstance(replies.error, ConnectionFailed)


async def test_a_request_on_a_closed_connection_is_told_so_later_and_its_memory_handed_back() -> None:
    async with bare_server() as (address, next_peer):
        connection, _ = await connected(address, next_peer)
        await connection.aclose()
        replies = Replies()
        released: list[int] = []
        connection.start(
            Method.CREATE, Empty(), replies, payload=[memoryview(b"x")], released=lambda: released.append(1)
        )
        assert released == [1]
        assert replies.calls == []
        await replies.done()
        assert isinstance(replies.error, ConnectionFailed)
        assert replies.calls == ["done"]


# Forgetting


@pytest.mark.parametrize("last", [True, False])
async def test_a_request_forgotten_in_the_midst_of_its_payload_touches_its_memory_no_more(last: bool) -> None:
    memory = bytearray(200_000)
    async with bare_server() as (address, next_peer):
        connection, peer = await connected(address, next_peer)
        replies = Replies(lambda size: [memoryview(memory)])
        request_id = connection.start(Method.READ, Empty(), replies)
        text = encode(Kind.REPLY if last else Kind.PARTIAL, 0, request_id, b"", len(memory)) + noise(len(memory))
        peer.give(text[:100_000])
        await until(lambda: any(memory[60_000:]), "a part of the payload")
        connection.forget(request_id)
        memory[:] = bytes(len(memory))
        other = Replies(lambda size: [memoryview(bytearray(size))])
        other_id = connection.start(Method.READ, Empty(), other)
        peer.give(text[100_000:])
        peer.reply(other_id, Empty(), noise(1000), more=True)
        connection.forget(request_id)  # nor does forgetting it again disturb the other's payload
        peer.reply(other_id, Empty())
        await other.done()
        assert other.calls == ["reply 1000", "payload", "reply 0", "done"]
        assert replies.calls == [f"reply {len(memory)}"]
        assert memory == bytes(len(memory))
        await connection.aclose()


async def test_a_request_may_be_forgotten_by_its_own_reply() -> None:
    memory = bytearray(5)
    async with bare_server() as (address, next_peer):
        connection, peer = await connected(address, next_peer)
        replies = Replies(lambda size: [memoryview(memory)])
        request_id = connection.start(Method.READ, Empty(), replies)
        replies.on_body = lambda: connection.forget(request_id)
        peer.reply(request_id, Empty(), b"12345")
        other = Replies()
        peer.reply(connection.start(Method.READ, Empty(), other), Empty())
        await other.done()
        assert replies.calls == ["reply 5"]
        assert memory == bytes(5)
        await connection.aclose()


async def test_a_real_server_answers_on_both_transports(short_directory: Path) -> None:
    async with serving(short_directory, {Method.STATS: unary(Empty, stats)}) as served:
        for kind in ("tcp", "unix"):
            connection = await served.connect(kind)
            assert str(connection.address) == str(served.address(kind))
            assert await connection.call(Method.STATS, Empty(), StatsReply, timeout_s=WAIT_S) == StatsReply(
                {"answered": 1}
            )
            await connection.aclose()
