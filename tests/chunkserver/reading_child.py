"""A client in a process of its own: registers memory, reads into it over and over, and waits to be killed.

Run with the path of a worker's socket. Says `reading` once reads have come back.
"""

import asyncio
import fcntl
import os
import sys

from esker.wire.messages import READ_EXTENT, MemoryRegistered, Method, Read, RegisterMemory
from esker.wire.rpc_client import Connection, UnixAddress

MEMORY_BYTES = 1 << 20


class Again:
    """Reads once more whenever a read has ended."""

    def __init__(self, connection: Connection, body: Read) -> None:
        self._connection = connection
        self._body = body
        self._ended = 0

    def start(self) -> None:
        self._connection.start(Method.READ, self._body, self)

    def on_reply(self, body: bytes, payload_bytes: int) -> None:
        pass

    def on_payload(self) -> None:
        pass

    def on_done(self, error: Exception | None) -> None:
        if error is not None:
            raise error
        self._ended += 1
        if self._ended == 3:
            print("reading", flush=True)
        self.start()


async def main(path: str) -> None:
    fd = os.memfd_create("child-of-test", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, MEMORY_BYTES)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK)
    connection = await Connection.connect(UnixAddress(path), role="client")
    registered = await connection.call(
        Method.REGISTER_MEMORY, RegisterMemory(MEMORY_BYTES), MemoryRegistered, timeout_s=10, fds=(fd,)
    )
    extents = b"".join(
        READ_EXTENT.pack((1).to_bytes(16, "big"), 0, 1, 4096, offset) for offset in range(0, MEMORY_BYTES, 4096)
    )
    Again(connection, Read(7, extents, registered.memory_id, 60_000)).start()
    await asyncio.sleep(120)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
