"""Which drives form which chains: a pure, deterministic plan.

Chains are made head by head, with the heads interleaved over the drives in proportion to their capacity, so that
neighbouring chains of a table (which a striped block uses) have different heads. The other replicas are chosen
greedily: another node first, then the drive that is furthest below its share, then the one that has met the drives of
the chain least often, so that the load of a dead drive spreads over all others. Rounds of swaps then even out what
greed left. Nothing here knows of transactions or workers.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

HEADS_PER_DRIVE_MAX = 8
"""Chains that a drive heads, on average, in a large cluster; below 9 drives it is one per other drive."""
_SWAP_ROUNDS = 4


@dataclass(frozen=True, slots=True)
class DriveSite:
    """A drive, where it is, and how much it holds."""

    drive_id: str
    node_id: str
    capacity_bytes: int


def heads_per_drive(drives: int, replicas: int) -> int:
    """Mean number of chains that a drive heads."""
    return 1 if replicas == 1 else min(drives - 1, HEADS_PER_DRIVE_MAX)


def min_replicas(replicas: int) -> int:
    """Replicas below which a chain acknowledges nothing."""
    return ceil(replicas / 2)


def in_turn(drives: Sequence[DriveSite]) -> list[DriveSite]:
    """The drives in a fixed order in which neighbours are on different nodes, as far as there are enough nodes."""
    nodes: dict[str, list[DriveSite]] = {}
    for drive in sorted(drives, key=lambda drive: (drive.node_id, drive.drive_id)):
        nodes.setdefault(drive.node_id, []).append(drive)
    places = [(place / len(members), drive) for members in nodes.values() for place, drive in enumerate(members)]
    return [drive for _, drive in sorted(places, key=lambda place: (place[0], place[1].node_id))]


def plan_chains(drives: Sequence[DriveSite], replicas: int) -> list[list[str]]:
    """The chains, each a list of `replicas` different drive ids, head first. Order of `drives` matters.

    Raises `ValueError` if there are fewer drives than replicas.
    """
    if not 1 <= replicas <= len(drives):
        raise ValueError(f"{replicas} replicas on {len(drives)} drives; allowed: 1 to the number of drives")
    plan = _Plan(drives, replicas)
    return [[drives[member].drive_id for member in chain] for chain in plan.chains()]


def chain_weights(drives: Sequence[DriveSite], chains: Sequence[Sequence[str]]) -> list[int]:
    """Placement weights, 1 to 1024: a chain counts as much as its scarcest drive can give each of its chains."""
    held = {drive.drive_id: 0 for drive in drives}
    for chain in chains:
        for member in chain:
            held[member] += 1
    share = {drive.drive_id: drive.capacity_bytes // max(1, held[drive.drive_id]) for drive in drives}
    least = [min(share[member] for member in chain) for chain in chains]
    most = max(least, default=0) or 1
    return [max(1, value * 1024 // most) for value in least]


class _Plan:
    def __init__(self, drives: Sequence[DriveSite], replicas: int) -> None:
        self._count = len(drives)
        self._replicas = replicas
        self._nodes = [drive.node_id for drive in drives]
        total = self._count * heads_per_drive(self._count, replicas)
        self._heads = _proportional([max(1, drive.capacity_bytes) for drive in drives], total)
        self._target = [heads * replicas for heads in self._heads]
        self._load = list(self._heads)
        """Replicas per drive; every head counts from the start, so that early chains do not crowd their followers."""
        self._met = [[0] * self._count for _ in drives]

    def chains(self) -> list[list[int]]:
        chains = []
        for number, head in enumerate(_interleaved(self._heads)):
            chain = [head]
            while len(chain) < self._replicas:
                self._append(chain, number)
            chains.append(chain)
        for _ in range(_SWAP_ROUNDS):
            if not self._swap_round(chains):
                break
        self._even_tails(chains)
        return chains

    def _even_tails(self, chains: list[list[int]]) -> None:
        """Order the followers so that drives are tails equally often, as tails have work of their own."""
        tails = [0] * self._count
        for chain in chains:
            tail = min(chain[1:], key=lambda drive: tails[drive], default=None)
            if tail is not None:
                chain.remove(tail)
                chain.append(tail)
                tails[tail] += 1

    def _append(self, chain: list[int], number: int) -> None:
        head = chain[0]
        turn = number // self._count + 1
        used_nodes = {self._nodes[member] for member in chain}
        best = min(
            (drive for drive in range(self._count) if drive not in chain),
            key=lambda drive: (
                self._nodes[drive] in used_nodes,
                (self._load[drive] + 1) * 1000 // self._target[drive],
                sum(self._met[drive][member] for member in chain),
                (drive - head - turn) % self._count,
            ),
        )
        self._join(chain, best)

    def _join(self, chain: list[int], drive: int) -> None:
        for member in chain:
            self._met[drive][member] += 1
            self._met[member][drive] += 1
        self._load[drive] += 1
        chain.append(drive)

    def _swap_round(self, chains: list[list[int]]) -> bool:
        """Replace a follower where that evens out pairs or load; whether anything changed."""
        changed = False
        for chain in chains:
            for place in range(1, self._replicas):
                changed |= self._replace(chain, place)
        return changed

    def _replace(self, chain: list[int], place: int) -> bool:
        old = chain.pop(place)
        for member in chain:
            self._met[old][member] -= 1
            self._met[member][old] -= 1
        self._load[old] -= 1
        best = min(
            (drive for drive in range(self._count) if drive not in chain), key=lambda d: self._cost(chain, d, old)
        )
        self._join(chain, best)
        chain.insert(place, chain.pop())
        return best != old

    def _cost(self, chain: list[int], drive: int, old: int) -> tuple[int, int, int, int]:
        nodes = {self._nodes[member] for member in chain}
        met = self._met[drive]
        return (
            self._nodes[drive] in nodes,
            (self._load[drive] + 1) * 1000 // self._target[drive],
            sum(2 * met[member] + 1 for member in chain),
            drive != old,
        )


def _proportional(weights: Sequence[int], total: int) -> list[int]:
    """`total` shared out in proportion, at least 1 each, by largest remainder."""
    whole = sum(weights)
    shares = [max(1, total * weight // whole) for weight in weights]
    order = sorted(range(len(weights)), key=lambda i: (-(total * weights[i] % whole), i))
    at = 0
    while sum(shares) < total:
        shares[order[at % len(order)]] += 1
        at += 1
    return shares


def _interleaved(counts: Sequence[int]) -> list[int]:
    """Index i `counts[i]` times, spread as evenly as possible; with equal counts 0, 1, 2, ..., 0, 1, 2, ..."""
    turns = [((2 * turn + 1) / (2 * count), index) for index, count in enumerate(counts) for turn in range(count)]
    return [index for _, index in sorted(turns)]
