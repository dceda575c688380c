"""The upkeep of mutable chunks: which there are, whether their committed images verify, and their repair.

A damaged image is replaced only by the same version's of another replica; nothing is ever removed for being damaged.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

from esker.chunkserver.engine.images import Images
from esker.chunkserver.repair import Mended, RepairService
from esker.chunkserver.verify import Pause, Seen, Verdict, Verifier
from esker.craq.replica import ChainReplica
from esker.wire.admin_messages import split_record_key

MEND_TIMEOUT_S = 5.0


class Mender(Protocol):
    """What is needed of the runner of mutable chunks."""

    async def mend(self, replica: ChainReplica, record_key: bytes, timeout_s: float) -> bool: ...


class ImageMender:
    """Mends single images; for `RepairService`."""

    def __init__(self, verifier: Verifier, mender: Mender, replicas: Mapping[int, ChainReplica]) -> None:
        self._verifier = verifier
        self._mender = mender
        self._replicas = replicas

    async def mend(self, record_key: bytes) -> Mended:
        """Looks at the image, and replaces it where it must and can be."""
        seen = await self._verifier.look(record_key)
        if seen.verdict is not Verdict.DAMAGED:
            return Mended.GONE if seen.verdict is Verdict.ABSENT else Mended.WHOLE
        replica = self._replicas.get(split_record_key(record_key)[0])
        if replica is None:
            return Mended.GONE
        if await self._mender.mend(replica, record_key, MEND_TIMEOUT_S):
            return Mended.REPAIRED
        return Mended.LOST if len(replica.chain.replicas) == 1 else Mended.WAITING


class ImageKind:
    """Mutable chunks as the scrubber goes through them."""

    def __init__(self, images: Images, verifier: Verifier, repairs: RepairService) -> None:
        self._images = images
        self._verifier = verifier
        self._repairs = repairs

    def page(self, after: bytes, limit: int) -> tuple[Sequence[bytes], bytes]:
        """See `Kind`."""
        return self._images.keys(after, limit)

    async def look(self, key: bytes, pause: Pause) -> Seen:
        """See `Kind`."""
        return await self._verifier.look(key, pause)

    async def mend(self, key: bytes) -> Mended:
        """See `Kind`."""
        return await self._repairs.mend_or_queue(key)
