"""Figures of a trace: how long its requests are and how much of them an infinite cache would have answered.

Owns: the definition of a prefix hit. A block of a request is a hit when it and all blocks before it in the request
have been in earlier requests. It is what a replay with room for everything must count, to the block.
Must not know: files, clusters.
"""

from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec

from esker.tools.trace.format import TraceRequest

PERCENTILES = {"p50": 0.50, "p90": 0.90, "p99": 0.99, "max": 1.0}


class TraceStats(msgspec.Struct, frozen=True):
    """Figures of a trace. Lengths are in tokens, shares between 0 and 1."""

    requests: int
    blocks: int
    blocks_per_request: float
    unique_blocks: int
    hit_blocks: int
    """Blocks in the longest prefix of their request that earlier requests had."""
    hit_share: float
    input_length: dict[str, int]
    output_length: dict[str, int]
    request_blocks: dict[str, int]
    request_hit_blocks: dict[str, int]
    """How deep the shared prefixes reach."""
    continuing_share: float
    """Requests that share more than their first block with earlier ones: mostly later turns of conversations."""
    used_once_share: float
    """Unique blocks that only one request has."""
    duration_s: float


def percentile(ordered: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` of the ordered values do not exceed (nearest rank).

    `ordered` must not be empty.
    """
    rank = -int(-len(ordered) * share // 1)
    return ordered[max(rank, 1) - 1]


def count_hits(hash_ids: Sequence[int], seen: set[int]) -> int:
    """How many leading ids are in `seen`."""
    hits = 0
    for hash_id in hash_ids:
        if hash_id not in seen:
            break
        hits += 1
    return hits


def trace_stats(requests: Iterable[TraceRequest]) -> TraceStats:
    """The figures of `requests`, of which there must be at least one."""
    seen: set[int] = set()
    uses: Counter[int] = Counter()
    hits: list[int] = []
    blocks: list[int] = []
    inputs: list[int] = []
    outputs: list[int] = []
    times: list[float] = []
    for request in requests:
        hits.append(count_hits(request.hash_ids, seen))
        seen.update(request.hash_ids)
        uses.update(request.hash_ids)
        blocks.append(len(request.hash_ids))
        inputs.append(request.input_length)
        outputs.append(request.output_length)
        times.append(request.timestamp)
    total = sum(blocks)
    return TraceStats(
        requests=len(blocks),
        blocks=total,
        blocks_per_request=total / len(blocks),
        unique_blocks=len(seen),
        hit_blocks=sum(hits),
        hit_share=sum(hits) / total,
        input_length=_distribution(inputs),
        output_length=_distribution(outputs),
        request_blocks=_distribution(blocks),
        request_hit_blocks=_distribution(hits),
        continuing_share=sum(count > 1 for count in hits) / len(hits),
        used_once_share=sum(count == 1 for count in uses.values()) / len(uses),
        duration_s=(max(times) - min(times)) / 1000,
    )


def _distribution(values: list[int]) -> dict[str, int]:
    ordered = sorted(values)
    return {name: int(percentile(ordered, share)) for name, share in PERCENTILES.items()}
