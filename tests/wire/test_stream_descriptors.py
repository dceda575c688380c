"""Descriptors that travel with frames over Unix sockets: there no later than their frame, bounded, never leaked."""

import array
import os
import socket
from collections.abc import Iterator
from typing import Any, cast

import pytest

from esker.wire.errors import ProtocolError
from esker.wire.framing import Kind, encode
from esker.wire.stream import FDS_MAX, FrameStream

from .streams import Heard, ends, frame, noise


@pytest.fixture
def descriptors() -> Iterator[list[int]]:
    """Six different memory files."""
    fds = [os.memfd_create(f"f{number}") for number in range(6)]
    yield fds
    for fd in fds:
        os.close(fd)


def open_files() -> set[tuple[int, int]]:
    """(descriptor, inode) of everything that is open."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            found.add((int(name), os.fstat(int(name)).st_ino))
        except OSError:
            continue  # the descriptor by which the directory was listed
    return found


def pass_on(peer: socket.socket, data: bytes, fds: list[int]) -> None:
    peer.sendmsg([data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))])


def test_a_descriptor_is_there_with_its_frame_and_belongs_to_whoever_takes_it(descriptors: list[int]) -> None:
    with ends() as both:
        sender = FrameStream(both.peer, Heard(), cast(Any, both.loop))
        taken: list[int | None] = []
        both.heard.on_frame = lambda request_id: taken.append(both.stream.take_fd() if request_id == 2 else None)
        sender.send(encode(Kind.REQUEST, 3, 1, b""))
        sender.send(encode(Kind.REQUEST, 3, 2, b""), fds=(descriptors[0],))
        sender.send(encode(Kind.REQUEST, 3, 3, b""))
        both.until(lambda: len(taken) == 3)
        fd = taken[1]
        assert fd is not None
        assert os.path.samestat(os.fstat(fd), os.fstat(descriptors[0]))
        assert not os.get_inheritable(fd)
        assert both.stream.take_fd() is None
        both.stream.close()
        os.close(fd)  # still open: it is ours
        sender.close()


def test_a_descriptor_waits_in_the_queue_for_its_own_frame(descriptors: list[int]) -> None:
    with ends() as both:
        sender = FrameStream(both.peer, Heard(), cast(Any, both.loop))
        taken: dict[int, int | None] = {}
        both.heard.on_frame = lambda request_id: taken.update({request_id: both.stream.take_fd()})
        payload = noise(4_000_000)
        sender.send(encode(Kind.REQUEST, 3, 1, b"", len(payload)), [memoryview(payload)])
        sender.send(encode(Kind.REQUEST, 3, 2, b""), fds=(descriptors[0],))
        sender.send(encode(Kind.REQUEST, 3, 3, b""), fds=(descriptors[1],))
        sender.send(encode(Kind.REQUEST, 3, 4, b""))
        assert sender.queued_bytes
        both.until(lambda: len(taken) == 4)
        assert both.heard.payloads == [payload]
        assert taken[1] is None
        assert taken[4] is None
        for request_id, number in ((2, 0), (3, 1)):
            fd = taken[request_id]
            assert fd is not None
            assert os.path.samestat(os.fstat(fd), os.fstat(descriptors[number]))
            os.close(fd)
        sender.close()


def test_descriptors_come_in_the_order_in_which_they_were_sent(descriptors: list[int]) -> None:
    with ends() as both:
        pass_on(both.peer, frame(1), descriptors[:FDS_MAX])
        both.until(lambda: len(both.heard.frames) == 1)
        for expected in descriptors[:FDS_MAX]:
            fd = both.stream.take_fd()
            assert fd is not None
            assert os.path.samestat(os.fstat(fd), os.fstat(expected))
            os.close(fd)
        assert both.stream.take_fd() is None


@pytest.mark.parametrize("at_once", [True, False])
def test_more_descriptors_than_allowed_end_the_connection_and_none_leaks(descriptors: list[int], at_once: bool) -> None:
    before = open_files()
    with ends() as both:
        if at_once:
            pass_on(both.peer, frame(1), descriptors[: FDS_MAX + 1])
        else:
            for number in range(FDS_MAX + 1):
                pass_on(both.peer, frame(number), [descriptors[number]])
        both.until(lambda: bool(both.heard.ended))
        assert isinstance(both.heard.ended[0], ProtocolError)
        assert str(both.heard.ended[0]) == "the peer passed too many descriptors"
    assert open_files() == before


def test_descriptors_that_nobody_took_are_closed_with_the_stream(descriptors: list[int]) -> None:
    before = open_files()
    with ends() as both:
        pass_on(both.peer, frame(1), descriptors[:2])
        both.until(lambda: len(both.heard.frames) == 1)
        assert len(open_files()) == len(before) + 4
    assert open_files() == before


def test_a_tcp_connection_has_none() -> None:
    with ends("tcp") as both:
        both.give(frame(1))
        both.until(lambda: len(both.heard.frames) == 1)
        assert both.stream.take_fd() is None


def test_the_peer_of_a_unix_socket_is_known() -> None:
    with ends() as both:
        assert both.stream.peer_pid() == os.getpid()
        assert both.stream.peer_uid() == os.getuid()
