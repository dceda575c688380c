"""Where a namespace's blocks lie: over the chains of one version of its chain table, at this moment.

A `Place` is such a moment, immutable: each call works with those that it began with. A `Layout` gives them out. In
cache mode it watches which chains are dead, as the cluster map says or as this client's own connections show, or take
no blocks, and has others stand in for them: the slots of a dead chain go to the best of the living ones, all other
slots stay. When the chain is back its slots are its own again; where blocks were put meanwhile is remembered, to be
looked at on a miss.

Two clients may take different chains for dead for a while. That costs misses, and nothing else: what a key stands for
never changes, and every byte that is read is verified.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from esker.client.chains import ChainRoutes
from esker.wire.placement import Indexes, SlotTable

ChainIds = npt.NDArray[np.int64]
_STRIDE = 257
"""By how many slots the stand-ins of a block's successive chunks lie apart."""
REFUSED_S = 1.0
"""A chain that took no blocks counts as dead for so long, or until it has changed: by then the cluster map tells of a
worker that cannot store, or has yet to be admitted again."""


@dataclass(frozen=True, slots=True)
class Place:
    """Which chains hold which blocks. Chains are indexes into the version's table, as in its `routes`."""

    routes: ChainRoutes
    slots: SlotTable
    dead: frozenset[int] = frozenset()
    """Chains that others stand in for."""
    sole: bool = True
    """Whether a block can be nowhere else, so that what is not here is nowhere."""

    def firsts(self, anchors: bytes) -> Indexes:
        """The chain of chunk 0 of each block, by the column of their anchors' object ids."""
        return self.slots.chain_indexes(anchors)

    def chain_ids(self, anchors: bytes) -> ChainIds:
        """The ids of `firsts`."""
        ids: ChainIds = np.array(self.routes.table.chain_ids, dtype=np.int64)[self.firsts(anchors)]
        return ids

    def chunk(self, first: int, object_id: bytes, index: int) -> int:
        """The chain of a block's chunk `index`, given that of its chunk 0: the `index`-th next, or who stands in."""
        chain = (first + index) % self.slots.chain_count
        if index and chain in self.dead:
            slot = int.from_bytes(object_id[-2:], "big") + _STRIDE * index
            return self.slots.chain_index((slot & 0xFFFF).to_bytes(2, "big"))
        return chain


class Layout:
    """One version of the namespace's chain table. `cache`: others stand in for chains that are dead."""

    def __init__(self, routes: ChainRoutes, slots: SlotTable, *, cache: bool, clock: Callable[[], float]) -> None:
        """`clock` is in seconds, and never jumps."""
        self.routes = routes
        self._clock = clock
        self._home = slots
        self._cache = cache
        self._now = Place(routes, slots)
        self._meanwhile = slots
        """Where blocks went while chains were dead that are back; else as at home."""
        self._refused: dict[int, tuple[int, float]] = {}
        """Chains that took no blocks: their version then, and until when that counts."""

    def now(self) -> Place:
        """The place at this moment."""
        if not self._cache:
            return self._now
        dead = self.routes.now().dead
        if self._refused:
            dead |= self._still_refused()
        if dead != self._now.dead:
            self._change(dead)
        return self._now

    def refuse(self, chains: Iterable[int]) -> None:
        """These chains took no blocks just now."""
        if self._cache:
            known = self.routes.now().chains
            until_s = self._clock() + REFUSED_S
            self._refused |= {chain: (known[chain].version, until_s) for chain in chains}

    def _still_refused(self) -> frozenset[int]:
        known, now_s = self.routes.now().chains, self._clock()
        self._refused = {
            chain: (version, until_s)
            for chain, (version, until_s) in self._refused.items()
            if now_s < until_s and known[chain].version == version
        }
        return frozenset(self._refused)

    def _change(self, dead: frozenset[int]) -> None:
        before = self._now
        back = before.dead - dead
        if back:
            self._meanwhile = self._meanwhile.taking(before.slots, self._home, back)
        self._now = Place(self.routes, self._slots_without(dead), dead, sole=not dead)

    def _slots_without(self, dead: frozenset[int]) -> SlotTable:
        table = self.routes.table
        return self._home.without(table.chain_ids, table.weights, dead)

    def others(self) -> Iterator[Place]:
        """Places besides `now` at which blocks may be found."""
        if self._meanwhile is not self._home:
            yield Place(self.routes, self._meanwhile, self.now().dead, sole=False)

    def home(self) -> Place:
        """The place with every chain alive."""
        return Place(self.routes, self._home)
