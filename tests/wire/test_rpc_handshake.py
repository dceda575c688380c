"""Whoever does not shake hands as agreed is shown out with a logged reason, and the server goes on."""

import asyncio
import random
import struct
from pathlib import Path

import pytest

from esker.wire import rpc_server
from esker.wire.codec import decode_body, encode_body
from esker.wire.errors import ConnectionFailed, RequestFailed
from esker.wire.framing import HEADER, MAGIC, Kind, encode
from esker.wire.limits import BODY_BYTES_MAX, PAYLOAD_BYTES_MAX
from esker.wire.messages import PROTOCOL_VERSION, Empty, Failure, Hello, HelloReply, Method, StatsReply
from esker.wire.rpc_client import Connection
from esker.wire.rpc_server import ServerConnection, unary
from esker.wire.status import Status

from ..waiting import until
from .peers import IDENTITY, WAIT_S, BarePeer, Served, serving
from .streams import noise

HELLO = Hello((PROTOCOL_VERSION,), "", "client", "", "")
NESTED = b"\x91" * 5000


async def stats(request: Empty) -> StatsReply:
    return StatsReply({"answered": 1})


HANDLERS = {Method.STATS: unary(Empty, stats)}
kinds = pytest.mark.parametrize("kind", ["tcp", "unix"])


async def check_alive(served: Served) -> None:
    connection = await served.connect()
    reply = await connection.call(Method.STATS, Empty(), StatsReply, timeout_s=WAIT_S)
    assert reply.counters == {"answered": 1}
    await connection.aclose()


@kinds
async def test_both_sides_learn_who_the_other_is(kind: str, short_directory: Path) -> None:
    seen: list[ServerConnection] = []
    async with serving(short_directory, HANDLERS, on_connect=seen.append) as served:
        connection = await served.connect(
            kind, role="worker", cluster_id="cluster-1", peer_id="drive-2", incarnation="life-2"
        )
        assert connection.peer == HelloReply(
            PROTOCOL_VERSION, IDENTITY.cluster_id, IDENTITY.drive_id, IDENTITY.incarnation
        )
        assert connection.local == (kind == "unix")
        [accepted] = seen
        assert accepted.hello == Hello((PROTOCOL_VERSION,), "cluster-1", "worker", "drive-2", "life-2")
        assert accepted.local == (kind == "unix")
        await connection.aclose()


@kinds
async def test_another_cluster_is_refused_by_name(kind: str, short_directory: Path) -> None:
    async with serving(short_directory) as served:
        with pytest.raises(RequestFailed, match=r"WRONG_CLUSTER: this is cluster cluster-1") as failure:
            await served.connect(kind, cluster_id="cluster-2")
        assert failure.value.status is Status.WRONG_CLUSTER


async def test_versions_are_negotiated(short_directory: Path) -> None:
    async with serving(short_directory) as served:
        peer = await BarePeer.connect(served.tcp)
        peer.request(Method.HELLO, 5, Hello((9, PROTOCOL_VERSION, 7), "", "client", "", ""))
        answer = await peer.frame()
        assert (answer.kind, answer.code, answer.request_id) == (Kind.REPLY, Status.OK, 5)
        assert decode_body(HelloReply, answer.body).version == PROTOCOL_VERSION
        peer.close()


