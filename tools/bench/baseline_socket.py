"""The baseline `socket`: blocks over one raw loopback TCP stream between two processes, with nothing else in them.

Run as a module it is one of the two ends, which its parent drives (`tools/child.py`). The sender sends blocks for as
long as it was told; the receiver times each whole block into the same buffer.
"""

import asyncio
import socket
import struct
import time

import msgspec

from esker.tools.bench.result import Measured, flow_of
from esker.tools.child import Child, run_child
from esker.tools.running import all_or_none
from esker.wire.errors import ConnectionFailed

CONNECT_TIMEOUT_S = 5.0
MODULE = "esker.tools.bench.baseline_socket"


class Send(msgspec.Struct, tag=True):
    """Listen, and once somebody connects send blocks for `runtime_s` seconds."""

    block_bytes: int
    runtime_s: float


class Receive(msgspec.Struct, tag=True):
    """Connect and receive blocks to the end of the stream."""

    port: int
    block_bytes: int


class Listening(msgspec.Struct):
    port: int


class SocketBaseline:
    """One sender and one receiver process per job, for the length of a benchmark."""

    def __init__(self, senders: list[Child], receivers: list[Child], block_bytes: int, runtime_s: float) -> None:
        self._senders = senders
        self._receivers = receivers
        self._block_bytes = block_bytes
        self._runtime_s = runtime_s

    async def turn(self) -> list[Measured]:
        """One turn: what every receiver measured."""
        request = Send(self._block_bytes, self._runtime_s)
        ports = [await sender.ask(request, Listening, CONNECT_TIMEOUT_S) for sender in self._senders]
        return await all_or_none(
            receiver.ask(Receive(listening.port, self._block_bytes), Measured, self._runtime_s + 30)
            for receiver, listening in zip(self._receivers, ports, strict=True)
        )


class SocketEnd:
    """Answers the parent's requests."""

    async def answer(self, line: bytes) -> msgspec.Struct:
        request = msgspec.json.decode(line, type=Send | Receive)
        if isinstance(request, Receive):
            return await asyncio.to_thread(_receive, request)
        listener = socket.create_server(("127.0.0.1", 0))
        asyncio.get_running_loop().run_in_executor(None, _send, listener, request)
        return Listening(listener.getsockname()[1])

    async def aclose(self) -> None:
        """Its sockets end with their own deadlines."""


def _send(listener: socket.socket, request: Send) -> None:
    with listener:
        listener.settimeout(CONNECT_TIMEOUT_S)
        try:
            connection, _ = listener.accept()
        except TimeoutError:
            return
    block = memoryview(bytearray(request.block_bytes))
    with connection:
        _bound_waits(connection, socket.SO_SNDTIMEO)
        end = time.perf_counter() + request.runtime_s
        while time.perf_counter() < end:
            connection.sendall(block)


def _receive(request: Receive) -> Measured:
    try:
        connection = socket.create_connection(("127.0.0.1", request.port), CONNECT_TIMEOUT_S)
    except OSError as error:
        raise ConnectionFailed(f"cannot connect to 127.0.0.1:{request.port}: {error}") from error
    block = memoryview(bytearray(request.block_bytes))
    latencies: list[tuple[float, int]] = []
    with connection:
        _bound_waits(connection, socket.SO_RCVTIMEO)
        begun = before = time.perf_counter()
        while _fill(connection, block):
            now = time.perf_counter()
            latencies.append((now - before, 1))
            before = now
    return Measured(seconds=max(before - begun, 1e-9), read=flow_of(latencies, request.block_bytes))


def _bound_waits(connection: socket.socket, option: int) -> None:
    """The kernel bounds each wait: the socket stays blocking, and a call costs no extra poll."""
    connection.settimeout(None)
    connection.setsockopt(socket.SOL_SOCKET, option, struct.pack("@ll", int(CONNECT_TIMEOUT_S), 0))


def _fill(connection: socket.socket, block: memoryview) -> bool:
    """Fills the block from the stream; False at the stream's end."""
    filled = 0
    while filled < len(block):
        received = connection.recv_into(block[filled:], flags=socket.MSG_WAITALL)
        if not received:
            return False
        filled += received
    return True


if __name__ == "__main__":
    run_child(SocketEnd())
