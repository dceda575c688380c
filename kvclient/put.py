"""Blocks into the cluster, write-once.

A value within the stripe unit is one create. A longer one: its stripe chunks first, all at once, and chunk 0 last,
only when they are all there, so that the block becomes visible whole. A stripe chunk of another put in the way is
replaced, conditionally on its version and put id, and only while chunk 0 is absent. Racing putters of equal bytes
share the put id; of different bytes one wins whole, or the key ends as a miss (the reader decides), never as a mixture.

Stripe chunks of a put that did not get through stay: a racing putter of the same bytes may count on them.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from esker.client.batch import Row
from esker.client.creates import CreateBatch
from esker.client.removes import RemoveBatch
from esker.kvclient.get import read_heads
from esker.kvclient.keyspace import Keyspace
from esker.kvclient.layout import Place
from esker.kvclient.memory import Memory
from esker.kvclient.results import PutResult
from esker.kvclient.striping import chunk_count, put_id
from esker.wire.placement import Indexes
from esker.wire.status import STATUS_OF, Status

REPLACE_ATTEMPTS_MAX = 3
_GOOD = (Status.OK, Status.EXISTS)


@dataclass(frozen=True, slots=True)
class _Chunk:
    """Chunk `index` of the block at position `block` of the call."""

    block: int
    index: int


class Put:
    """One `put` of distinct keys at one place: objects, the chains of their chunks 0 and the values' memory."""

    def __init__(
        self,
        keyspace: Keyspace,
        place: Place,
        keys: Sequence[bytes],
        objects: Sequence[bytes],
        chains: Indexes,
        memory: Memory,
        timeout_s: float,
    ) -> None:
        self.unavailable: set[int] = set()
        """Chains (indexes in the place's table) that could not take chunks."""
        self._keyspace = keyspace
        self._place = place
        self._keys = keys
        self._objects = objects
        self._chains: list[int] = chains.tolist()
        self._memory = memory
        self._deadline = asyncio.get_running_loop().time() + timeout_s
        unit = keyspace.unit
        self._blocks = [(len(view), chunk_count(len(view), unit), put_id(view, unit)) for view in memory.views]
        self._status: dict[int, int] = {}

    def _time_left_s(self) -> float:
        return max(0.001, self._deadline - asyncio.get_running_loop().time())

    async def run(self) -> list[PutResult]:
        """Stores all blocks; one result each."""
        singles = [block for block, (_, count, _) in enumerate(self._blocks) if count == 1]
        striped = [block for block, (_, count, _) in enumerate(self._blocks) if count > 1]
        if striped:
            await asyncio.gather(self._put_first_chunks(singles), self._put_striped(striped))
        else:
            await self._put_first_chunks(singles)
        return [PutResult(STATUS_OF[self._status[block]]) for block in range(len(self._keys))]

    async def _put_first_chunks(self, blocks: Sequence[int]) -> None:
        rows = await self._create([_Chunk(block, 0) for block in blocks])
        for block, row in zip(blocks, rows, strict=True):
            self._status[block] = row[1]

    async def _put_striped(self, blocks: Sequence[int]) -> None:
        heads = await self._heads(blocks)
        open_blocks = []
        for block, head in zip(blocks, heads, strict=True):
            if head[1] == Status.TOO_LARGE and head[4:] != self._blocks[block]:
                self._status[block] = Status.EXISTS_OTHER
            else:
                open_blocks.append(block)
        chunks = [_Chunk(block, index) for block in open_blocks for index in range(1, self._blocks[block][1])]
        rows = await self._create(chunks)
        for _ in range(REPLACE_ATTEMPTS_MAX):
            others = [(chunk, row) for chunk, row in zip(chunks, rows, strict=True) if row[1] == Status.EXISTS_OTHER]
            if not others:
                break
            replaced = await self._replace(others)
            rows = [replaced.get(chunk, row) for chunk, row in zip(chunks, rows, strict=True)]
        for chunk, row in zip(chunks, rows, strict=True):
            if row[1] not in _GOOD:
                self._status.setdefault(chunk.block, row[1])
        await self._put_first_chunks([block for block in open_blocks if block not in self._status])

    async def _replace(self, others: Sequence[tuple[_Chunk, Row]]) -> dict[_Chunk, Row]:
        """Removes stripe chunks of other puts and creates ours, for blocks whose chunk 0 does not say otherwise."""
        blocks = sorted({chunk.block for chunk, _ in others})
        free = set()
        for block, head in zip(blocks, await self._heads(blocks), strict=True):
            ours = head[1] == Status.TOO_LARGE and head[4:] == self._blocks[block]
            # A chunk 0 of this very put above a chunk of another: a broken block, as the chunk's whole chain says.
            if head[1] == Status.NOT_FOUND or (ours and await self._remove_first(block, head)):
                free.add(block)
        chosen = [(chunk, row) for chunk, row in others if chunk.block in free]
        if not chosen:
            return {}
        await self._removal([chunk for chunk, _ in chosen], [(row[2], row[4]) for _, row in chosen])
        chunks = [chunk for chunk, _ in chosen]
        return dict(zip(chunks, await self._create(chunks), strict=True))

    async def _remove_first(self, block: int, head: Row) -> bool:
        status = (await self._removal([_Chunk(block, 0)], [(head[3], head[6])]))[0][0]
        return status in (Status.OK, Status.NOT_FOUND)

    # Batches

    async def _heads(self, blocks: Sequence[int]) -> list[Row]:
        objects = [self._objects[block] for block in blocks]
        chains = [self._chains[block] for block in blocks]
        return await read_heads(self._keyspace, self._place, objects, chains, self._time_left_s())

    def _chain(self, chunk: _Chunk) -> int:
        return self._place.chunk(self._chains[chunk.block], self._objects[chunk.block], chunk.index)

    async def _create(self, chunks: Sequence[_Chunk]) -> list[Row]:
        keyspace, memory, unit = self._keyspace, self._memory, self._keyspace.unit
        batch = CreateBatch(
            keyspace.workers,
            self._place.routes,
            keyspace.space,
            unit,
            objects=[self._objects[chunk.block] for chunk in chunks],
            indexes=[chunk.index for chunk in chunks],
            chains=[self._chain(chunk) for chunk in chunks],
            views=[memory.views[chunk.block][chunk.index * unit : (chunk.index + 1) * unit] for chunk in chunks],
            slots=[memory.slots[chunk.block] for chunk in chunks],
            offsets=[memory.offsets[chunk.block] + chunk.index * unit for chunk in chunks],
            blocks=[self._blocks[chunk.block] for chunk in chunks],
            keys=[self._keys[chunk.block] for chunk in chunks],
        )
        rows = await batch.run(self._time_left_s())
        self.unavailable |= batch.unavailable
        return rows

    async def _removal(self, chunks: Sequence[_Chunk], conditions: Sequence[tuple[int, bytes]]) -> list[Row]:
        batch = RemoveBatch(
            self._keyspace.workers,
            self._place.routes,
            self._keyspace.space,
            objects=[self._objects[chunk.block] for chunk in chunks],
            indexes=[chunk.index for chunk in chunks],
            chains=[self._chain(chunk) for chunk in chunks],
            conditions=conditions,
        )
        return await batch.run(self._time_left_s())
