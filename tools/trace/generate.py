"""Generates a trace from a seed and a few figures.

The model: requests arrive at random at a mean rate. Each either opens a conversation, which begins with one of the
shared system prompts, or is the next turn of an earlier one, whose blocks it repeats (all but the last, partly filled
one) before its own new blocks. A turn that repeats only a part of what was there is an edited or regenerated one.

Lengths and depths are drawn in strata (one draw from each of N equal slices of the distribution, shuffled) and the
share of turns follows the running share of hits, so that a trace has the asked figures and not merely their
expectation: figures of two seeds differ by a few tenths of a percent.

Owns: the model. Must not know: files, clusters. Invariant: the same profile and seed give the same trace on every
machine (only `random.Random`'s `random` and plain arithmetic are used).
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random

from esker.tools.trace.format import TraceRequest
from esker.wire.errors import UserError

Quantiles = tuple[tuple[float, float], ...]
"""Points (share, value) of a distribution, from share 0 to share 1, both ascending."""

LENGTH_MAX = 10_000_000
"""Tokens of a request: far beyond any model's context, and its blocks fit into memory."""
CANDIDATES = 96
"""Conversations looked at around the wanted age when a turn looks for one whose length suits it."""
HIT_GAIN = 0.05
"""How strongly the chance of a turn answers a lack of hits, per mean request's blocks of lack."""


@dataclass(frozen=True, slots=True)
class TraceProfile:
    """The figures a trace is made from."""

    requests: int
    input_length: Quantiles
    """Tokens of a request."""
    output_length: Quantiles
    turns: float
    """Mean requests per conversation, at least 1."""
    repeated: Quantiles
    """Share of a later turn's blocks that the conversation had before."""
    age_s: Quantiles
    """Seconds since the turn before."""
    hit_share: float | None
    """Share of all blocks that are prefix hits, to steer to; None: as it comes."""
    system_prompts: int = 1
    system_prompt_blocks: int = 1
    requests_per_s: float = 3.4
    block_tokens: int = 512

    def __post_init__(self) -> None:
        for name, good, allowed in (
            ("requests", self.requests >= 1, "1 and up"),
            ("turns", self.turns >= 1, "1 and up"),
            ("hit share", self.hit_share is None or 0 <= self.hit_share < 1, "from 0 to below 1"),
            ("system prompts", self.system_prompts >= 1, "1 and up"),
            ("system prompt blocks", self.system_prompt_blocks >= 0, "0 and up"),
            ("requests per second", self.requests_per_s > 0, "above 0"),
            ("block tokens", self.block_tokens >= 1, "1 and up"),
        ):
            if not good:
                raise UserError(f"{name} out of range; allowed: {allowed}")
        if self.system_prompt_blocks * self.block_tokens > LENGTH_MAX:
            raise UserError(f"system prompts of more than {LENGTH_MAX} tokens; give fewer blocks, or fewer tokens each")
        for name, points in (("input length", self.input_length), ("output length", self.output_length)):
            check_quantiles(name, points)


def check_quantiles(name: str, points: Quantiles) -> None:
    """Raises `UserError` unless `points` describe a distribution of positive values."""
    shares = [share for share, _ in points]
    values = [value for _, value in points]
    if len(points) < 2 or shares[0] != 0 or shares[-1] != 1:
        raise UserError(f"{name}: give at least the points 0 and 100 percent")
    for value in values:
        if not value <= LENGTH_MAX:  # a NaN neither
            raise UserError(f"{name}: {value:g} is out of range; allowed: up to {LENGTH_MAX}")
    if sorted(set(shares)) != shares or sorted(values) != values or values[0] < 1:
        raise UserError(f"{name}: percentages must rise, and values too, from 1 on")


def quantile(points: Quantiles, share: float) -> float:
    """The value at `share`, linear between the points."""
    index = min(max(bisect_right(points, (share, float("inf"))), 1), len(points) - 1)
    (left, low), (right, high) = points[index - 1], points[index]
    return low + (high - low) * (share - left) / (right - left)


def strata(random: Random, points: Quantiles, count: int) -> list[float]:
    """`count` values, one from each of `count` equal slices of the distribution, in random order."""
    values = [quantile(points, (index + random.random()) / count) for index in range(count)]
    _shuffle(random, values)
    return values


def _shuffle(random: Random, values: list[float]) -> None:
    for last in range(len(values) - 1, 0, -1):
        other = int(random.random() * (last + 1))
        values[last], values[other] = values[other], values[last]


@dataclass(slots=True)
class Conversation:
    """The latest turn of a conversation, or of a branch of it."""

    timestamp_ms: int
    blocks: Sequence[int]


