"""What replicas ask each other about mutable chunks: which version is committed, and whole images to mend from.

The questions go over the links of `forward.py`. Each gets one answer, at the latest when the operation's time is over;
a replica that cannot be reached is UNAVAILABLE.
"""

import asyncio
import struct
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Protocol

from esker.chunkserver.forward import Link
from esker.chunkserver.mutable_operations import MutableOperation
from esker.chunkserver.mutable_persist import Whole
from esker.chunkserver.pool import Region, WorkerPool
from esker.craq import mutable_messages as craq
from esker.craq.replica import AnyEvent, ChainReplica
from esker.wire.admin_messages import split_record_key
from esker.wire.checksum import checksums
from esker.wire.codec import decode_body
from esker.wire.errors import DeadlineExceeded, EskerError, RequestFailed
from esker.wire.limits import CHUNK_BYTES_MAX, checksum_blocks
from esker.wire.messages import Method
from esker.wire.mutable_messages import (
    CHUNK_EXTENT,
    VERSION_QUERY_RESULT,
    FetchImage,
    FetchImageReply,
    VersionQuery,
    VersionQueryReply,
)
from esker.wire.status import Status

CONNECT_TIMEOUT_S = 1.0


class Runner(Protocol):
    """What is needed of the runner of mutable chunks."""

    def report(self, operation: MutableOperation, event: AnyEvent) -> None: ...


class Questions:
    """Of one drive, to all others. `link` gives the link to a drive."""

    def __init__(self, pool: WorkerPool, link: Callable[[str], Link], runner: Runner) -> None:
        self._pool = pool
        self._link = link
        self._runner = runner
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()

    async def aclose(self) -> None:
        """Ends what is under way."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def query(self, operation: MutableOperation, effect: craq.QueryVersion) -> None:
        """Performs the effect."""
        self.spawn(self._query(operation, effect))

    async def _query(self, operation: MutableOperation, effect: craq.QueryVersion) -> None:
        status, version = Status.UNAVAILABLE, 0
        chain = operation.replica.chain
        extent = CHUNK_EXTENT.pack(operation.object_id, operation.chunk_index, chain.chain_id, chain.version)
        try:
            left_s = max(0.001, operation.deadline - self._loop.time())
            connection = await self._link(effect.tail).connected(min(left_s, CONNECT_TIMEOUT_S))
            question = VersionQuery(extent, int(left_s * 1000))
            reply = await connection.call(Method.VERSION_QUERY, question, VersionQueryReply, timeout_s=left_s)
            _, code, version = VERSION_QUERY_RESULT.unpack(reply.results)
            status = Status(code)
        except DeadlineExceeded:
            status = Status.TIMEOUT
        except asyncio.CancelledError:
            self._runner.report(operation, craq.VersionKnown(effect.op, Status.UNAVAILABLE))
            raise
        except (EskerError, struct.error, ValueError) as error:
            status = error.status if isinstance(error, RequestFailed) else Status.UNAVAILABLE
        self._runner.report(operation, craq.VersionKnown(effect.op, status, version))

    async def whole(
        self, replica: ChainReplica, record_key: bytes, drive: str, version: int, timeout_s: float
    ) -> Whole | None:
        """The image of that version from another replica, verified; None: it is not to be had."""
        chain = replica.chain
        _, _, object_id, index = split_record_key(record_key)
        extent = CHUNK_EXTENT.pack(object_id, index, chain.chain_id, chain.version)
        receiver = _Whole(self._pool)
        try:
            async with asyncio.timeout(timeout_s):
                connection = await self._link(drive).connected(CONNECT_TIMEOUT_S)
                request = FetchImage(extent, version, int(timeout_s * 1000))
                number = connection.start(Method.FETCH_IMAGE, request, receiver)
                try:
                    await receiver.done
                finally:
                    connection.forget(number)
        except (EskerError, TimeoutError):
            pass
        except asyncio.CancelledError:
            receiver.drop()
            raise
        return receiver.whole()

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Has `work` done, until `aclose`."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


class _Whole:
    """Receives a whole image."""

    def __init__(self, pool: WorkerPool) -> None:
        self._pool = pool
        self._region: Region | None = None
        self._reply: FetchImageReply | None = None
        self._complete = False
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def on_reply(self, body: bytes | bytearray, payload_bytes: int) -> Sequence[memoryview] | None:
        reply = decode_body(FetchImageReply, body)
        length = reply.length_bytes
        if length != payload_bytes or not 1 <= length <= CHUNK_BYTES_MAX or self._region is not None:
            return None
        if len(reply.checksums) != 8 * checksum_blocks(length):
            return None
        self._region = self._pool.allocate_or_map(length)
        self._reply = reply
        return [self._region.view[:length]]

    def on_payload(self) -> None:
        self._complete = True

    def on_done(self, error: EskerError | None) -> None:
        if not self.done.done():
            self.done.set_result(None)

    def drop(self) -> None:
        """Nobody wants it any more."""
        if self._region is not None:
            self._region.drop()
            self._region = None

    def whole(self) -> Whole | None:
        """What was received, if it verifies."""
        reply, region = self._reply, self._region
        if reply is None or region is None or not self._complete:
            self.drop()
            return None
        if checksums(region.view[: reply.length_bytes]) != reply.checksums:
            self.drop()
            return None
        return Whole(region, reply.length_bytes, reply.checksums, reply.truncate_version)
