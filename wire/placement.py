"""Placement: which chain holds which block. A pure function, frozen by golden vectors.

A table of 65,536 slots per chain-table version is filled by weighted rendezvous when the version is made; looking a
block up then costs an index. A slot goes to the chain with the least `-log2(hash(slot, chain id)) / weight`, which
gives each chain its weight's share of the slots and moves only a chain's own share when it comes or goes. All
arithmetic is integer (`-log2` in 32-bit fixed point, from a table made with integers), so every machine computes the
same table. Nothing here may change for a table version that exists: blocks would not be found again.
"""

from collections.abc import Collection, Sequence
from functools import cache

import numpy as np
import numpy.typing as npt

from esker.wire.errors import UserError
from esker.wire.limits import OBJECT_BYTES, PLACEMENT_SLOTS

U64 = npt.NDArray[np.uint64]
Indexes = npt.NDArray[np.intp]

WEIGHT_MAX = 2**32 - 1
_FRACTION_BITS = 32
_LOG_TABLE_BITS = 16
_SCORE_BITS = 26
"""Scores are `(-log2 in 32-bit fixed point) << 26 // weight`: 6 + 32 + 26 bits fill 64."""
_NO_ANCHOR = -1


def build_slot_table(chain_ids: Sequence[int], weights: Sequence[int]) -> bytes:
    """The slot table over `chain_ids`: 65,536 little-endian u16 indexes into that list.

    `weights` are integers from 1 to 2^32 - 1, for example capacities in MiB. Which chain a slot goes to depends on
    chain ids and weights, never on their order in the list. Raises `ValueError` for ids or weights out of range.
    """
    _check(chain_ids, weights)
    return _winners(np.arange(PLACEMENT_SLOTS, dtype=np.uint64), chain_ids, weights).astype("<u2").tobytes()


def _winners(slots: U64, chain_ids: Sequence[int], weights: Sequence[int]) -> npt.NDArray[np.uint16]:
    """Which chain each of these slots goes to, as indexes into `chain_ids`."""
    best_score = np.full(len(slots), np.iinfo(np.uint64).max, dtype=np.uint64)
    best_index = np.zeros(len(slots), dtype=np.uint16)
    # Among chains of one weight the least score is the greatest hash: one logarithm per weight, not per chain.
    # Weights and, within a weight, chains are visited in a fixed order, and ties keep the first: order-independent.
    of_weight: dict[int, list[tuple[int, int]]] = {}
    for index, chain_id in enumerate(chain_ids):
        of_weight.setdefault(weights[index], []).append((chain_id, index))
    for weight in sorted(of_weight):
        members = sorted(of_weight[weight])
        hashes = _hashes(slots, members[0][0])
        indexes = np.full(len(slots), members[0][1], dtype=np.uint16)
        for chain_id, index in members[1:]:
            candidate = _hashes(slots, chain_id)
            better = candidate > hashes
            hashes = np.where(better, candidate, hashes)
            indexes[better] = index
        scores = (_negative_log2(hashes) << np.uint64(_SCORE_BITS)) // np.uint64(weight)
        better = scores < best_score
        best_score = np.where(better, scores, best_score)
        best_index = np.where(better, indexes, best_index)
    return best_index


def _check(chain_ids: Sequence[int], weights: Sequence[int]) -> None:
    if not 1 <= len(chain_ids) <= PLACEMENT_SLOTS:
        raise ValueError(f"a chain table of {len(chain_ids)} chains; allowed: 1 to {PLACEMENT_SLOTS}")
    if len(weights) != len(chain_ids):
        raise ValueError(f"{len(chain_ids)} chains but {len(weights)} weights")
    if len(set(chain_ids)) != len(chain_ids):
        raise ValueError("a chain table names a chain twice")
    for chain_id, weight in zip(chain_ids, weights, strict=True):
        if not 0 <= chain_id < 2**32:
            raise ValueError(f"chain id {chain_id}; allowed: 0 to 2^32 - 1")
        if not 1 <= weight <= WEIGHT_MAX:
            raise ValueError(f"weight {weight} of chain {chain_id}; allowed: 1 to {WEIGHT_MAX}")


