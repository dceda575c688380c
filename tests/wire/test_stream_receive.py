"""What a stream hears: whole frames however they are cut, payload where it was asked for, and one end."""

import socket
import struct
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from esker.wire.errors import ConnectionFailed, ProtocolError
from esker.wire.framing import Kind
from esker.wire.limits import BODY_BYTES_MAX, HEADER_BYTES
from esker.wire.stream import HEAD_BYTES, IOV_MAX

from .streams import PAIRS, Heard, ends, frame, noise

both_kinds = pytest.mark.parametrize("kind", list(PAIRS))

MESSAGES = [
    (1, b"first body", b"first payload"),
    (2, b"", b"P"),
    (3, b"no payload", b""),
    (4, b"", b""),
    (5, b"last", b"payload of the last"),
]
TEXT = b"".join(frame(*message) for message in MESSAGES)


def check_all(heard: Heard) -> None:
    assert [(f[2], f[3], f[4]) for f in heard.frames] == [(i, body, len(payload)) for i, body, payload in MESSAGES]
    assert heard.payloads == [payload for _, _, payload in MESSAGES if payload]
    assert heard.calls == ["frame 1", "payload", "frame 2", "payload", "frame 3", "frame 4", "frame 5", "payload"]


@both_kinds
def test_frames_cut_at_every_byte(kind: str) -> None:
    for cut in range(1, len(TEXT)):
        with ends(kind) as both:
            both.give(TEXT[:cut])
            both.give(TEXT[cut:])
            both.until(lambda: len(both.heard.calls) == 8)
            check_all(both.heard)


def test_frames_byte_by_byte() -> None:
    with ends() as both:
        for at in range(len(TEXT)):
            both.give(TEXT[at : at + 1])
        check_all(both.heard)


def cut_into(memory: bytearray, sizes: list[int]) -> list[memoryview]:
    """Consecutive segments of these sizes (and what is left) over `memory`."""
    view, segments, at = memoryview(memory), [], 0
    for size in sizes:
        segments.append(view[at : at + size])
        at += len(segments[-1])
    return [*segments, view[at:]]


@given(
    messages=st.lists(
        st.tuples(
            st.integers(0, 3 * HEAD_BYTES), st.integers(0, 3 * HEAD_BYTES), st.lists(st.integers(0, 5000), max_size=6)
        ),
        min_size=1,
        max_size=4,
    ),
    cuts=st.lists(st.integers(1, 40_000), max_size=8),
    thrown=st.sets(st.integers(0, 3)),
)
def test_any_frames_cut_anywhere_into_any_segments(
    messages: list[tuple[int, int, list[int]]], cuts: list[int], thrown: set[int]
) -> None:
    memory = {number: bytearray(size) for number, (_, size, _) in enumerate(messages)}
    heard = Heard(lambda number, size: None if number in thrown else cut_into(memory[number], messages[number][2]))
    text = b"".join(
        frame(number, noise(body, number), noise(payload, 100 + number))
        for number, (body, payload, _) in enumerate(messages)
    )
    with ends(handler=heard) as both:
        at = 0
        for cut in [*cuts, len(text)]:
            both.give(text[at : at + cut])
            at += cut
        both.until(lambda: len(heard.frames) == len(messages))
        landed = sum(size > 0 and number not in thrown for number, (_, size, _) in enumerate(messages))
        both.until(lambda: heard.calls.count("payload") == landed)
    for number, (body, payload, _) in enumerate(messages):
        assert heard.frames[number][3] == noise(body, number)
        assert memory[number] == (bytes(payload) if number in thrown else noise(payload, 100 + number))


def test_payload_lands_in_more_segments_than_one_call_takes() -> None:
    memory = bytearray(3 * IOV_MAX * 7)
    with ends(handler=Heard(lambda number, size: cut_into(memory, [7, 0] * (3 * IOV_MAX)))) as both:
        both.give(frame(1, b"b", noise(len(memory))) + frame(2))
        both.until(lambda: len(both.heard.frames) == 2)
        assert memory == noise(len(memory))
        assert both.heard.calls == ["frame 1", "payload", "frame 2"]


@pytest.mark.parametrize("size", [HEAD_BYTES - HEADER_BYTES, HEAD_BYTES, 10 * HEAD_BYTES + 1])
def test_bodies_that_the_head_buffer_does_not_hold(size: int) -> None:
    with ends() as both:
        for number in range(3):
            both.give(frame(number, noise(size, number), b"pay"))
        both.until(lambda: len(both.heard.payloads) == 3)
        assert [f[3] for f in both.heard.frames] == [noise(size, number) for number in range(3)]


def test_the_largest_body() -> None:
    with ends() as both:
        text = frame(1, bytes(BODY_BYTES_MAX - 1) + b"e", b"pay")
        for at in range(0, len(text), 64 * 1024):
            both.give(text[at : at + 64 * 1024])
        both.until(lambda: both.heard.payloads == [b"pay"])
        assert len(both.heard.frames[0][3]) == BODY_BYTES_MAX


def test_payload_nobody_wants_is_thrown_away_and_never_reported() -> None:
    wanted = bytearray(3)
    heard = Heard(lambda number, size: [memoryview(wanted)] if number == 1 else None)
    with ends(handler=heard) as both:
        both.give(frame(1, b"", b"abc") + frame(2, b"", noise(50_000)) + frame(3))
        both.until(lambda: len(heard.frames) == 3)
        assert heard.calls == ["frame 1", "payload", "frame 2", "frame 3"]


