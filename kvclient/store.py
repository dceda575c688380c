"""`put` of a namespace: each key once at a time, in the newest layout, and past drives that die.

In cache mode a block whose chain cannot take it goes to the chain that stands in for that one, within the call; where
nobody can it is UNAVAILABLE.
"""

import asyncio
from collections import Counter
from collections.abc import Sequence

import numpy as np

from esker.kvclient.keyspace import Keyspace
from esker.kvclient.memory import Memory
from esker.kvclient.put import Put
from esker.kvclient.results import PutResult
from esker.wire.status import Status

STAND_INS_MAX = 8
"""Times that a block is tried elsewhere."""
_ELSEWHERE = (Status.UNAVAILABLE, Status.TIMEOUT)
"""Outcomes, before the deadline, of chains that cannot take a block: the second is of a worker that fell silent."""


async def put_blocks(
    keyspace: Keyspace,
    keys: Sequence[bytes],
    objects: Sequence[bytes],
    anchors: bytes,
    memory: Memory,
    timeout_s: float,
) -> list[PutResult]:
    """Stores each value; one result each. A later value of the same key meets the earlier one stored."""
    ends_at = asyncio.get_running_loop().time() + timeout_s
    results: list[PutResult] = [PutResult(Status.TIMEOUT)] * len(keys)
    for positions in _distinct(objects):
        outcomes = await _put(keyspace, keys, objects, anchors, memory, positions, ends_at)
        for at, result in zip(positions, outcomes, strict=True):
            results[at] = result
    return results


async def _put(
    keyspace: Keyspace,
    keys: Sequence[bytes],
    objects: Sequence[bytes],
    anchors: bytes,
    memory: Memory,
    positions: Sequence[int],
    ends_at: float,
) -> list[PutResult]:
    """One round of distinct keys."""
    loop = asyncio.get_running_loop()
    results: dict[int, PutResult] = {}
    left = positions
    layout = keyspace.newest
    place = layout.now()
    for _ in range(STAND_INS_MAX + 1):
        whole = len(left) == len(keys)
        chains = place.firsts(anchors)
        put = Put(
            keyspace,
            place,
            keys if whole else [keys[at] for at in left],
            objects if whole else [objects[at] for at in left],
            chains if whole else chains[np.array(left, dtype=np.intp)],
            memory if whole else memory.at(left),
            max(0.001, ends_at - loop.time()),
        )
        outcomes = await put.run()
        results |= zip(left, outcomes, strict=True)
        if not keyspace.cache:
            break
        layout.refuse(put.unavailable)
        left = [at for at, result in zip(left, outcomes, strict=True) if result.status in _ELSEWHERE]
        before, place = place, layout.now()
        if not left or loop.time() >= ends_at or place is before:
            break
    return [results[at] for at in positions]


def _distinct(objects: Sequence[bytes]) -> list[list[int]]:
    """Positions in rounds within which no key repeats."""
    if len(set(objects)) == len(objects):
        return [list(range(len(objects)))] if objects else []
    seen: Counter[bytes] = Counter()
    rounds: list[list[int]] = []
    for at, key in enumerate(objects):
        if seen[key] == len(rounds):
            rounds.append([])
        rounds[seen[key]].append(at)
        seen[key] += 1
    return rounds
