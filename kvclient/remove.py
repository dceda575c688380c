"""Blocks removed from the cluster: chunk 0 first, so that a block vanishes whole, then its stripe chunks.

In a namespace whose values may be striped, chunk 0 is read first, to know what it stands for; it is then removed only
if it is still that one, and stripe chunks only if they are of its put.
"""

import asyncio
from collections.abc import Sequence

from esker.client.removes import ANY_PUT_ID, ANY_VERSION, RemoveBatch
from esker.kvclient.get import read_heads
from esker.kvclient.keyspace import Keyspace
from esker.kvclient.results import STATUS_OF
from esker.wire.placement import Indexes
from esker.wire.status import Status


async def remove_blocks(
    keyspace: Keyspace, objects: Sequence[bytes], chains: Indexes, timeout_s: float
) -> list[Status]:
    """OK or NOT_FOUND for each object, or why it was not removed (TIMEOUT: unknown)."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    firsts: list[int] = chains.tolist()
    conditions = [(ANY_VERSION, ANY_PUT_ID)] * len(objects)
    counts = [1] * len(objects)
    result: list[int] = [Status.OK] * len(objects)
    asked = list(range(len(objects)))
    if keyspace.block_bytes_max > keyspace.unit:
        heads = await read_heads(keyspace, objects, firsts, timeout_s)
        for block, head in enumerate(heads):
            if head[1] == Status.TOO_LARGE:
                conditions[block], counts[block] = (head[3], head[6]), head[5]
            else:
                result[block] = head[1]
        asked = [block for block in asked if result[block] == Status.OK]

    async def remove(places: Sequence[tuple[int, int]]) -> list[int]:
        """The statuses of these (block, index)."""
        batch = RemoveBatch(
            keyspace.workers,
            keyspace.routes,
            keyspace.space,
            objects=[objects[block] for block, _ in places],
            indexes=[index for _, index in places],
            chains=[(firsts[block] + index) % keyspace.table.chain_count for block, index in places],
            conditions=[
                conditions[block] if index == 0 else (ANY_VERSION, conditions[block][1]) for block, index in places
            ],
        )
        return [row[0] for row in await batch.run(max(0.001, deadline - loop.time()))]

    for block, status in zip(asked, await remove([(block, 0) for block in asked]), strict=True):
        # A chunk 0 that changed meanwhile: the block that was there is gone, another one took its place.
        result[block] = Status.NOT_FOUND if status == Status.CONDITION else status
    gone = [block for block in asked if result[block] in (Status.OK, Status.NOT_FOUND)]
    await remove([(block, index) for block in gone for index in range(1, counts[block])])
    return [STATUS_OF[status] for status in result]