def test_payload_discarded_in_the_middle_touches_its_memory_no_more() -> None:
    memory = bytearray(20_000)
    payload = noise(len(memory))
    heard = Heard(lambda number, size: cut_into(memory, [9_000]))
    with ends(handler=heard) as both:
        text = frame(1, b"", payload)
        both.give(text[: HEADER_BYTES + 12_345])
        assert memory[:12_345] == payload[:12_345]
        memory[:] = bytes(len(memory))
        both.stream.discard_payload()
        both.give(text[HEADER_BYTES + 12_345 :] + frame(2))
        both.until(lambda: len(heard.frames) == 2)
        assert memory == bytes(len(memory))
        assert heard.calls == ["frame 1", "frame 2"]


def test_discarding_between_frames_and_while_a_body_arrives_changes_nothing() -> None:
    with ends() as both:
        both.stream.discard_payload()
        text = frame(1, noise(20_000), b"payload")
        both.give(text[:10_000])
        both.stream.discard_payload()
        both.give(text[10_000:])
        both.until(lambda: both.heard.payloads == [b"payload"])
        assert both.heard.frames[0][3] == noise(20_000)


@pytest.mark.parametrize("where", ["frame", "payload"])
def test_a_handler_may_close_the_stream(where: str) -> None:
    with ends() as both:
        if where == "frame":
            both.heard.on_frame = lambda request_id: both.stream.close()
        else:
            both.heard.on_payload = both.stream.close
        both.peer.sendall(frame(1, b"", b"payload") + frame(2))
        both.until(lambda: bool(both.heard.ended))
        assert both.heard.calls == (["frame 1", "closed"] if where == "frame" else ["frame 1", "payload", "closed"])
        assert both.heard.ended == [None]
        assert not both.loop.readers
        assert both.peer.recv(1) == b""


def raising(error: Exception) -> Callable[[int], None]:
    def raise_it(request_id: int) -> None:
        raise error

    return raise_it


def test_a_handler_ends_the_stream_with_an_error_of_ours() -> None:
    error = ProtocolError("no")
    with ends() as both:
        both.heard.on_frame = raising(error)
        both.give(frame(1) + frame(2))
        assert both.heard.calls == ["frame 1", "closed"]
        assert both.heard.ended == [error]


def test_a_bug_in_a_handler_ends_the_stream_and_is_not_swallowed() -> None:
    with ends() as both:
        both.heard.on_frame = raising(ZeroDivisionError("oops"))
        with pytest.raises(ZeroDivisionError):
            both.give(frame(1))
        [error] = both.heard.ended
        assert isinstance(error, ConnectionFailed)
        assert "oops" in str(error)


def test_memory_that_does_not_cover_the_payload_is_a_bug_of_ours() -> None:
    with ends(handler=Heard(lambda number, size: [memoryview(bytearray(size - 1))])) as both:
        with pytest.raises(AssertionError, match="memory for the whole payload"):
            both.give(frame(1, b"", b"payload"))
        assert len(both.heard.ended) == 1


@both_kinds
def test_garbage_ends_the_stream_with_what_was_found(kind: str) -> None:
    with ends(kind) as both:
        both.give(frame(1) + b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        both.until(lambda: bool(both.heard.ended))
        assert isinstance(both.heard.ended[0], ProtocolError)
        assert "bad magic" in str(both.heard.ended[0])
        assert both.heard.calls == ["frame 1", "closed"]


@both_kinds
def test_an_end_between_frames_is_no_error(kind: str) -> None:
    with ends(kind) as both:
        both.give(frame(1, b"b", b"p"))
        both.peer.shutdown(socket.SHUT_WR)
        both.until(lambda: bool(both.heard.ended))
        assert both.heard.ended == [None]
        assert both.stream.closed


@both_kinds
@pytest.mark.parametrize("cut", [1, HEADER_BYTES, HEADER_BYTES + 1, HEADER_BYTES + 9_999, HEADER_BYTES + 10_000, -1])
def test_an_end_inside_a_frame_is_an_error(kind: str, cut: int) -> None:
    with ends(kind) as both:
        both.give(frame(1, noise(10_000), b"payload")[:cut])
        both.peer.shutdown(socket.SHUT_WR)
        both.until(lambda: bool(both.heard.ended))
        [error] = both.heard.ended
        assert isinstance(error, ConnectionFailed)
        assert str(error) == "the peer closed the connection inside a frame"
        assert both.heard.payloads == []


def test_a_reset_is_an_error_that_says_so() -> None:
    with ends("tcp") as both:
        both.give(frame(1))
        both.peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        both.peer.close()
        both.until(lambda: bool(both.heard.ended))
        assert isinstance(both.heard.ended[0], ConnectionFailed)
        assert str(both.heard.ended[0]) == "connection lost: Connection reset by peer"


def test_replies_and_codes_are_handed_on_as_they_are() -> None:
    with ends() as both:
        both.give(frame(2**64 - 1, b"", b"", Kind.PARTIAL, 65535))
        assert both.heard.frames == [(Kind.PARTIAL, 65535, 2**64 - 1, b"", 0)]