async def test_a_peer_of_other_versions_is_told_ours(short_directory: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with serving(short_directory) as served:
        peer = await BarePeer.connect(served.tcp)
        peer.request(Method.HELLO, 5, Hello((7, 9), "", "client", "", ""))
        answer = await peer.frame()
        assert answer.code == Status.UNSUPPORTED_VERSION
        assert decode_body(Failure, answer.body).message == f"this side speaks version {PROTOCOL_VERSION}"
        assert await peer.ended() == b""
        assert "the peer speaks versions (7, 9), this side 1" in caplog.text
        peer.close()


def header(
    version: int = PROTOCOL_VERSION, kind: int = Kind.REQUEST, body_bytes: int = 0, payload_bytes: int = 0
) -> bytes:
    return HEADER.pack(MAGIC, version, kind, Method.HELLO, 1, body_bytes, 0, payload_bytes)


@kinds
@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", "bad magic 0x20544547"),
        (bytes(100), "bad magic 0x00000000"),
        (noise(10_000), "bad magic"),
        (header(version=2), "protocol version 2; this side speaks 1"),
        (header(kind=9), "unknown frame kind 9"),
        (header(kind=Kind.REPLY), "a frame of kind 2 where a request was due"),
        (header(body_bytes=BODY_BYTES_MAX + 1), f"body of {BODY_BYTES_MAX + 1} bytes; allowed: {BODY_BYTES_MAX}"),
        (header(payload_bytes=PAYLOAD_BYTES_MAX + 1), f"payload of {PAYLOAD_BYTES_MAX + 1} bytes"),
        (header(payload_bytes=2**64 - 1), "payload of 18446744073709551615 bytes"),
        (
            encode(Kind.REQUEST, Method.STATS, 1, encode_body(Empty())),
            f"method {int(Method.STATS)} before the handshake",
        ),
        (encode(Kind.REQUEST, Method.HELLO, 1, b""), "malformed handshake: malformed Hello"),
        (encode(Kind.REQUEST, Method.HELLO, 1, b"\xff" * 40), "malformed handshake: malformed Hello"),
        (encode(Kind.REQUEST, Method.HELLO, 1, encode_body(Empty())), "malformed handshake: malformed Hello"),
        (encode(Kind.REQUEST, Method.HELLO, 1, encode_body(HELLO)[:-1]), "malformed handshake: malformed Hello"),
        (encode(Kind.REQUEST, Method.HELLO, 1, b"\x97" + encode_body(HELLO)[1:] + NESTED), "malformed handshake"),
    ],
    ids=lambda value: None if isinstance(value, bytes) else value[:40],
)
async def test_whoever_speaks_otherwise_is_shown_out(
    kind: str, said: bytes, reason: str, short_directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(short_directory, HANDLERS) as served:
        peer = await BarePeer.connect(served.address(kind))
        peer.give(said)
        assert await peer.ended() == b""
        assert "closed a connection: the peer broke the protocol" in caplog.text
        assert reason in caplog.text
        await check_alive(served)
        peer.close()


@kinds
@pytest.mark.parametrize(
    "said", [b"", encode(Kind.REQUEST, Method.HELLO, 1, encode_body(HELLO))[:-1]], ids=["nothing", "not all"]
)
async def test_whoever_does_not_finish_the_handshake_in_time_is_shown_out(
    kind: str,
    said: bytes,
    short_directory: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rpc_server, "HANDSHAKE_TIMEOUT_S", 0.05)
    async with serving(short_directory, HANDLERS) as served:
        peer = await BarePeer.connect(served.address(kind))
        peer.give(said)
        assert await peer.ended() == b""
        assert "no handshake within 0 s" in caplog.text
        monkeypatch.undo()
        await check_alive(served)
        peer.close()


async def test_the_handshakes_timeout_is_over_with_it(short_directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rpc_server, "HANDSHAKE_TIMEOUT_S", 0.05)
    async with serving(short_directory, HANDLERS) as served:
        connection = await served.connect()
        silent = await BarePeer.connect(served.tcp)
        await silent.ended()  # by then the greeted connection's time would be up too
        await connection.call(Method.STATS, Empty(), StatsReply, timeout_s=WAIT_S)
        await connection.aclose()
        silent.close()


async def test_whoever_goes_away_during_the_handshake_leaves_nothing(short_directory: Path) -> None:
    async with serving(short_directory, HANDLERS) as served:
        for end in (BarePeer.close, BarePeer.abort):
            peer = await BarePeer.connect(served.tcp)
            peer.give(header(body_bytes=100) + b"part")
            end(peer)
        await until(lambda: not served.server._connections, "the end of all connections")
        await check_alive(served)


async def test_a_payload_with_the_handshake_is_thrown_away(short_directory: Path) -> None:
    async with serving(short_directory, HANDLERS) as served:
        peer = await BarePeer.connect(served.tcp)
        peer.request(Method.HELLO, 1, HELLO, payload=noise(100_000))
        peer.request(Method.STATS, 2, Empty())
        assert [(await peer.frame()).request_id for _ in range(2)] == [1, 2]
        peer.close()


def fuzzed(seed: int) -> bytes:
    """True frames with a few bytes changed, cut out or put in."""
    choose = random.Random(seed)
    text = bytearray(
        encode(Kind.REQUEST, Method.HELLO, 1, encode_body(HELLO))
        + b"".join(encode(Kind.REQUEST, choose.randrange(80), number, choose.randbytes(20)) for number in range(4))
    )
    for _ in range(choose.randint(1, 4)):
        at = choose.randrange(len(text))
        text[at : at + choose.randint(0, 3)] = choose.randbytes(choose.randint(0, 3))
    return bytes(text)


async def test_fuzzed_frames_never_hurt_the_server(short_directory: Path) -> None:
    async with serving(short_directory, HANDLERS) as served:
        for seed in range(300):
            peer = await BarePeer.connect(served.address("unix" if seed % 2 else "tcp"))
            peer.give(fuzzed(seed))
            peer.abort() if seed % 3 else peer.close()
        await until(lambda: not served.server._connections, "the end of all connections")
        await check_alive(served)


async def test_too_many_connections_are_refused(
    short_directory: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rpc_server, "CONNECTIONS_MAX", 2)
    async with serving(short_directory, HANDLERS) as served:
        kept = [await served.connect() for _ in range(2)]
        with pytest.raises(ConnectionFailed, match=f"{served.tcp} accepted the connection but did not shake hands"):
            await served.connect()
        assert "refused a connection: too many" in caplog.text
        await kept[0].aclose()
        await until(lambda: len(served.server._connections) == 1, "the end of a connection")
        peer = await BarePeer.greeted(served.tcp)
        peer.close()
        await kept[1].aclose()


async def test_a_workers_newer_connection_ends_its_older_ones(short_directory: Path) -> None:
    async with serving(short_directory, HANDLERS) as served:
        older = await BarePeer.greeted(served.tcp, "worker", "drive-2")
        others = [
            await served.connect(role="worker", peer_id="drive-3"),
            await served.connect(role="client"),
            await served.connect(role="client"),
        ]
        newer = await BarePeer.greeted(served.unix, "worker", "drive-2")
        assert await older.ended() == b""
        for connection in others:
            await connection.call(Method.STATS, Empty(), StatsReply, timeout_s=WAIT_S)
            await connection.aclose()
        newer.request(Method.STATS, 1, Empty())
        assert (await newer.frame()).code == Status.OK
        older.close()
        newer.close()


async def test_what_a_worker_still_had_on_its_way_on_the_older_connection_is_dropped(short_directory: Path) -> None:
    arrived: list[str] = []

    async def note(request: Empty) -> Empty:
        arrived.append("request")
        return Empty()

    async with serving(short_directory, {Method.REMOVE: unary(Empty, note)}) as served:
        older = await BarePeer.greeted(served.unix, "worker", "drive-2")
        text = encode(Kind.REQUEST, Method.REMOVE, 1, encode_body(Empty()))
        older.give(text[:-1])
        newer = await BarePeer.greeted(served.unix, "worker", "drive-2")
        older.give(text[-1:])
        await older.ended()
        newer.request(Method.REMOVE, 1, Empty())
        await newer.frame()
        assert arrived == ["request"]
        older.close()
        newer.close()


async def test_descriptor_numbers_are_reused_without_losing_events(short_directory: Path) -> None:
    numbers: list[int] = []
    async with serving(
        short_directory, HANDLERS, on_connect=lambda accepted: numbers.append(accepted.stream._fd)
    ) as served:
        for round_number in range(40):
            some: list[Connection] = await asyncio.gather(
                *(served.connect("unix" if round_number % 2 else "tcp") for _ in range(3))
            )
            calls = (c.call(Method.STATS, Empty(), StatsReply, timeout_s=WAIT_S) for c in some for _ in range(3))
            await asyncio.gather(*calls)
            for connection in some:
                await connection.aclose()
    assert len(set(numbers)) < len(numbers)


def test_the_magic_is_no_text() -> None:
    with pytest.raises(UnicodeDecodeError):
        struct.pack("<I", MAGIC).decode()
