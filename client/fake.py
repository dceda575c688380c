"""A cluster in this process for tests: a metadata server and drive workers that keep chunks in memory.

Speaks the real protocol over real sockets, so that clients cannot tell, and fails on demand (`Faults`). Chain i is
led by worker i; the next workers in turn are its other replicas. Not durable, not fast, and no chain protocol: a head
stores a chunk at every replica itself.
"""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from esker.client.fake_faults import Faults
from esker.client.fake_mutable import FakeMutable, MutableStore
from esker.client.fake_namespaces import TABLE_ID, TABLE_VERSION, FakeNamespaces
from esker.runtime.hostid import boot_id
from esker.wire import framing
from esker.wire.checksum import checksums
from esker.wire.codec import decode_body, encode_body
from esker.wire.columns import create_rows, rows
from esker.wire.errors import RequestFailed
from esker.wire.ids import NO_PUT_ID
from esker.wire.limits import ALIGN_BYTES, LOOKUP_KEYS_MAX, aligned
from esker.wire.memory import ForeignMemory
from esker.wire.messages import (
    CREATE_RESULT,
    LOOKUP_ABSENT,
    LOOKUP_KEY,
    LOOKUP_PRESENT,
    LOOKUP_UNSURE,
    READ_EXTENT,
    READ_RESULT,
    REMOVE_EXTENT,
    REMOVE_RESULT,
    Create,
    CreateReply,
    GetRouting,
    Lookup,
    LookupReply,
    MemoryRegistered,
    Method,
    NamespaceOpen,
    Read,
    ReadReply,
    RegisterMemory,
    Remove,
    RemoveReply,
    RoutingReply,
    StatsReply,
)
from esker.wire.rpc_server import Identity, Request, RpcServer, unary
from esker.wire.status import Status
from esker.wire.types import Chain, Replica, Routing, TargetState, Worker

__all__ = ["CLUSTER_ID", "TABLE_ID", "TABLE_VERSION", "FakeCluster", "FakeWorker", "Faults"]

CLUSTER_ID = "fake"

ChunkKey = tuple[int, int, bytes, int]
"""Chain id, space, object, index."""


class FakeChunk(NamedTuple):
    """A stored chunk."""

    data: bytes
    sums: bytes
    version: int
    block_bytes: int
    chunk_count: int
    put_id: bytes
    key: bytes