def _mix(values: U64) -> U64:
    """The finaliser of SplitMix64."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def _hashes(slots: U64, chain_id: int) -> U64:
    """An independent 64-bit hash of every slot for this chain."""
    seed = _mix(np.array([chain_id], dtype=np.uint64) + np.uint64(0x9E3779B97F4A7C15))
    return _mix((slots + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15) ^ seed)


@cache
def _log_table() -> U64:
    """log2(1 + i / 2^16) in 32-bit fixed point for i from 0 to 2^16, bit by bit from repeated squaring."""
    mantissa = np.arange(2**_LOG_TABLE_BITS + 1, dtype=np.uint64) + np.uint64(2**_LOG_TABLE_BITS)
    value = mantissa << np.uint64(31 - _LOG_TABLE_BITS)  # 1.0 is 2^31, so that a square fits in 64 bits
    value[-1] >>= np.uint64(1)  # log2(2) is set apart below
    result = np.zeros_like(value)
    for _ in range(_FRACTION_BITS):
        value = (value * value) >> np.uint64(31)
        carry = value >> np.uint64(32)
        value >>= carry
        result = (result << np.uint64(1)) | carry
    result[-1] = 1 << _FRACTION_BITS
    return result


def _negative_log2(hashes: U64) -> U64:
    """-log2(hash / 2^64) in 32-bit fixed point; a hash of 0 counts as 1."""
    values = np.maximum(hashes, np.uint64(1))
    whole = np.zeros_like(values)
    for shift in (32, 16, 8, 4, 2, 1):
        small = values < np.uint64(1 << (64 - shift))
        values = np.where(small, values << np.uint64(shift), values)
        whole += np.where(small, np.uint64(shift), np.uint64(0))
    # values are now in [2^63, 2^64): 1.mantissa, with 16 bits for the table and the next 32 to interpolate.
    table = _log_table()
    index = ((values >> np.uint64(63 - _LOG_TABLE_BITS)) & np.uint64(2**_LOG_TABLE_BITS - 1)).astype(np.intp)
    between = (values >> np.uint64(63 - _LOG_TABLE_BITS - 32)) & np.uint64(2**32 - 1)
    low = table[index]
    fraction = low + (((table[index + 1] - low) * between) >> np.uint64(32))
    return ((whole + np.uint64(1)) << np.uint64(_FRACTION_BITS)) - fraction


class SlotTable:
    """Looks anchors up in a slot table over `chain_count` chains. Immutable.

    Raises `ValueError` where the bytes are not such a table.
    """

    __slots__ = ("_indexes", "chain_count")

    def __init__(self, table: bytes, chain_count: int) -> None:
        if len(table) != 2 * PLACEMENT_SLOTS:
            raise ValueError(f"a slot table of {len(table)} bytes; allowed: {2 * PLACEMENT_SLOTS}")
        self._indexes: Indexes = np.frombuffer(table, dtype="<u2").astype(np.intp)
        self.chain_count = chain_count
        if int(self._indexes.max()) >= chain_count:
            raise ValueError(f"the slot table names chain {int(self._indexes.max())} of {chain_count}")

    def chain_index(self, anchor: bytes) -> int:
        """Index of the chain that holds chunk 0 of blocks anchored at this object id (16 bytes)."""
        return int(self._indexes[anchor[-2] << 8 | anchor[-1]])

    def chain_indexes(self, anchors: bytes) -> Indexes:
        """`chain_index` of every anchor in a column of concatenated object ids."""
        slots = np.frombuffer(anchors, dtype=">u2")[OBJECT_BYTES // 2 - 1 :: OBJECT_BYTES // 2]
        chosen: Indexes = self._indexes[slots]
        return chosen

    def without(self, chain_ids: Sequence[int], weights: Sequence[int], dead: Collection[int]) -> "SlotTable":
        """This table with the slots of `dead` chains (indexes) given to the best of the others; no other slot moves.

        `chain_ids` and `weights` are those that this table was built over; the outcome is the table that is built over
        the others alone. Where all are dead nothing moves. Takes as many hashes as the slots that move times the
        chains that live: for one dead chain of any number about 65,536.
        """
        alive = [index for index in range(self.chain_count) if index not in dead]
        if not alive or len(alive) == self.chain_count:
            return self
        (moving,) = np.isin(self._indexes, np.array(sorted(dead), dtype=np.intp)).nonzero()
        if not len(moving):
            return self
        winners = _winners(
            moving.astype(np.uint64), [chain_ids[index] for index in alive], [weights[index] for index in alive]
        )
        return self._changed(moving, np.array(alive, dtype=np.intp)[winners])

    def taking(self, other: "SlotTable", home: "SlotTable", chains: Collection[int]) -> "SlotTable":
        """This table, but as in `other` for the slots that are with one of `chains` (indexes) in `home`."""
        (moving,) = np.isin(home._indexes, np.array(sorted(chains), dtype=np.intp)).nonzero()
        return self._changed(moving, other._indexes[moving])

    def _changed(self, slots: Indexes, indexes: Indexes) -> "SlotTable":
        changed = SlotTable.__new__(SlotTable)
        changed._indexes = self._indexes.copy()
        changed._indexes[slots] = indexes
        changed.chain_count = self.chain_count
        return changed


def anchor_positions(count: int, start: int, run_blocks: int) -> Indexes:
    """For each of `count` keys whose first is block `start` of a prefix: which key of the call anchors it.

    The anchor of block i is the key of block (i // run_blocks) * run_blocks; -1 stands for an anchor before the call.
    """
    if run_blocks == 1:
        return np.arange(count, dtype=np.intp)
    blocks = np.arange(start, start + count, dtype=np.intp)
    return np.maximum(blocks // run_blocks * run_blocks - start, _NO_ANCHOR)


def anchor_objects(objects: Sequence[bytes], start: int, run_blocks: int, anchor: bytes | None) -> bytes:
    """The column of anchors' object ids for a call whose keys have `objects`; `anchor` is that of an earlier run's key.

    Raises `UserError` where `start` lies inside a run and no anchor is given.
    """
    if start < 0:
        raise UserError(f"start is {start}; it is the position of the first key in its prefix, from 0 on")
    if run_blocks == 1:
        return b"".join(objects)
    if start % run_blocks == 0:
        anchor = None
    elif anchor is None:
        raise UserError(
            f"block {start} lies inside a run of {run_blocks} blocks: "
            f"pass anchor=, the key of block {start // run_blocks * run_blocks}"
        )
    positions = anchor_positions(len(objects), start, run_blocks).tolist()
    return b"".join([objects[position] if position >= 0 else anchor or b"" for position in positions])
