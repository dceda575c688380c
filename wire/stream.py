"""Frames over one connected, non-blocking socket on the loop. Knows framing, not what frames mean.

Payload lands straight in the memory that the handler names; what is sent is never copied, and its owner is told
when the kernel has taken it (or the connection is gone), which is when the memory may be used again. asyncio's
transports are not used because they cannot tell that moment.

Concurrency: everything runs on the loop's thread; callbacks may close the stream at any point, so each is followed
by a check. A closed descriptor is always unregistered first: the loop would lose events of its successor.
"""

import array
import asyncio
import os
import socket
import struct
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Protocol

from esker.wire import framing
from esker.wire.errors import ConnectionFailed, EskerError, ProtocolError
from esker.wire.limits import HEADER_BYTES, SEND_BATCH_BYTES

HEAD_BYTES = 8192
"""Small: what follows a header in this buffer is payload that must be copied out of it."""
IOV_MAX = 512
STALL_S = 30.0
"""A peer that takes no byte for this long, while some wait for it, is given up."""
FDS_MAX = 4

_HEADER, _BODY, _PAYLOAD = range(3)
_SCRATCH = memoryview(bytearray(256 * 1024))
_FDS_SPACE = socket.CMSG_SPACE(FDS_MAX * array.array("i").itemsize)
_CLOEXEC, _TRUNCATED = int(socket.MSG_CMSG_CLOEXEC), int(socket.MSG_CTRUNC)  # the enum costs more than the call

Released = Callable[[], None]


class FrameHandler(Protocol):
    """What a stream needs from its owner."""

    def frame_received(
        self, kind: int, code: int, request_id: int, body: bytes | bytearray, payload_bytes: int
    ) -> Sequence[memoryview] | None:
        """A header and body are here. Returns where the payload goes (covering it exactly), or None: throw it away."""

    def payload_received(self) -> None:
        """The payload of the last frame for which memory was named is complete."""

    def stream_closed(self, error: EskerError | None) -> None:
        """The last call: the connection ended. None: this side closed it, or the peer did between frames."""


