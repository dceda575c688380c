"""Blocks out of one place of the cluster: one parallel round trip, striped or not.

All chunks that a buffer has room for are asked for at once; those that do not exist answer cheaply. A striped block
counts only where every chunk belongs to chunk 0's put. Where one does not, the other replicas are asked; only when
every serving replica definitely has no such chunk is the broken block's chunk 0 removed, conditionally on its version
and put id, so that the key can be put again. Never on a timeout, a busy worker or a bad checksum, and never where the
missing chunk may lie at another place.
"""

import asyncio
from collections.abc import Sequence

from esker.client.batch import Row
from esker.client.buffers import Slot
from esker.client.reads import ReadBatch, Tried
from esker.client.removes import RemoveBatch
from esker.kvclient.keyspace import Keyspace
from esker.kvclient.layout import Place
from esker.kvclient.memory import Memory
from esker.kvclient.results import GetResult
from esker.kvclient.striping import Stripe, chunk_count, is_single, is_sound, judge
from esker.runtime.logging import get_logger
from esker.wire.placement import Indexes
from esker.wire.status import STATUS_OF, Status

log = get_logger("kvclient.get")

_MISS = GetResult(Status.NOT_FOUND, 0)


async def get_blocks(
    keyspace: Keyspace, place: Place, objects: Sequence[bytes], chains: Indexes, memory: Memory, timeout_s: float
) -> list[GetResult]:
    """Reads the block of every object at this place into its buffer; one result each."""
    if not keyspace.striped:
        batch = ReadBatch(
            keyspace.staging,
            place.routes,
            keyspace.space,
            objects=objects,
            indexes=[0] * len(objects),
            chains=chains.tolist(),
            views=memory.views,
            slots=memory.slots,
            offsets=memory.offsets,
        )
        return [_result(row) for row in await batch.run(timeout_s)]
    return await _StripedGet(keyspace, place, objects, chains, memory, timeout_s).run()


def _result(row: Row) -> GetResult:
    """The result of a block of one chunk."""
    _, status, length, _, block_bytes, count, _ = row
    if status == Status.OK:
        if count <= 1 and length == block_bytes:
            return GetResult(Status.OK, length)
        return GetResult(Status.TOO_LARGE, block_bytes)
    if status == Status.TOO_LARGE:
        return GetResult(Status.TOO_LARGE, block_bytes)
    return _MISS if status == Status.NOT_FOUND else GetResult(STATUS_OF[status], 0)


