"""CHUNK_STAT, VERSION_QUERY and FETCH_IMAGE: what is committed of mutable chunks, for clients and other replicas."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from esker.chunkserver.engine.image_record import ImageRecord
from esker.chunkserver.engine.images import Images
from esker.chunkserver.engine.record import record_key
from esker.chunkserver.mutable_operations import MutableBatch, MutableOperation, stored_image
from esker.chunkserver.mutable_runner import MutableRunner
from esker.chunkserver.pool import WorkerPool
from esker.chunkserver.whole_images import read_whole
from esker.craq import mutable_messages as craq
from esker.craq.replica import ChainReplica
from esker.runtime.counters import Counters
from esker.wire.codec import decode_body
from esker.wire.columns import rows
from esker.wire.errors import RequestFailed
from esker.wire.ids import FILE_SPACE, chunk_id
from esker.wire.mutable_messages import (
    CHUNK_EXTENT,
    CHUNK_STAT_RESULT,
    VERSION_QUERY_RESULT,
    ChunkStat,
    ChunkStatReply,
    FetchImage,
    FetchImageReply,
    VersionQuery,
    VersionQueryReply,
)
from esker.wire.rpc_server import Request
from esker.wire.status import Status

OPERATIONS_MAX = 16384


class QueryService:
    """Serves one drive. `refresh` is called when a request names a chain or version not known here."""

    def __init__(
        self,
        images: Images,
        runner: MutableRunner,
        pool: WorkerPool,
        counters: Counters,
        replicas: Mapping[int, ChainReplica],
        refresh: Callable[[], None],
    ) -> None:
        self._images = images
        self._runner = runner
        self._pool = pool
        self._counters = counters
        self._replicas = replicas
        self._refresh = refresh

    def stat(self, request: Request) -> None:
        """Handles CHUNK_STAT."""
        message = decode_body(ChunkStat, request.body)
        extents = self._extents(message.extents)
        batch = MutableBatch(
            request, len(extents), None, lambda results, more: request.reply(ChunkStatReply(results), more=more)
        )
        for number, (object_id, index, chain_id, chain_version) in enumerate(extents):
            operation = self._operation(object_id, index, chain_id, chain_version)
            if operation is None:
                _stat_answer(batch, number, Status.CHAIN_VERSION)
                continue
            operation.serve = partial(_stat_served, batch, number)
            operation.answered = partial(_stat_refused, batch, number)
            op = self._runner.register(operation, message.budget_ms / 1000)
            self._runner.begin(operation, craq.ReadRange(op, chain_version, operation.record_key))
        self._runner.run()

    def version(self, request: Request) -> None:
        """Handles VERSION_QUERY."""
        message = decode_body(VersionQuery, request.body)
        extents = self._extents(message.extents)
        batch = MutableBatch(
            request, len(extents), None, lambda results, more: request.reply(VersionQueryReply(results), more=more)
        )
        for number, (object_id, index, chain_id, chain_version) in enumerate(extents):
            operation = self._operation(object_id, index, chain_id, chain_version)
            if operation is None:
                batch.result(VERSION_QUERY_RESULT.pack(number, Status.CHAIN_VERSION, 0))
                continue
            self._counters.add("mutable_version_answers")
            operation.answered = partial(_version_answer, batch, number)
            op = self._runner.register(operation, message.budget_ms / 1000)
            self._runner.begin(operation, craq.VersionQuery(op, chain_version, operation.record_key))
        self._runner.run()

    def fetch(self, request: Request) -> None:
        """Handles FETCH_IMAGE, from another replica."""
        message = decode_body(FetchImage, request.body)
        hello = request.connection.hello
        if hello is None or hello.role != "worker":
            raise RequestFailed(Status.FORBIDDEN, "only replicas get images without a lease")
        object_id, index, chain_id, chain_version = rows(CHUNK_EXTENT, message.extent, 1)[0]
        replica = self._replica(chain_id, chain_version)
        if replica is None or replica.chain.version != chain_version or not replica.serving or replica.offline:
            raise RequestFailed(Status.CHAIN_VERSION, f"not serving chain {chain_id} in version {chain_version}")
        key = record_key(chain_id, chunk_id(FILE_SPACE, object_id, index))
        image = stored_image(self._images.chunk(key), message.version)
        if image is None or image.length == 0:
            raise RequestFailed(Status.NOT_FOUND, "no image of that version is here")
        region = self._pool.allocate(image.length)
        if region is None:
            raise RequestFailed(Status.BUSY, "the worker's pool is full")

        def read(status: Status) -> None:
            if status is Status.OK:
                body = FetchImageReply(image.length, image.checksums, image.truncate_version)
                request.reply(body, [region.view[: image.length]], on_sent=region.drop)
            else:
                region.drop()
                request.fail(status, "the image cannot be read")

        read_whole(self._images, image, region, read)
        self._runner.run()

    def _extents(self, packed: bytes) -> list[tuple[Any, ...]]:
        if self._runner.busy >= OPERATIONS_MAX:
            raise RequestFailed(Status.BUSY, f"{self._runner.busy} operations are under way")
        return rows(CHUNK_EXTENT, packed)

    def _replica(self, chain_id: int, chain_version: int) -> ChainReplica | None:
        replica = self._replicas.get(chain_id)
        if replica is None or replica.chain.version < chain_version:
            self._refresh()
        return replica

    def _operation(self, object_id: bytes, index: int, chain_id: int, chain_version: int) -> MutableOperation | None:
        replica = self._replica(chain_id, chain_version)
        if replica is None:
            return None
        return MutableOperation(replica, record_key(chain_id, chunk_id(FILE_SPACE, object_id, index)))


def _stat_answer(batch: MutableBatch, number: int, status: Status, image: ImageRecord | None = None) -> None:
    version, length, truncated = (0, 0, 0) if image is None else (image.version, image.length, image.truncate_version)
    batch.result(CHUNK_STAT_RESULT.pack(number, status, version, length, truncated))


def _stat_served(batch: MutableBatch, number: int, effect: craq.ServeImage, image: ImageRecord | None) -> None:
    _stat_answer(batch, number, Status.NOT_FOUND if image is None else Status.OK, image)


def _stat_refused(batch: MutableBatch, number: int, answer: craq.AnswerMutable) -> None:
    _stat_answer(batch, number, answer.status)


def _version_answer(batch: MutableBatch, number: int, answer: craq.AnswerMutable) -> None:
    batch.result(VERSION_QUERY_RESULT.pack(number, answer.status, answer.version))