class FakeWorker:
    """One drive's worker."""

    def __init__(self, cluster: "FakeCluster", drive_id: str) -> None:
        self.drive_id = drive_id
        self.chunks: dict[ChunkKey, FakeChunk] = {}
        self.faults = Faults()
        self.requests: list[Method] = []
        """The methods of all requests that came."""
        self.end_when_cancelled = False
        """A held request whose client no longer wants it ends as CANCELLED."""
        self.life = 0
        self.info: Worker
        self._cluster = cluster
        self._servers: list[RpcServer] = []
        self._memories: dict[int, ForeignMemory] = {}
        self._held: list[Callable[[], None]] = []
        self._next_version = self._next_memory = 1
        self._mutable = FakeMutable(self, cluster.mutable)

    @property
    def up(self) -> bool:
        """Whether it listens."""
        return bool(self._servers)

    @property
    def serving(self) -> bool:
        """Whether its replicas serve."""
        return self.drive_id not in self._cluster.states

    async def start(self) -> None:
        """Listens, under a new incarnation (besides an older one that was not stopped)."""
        self.life += 1
        incarnation = f"{self.drive_id}-{self.life}"
        server = RpcServer(
            {
                Method.READ: self._holding(self._read),
                Method.CREATE: self._create,
                Method.REMOVE: self._holding(self._remove),
                Method.LOOKUP: self._holding(self._lookup),
                Method.REGISTER_MEMORY: self._register,
                Method.STATS: self._holding(lambda request: request.reply(StatsReply({}))),
                **self._mutable.handlers(),
            },
            Identity(CLUSTER_ID, self.drive_id, incarnation),
        )
        path = str(self._cluster.directory / f"{self.drive_id}.sock")
        port = await server.listen_tcp("127.0.0.1", 0)
        await server.listen_unix(path)
        self._servers.append(server)
        self.info = Worker(self.drive_id, "node", "127.0.0.1", port, path, boot_id(), incarnation, 1 << 40)

    async def stop(self) -> None:
        """Ends like a killed process: connections and requests are gone, chunks stay."""
        servers, self._servers = self._servers, []
        self._held.clear()
        for server in servers:
            await server.aclose()

    def go_on(self) -> None:
        """Answers what was held, and holds nothing any more."""
        self.faults.hold.clear()
        held, self._held = self._held, []
        for answer in held:
            answer()

    def _holding(self, handler: Callable[[Request], None]) -> Callable[[Request], None]:
        def handle(request: Request) -> None:
            self.requests.append(request.method)
            self.unless_held(request, lambda: handler(request))

        return handle

    def memory(self, memory_id: int) -> ForeignMemory:
        """See `fake_mutable.Owner`."""
        return self._memories[memory_id]

    def refusal(self, chain_id: int, chain_version: int, *, to_head: bool) -> Status:
        """See `fake_mutable.Owner`."""
        replicas = self._cluster.replicas(chain_id)
        if chain_version != self._cluster.chain_version or self not in replicas[: 1 if to_head else None]:
            return Status.CHAIN_VERSION
        return Status.OK if not to_head or all(replica.up for replica in replicas) else Status.UNAVAILABLE

    def unless_held(self, request: Request, answer: Callable[[], None]) -> None:
        """See `fake_mutable.Owner`."""
        if request.method in self.faults.hold:
            self._held.append(answer)
            if self.end_when_cancelled:
                request.on_cancel = lambda: self._drop(request, answer)
        elif self.faults.busy:
            self.faults.busy -= 1
            request.fail(Status.BUSY, "busy, as told")
        else:
            answer()

    def _drop(self, request: Request, answer: Callable[[], None]) -> None:
        if answer in self._held:
            self._held.remove(answer)
            request.fail(Status.CANCELLED, "cancelled")

    def _register(self, request: Request) -> None:
        message = decode_body(RegisterMemory, request.body)
        fd = request.connection.stream.take_fd()
        if Method.REGISTER_MEMORY in self.faults.status or fd is None:
            if fd is not None:
                os.close(fd)
            raise RequestFailed(Status.BAD_MEMORY, "refused, as told")
        memory_id = self._next_memory
        self._next_memory += 1
        self._memories[memory_id] = ForeignMemory(fd, message.length_bytes)
        request.connection.on_close.append(lambda: self._memories.pop(memory_id).retire())
        request.reply(MemoryRegistered(memory_id))

    def _read(self, request: Request) -> None:
        message = decode_body(Read, request.body)
        memory = self._memories[message.memory_id] if message.memory_id else None
        results, sums, payload = [], [], []
        for number, (object_id, index, chain_id, room, offset) in enumerate(rows(READ_EXTENT, message.extents)):
            chunk = self.chunks.get((chain_id, message.space, object_id, index))
            absent = Status.NOT_FOUND if self.serving else Status.UNAVAILABLE
            status = self.faults.status.get(Method.READ, Status.OK if chunk else absent)
            if chunk is None or status is not Status.OK:
                results.append(READ_RESULT.pack(number, status, 0, 0, 0, 0, NO_PUT_ID))
                continue
            length = len(chunk.data)
            if (length if memory is None else aligned(length)) > room:
                status = Status.TOO_LARGE
            else:
                data = bytes([chunk.data[0] ^ 1]) + chunk.data[1:] if self.faults.corrupt else chunk.data
                sums.append(chunk.sums)
                if memory is None:
                    payload.append(memoryview(data))
                else:
                    os.pwrite(memory.fd, data, offset)
            block = (chunk.version, chunk.block_bytes, chunk.chunk_count, chunk.put_id)
            results.append(READ_RESULT.pack(number, status, length, *block))
        reply = ReadReply(b"".join(results), b"".join(sums))
        if self.faults.cut and payload:
            size = sum(map(len, payload))
            head = framing.encode(framing.Kind.REPLY, Status.OK, request.request_id, encode_body(reply), size)
            request.connection.stream.send(head, [payload[0][: len(payload[0]) // 2]])
            request.connection.stream.close()
        else:
            request.reply(reply, payload)

    def _create(self, request: Request) -> Sequence[memoryview] | None:
        self.requests.append(request.method)
        message = decode_body(Create, request.body)
        extents = create_rows(message)
        buffers = [memoryview(bytearray(row[4])) for row, _, _ in extents]
        if message.memory_id:

            def answer() -> None:
                memory = self._memories[message.memory_id]
                for (row, _, _), buffer in zip(extents, buffers, strict=True):
                    memory.copy_from(row[5] * ALIGN_BYTES, [buffer])
                self._store(request, message.space, extents, buffers)

            self.unless_held(request, answer)
            return None
        request.on_payload = lambda: self.unless_held(
            request, lambda: self._store(request, message.space, extents, buffers)
        )
        return buffers

    def _store(
        self,
        request: Request,
        space: int,
        extents: Sequence[tuple[tuple[Any, ...], bytes, bytes]],
        buffers: Sequence[memoryview],
    ) -> None:
        results = []
        for number, ((row, sums, key), buffer) in enumerate(zip(extents, buffers, strict=True)):
            object_id, index, chain_id, chain_version, length, _, _, block_bytes, chunk_count, put_id, _ = row
            replicas = self._cluster.replicas(chain_id)
            where = (chain_id, space, object_id, index)
            chunk = self.chunks.get(where)
            status = self.faults.status.get(Method.CREATE, Status.OK)
            if chain_version != self._cluster.chain_version or replicas[:1] != [self]:
                status = Status.CHAIN_VERSION
            elif not all(replica.up for replica in replicas):  # the chain is about to change
                status = Status.UNAVAILABLE
            elif checksums(buffer) != sums:
                status = Status.CHECKSUM
            elif chunk is not None:
                same = (len(chunk.data), chunk.sums, chunk.put_id) == (length, sums, put_id)
                status = Status.EXISTS if same else Status.EXISTS_OTHER
            elif status is Status.OK:
                chunk = FakeChunk(bytes(buffer), sums, self._next_version, block_bytes, chunk_count, put_id, key)
                self._next_version += 1
                for replica in replicas:
                    replica.chunks[where] = chunk
                if self.faults.unfinished:
                    self.faults.unfinished -= 1
                    status = Status.CHAIN_VERSION
            there = (chunk.version, len(chunk.data), chunk.put_id) if chunk else (0, 0, NO_PUT_ID)
            results.append(CREATE_RESULT.pack(number, status, *there))
        request.reply(CreateReply(b"".join(results)))

    def _remove(self, request: Request) -> None:
        message = decode_body(Remove, request.body)
        results = []
        for number, row in enumerate(rows(REMOVE_EXTENT, message.extents)):
            object_id, index, chain_id, chain_version, version, put_id = row
            where = (chain_id, message.space, object_id, index)
            chunk = self.chunks.get(where)
            status = self.faults.status.get(Method.REMOVE, Status.OK)
            if chain_version != self._cluster.chain_version or self._cluster.replicas(chain_id)[:1] != [self]:
                status = Status.CHAIN_VERSION
            elif chunk is None:
                status = Status.NOT_FOUND
            elif version not in (0, chunk.version) or put_id not in (NO_PUT_ID, chunk.put_id):
                status = Status.CONDITION
            elif status is Status.OK:
                for replica in self._cluster.replicas(chain_id):
                    replica.chunks.pop(where, None)
            results.append(REMOVE_RESULT.pack(number, status))
        request.reply(RemoveReply(b"".join(results)))

    def _lookup(self, request: Request) -> None:
        message = decode_body(Lookup, request.body)
        keys = rows(LOOKUP_KEY, message.keys, LOOKUP_KEYS_MAX)
        absent = LOOKUP_ABSENT if self.serving else LOOKUP_UNSURE
        request.reply(
            LookupReply(
                bytes(
                    LOOKUP_PRESENT if (chain_id, message.space, object_id, 0) in self.chunks else absent
                    for object_id, chain_id in keys
                )
            )
        )


class FakeCluster:
    """`drives` workers, a chain led by each, `replicas` long. `directory` is for sockets: its path must be short.

    Namespaces are laid out over the chains of the first `used` drives, until `namespaces.expand`.
    """

    def __init__(self, directory: Path, *, drives: int = 4, replicas: int = 2, used: int | None = None) -> None:
        self.directory = directory
        self.mutable = MutableStore()
        """Of all serving replicas."""
        self.workers = [FakeWorker(self, f"drive{number}") for number in range(drives)]
        self.chain_version = 1
        self.namespaces = FakeNamespaces(used or drives)
        self.states: dict[str, TargetState] = {}
        """Of drives whose replicas do not serve."""
        self.address = ""
        """Of the metadata server."""
        self._replicas = replicas
        self._version = 1
        self._meta = RpcServer(
            {
                Method.ROUTING: unary(GetRouting, self._get_routing),
                Method.NAMESPACE_OPEN: unary(NamespaceOpen, self.namespaces.open),
            },
            Identity(CLUSTER_ID, "", "meta"),
        )

    async def __aenter__(self) -> "FakeCluster":
        for worker in self.workers:
            await worker.start()
        self.address = f"127.0.0.1:{await self._meta.listen_tcp('127.0.0.1', 0)}"
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._meta.aclose()
        for worker in self.workers:
            await worker.stop()

    def replicas(self, chain_id: int) -> list[FakeWorker]:
        """The workers of the chain's serving replicas, head first."""
        return [worker for worker in self._all_replicas(chain_id) if worker.serving]

    def _all_replicas(self, chain_id: int) -> list[FakeWorker]:
        count = len(self.workers)
        return [self.workers[(chain_id - 1 + step) % count] for step in range(self._replicas)]

    def fail_over(self, states: dict[str, TargetState]) -> None:
        """From now on the replicas on these drives are in these states, and the chains have a new version."""
        self.states = states
        self.chain_version += 1
        self.new_map()

    def new_map(self) -> None:
        """The routing has a new version from now on; with it, chains may have one (`chain_version`)."""
        self._version += 1

    def routing(self) -> Routing:
        """The cluster map now."""
        chain_ids = tuple(range(1, len(self.workers) + 1))
        chains = tuple(Chain(each, self.chain_version, self._replicas_of(each)) for each in chain_ids)
        infos = tuple(worker.info for worker in self.workers)
        return Routing(CLUSTER_ID, self._version, infos, chains, self.namespaces.tables, len(infos), self._replicas)

    def _replicas_of(self, chain_id: int) -> tuple[Replica, ...]:
        """Serving ones first."""
        replicas = [
            Replica(worker.drive_id, self.states.get(worker.drive_id, TargetState.SERVING))
            for worker in self._all_replicas(chain_id)
        ]
        return tuple(sorted(replicas, key=lambda replica: replica.state is not TargetState.SERVING))

    async def _get_routing(self, message: GetRouting) -> RoutingReply:
        return RoutingReply(None if message.known_version == self._version else self.routing())
