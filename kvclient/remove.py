"""Blocks removed from the cluster: chunk 0 first, so that a block vanishes whole, then its stripe chunks.

In a namespace whose values may be striped, chunk 0 is read first, to know what it stands for; it is then removed only
if it is still that one, and stripe chunks only if they are of its put.

A block is removed at every place at which it may be. Where a drive that is dead at the moment may have it, that is its
outcome, as it would be found again once the drive is back.
"""

import asyncio
from collections.abc import Sequence

from esker.client.removes import ANY_PUT_ID, ANY_VERSION, RemoveBatch
from esker.kvclient.get import read_heads
from esker.kvclient.keyspace import Keyspace
from esker.kvclient.layout import Place
from esker.kvclient.search import distinct_places
from esker.wire.limits import STRIPE_CHUNKS_MAX
from esker.wire.status import STATUS_OF, Status

_GONE = (Status.OK, Status.NOT_FOUND)


async def remove_blocks(keyspace: Keyspace, objects: Sequence[bytes], anchors: bytes, timeout_s: float) -> list[Status]:
    """OK or NOT_FOUND for each object, or why it was not removed (TIMEOUT: unknown)."""
    deadline = asyncio.get_running_loop().time() + timeout_s
    places = [*keyspace.places(), *keyspace.homes()]
    removals = [
        (positions, _Removal(keyspace, place, objects, anchors, positions, deadline))
        for place, positions in distinct_places(places, anchors, whole=keyspace.striped)
    ]
    # What each place's chunk 0 stands for is asked everywhere before one goes: two places may share it.
    await asyncio.gather(*(removal.look() for _, removal in removals))
    result: list[int] = [Status.NOT_FOUND] * len(objects)
    statuses = await asyncio.gather(*(removal.remove() for _, removal in removals))
    for (positions, _), found in zip(removals, statuses, strict=True):
        for position, status in zip(positions, found, strict=True):
            if status not in _GONE or result[position] == Status.NOT_FOUND:
                result[position] = status
    return [STATUS_OF[status] for status in result]


class _Removal:
    """Of the objects at `positions` of the call, from one place."""

    def __init__(
        self,
        keyspace: Keyspace,
        place: Place,
        objects: Sequence[bytes],
        anchors: bytes,
        positions: Sequence[int],
        deadline: float,
    ) -> None:
        self._keyspace = keyspace
        self._place = place
        firsts = place.firsts(anchors).tolist()
        self._objects = [objects[position] for position in positions]
        self._firsts: list[int] = [firsts[position] for position in positions]
        self._conditions = [(ANY_VERSION, ANY_PUT_ID)] * len(positions)
        self._counts = [1] * len(positions)
        self._status: list[int] = [Status.OK] * len(positions)
        self._deadline = deadline

    async def look(self) -> None:
        """Learns what the chunks 0 stand for."""
        if not self._keyspace.striped:
            return
        heads = await read_heads(self._keyspace, self._place, self._objects, self._firsts, self._time_left_s())
        for block, head in enumerate(heads):
            if head[1] == Status.TOO_LARGE:
                self._conditions[block] = (head[3], head[6])
                self._counts[block] = min(head[5], STRIPE_CHUNKS_MAX)  # whatever a record says
            else:
                self._status[block] = head[1]

    async def remove(self) -> list[int]:
        """Removes; the status of each."""
        asked = [block for block, status in enumerate(self._status) if status == Status.OK]
        for block, status in zip(asked, await self._chunks([(block, 0) for block in asked]), strict=True):
            # A chunk 0 that changed meanwhile: the block that was there is gone, another one took its place.
            self._status[block] = Status.NOT_FOUND if status == Status.CONDITION else status
        gone = [block for block in asked if self._status[block] in _GONE]
        await self._chunks([(block, index) for block in gone for index in range(1, self._counts[block])])
        return self._status

    async def _chunks(self, chunks: Sequence[tuple[int, int]]) -> list[int]:
        """Removes these (block, index); the status of each."""
        objects, firsts, conditions = self._objects, self._firsts, self._conditions
        batch = RemoveBatch(
            self._keyspace.workers,
            self._place.routes,
            self._keyspace.space,
            objects=[objects[block] for block, _ in chunks],
            indexes=[index for _, index in chunks],
            chains=[self._place.chunk(firsts[block], objects[block], index) for block, index in chunks],
            conditions=[
                conditions[block] if index == 0 else (ANY_VERSION, conditions[block][1]) for block, index in chunks
            ],
        )
        return [row[0] for row in await batch.run(self._time_left_s())]

    def _time_left_s(self) -> float:
        return max(0.001, self._deadline - asyncio.get_running_loop().time())
