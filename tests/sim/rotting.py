"""The storms of `simulation.py` while data rots on the drives and replicas mend it.

What rots is the data of a chunk whose record stays whole, on one drive at a time for each chunk: so there is always a
whole copy somewhere of what was acknowledged, and in the end every such copy must be mended.
"""

from typing import Any

from esker.craq import messages as craq
from esker.craq.replica import ChainReplica
from esker.wire.status import Status
from esker.wire.types import TargetState

from .nodes import CHUNKS, Factory, Node
from .simulation import Simulation

REPAIR_ROUNDS_MAX = 50


class RottingNode(Node):
    """Knows which of its chunks have rotted; nobody else does before reading them."""

    def __init__(self, world: Any, drive: str) -> None:
        super().__init__(world, drive)
        self.rotten: dict[bytes, craq.Stored] = {}
        """The copies that have rotted. A chunk that was written anew since is none of them."""
        self.repairs: list[Status] = []

    def rots(self, chunk: bytes) -> bool:
        """Whether what is stored of the chunk does not verify."""
        return chunk in self.rotten and self.store.get(chunk) is self.rotten[chunk]

    def repair(self, chunk: bytes) -> None:
        """Somebody suspects the chunk."""
        self.arrive(craq.Repair(0, self.chain.version, chunk), lambda status, stored: self.repairs.append(status))

    def _Verify(self, effect: craq.Verify) -> None:
        chunk = self.operations[effect.op].event.chunk
        self.later(f"verifies for {effect.op}", lambda: craq.Verified(effect.op, not self.rots(chunk)))

    def _CopyFrom(self, effect: craq.CopyFrom) -> None:
        """Two questions, as in the worker: the record, then the data, which must still be that record's."""
        operation, version = self.operations[effect.op], self.chain.version
        chunk, source = operation.event.chunk, self._world.nodes[effect.drive_id]
        assert isinstance(source, RottingNode)
        found: list[craq.Stored | None] = []

        def record() -> craq.Event | None:
            if not source.ready(version) or self.misses(source.drive):
                return craq.Fetched(effect.op, None, reached=False)
            found.append(source.store.get(chunk))
            self.later(f"reads what to take over for {effect.op}", data)
            return None

        def data() -> craq.Event:
            stored = source.store.get(chunk)
            if source.machine is None:
                return craq.Fetched(effect.op, None, reached=False)
            whole = stored is not None and stored == found[0] and not source.rots(chunk)
            # A copy of its own: what rots there later does not rot here.
            operation.fetched = craq.Stored(stored.version, stored.content) if whole and stored is not None else None
            return craq.Fetched(effect.op, operation.fetched)

        self.later(f"asks for the record for {effect.op}", record)

    def _Fetch(self, effect: craq.Fetch) -> None:
        """A copy that does not verify is not taken over."""
        source, chunk = self._world.nodes[effect.successor], self.operations[effect.op].event.chunk
        assert isinstance(source, RottingNode)
        if source.rots(chunk):
            self.later(f"fetches what has rotted for {effect.op}", lambda: craq.Fetched(effect.op, None))
        else:
            super()._Fetch(effect)

    def _Forward(self, effect: craq.Forward) -> None:
        """Nor is one passed on."""
        chunk = self.operations[effect.op].event.chunk
        if effect.from_store and not effect.confirm and self.rots(chunk):
            self.later(f"reads what has rotted for {effect.op}", lambda: craq.Unreadable(effect.op))
        else:
            super()._Forward(effect)


class Unlocked(RottingNode):
    """A mutant: takes over what it fetched without holding the chunk's lock."""

    def _CopyFrom(self, effect: craq.CopyFrom) -> None:
        chunk, source = self.operations[effect.op].event.chunk, self._world.nodes[effect.drive_id]
        copy = source.store.get(chunk)

        def written() -> None:
            if copy is not None:
                self.store[chunk] = copy

        self.after(0.5, written)
        self.later(f"fetches nothing for {effect.op}", lambda: craq.Fetched(effect.op, None))


class RottingSimulation(Simulation):
    """In the end nothing is rotten that is whole anywhere."""

    def __init__(self, seed: int, factory: Factory = ChainReplica, node_type: type[RottingNode] = RottingNode) -> None:
        super().__init__(seed, factory, node_type)
        self.rotted = 0

    @property
    def drives(self) -> list[RottingNode]:
        return [node for node in self.nodes.values() if isinstance(node, RottingNode)]

    def _fault(self) -> None:
        chance = self.random.random()
        copies = [(node, chunk) for node in self.drives for chunk in CHUNKS]
        if chance < 0.4:
            self._rot(*self.random.choice(copies))
        elif chance < 0.8:
            rotten = [(node, chunk) for node, chunk in copies if node.rots(chunk)]
            suspected = rotten if rotten and self.random.random() < 0.8 else copies
            node, chunk = self.random.choice(suspected)
            if node.machine is not None:
                node.repair(chunk)
        else:
            super()._fault()

    def _rot(self, node: RottingNode, chunk: bytes) -> None:
        """A copy rots where all replicas serve and have the same."""
        serving = all(replica.state is TargetState.SERVING for replica in self.manager.chain.replicas)
        copies = [each.store.get(chunk) for each in self.drives]
        same = copies[0] is not None and copies.count(copies[0]) == len(copies)
        if serving and same and not any(each.rots(chunk) for each in self.drives):
            self.note(f"{node.drive}: {chunk!r} rots")
            stored = node.store[chunk]
            node.store[chunk] = node.rotten[chunk] = craq.Stored(stored.version, stored.content)
            self.rotted += 1

    def _can_be_mended(self, node: RottingNode, chunk: bytes) -> bool:
        """What is neither acknowledged nor removed for certain may be on one drive alone; its next put settles that."""
        others = [other.store.get(chunk) for other in self.drives if other is not node]
        return node.rots(chunk) and node.store[chunk] in others

    def _last_words(self) -> None:
        for _ in range(REPAIR_ROUNDS_MAX):
            rotten = [(node, chunk) for node in self.drives for chunk in CHUNKS if self._can_be_mended(node, chunk)]
            if not rotten:
                break
            for node, chunk in rotten:
                node.repair(chunk)
            self._drain()
        else:
            self.fail(f"{len(rotten)} copies are not mended: {[node.repairs[-1] for node, _ in rotten]}")
        super()._last_words()
