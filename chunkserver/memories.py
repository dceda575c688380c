"""Client memory registered with this worker, per connection: taken over, looked up, and let go with the connection."""

import os

from esker.runtime.counters import Counters
from esker.runtime.logging import get_logger
from esker.wire.codec import decode_body
from esker.wire.errors import RequestFailed
from esker.wire.memory import BadMemory, ForeignMemory
from esker.wire.messages import Empty, MemoryRegistered, RegisterMemory, ReleaseMemory
from esker.wire.rpc_server import Request, ServerConnection
from esker.wire.status import Status

log = get_logger("chunkserver.memory")

MEMORIES_PER_CONNECTION_MAX = 16


class ClientMemories:
    """All registered memory. A connection's memory is retired the moment the connection ends."""

    def __init__(self, counters: Counters) -> None:
        self._counters = counters
        self._memories: dict[ServerConnection, dict[int, ForeignMemory]] = {}
        self._next_id = 1

    @property
    def count(self) -> int:
        """Memories that are registered now."""
        return sum(map(len, self._memories.values()))

    def register(self, request: Request) -> None:
        """Handles REGISTER_MEMORY: the descriptor came with it."""
        connection = request.connection
        # Taken before anything can be refused: a descriptor left behind would pass for the next registration's.
        fd = connection.stream.take_fd()
        if fd is None:
            raise RequestFailed(Status.BAD_MEMORY, "no descriptor came with the registration")
        try:
            message = decode_body(RegisterMemory, request.body)
        except RequestFailed:
            os.close(fd)
            raise
        try:
            memory = ForeignMemory(fd, message.length_bytes)
        except BadMemory as error:
            self._counters.add("memory_refused")
            raise RequestFailed(Status.BAD_MEMORY, str(error)) from error
        mine = self._memories.get(connection)
        if mine is None:
            mine = self._memories[connection] = {}
            connection.on_close.append(lambda: self._retire_all(connection))
        if len(mine) >= MEMORIES_PER_CONNECTION_MAX:
            memory.retire()
            raise RequestFailed(Status.BAD_MEMORY, f"{len(mine)} memories are registered on this connection already")
        memory_id = self._next_id
        self._next_id += 1
        mine[memory_id] = memory
        request.reply(MemoryRegistered(memory_id))

    def release(self, request: Request) -> None:
        """Handles RELEASE_MEMORY: unmapped once no I/O refers to it."""
        message = decode_body(ReleaseMemory, request.body)
        memory = self._memories.get(request.connection, {}).pop(message.memory_id, None)
        if memory is None:
            raise RequestFailed(Status.BAD_MEMORY, f"memory {message.memory_id} is not registered")
        memory.retire()
        request.reply(Empty())

    def find(self, connection: ServerConnection, memory_id: int) -> ForeignMemory:
        """The connection's memory `memory_id`. Raises `RequestFailed` (BAD_MEMORY)."""
        memory = self._memories.get(connection, {}).get(memory_id)
        if memory is None:
            raise RequestFailed(Status.BAD_MEMORY, f"memory {memory_id} is not registered on this connection")
        return memory

    def distrust(self, connection: ServerConnection, why: str) -> None:
        """The memory did not hold what was claimed: the client is disconnected, which retires all of its memory."""
        if connection.stream.closed:
            return
        self._counters.add("memory_broken")
        log.warning("disconnecting a client whose memory is not what it registered", reason=why)
        connection.stream.close()

    def _retire_all(self, connection: ServerConnection) -> None:
        for memory in self._memories.pop(connection, {}).values():
            memory.retire()
