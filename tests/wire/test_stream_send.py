"""What a stream sends: every byte in order, memory handed back once and not too soon, and stalled peers given up."""

import gc
import os
import socket
import struct
import sys

import pytest

from esker.wire.errors import ConnectionFailed
from esker.wire.framing import Kind, encode
from esker.wire.limits import HEADER_BYTES
from esker.wire.stream import IOV_MAX, STALL_S

from .streams import PAIRS, Ends, ends, frame, noise

both_kinds = pytest.mark.parametrize("kind", list(PAIRS))
BIG_BYTES = 6 * 1024 * 1024


def head(request_id: int, payload_bytes: int = 0, body: bytes = b"") -> bytes:
    """Header and body of a frame that is sent."""
    return encode(Kind.REQUEST, 16, request_id, body, payload_bytes)


def received(both: Ends, size: int) -> bytes:
    """What the peer gets, read while the loop turns."""
    data = bytearray()
    while len(data) < size:
        both.loop.turn()
        data += both.peer.recv(256 * 1024)
    return bytes(data)


def block(both: Ends) -> bytes:
    """Fills the connection until the kernel takes no more; returns what the peer will get."""
    payload = noise(BIG_BYTES, 77)
    both.stream.send(head(1000, len(payload)), [memoryview(payload)])
    assert both.loop.writers
    return frame(1000, b"", payload)


@both_kinds
def test_small_frames_go_out_at_once(kind: str) -> None:
    with ends(kind) as both:
        told: list[int] = []
        both.stream.send(head(1, 7, b"body"), [memoryview(b"pay"), memoryview(b"load")], lambda: told.append(1))
        assert told == [1]
        assert both.stream.queued_bytes == 0
        assert received(both, HEADER_BYTES + 11) == frame(1, b"body", b"payload")
        assert not both.loop.writers


@both_kinds
def test_a_slow_reader_gets_every_byte_and_memory_is_kept_until_the_kernel_took_it(kind: str) -> None:
    with ends(kind) as both:
        payload = bytearray(noise(BIG_BYTES))
        expected = frame(1, b"", bytes(payload)) + frame(2, b"after")
        told: list[str] = []

        def released() -> None:
            told.append("first")
            payload[:] = bytes(len(payload))  # may be used again, so it is

        both.stream.send(head(1, len(payload)), [memoryview(payload)], released)
        both.stream.send(head(2, 0, b"after"), (), lambda: told.append("second"))
        assert told == []
        assert 0 < both.stream.queued_bytes < len(expected)
        assert received(both, len(expected)) == expected
        both.until(lambda: told == ["first", "second"])
        assert both.stream.queued_bytes == 0
        assert not both.loop.writers


def test_more_segments_than_one_call_takes() -> None:
    with ends() as both:
        payload = noise(3 * IOV_MAX)
        segments = [memoryview(payload)[at : at + 1] for at in range(len(payload))]
        told: list[int] = []
        both.stream.send(head(1, len(payload)), segments, lambda: told.append(1))
        both.stream.send(head(2))
        assert received(both, 2 * HEADER_BYTES + len(payload)) == frame(1, b"", payload) + frame(2)
        assert told == [1]


def test_segments_with_nothing_in_them() -> None:
    with ends() as both:
        empty = memoryview(b"")
        told: list[int] = []
        both.stream.send(head(1), [empty] * (2 * IOV_MAX), lambda: told.append(1))
        both.stream.send(head(2, 1), [empty, memoryview(b"x"), empty])
        assert received(both, 2 * HEADER_BYTES + 1) == frame(1) + frame(2, b"", b"x")
        assert told == [1]


def test_frames_queued_behind_a_slow_reader_keep_their_order_and_are_released_in_it() -> None:
    with ends() as both:
        parts = [block(both)]
        told: list[int] = []
        for number in range(2000):
            payload = noise(number % 300, number)
            parts.append(frame(number, b"", payload))
            segments = [memoryview(payload)[:100], memoryview(payload)[100:]]
            both.stream.send(head(number, len(payload)), segments, lambda number=number: told.append(number))  # type: ignore[misc]
        assert told == []
        expected = b"".join(parts)
        assert received(both, len(expected)) == expected
        both.until(lambda: len(told) == 2000)
        assert told == list(range(2000))


