"""How even a cluster's chains are, in figures for people: pure sums over chains, drives and nodes."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from esker.meta.layout import DriveSite


@dataclass(frozen=True, slots=True)
class Imbalance:
    """1.0 is even."""

    fullest: float
    """How full the fullest drive gets, by how full all are together."""
    heads: float
    """What the busiest head leads, by its drive's part of the capacity."""
    takeover: float
    """Of what is read from a node that fails, the greatest part that falls on one other node, by that node's part of
    the capacity that is left. 0: no other node can take anything over.
    """
    takeover_of: str
    """The node whose loss this is; empty: there is none."""
    chains_sharing: int
    """Chains of which a node has more than one replica."""


def imbalance(
    drives: Sequence[DriveSite], chains: Sequence[Sequence[str]], weights: Sequence[int] | None = None
) -> Imbalance:
    """Of chains (head first) that placement fills in proportion to `weights`, evenly if there are none."""
    capacity = {drive.drive_id: drive.capacity_bytes for drive in drives}
    node_of = {drive.drive_id: drive.node_id for drive in drives}
    filled: dict[str, float] = defaultdict(float)
    led: dict[str, float] = defaultdict(float)
    taken: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    sharing = 0
    for chain, weight in zip(chains, weights or [1] * len(chains), strict=True):
        members = [drive_id for drive_id in chain if drive_id in capacity]
        nodes = [node_of[drive_id] for drive_id in members]
        sharing += len(set(nodes)) < len(nodes)
        for place, drive_id in enumerate(members):
            filled[drive_id] += weight
            led[drive_id] += weight if place == 0 else 0
            others = [node for node in nodes if node != nodes[place]]
            for node in others:
                taken[nodes[place]][node] += weight / len(members) / len(others)
    takeover, of = _worst_takeover(taken, _by_node(drives))
    return Imbalance(_worst(filled, capacity), _worst(led, capacity), takeover, of, sharing)


def _worst(load: Mapping[str, float], capacity: Mapping[str, int]) -> float:
    whole = sum(load.values())
    if not whole:
        return 1.0
    mean = whole / sum(capacity.values())
    return max(load[drive_id] / capacity[drive_id] for drive_id in load) / mean


def _worst_takeover(taken: Mapping[str, Mapping[str, float]], capacity: Mapping[str, int]) -> tuple[float, str]:
    worst = (0.0, "")
    for lost, parts in sorted(taken.items()):
        whole = sum(parts.values())
        left = sum(capacity.values()) - capacity[lost]
        for node, part in parts.items():
            worst = max(worst, (part / whole * left / capacity[node], lost), key=lambda found: found[0])
    return worst


def _by_node(drives: Sequence[DriveSite]) -> dict[str, int]:
    capacity: dict[str, int] = defaultdict(int)
    for drive in drives:
        capacity[drive.node_id] += drive.capacity_bytes
    return capacity