class _StripedGet:
    """A `get` in a namespace whose values may have several chunks. Extents are numbered block by block."""

    def __init__(
        self,
        keyspace: Keyspace,
        place: Place,
        objects: Sequence[bytes],
        chains: Indexes,
        memory: Memory,
        timeout_s: float,
    ) -> None:
        self._keyspace = keyspace
        self._place = place
        self._objects = objects
        self._chains: list[int] = chains.tolist()
        self._memory = memory
        self._deadline = asyncio.get_running_loop().time() + timeout_s
        self._firsts: list[int] = []
        """The extent number of each block's chunk 0."""
        self._of: list[tuple[int, int]] = []
        """The (block, chunk index) of each extent."""
        self._views: list[memoryview] = []

    def _time_left_s(self) -> float:
        return max(0.001, self._deadline - asyncio.get_running_loop().time())

    async def run(self) -> list[GetResult]:
        """Reads all blocks."""
        unit, longest = self._keyspace.unit, self._keyspace.block_bytes_max
        for block, view in enumerate(self._memory.views):
            self._firsts.append(len(self._of))
            for index in range(chunk_count(min(len(view), longest), unit)):
                self._of.append((block, index))
                self._views.append(view[index * unit : (index + 1) * unit])
        batch = self._batch(range(len(self._of)), None)
        rows = await batch.run(self._time_left_s())
        results = []
        for block, view in enumerate(self._memory.views):
            results.append(await self._block(block, len(view), rows, batch))
        return results

    def _chain(self, block: int, index: int) -> int:
        return self._place.chunk(self._chains[block], self._objects[block], index)

    def _batch(self, extents: Sequence[int], tried: dict[int, Tried] | None) -> ReadBatch:
        """Reads these extents; `tried` is by position in them."""
        unit, memory = self._keyspace.unit, self._memory
        places = [self._of[extent] for extent in extents]
        slots: list[Slot | None] = [memory.slots[block] for block, _ in places]
        return ReadBatch(
            self._keyspace.staging,
            self._place.routes,
            self._keyspace.space,
            objects=[self._objects[block] for block, _ in places],
            indexes=[index for _, index in places],
            chains=[self._chain(block, index) for block, index in places],
            views=[self._views[extent] for extent in extents],
            slots=slots,
            offsets=[memory.offsets[block] + index * unit for block, index in places],
            tried=tried,
        )

    async def _block(self, block: int, room: int, rows: list[Row], batch: ReadBatch) -> GetResult:
        unit = self._keyspace.unit
        at = self._firsts[block]
        first = rows[at]
        if first[1] not in (Status.OK, Status.TOO_LARGE):
            return GetResult(STATUS_OF[first[1]], 0)
        block_bytes = first[4]
        if not is_sound(first, unit, self._keyspace.block_bytes_max):
            log.warning("a record that cannot be right counts as a miss", block_bytes=block_bytes, chunks=first[5])
            return _MISS
        if first[1] == Status.TOO_LARGE or block_bytes > room:
            return GetResult(Status.TOO_LARGE, block_bytes)
        if is_single(first):
            return GetResult(Status.OK, block_bytes)
        extents = range(at + 1, at + chunk_count(block_bytes, unit))
        foreign = []
        for extent in extents:
            verdict = judge(first, rows[extent], self._of[extent][1], unit)
            if verdict is Stripe.UNKNOWN:
                return GetResult(STATUS_OF[rows[extent][1]], 0)
            if verdict is Stripe.FOREIGN:
                foreign.append(extent)
        if foreign:
            return await self._look_further(block, first, foreign, batch)
        return GetResult(Status.OK, block_bytes)

    async def _look_further(self, block: int, first: Row, extents: list[int], batch: ReadBatch) -> GetResult:
        """Asks the replicas that have not been asked for these chunks. None has one: the block is broken."""
        unit = self._keyspace.unit
        serving = self._place.routes.now().serving
        tried: dict[int, Tried] = {}
        for extent in extents:
            source = batch.sources[extent]
            asked = tried[extent] = dict(batch.tried.get(extent, {}))
            if source is not None:
                asked[source] = Status.NOT_FOUND
        broken = False
        while extents:
            again = self._batch(extents, {position: tried[extent] for position, extent in enumerate(extents)})
            rows = await again.run(self._time_left_s())
            left = []
            for position, (extent, row) in enumerate(zip(extents, rows, strict=True)):
                verdict = judge(first, row, self._of[extent][1], unit)
                source = again.sources[position]
                if verdict is Stripe.BELONGS:
                    continue
                if verdict is Stripe.UNKNOWN:
                    return GetResult(STATUS_OF[row[1]], 0)
                if source is not None:
                    tried[extent][source] = Status.NOT_FOUND
                    left.append(extent)
                    continue
                # Nobody is left to ask. Only answers of all serving replicas say that the chunk is gone.
                chain = self._chain(block, self._of[extent][1])
                answers, entitled = tried[extent], serving[chain]
                broken |= bool(entitled) and all(answers.get(state) == Status.NOT_FOUND for state in entitled)
                if not broken:
                    return _MISS
            extents = left
            if broken:
                if self._place.sole:
                    await self._remove_broken(block, first)
                return _MISS
        return GetResult(Status.OK, first[4])

    async def _remove_broken(self, block: int, first: Row) -> None:
        batch = RemoveBatch(
            self._keyspace.workers,
            self._place.routes,
            self._keyspace.space,
            objects=[self._objects[block]],
            indexes=[0],
            chains=[self._chains[block]],
            conditions=[(first[3], first[6])],
        )
        ((status,),) = await batch.run(self._time_left_s())
        log.warning("a block whose chunks do not belong together was removed", status=STATUS_OF[status].name)


async def read_heads(
    keyspace: Keyspace, place: Place, objects: Sequence[bytes], chains: Sequence[int], timeout_s: float
) -> list[Row]:
    """What the chunks 0 of these objects say (rows with TOO_LARGE and no data), or why it is not known."""
    nothing = memoryview(bytearray())
    batch = ReadBatch(
        keyspace.staging,
        place.routes,
        keyspace.space,
        objects=objects,
        indexes=[0] * len(objects),
        chains=chains,
        views=[nothing] * len(objects),
        slots=[None] * len(objects),
        offsets=[0] * len(objects),
    )
    return await batch.run(timeout_s)