def test_released_may_send_however_often() -> None:
    count = 3 * sys.getrecursionlimit()
    with ends() as both:
        order: list[int] = []

        def send(number: int) -> None:
            def released() -> None:
                order.append(number)
                if number + 1 < count:
                    send(number + 1)

            both.stream.send(head(number), (), released)

        send(0)
        expected = b"".join(frame(number) for number in range(count))
        assert received(both, len(expected)) == expected
        both.until(lambda: len(order) == count)
        assert order == list(range(count))


def test_released_may_close_the_stream() -> None:
    with ends() as both:
        expected = block(both)
        told: list[int] = []
        both.stream.send(head(1), (), lambda: (told.append(1), both.stream.close()))  # type: ignore[arg-type, return-value]
        both.stream.send(head(2), (), lambda: told.append(2))
        assert received(both, len(expected)).startswith(expected)
        both.until(lambda: both.stream.closed)
        assert told == [1, 2]
        assert both.heard.ended == [None]
        assert not both.loop.writers
        assert not both.loop.readers


def test_closing_hands_back_what_is_queued_once_and_sends_after_that_at_once() -> None:
    with ends() as both:
        block(both)
        told: list[int] = []
        for number in range(3):
            both.stream.send(head(number), (), lambda number=number: told.append(number))  # type: ignore[misc]
        error = ConnectionFailed("enough")
        both.stream.close(error)
        both.stream.close()
        assert told == [0, 1, 2]
        assert both.heard.ended == [error]
        both.stream.send(head(3), (), lambda: told.append(3))
        both.stream.send(head(4))
        assert told == [0, 1, 2, 3]


def test_nothing_is_kept_alive_once_it_is_sent() -> None:
    with ends() as both:
        payload = bytearray(100)
        both.stream.send(head(1, 100), [memoryview(payload)])
        received(both, HEADER_BYTES + 100)
        gc.collect()
        payload.clear()  # raises BufferError while a view of it is alive


@both_kinds
def test_a_peer_that_went_away_is_noticed_by_sending(kind: str) -> None:
    with ends(kind) as both:
        if kind == "tcp":
            both.peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        both.peer.close()
        told: list[int] = []
        sent = 0
        while not both.stream.closed and sent < 1000:
            both.stream.send(head(sent), (), lambda: told.append(1))
            sent += 1
        assert len(told) == sent
        [error] = both.heard.ended
        assert isinstance(error, ConnectionFailed)
        assert str(error).startswith("connection lost while sending: ")


def test_a_peer_that_takes_nothing_is_given_up() -> None:
    with ends() as both:
        told: list[int] = []
        block(both)
        both.stream.send(head(1), (), lambda: told.append(1))
        [timer] = both.loop.pending()
        assert timer.delay_s == STALL_S
        timer.callback()
        [error] = both.heard.ended
        assert isinstance(error, ConnectionFailed)
        assert str(error) == "the peer took no byte for 30 s"
        assert told == [1]


def test_a_peer_that_takes_a_little_is_given_more_time() -> None:
    with ends() as both:
        expected = block(both)
        [first] = both.loop.pending()
        got = received(both, 1_000_000)
        first.callback()
        assert not both.stream.closed
        got += received(both, len(expected) - len(got))
        both.until(lambda: not both.loop.writers)
        assert got == expected
        assert [timer for timer in both.loop.pending() if timer is not first] == []


def test_the_watch_for_stalls_ends_with_the_stream() -> None:
    with ends() as both:
        block(both)
        both.stream.close()
        assert both.loop.pending() == []


def test_a_child_process_closes_its_copy_and_leaves_the_loop_alone() -> None:
    with ends() as both:
        fd = both.stream._sock.fileno()
        both.stream.abandon_in_child()
        assert both.stream.closed
        assert fd in both.loop.readers
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(fd)
        assert both.heard.ended == []


def test_memory_that_is_gone_before_it_is_sent_ends_the_connection() -> None:
    with ends() as both:
        block(both)
        told: list[int] = []
        payload = memoryview(bytearray(10))
        both.stream.send(head(1, len(payload)), [payload], lambda: told.append(1))
        payload.release()
        with pytest.raises(ValueError, match="released"):
            received(both, 2 * BIG_BYTES)
        assert told == [1]
        assert both.stream.closed
        assert not both.loop.writers
