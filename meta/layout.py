"""Which drives form which chains: a pure, deterministic plan.

Chains are made head by head, with the heads interleaved over the drives in proportion to what they shall bear, so that
neighbouring chains of a table (which a striped block uses) have different heads. The other replicas are chosen
greedily (`balance.py`): another node first, then the drive that is furthest below its share, then the one that has met
the drives of the chain least often. Rounds of swaps then even out what greed left. Chains that exist already count, and
stay as they are. Nothing here knows of transactions or workers.
"""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from math import ceil

import numpy as np

from esker.meta.balance import Balance, fair_shares
from esker.wire.placement import WEIGHT_MAX

HEADS_PER_DRIVE_MAX = 8
"""Chains that a drive heads, on average, in a large cluster; below 9 drives it is one per other drive."""
CHAINS_MAX = 16_000
"""Of a new cluster: the record of their table must fit a value of the metadata store."""
CHAINS_BYTES_MAX = 5_000_000
"""All of them together must fit a transaction that makes them, and a message with the cluster map."""
_SWAP_ROUNDS = 4


@dataclass(frozen=True, slots=True)
class DriveSite:
    """A drive, where it is, and how much it holds."""

    drive_id: str
    node_id: str
    capacity_bytes: int


def heads_per_drive(drives: int, replicas: int) -> int:
    """Mean number of chains that a drive heads; in clusters of thousands of drives as many as fit the limits."""
    if replicas == 1:
        return 1
    chains_max = min(CHAINS_MAX, CHAINS_BYTES_MAX // (60 + 90 * replicas))
    return max(1, min(drives - 1, HEADS_PER_DRIVE_MAX, chains_max // drives))


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
    return _named(drives, _Plan(drives, replicas, [], range(len(drives))).chains())


def extend_chains(
    drives: Sequence[DriveSite], replicas: int, existing: Sequence[Sequence[str]], fresh: Collection[str]
) -> list[list[str]]:
    """New chains that are headed by the drives `fresh`, which are in none of the existing ones. Other drives follow
    where the new ones are too few, or on too few nodes. Raises `ValueError` as `plan_chains` does.
    """
    if not 1 <= replicas <= len(drives):
        raise ValueError(f"{replicas} replicas on {len(drives)} drives; allowed: 1 to the number of drives")
    numbers = {drive.drive_id: number for number, drive in enumerate(drives)}
    members = [[numbers[drive_id] for drive_id in chain if drive_id in numbers] for chain in existing]
    own = [number for number, drive in enumerate(drives) if drive.drive_id in fresh]
    return _named(drives, _Plan(drives, replicas, members, own).chains())


def _named(drives: Sequence[DriveSite], chains: Sequence[Sequence[int]]) -> list[list[str]]:
    return [[drives[member].drive_id for member in chain] for chain in chains]


def chain_weights(drives: Sequence[DriveSite], chains: Sequence[Sequence[str]]) -> list[int]:
    """Placement weights, 1 to 1024: a chain counts as much as its scarcest drive can give each of its chains."""
    least = _least_shares(drives, chains, chains)
    most = max(least, default=0) or 1
    return [max(1, value * 1024 // most) for value in least]


def extended_weights(
    drives: Sequence[DriveSite],
    existing: Sequence[Sequence[str]],
    weights: Sequence[int],
    new: Sequence[Sequence[str]],
) -> list[int]:
    """Weights of new chains on the scale of the existing ones, whose `weights` stay: only the new ones' share moves."""
    before = _least_shares(drives, existing, existing)
    after = _least_shares(drives, [*existing, *new], new)
    bytes_per_weight = max((least / weight for least, weight in zip(before, weights, strict=True)), default=0.0)
    if bytes_per_weight <= 0:
        return chain_weights(drives, new)
    return [max(1, min(WEIGHT_MAX, round(least / bytes_per_weight))) for least in after]


def _least_shares(
    drives: Sequence[DriveSite], chains: Sequence[Sequence[str]], of: Sequence[Sequence[str]]
) -> list[int]:
    """For each chain of `of`: what its scarcest drive can give each of its chains, in bytes."""
    held = Counter(member for chain in chains for member in chain)
    share = {drive.drive_id: drive.capacity_bytes // max(1, held[drive.drive_id]) for drive in drives}
    return [min((share[member] for member in chain if member in share), default=0) for chain in of]


class _Plan:
    """New chains beside `existing` ones, headed by the drives `fresh`."""

    def __init__(
        self, drives: Sequence[DriveSite], replicas: int, existing: Sequence[Sequence[int]], fresh: Sequence[int]
    ) -> None:
        self._replicas = replicas
        nodes = [drive.node_id for drive in drives]
        capacities = [drive.capacity_bytes for drive in drives]
        shares = fair_shares(nodes, capacities, replicas)
        if existing:
            self._heads = _fresh_heads(shares, existing, fresh, heads_per_drive(len(drives), replicas))
        else:
            self._heads = _proportional(shares, len(drives) * heads_per_drive(len(drives), replicas))
        held = sum(map(len, existing))
        self._balance = Balance(nodes, shares, held + sum(self._heads) * replicas)
        self._all = np.ones(len(drives), dtype=np.bool_)
        for chain in existing:
            for place, member in enumerate(chain):
                self._balance.add(chain[:place], member)
        # Every head counts from the start, so that early chains do not crowd their followers.
        self._balance.load += np.array(self._heads)

    def chains(self) -> list[list[int]]:
        chains = []
        for number, head in enumerate(_interleaved(self._heads)):
            chain = [head]
            while len(chain) < self._replicas:
                turn = number // len(self._all)
                best = self._balance.best(chain, self._all, turn=turn, least_loaded=True)
                self._balance.add(chain, best)
                chain.append(best)
            chains.append(chain)
        for _ in range(_SWAP_ROUNDS):
            if not self._swap_round(chains):
                break
        _even_tails(chains, len(self._all))
        return chains

    def _swap_round(self, chains: list[list[int]]) -> bool:
        """Replace a follower where that evens out pairs or load; whether anything changed."""
        changed = False
        for chain in chains:
            for place in range(1, self._replicas):
                old = chain.pop(place)
                self._balance.remove(chain, old)
                best = self._balance.best(chain, self._all)
                self._balance.add(chain, best)
                chain.insert(place, best)
                changed |= best != old
        return changed


def _even_tails(chains: list[list[int]], drives: int) -> None:
    """Order the followers so that drives are tails equally often, as tails have work of their own."""
    tails = [0] * drives
    for chain in chains:
        tail = min(chain[1:], key=lambda drive: tails[drive], default=None)
        if tail is not None:
            chain.remove(tail)
            chain.append(tail)
            tails[tail] += 1


def _fresh_heads(
    shares: Sequence[float], existing: Sequence[Sequence[int]], fresh: Sequence[int], usual: int
) -> list[int]:
    """How many chains each fresh drive shall head: as many as drives of its size do already, by their shares."""
    among = set(fresh)
    old = sum(share for number, share in enumerate(shares) if number not in among)
    heads = [0] * len(shares)
    for number in fresh:
        wanted = len(existing) * shares[number] / old if old else usual
        heads[number] = max(1, round(wanted))
    return heads


def _proportional(shares: Sequence[float], total: int) -> list[int]:
    """`total` in proportion to shares that add up to 1, at least 1 each, by largest remainder."""
    counts = [max(1, int(total * share + 1e-6)) for share in shares]
    order = sorted(range(len(shares)), key=lambda i: (-round(total * shares[i] - counts[i], 6), i))
    at = 0
    while sum(counts) < total:
        counts[order[at % len(order)]] += 1
        at += 1
    return counts


def _interleaved(counts: Sequence[int]) -> list[int]:
    """Index i `counts[i]` times, spread as evenly as possible; with equal counts 0, 1, 2, ..., 0, 1, 2, ..."""
    turns = [((2 * turn + 1) / (2 * count), index) for index, count in enumerate(counts) for turn in range(count)]
    return [index for _, index in sorted(turns)]
