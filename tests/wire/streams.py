"""A loop turned by hand and a handler that writes down what it hears, so that stream tests decide what happens when."""

import select
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

from esker.wire import framing
from esker.wire.errors import EskerError
from esker.wire.framing import Kind
from esker.wire.stream import FrameStream

WAIT_S = 10.0

Place = Callable[[int, int], Sequence[memoryview] | None]


class Timer:
    """What `call_later` gives."""

    def __init__(self, delay_s: float, callback: Callable[[], None]) -> None:
        self.delay_s = delay_s
        self.callback = callback
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class HandLoop:
    """The part of an event loop that a stream uses. Nothing happens but in `turn` and `until`."""

    def __init__(self) -> None:
        self.readers: dict[int, Callable[[], None]] = {}
        self.writers: dict[int, Callable[[], None]] = {}
        self.timers: list[Timer] = []

    def add_reader(self, fd: int, callback: Callable[[], None]) -> None:
        self.readers[fd] = callback

    def add_writer(self, fd: int, callback: Callable[[], None]) -> None:
        self.writers[fd] = callback

    def remove_reader(self, fd: int) -> bool:
        return self.readers.pop(fd, None) is not None

    def remove_writer(self, fd: int) -> bool:
        return self.writers.pop(fd, None) is not None

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Timer:
        self.timers.append(Timer(delay_s, callback))
        return self.timers[-1]

    def pending(self) -> list[Timer]:
        """Timers that are running."""
        return [timer for timer in self.timers if not timer.cancelled]

    def turn(self, timeout_s: float = 0) -> None:
        """Calls whoever is ready."""
        readable, writable, _ = select.select(list(self.readers), list(self.writers), [], timeout_s)
        for fd in readable:
            if fd in self.readers:
                self.readers[fd]()
        for fd in writable:
            if fd in self.writers:
                self.writers[fd]()

    def until(self, condition: Callable[[], bool]) -> None:
        """Turns until the condition holds."""
        deadline = time.monotonic() + WAIT_S
        while not condition():
            assert time.monotonic() < deadline, "nothing more happened"
            self.turn(0.1)


class Heard:
    """A frame handler that notes every call. `place` says where payload goes; without it, into fresh memory."""

    def __init__(self, place: Place | None = None) -> None:
        self.place = place or (lambda request_id, size: [memoryview(bytearray(size))])
        self.calls: list[str] = []
        self.frames: list[tuple[int, int, int, bytes, int]] = []
        self.payloads: list[bytes] = []
        self.ended: list[EskerError | None] = []
        self.on_frame: Callable[[int], None] = lambda request_id: None
        self.on_payload: Callable[[], None] = lambda: None
        self._segments: Sequence[memoryview] = ()

    def frame_received(
        self, kind: int, code: int, request_id: int, body: bytes | bytearray, payload_bytes: int
    ) -> Sequence[memoryview] | None:
        self.calls.append(f"frame {request_id}")
        self.frames.append((kind, code, request_id, bytes(body), payload_bytes))
        self.on_frame(request_id)
        segments = self.place(request_id, payload_bytes) if payload_bytes else None
        self._segments = segments or ()
        return segments

    def payload_received(self) -> None:
        self.calls.append("payload")
        self.payloads.append(b"".join(self._segments))
        self.on_payload()

    def stream_closed(self, error: EskerError | None) -> None:
        self.calls.append("closed")
        self.ended.append(error)


def unix_pair() -> tuple[socket.socket, socket.socket]:
    return socket.socketpair()


def tcp_pair() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        one = socket.create_connection(listener.getsockname())
        other, _ = listener.accept()
    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return one, other


PAIRS = {"unix": unix_pair, "tcp": tcp_pair}


class Ends:
    """A stream on a loop turned by hand, and the bare socket at its other end."""

    def __init__(self, kind: str, handler: Heard) -> None:
        self.loop = HandLoop()
        self.peer, sock = PAIRS[kind]()
        self.peer.settimeout(WAIT_S)
        self.heard = handler
        self.stream = FrameStream(sock, handler, cast(Any, self.loop))

    def give(self, data: bytes) -> None:
        """The peer sends `data`, and the stream takes it all."""
        self.peer.sendall(data)
        if data:
            self.loop.turn(WAIT_S)
            self.loop.turn()

    def until(self, condition: Callable[[], bool]) -> None:
        self.loop.until(condition)


@contextmanager
def ends(kind: str = "unix", handler: Heard | None = None) -> Iterator[Ends]:
    """Both ends, closed afterwards."""
    both = Ends(kind, handler or Heard())
    try:
        yield both
    finally:
        both.stream.close()
        both.peer.close()


def frame(request_id: int, body: bytes = b"", payload: bytes = b"", kind: int = Kind.REQUEST, code: int = 16) -> bytes:
    """A whole frame as it travels."""
    return framing.encode(kind, code, request_id, body, len(payload)) + payload


_NOISE = b"".join((number * 2654435761 % 2**32).to_bytes(4, "little") for number in range(16411))


def noise(size: int, seed: int = 1) -> bytes:
    """Bytes that differ from place to place, and from seed to seed."""
    start = seed * 4099 % len(_NOISE)
    return (_NOISE * ((start + size) // len(_NOISE) + 1))[start : start + size]
