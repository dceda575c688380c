"""How evenly chains lie over drives: what a drive bears, which drives and nodes meet in chains, who is the best next
member of a chain. Pure and deterministic; drives are numbers here, from 0 on.

Two things shall be even. Each drive bears its share of the replicas: in proportion to its capacity, but no node and no
drive more than one replica of every chain. And where drives meet, they meet in proportion to those shares, node by node
and drive by drive, so that what a dead one gave is taken over by all the others.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.int64]
Fractions = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]

_EPSILON = 1e-9


class Balance:
    """Of chains that are being made or changed."""

    def __init__(self, node_ids: Sequence[str], shares: Sequence[float], replicas: float) -> None:
        """`shares` of the drives add up to 1; `replicas` is how many there will be in all."""
        names = sorted(set(node_ids))
        count = len(node_ids)
        self.nodes = np.array([names.index(name) for name in node_ids], dtype=np.int64)
        share = np.maximum(np.array(shares, dtype=np.float64), _EPSILON)
        self.target: Fractions = share * replicas
        """How many replicas each drive shall have."""
        self.load: Numbers = np.zeros(count, dtype=np.int64)
        """How many it has."""
        self._share = share
        self._node_share: Fractions = np.zeros(len(names))
        np.add.at(self._node_share, self.nodes, share)
        self._met = np.zeros((count, count), dtype=np.int32)
        self._nodes_met: Numbers = np.zeros((len(names), len(names)), dtype=np.int64)

    def add(self, chain: Sequence[int], drive: int, *, counted: bool = False) -> None:
        """The drive joins the others of `chain`. `counted`: its load was told before."""
        self._meet(chain, drive, 1)
        self.load[drive] += not counted

    def remove(self, chain: Sequence[int], drive: int) -> None:
        """The drive leaves the others of `chain`, which does not name it any more."""
        self._meet(chain, drive, -1)
        self.load[drive] -= 1

    def best(self, chain: Sequence[int], among: Flags, *, turn: int = 0, least_loaded: bool = False) -> int:
        """Who of `among` (a flag for each drive) shall join the chain: on another node; not beyond its share; then
        whoever has met the others least. `least_loaded`: rather the one furthest below its share. `turn` breaks ties.
        """
        free = among.copy()
        free[chain] = False
        left = np.flatnonzero(free)
        assert len(left), "there are fewer drives than replicas"
        nodes = self.nodes
        own = nodes[chain]
        left = _least(left, (nodes[left][:, None] == own).any(axis=1))
        after = self.load[left] + 1
        target = self.target[left]
        left = _least(
            left, np.round(after / target, 3) if least_loaded else np.maximum(-1, np.ceil(after - target - 0.5))
        )
        if len(left) > 1 and len(chain):
            met = ((self._nodes_met[own] + 0.5) / self._node_share[own][:, None]).sum(axis=0) / self._node_share
            left = _least(left, np.round(met[nodes[left]], 6))
        if len(left) > 1 and len(chain):
            met = ((self._met[chain][:, left] + 0.5) / self._share[chain][:, None]).sum(axis=0)
            left = _least(left, np.round(met / self._share[left], 6))
        return int(_least(left, (left - chain[0] - 1 - turn) % len(nodes) if len(chain) else left)[0])

    def _meet(self, chain: Iterable[int], drive: int, by: int) -> None:
        for member in chain:
            self._met[drive, member] += by
            self._met[member, drive] += by
            first, second = self.nodes[drive], self.nodes[member]
            self._nodes_met[first, second] += by
            if first != second:
                self._nodes_met[second, first] += by


def fair_shares(node_ids: Sequence[str], capacities: Sequence[int], replicas: int) -> list[float]:
    """Which part of all replicas each drive shall have: in proportion to its capacity, unless that were more than one
    replica of every chain on one drive, or on one node where there are enough of them.
    """
    nodes: dict[str, int] = {}
    for node_id, capacity in zip(node_ids, capacities, strict=True):
        nodes[node_id] = nodes.get(node_id, 0) + max(1, capacity)
    most = max(1, replicas - len(nodes) + 1) / replicas
    of_node = dict(zip(nodes, _shared_out(list(nodes.values()), 1.0, most), strict=True))
    shares = [0.0] * len(node_ids)
    for node_id, share in of_node.items():
        own = [number for number, name in enumerate(node_ids) if name == node_id]
        parts = _shared_out([max(1, capacities[number]) for number in own], share, max(1 / replicas, share / len(own)))
        for number, part in zip(own, parts, strict=True):
            shares[number] = part
    return shares


def _shared_out(weights: Sequence[int], total: float, most: float) -> list[float]:
    """`total` in proportion to the weights, but to none more than `most`."""
    shares = [0.0] * len(weights)
    full: set[int] = set()
    while True:
        rest = [number for number in range(len(weights)) if number not in full]
        left = total - most * len(full)
        whole = sum(weights[number] for number in rest)
        over = [number for number in rest if left * weights[number] > most * whole * (1 + _EPSILON)]
        if not over:
            for number in rest:
                shares[number] = left * weights[number] / whole
            for number in full:
                shares[number] = most
            return shares
        full.update(over)


def _least(numbers: npt.NDArray[np.intp], costs: npt.NDArray[Any]) -> npt.NDArray[np.intp]:
    """Those whose costs are the least."""
    least: npt.NDArray[np.intp] = numbers[costs == costs.min()]
    return least