class TraceGenerator:
    """Makes the requests of a profile, in time order."""

    def __init__(self, profile: TraceProfile, seed: int) -> None:
        self._profile = profile
        self._random = Random(seed)
        self._next_id = 0
        self._prompts: dict[int, list[int]] = {}
        self._open: list[Conversation] = []
        self._open_times: list[int] = []
        self._made = 0
        self._blocks = 0
        self._hits = 0

    def requests(self) -> Iterator[TraceRequest]:
        """Yields the requests. A generator can be used once."""
        profile, random = self._profile, self._random
        count = profile.requests
        lengths = [int(tokens) for tokens in strata(random, profile.input_length, count)]
        outputs = [int(tokens) for tokens in strata(random, profile.output_length, count)]
        repeated = strata(random, profile.repeated, count)
        ages_s = strata(random, profile.age_s, count)
        smallest = profile.system_prompt_blocks * profile.block_tokens + 1
        now_s = 0.0
        mean_gap_s = 1 / profile.requests_per_s
        for length, output, share, age_s in zip(lengths, outputs, repeated, ages_s, strict=True):
            tokens = max(length, smallest)
            blocks = self._blocks_of(-(-tokens // profile.block_tokens), share, int((now_s - age_s) * 1000))
            yield TraceRequest(
                timestamp=int(now_s * 1000), input_length=tokens, output_length=output, hash_ids=tuple(blocks)
            )
            self._remember(Conversation(int(now_s * 1000), blocks))
            # Twice a uniform gap: a mean rate with bursts, without the platform's logarithm.
            now_s += 2 * mean_gap_s * random.random()

    def _blocks_of(self, count: int, share: float, turn_ms: int) -> list[int]:
        """The blocks of a request of `count` blocks: those it repeats, then new ones."""
        earlier: Sequence[int] = ()
        if self._random.random() < self._turn_chance():
            earlier = self._earlier_turn(count, share, turn_ms)
        if not earlier:
            earlier, hits = self._prompt()
        else:
            hits = len(earlier)
        self._made += 1
        self._blocks += count
        self._hits += hits
        new = range(self._next_id, self._next_id + count - len(earlier))
        self._next_id = new.stop
        return [*earlier, *new]

    def _turn_chance(self) -> float:
        """Chance that the next request is a later turn: the profile's, corrected by the hits missing so far."""
        profile = self._profile
        chance = 1 - 1 / profile.turns
        if profile.hit_share is None or not self._blocks:
            return chance
        missing = profile.hit_share * self._blocks - self._hits
        mean_blocks = self._blocks / self._made
        return chance + HIT_GAIN * missing / mean_blocks

    def _prompt(self) -> tuple[list[int], int]:
        """A system prompt's blocks, and how many of them were seen before. The first prompts are the popular ones."""
        profile = self._profile
        which = int(profile.system_prompts * self._random.random() ** 2)
        known = self._prompts.get(which)
        if known is not None:
            return known, len(known)
        blocks = list(range(self._next_id, self._next_id + profile.system_prompt_blocks))
        self._next_id += len(blocks)
        self._prompts[which] = blocks
        return blocks, 0

    def _earlier_turn(self, count: int, share: float, turn_ms: int) -> Sequence[int]:
        """Blocks of an earlier turn around `turn_ms` that make up about `share` of `count`; empty if there is none.

        The turn is closed when all its full blocks are repeated, and left open when only a part is.
        """
        wanted = max(int(count * share), self._profile.system_prompt_blocks + 1)
        near = bisect_left(self._open_times, turn_ms)
        low = max(0, min(near - CANDIDATES // 2, len(self._open) - CANDIDATES))
        best, best_distance = -1, 0
        for index in range(low, min(low + CANDIDATES, len(self._open))):
            distance = abs(len(self._open[index].blocks) - 1 - wanted)
            if best < 0 or distance < best_distance:
                best, best_distance = index, distance
        if best < 0:
            return ()
        found = self._open[best].blocks
        full = len(found) - 1
        if full <= self._profile.system_prompt_blocks:
            return ()
        if full < count:
            del self._open[best], self._open_times[best]
            return found[:full]
        return found[: min(wanted, full)]

    def _remember(self, conversation: Conversation) -> None:
        self._open.append(conversation)
        self._open_times.append(conversation.timestamp_ms)


def generate_trace(profile: TraceProfile, seed: int) -> Iterator[TraceRequest]:
    """Yields the requests of `profile`; equal arguments give equal traces."""
    return TraceGenerator(profile, seed).requests()
