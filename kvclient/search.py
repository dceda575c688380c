"""Blocks looked for at every place at which they may be: `get` and lookups of a namespace.

A key is asked for at one place unless it lies elsewhere in an older layout, or was put elsewhere while its drive was
dead. Lookups ask all places in one round trip; a `get` goes on to the next place with what the earlier ones do not
have, so that what is found at once costs nothing more.
"""

import asyncio
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from esker.client.lookups import Flags, lookup
from esker.kvclient.get import get_blocks
from esker.kvclient.keyspace import Keyspace
from esker.kvclient.layout import ChainIds, Place
from esker.kvclient.memory import Memory
from esker.kvclient.results import GetResult
from esker.wire.limits import OBJECT_BYTES
from esker.wire.placement import Indexes
from esker.wire.status import Status


class _Asked:
    """Which places have been asked for which keys of a call. `whole`: two versions of a table are two places, even
    where chunk 0 is on the same chain, as the other chunks need not be.
    """

    def __init__(self, count: int, *, whole: bool) -> None:
        self._whole = whole
        self._ids: list[ChainIds] = []
        self._all = np.arange(count, dtype=np.intp)

    def positions(self, place: Place, anchors: bytes, among: Indexes | None = None) -> Indexes:
        """The keys, of those in `among`, that have not been asked for where this place says; they are from now on."""
        firsts = place.firsts(anchors)
        new = np.ones(len(firsts), dtype=bool)
        if self._ids and place.dead:
            new = ~np.isin(firsts, np.array(sorted(place.dead), dtype=np.intp))
        ids = place.chain_ids(anchors)
        if self._whole:
            ids = ids | (np.int64(place.routes.table.version) << np.int64(32))
        for earlier in self._ids:
            new &= ids != earlier
        if among is not None:
            chosen = np.zeros(len(firsts), dtype=bool)
            chosen[among] = True
            new &= chosen
        self._ids.append(np.where(new, ids, -1))
        return self._all if new.all() else new.nonzero()[0]


def distinct_places(places: Iterable[Place], anchors: bytes, *, whole: bool) -> Iterator[tuple[Place, list[int]]]:
    """Each place with the positions of the keys that are not where an earlier one has them."""
    asked = _Asked(len(anchors) // OBJECT_BYTES, whole=whole)
    for place in places:
        positions = asked.positions(place, anchors)
        if len(positions):
            yield place, positions.tolist()


async def find_blocks(keyspace: Keyspace, objects: Sequence[bytes], anchors: bytes, timeout_s: float) -> Flags:
    """1 for each block that is at one of its places, 0 for the others; one round trip."""
    first, *others = keyspace.places()
    column = b"".join(objects)
    chains = first.firsts(anchors)
    if not others:
        return await lookup(first.routes, keyspace.space, column, chains, timeout_s)
    asked = _Asked(len(objects), whole=False)
    asked.positions(first, anchors)
    waiting = [lookup(first.routes, keyspace.space, column, chains, timeout_s)]
    parts: list[Indexes] = []
    for place in others:
        positions = asked.positions(place, anchors)
        if len(positions):
            part = np.frombuffer(column, dtype=f"V{OBJECT_BYTES}")[positions].tobytes()
            waiting.append(lookup(place.routes, keyspace.space, part, place.firsts(anchors)[positions], timeout_s))
            parts.append(positions)
    present, *found = await asyncio.gather(*waiting)
    for positions, flags in zip(parts, found, strict=True):
        present[positions] |= flags
    return present


async def read_blocks(
    keyspace: Keyspace, objects: Sequence[bytes], anchors: bytes, memory: Memory, timeout_s: float
) -> list[GetResult]:
    """Reads the block of every object into its buffer, from the first of its places that has it; one result each."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    first = next(keyspace.places())
    results = await get_blocks(keyspace, first, objects, first.firsts(anchors), memory, timeout_s)
    if keyspace.simple:
        return results
    open_ = _open(results)
    asked: _Asked | None = None
    while len(open_) and loop.time() < deadline:
        if asked is None:
            asked = _Asked(len(objects), whole=keyspace.striped)
            asked.positions(first, anchors)
        for place in keyspace.places():  # as they are now: a drive may have died meanwhile
            positions = asked.positions(place, anchors, open_)
            if len(positions):
                break
        else:
            break
        chosen = positions.tolist()
        found = await get_blocks(
            keyspace,
            place,
            [objects[position] for position in chosen],
            place.firsts(anchors)[positions],
            memory.at(chosen),
            max(0.001, deadline - loop.time()),
        )
        for position, result in zip(chosen, found, strict=True):
            results[position] = _better(keyspace, results[position], result)
        open_ = _open(results)
    return results


def _open(results: Sequence[GetResult]) -> Indexes:
    """Which keys another place may have."""
    missing = (Status.NOT_FOUND, Status.UNAVAILABLE)
    return np.array([at for at, result in enumerate(results) if result.status in missing], dtype=np.intp)


def _better(keyspace: Keyspace, before: GetResult, now: GetResult) -> GetResult:
    """What two places together say of a block."""
    if now.status is Status.NOT_FOUND and before.status is not Status.NOT_FOUND and not keyspace.cache:
        return before  # where it could not be asked for it may be
    if before.status is Status.NOT_FOUND and now.status is Status.UNAVAILABLE and keyspace.cache:
        return before  # what a dead drive has is a miss
    return now