class FrameStream:
    """Sends and receives frames on `sock`, which it owns."""

    def __init__(self, sock: socket.socket, handler: FrameHandler, loop: asyncio.AbstractEventLoop) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._fd = sock.fileno()
        self._handler = handler
        self._loop = loop
        self._unix = sock.family == socket.AF_UNIX
        self.closed = False
        self._head = bytearray(HEAD_BYTES)
        self._head_view = memoryview(self._head)
        self._head_start = 0
        self._head_end = 0
        self._phase = _HEADER
        self._header = (0, 0, 0, 0)  # kind, code, request id, payload length of the present frame
        self._body: bytes | bytearray = b""
        self._left = 0  # bytes of the present body or payload that are still to come
        self._segments: deque[memoryview] = deque()  # where they go; empty: nowhere
        self._landing = False  # the handler wants the present payload
        self._fds: list[int] = []
        self._queue: deque[_Outgoing] = deque()
        self._writing = False
        self._flushing = False
        self._stalled: asyncio.TimerHandle | None = None
        self._progress = 0
        self.queued_bytes = 0
        loop.add_reader(self._fd, self._readable)

    # Sending

    def send(
        self,
        head: bytes,
        payload: Sequence[memoryview] = (),
        released: Released | None = None,
        fds: Sequence[int] = (),
    ) -> None:
        """Queues a frame (`head` is header and body) and sends what the kernel takes at once.

        `released` is called exactly once, when neither the kernel nor this stream needs the payload's memory.
        """
        if self.closed:
            if released is not None:
                released()
            return
        outgoing = _Outgoing(head, payload, released, fds)
        self.queued_bytes += outgoing.left_bytes
        self._queue.append(outgoing)
        if not self._writing and not self._flushing:
            self._flush()

    def _flush(self) -> None:
        self._flushing = True  # what `released` callbacks send is queued: the loop below takes it along
        try:
            self._send_queued()
        finally:
            self._flushing = False
        if not self.closed and bool(self._queue) != self._writing:
            self._writing = bool(self._queue)
            if self._writing:
                self._loop.add_writer(self._fd, self._flush)
                self._watch_stall()
            else:
                self._loop.remove_writer(self._fd)
                if self._stalled is not None:
                    self._stalled.cancel()
                    self._stalled = None

    def _send_queued(self) -> None:
        """Sends until the kernel takes no more, or nothing is left, or the connection is gone."""
        queue = self._queue
        while queue:
            buffers: list[bytes | memoryview] = []
            size = 0
            fds: Sequence[int] = ()
            for outgoing in queue:
                if outgoing.fds:
                    if buffers:
                        break
                    fds = outgoing.fds
                buffers += outgoing.buffers
                size += outgoing.left_bytes
                if fds or size >= SEND_BATCH_BYTES or len(buffers) >= IOV_MAX:
                    break
            try:
                sent = self._sendmsg(buffers[:IOV_MAX], fds)
            except BlockingIOError:
                return
            except OSError as error:
                self.close(ConnectionFailed(f"connection lost while sending: {error.strerror}"))
                return
            except BaseException as error:
                self.close(ConnectionFailed(f"a bug on this side: {error!r}"))  # rather than try the same for ever
                raise
            self._progress += sent
            self.queued_bytes -= sent
            for done in self._account(sent):
                done()
            if self.closed:
                return

    def _sendmsg(self, buffers: Sequence[bytes | memoryview], fds: Sequence[int]) -> int:
        if fds:
            ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))]
            return self._sock.sendmsg(buffers, ancillary)
        return self._sock.sendmsg(buffers)

    def _account(self, sent: int) -> list[Released]:
        """Takes `sent` bytes off the queue. Returns whom to tell, once the queue is consistent again."""
        queue = self._queue
        told: list[Released] = []
        while sent:
            outgoing = queue[0]
            outgoing.fds = ()
            if sent < outgoing.left_bytes:
                outgoing.advance(sent)
                break
            sent -= outgoing.left_bytes
            queue.popleft()
            if outgoing.released is not None:
                told.append(outgoing.released)
        return told

    def _watch_stall(self) -> None:
        before = self._progress

        def check() -> None:
            if self._progress == before:
                self.close(ConnectionFailed(f"the peer took no byte for {STALL_S:.0f} s"))
            else:
                self._watch_stall()

        self._stalled = self._loop.call_later(STALL_S, check)

    # Receiving

    def take_fd(self) -> int | None:
        """The oldest descriptor received and not taken yet; the caller owns it."""
        return self._fds.pop(0) if self._fds else None

    def discard_payload(self) -> None:
        """What is still to come of the present payload is thrown away; its memory is free from now on."""
        if self._phase == _PAYLOAD:
            self._segments.clear()
            self._landing = False

    def _readable(self) -> None:
        budget = SEND_BATCH_BYTES
        while budget > 0 and not self.closed:
            buffers = self._destinations()
            try:
                received = self._receive(buffers)
            except BlockingIOError:
                return
            except OSError as error:
                self.close(ConnectionFailed(f"connection lost: {error.strerror}"))
                return
            if received == 0:
                within = self._phase != _HEADER or self._head_end > 0
                self.close(ConnectionFailed("the peer closed the connection inside a frame") if within else None)
                return
            try:
                self._received(received)
                self._parse()
            except EskerError as error:
                self.close(error)
                return
            except BaseException as error:
                self.close(ConnectionFailed(f"a bug on this side: {error!r}"))  # rather than leave the peer waiting
                raise
            if received < sum(map(len, buffers)):
                return
            budget -= received

    def _destinations(self) -> list[memoryview]:
        if not self._left:
            return [self._head_view[self._head_end :]]
        if not self._segments:
            return [_SCRATCH[: self._left]]
        buffers = list(islice(self._segments, IOV_MAX))
        if len(buffers) == len(self._segments):
            buffers.append(self._head_view)
        return buffers

    def _receive(self, buffers: list[memoryview]) -> int:
        if not self._unix:
            if len(buffers) == 1:
                return self._sock.recv_into(buffers[0])
            return self._sock.recvmsg_into(buffers)[0]
        received, ancillary, flags, _ = self._sock.recvmsg_into(buffers, _FDS_SPACE, _CLOEXEC)
        for level, kind, data in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                fds = array.array("i")
                fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
                self._fds += fds
        if flags & _TRUNCATED or len(self._fds) > FDS_MAX:
            self.close(ProtocolError("the peer passed too many descriptors"))
        return received

    def _received(self, received: int) -> None:
        into = min(received, self._left)
        if into:
            self._fill(into)
        self._head_end += received - into

    def _fill(self, count: int) -> None:
        """`count` more bytes of the present body or payload are where they belong."""
        self._left -= count
        segments = self._segments
        while count and segments:
            first = segments[0]
            if count < len(first):
                segments[0] = first[count:]
                return
            count -= len(first)
            segments.popleft()

    def _parse(self) -> None:
        """Advances through all that is complete."""
        while not self.closed:
            if self._left:
                if self._head_start == self._head_end:
                    self._head_start = self._head_end = 0
                    return
                self._move_from_head()
            elif self._phase == _HEADER:
                if not self._next_header():
                    return
            elif self._phase == _BODY:
                body, self._body = self._body, b""
                self._frame_complete(body)
            else:
                self._phase = _HEADER
                if self._landing:
                    self._handler.payload_received()

    def _move_from_head(self) -> None:
        """Bytes that came along with the header go where they belong."""
        count = min(self._left, self._head_end - self._head_start)
        if self._segments:
            count = min(count, len(self._segments[0]))
            self._segments[0][:count] = self._head_view[self._head_start : self._head_start + count]
        self._head_start += count
        self._fill(count)

    def _next_header(self) -> bool:
        start, end = self._head_start, self._head_end
        if end - start < HEADER_BYTES:
            self._head_view[: end - start] = self._head_view[start:end]
            self._head_start, self._head_end = 0, end - start
            return False
        kind, code, request_id, body_bytes, payload_bytes = framing.decode(self._head, start)
        start += HEADER_BYTES
        self._header = (kind, code, request_id, payload_bytes)
        if body_bytes <= end - start:
            self._head_start = start + body_bytes
            self._frame_complete(bytes(self._head_view[start : self._head_start]))
        else:
            self._head_start = start
            self._body = bytearray(body_bytes)
            self._segments.append(memoryview(self._body))
            self._left = body_bytes
            self._phase = _BODY
        return True

    def _frame_complete(self, body: bytes | bytearray) -> None:
        kind, code, request_id, payload_bytes = self._header
        self._phase = _PAYLOAD if payload_bytes else _HEADER
        self._left = payload_bytes
        self._landing = False
        segments = self._handler.frame_received(kind, code, request_id, body, payload_bytes)
        if payload_bytes and not self.closed:
            self._landing = segments is not None
            if segments is not None:
                assert sum(map(len, segments)) == payload_bytes, "the handler must name memory for the whole payload"
                self._segments.extend(segment for segment in segments if segment)

    # Closing

    def close(self, error: EskerError | None = None) -> None:
        """Closes at once; what is queued is dropped. Safe to call again."""
        if self.closed:
            return
        self.closed = True
        self._loop.remove_reader(self._fd)
        self._loop.remove_writer(self._fd)
        if self._stalled is not None:
            self._stalled.cancel()
        self._sock.close()
        for fd in self._fds:
            os.close(fd)
        self._fds.clear()
        self._segments.clear()
        queue, self._queue = self._queue, deque()
        for outgoing in queue:
            if outgoing.released is not None:
                outgoing.released()
        self._handler.stream_closed(error)

    def abandon_in_child(self) -> None:
        """In a forked child: closes its copy of the socket. The loop is the parent's too, so it is left alone."""
        self.closed = True
        self._sock.close()

    def peer_pid(self) -> int:
        """Process id of the peer of a Unix socket."""
        return _credentials(self._sock)[0]

    def peer_uid(self) -> int:
        """User id of the peer of a Unix socket."""
        return _credentials(self._sock)[1]


def _credentials(sock: socket.socket) -> tuple[int, int]:
    pid, uid, _ = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return pid, uid


class _Outgoing:
    """A frame that is being sent."""

    __slots__ = ("buffers", "fds", "left_bytes", "released")

    def __init__(
        self, head: bytes, payload: Sequence[memoryview], released: Released | None, fds: Sequence[int]
    ) -> None:
        self.buffers: list[bytes | memoryview] = [head, *payload]
        self.left_bytes = sum(map(len, self.buffers))
        self.released = released
        self.fds = fds

    def advance(self, sent: int) -> None:
        """The kernel took `sent` bytes, fewer than are left."""
        self.left_bytes -= sent
        for index, buffer in enumerate(self.buffers):
            if sent < len(buffer):
                del self.buffers[:index]
                self.buffers[0] = memoryview(buffer)[sent:]
                return
            sent -= len(buffer)
