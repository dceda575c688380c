"""Is a recorded history of chunk operations linearizable? The search of Wing and Gong with Lowe's memory of dead ends.

An operation takes effect at one instant between its call and its return; one whose outcome is unknown takes effect at
some instant after its call, or never. A history is linearizable if instants can be chosen so that every result is what
a single chunk would have given. Each key is judged by itself, which is enough (locality, Herlihy and Wing 1990).

Sources: Wing and Gong, "Testing and verifying concurrent objects" (1993); Lowe, "Testing for linearizability" (2017):
a configuration (set of operations that took effect, state) is never searched twice.

Knows nothing of esker: times are any numbers of one clock, keys anything that can be a key of a dict. The search is
bounded: beyond `steps_max` it raises `Undecided` instead of claiming anything.
"""

import math
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import TypeVar

STEPS_MAX = 2_000_000


class Outcome(Enum):
    """How a change of a chunk ended."""

    OK = "ok"
    STALE = "stale"
    """Refused because the chunk had been truncated in a newer truncate version."""
    ABSENT = "absent"
    """A removal found nothing to remove."""
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Chunk:
    """The model's state. `data` is None while the chunk is absent."""

    data: bytes | None = None
    truncate_version: int = 0


@dataclass(frozen=True, slots=True)
class Write:
    """Puts `data` at `offset`, zeros into a gap before it."""

    offset: int
    data: bytes
    truncate_version: int = 0


@dataclass(frozen=True, slots=True)
class Truncate:
    """Makes the chunk `length` bytes long, cut or filled with zeros."""

    length: int
    truncate_version: int = 0


@dataclass(frozen=True, slots=True)
class Remove:
    """The chunk was there (unless the outcome is ABSENT), and is absent afterwards."""


@dataclass(frozen=True, slots=True)
class Read:
    """Saw `result` at `offset` when it asked for `length` bytes; None: the chunk was absent."""

    offset: int
    length: int
    result: bytes | None


Action = Write | Truncate | Remove | Read


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation as its client saw it. Leave out reads that failed and changes that surely did not happen."""

    key: Hashable
    action: Action
    called: float
    returned: float = math.inf
    outcome: Outcome = Outcome.OK
    by: str = ""
    """Who did it, for the reader of a report."""

    def __str__(self) -> str:
        until = "?" if self.outcome is Outcome.UNKNOWN else f"{self.returned:.6g}"
        return f"[{self.called:.6g} .. {until}] {self.by} {_shown(self.action)} -> {self.outcome.value}"


_REFUSED = (Outcome.STALE, Outcome.ABSENT)


class NotLinearizable(AssertionError):
    """No order explains what was seen; the text shows where the search got stuck."""


class Undecided(Exception):
    """The search was given up: nothing is known of this history."""


T = TypeVar("T", bound=Hashable)


@dataclass(slots=True)
class History:
    """Records operations under way. `now` is the clock; one history may be fed by many clients of one process."""

    now: Callable[[], float]
    operations: list[Operation] = field(default_factory=list)

    def call(self) -> float:
        """The instant of a call, to be taken before anything is sent."""
        return self.now()

    def ended(self, key: Hashable, action: Action, called: float, outcome: Outcome = Outcome.OK, by: str = "") -> None:
        """The operation that was called then has ended like this, now."""
        returned = math.inf if outcome is Outcome.UNKNOWN else self.now()
        self.operations.append(Operation(key, action, called, returned, outcome, by))


def require_linearizable(
    operations: Iterable[Operation], *, initial: Chunk = Chunk(), steps_max: int = STEPS_MAX
) -> int:
    """Returns how many steps the search took, all keys together.

    Raises `NotLinearizable` for a history that no order explains, `Undecided` beyond `steps_max` steps for one key.
    """
    by_key: dict[Hashable, list[Operation]] = {}
    for operation in operations:
        by_key.setdefault(operation.key, []).append(operation)
    return sum(_Search(key, history, steps_max).run(initial) for key, history in by_key.items())


def apply(chunk: Chunk, action: Action) -> Chunk | None:
    """The chunk after `action`; None where the action is refused or, for a read, saw something else."""
    if isinstance(action, Read):
        seen = None if chunk.data is None else chunk.data[action.offset : action.offset + action.length]
        return chunk if seen == action.result else None
    if isinstance(action, Remove):
        return None if chunk.data is None else Chunk(None, 0)
    if action.truncate_version < chunk.truncate_version:
        return None
    data = chunk.data or b""
    version = max(chunk.truncate_version, action.truncate_version)
    if isinstance(action, Truncate):
        return Chunk(data[: action.length].ljust(action.length, b"\0"), version)
    end = action.offset + len(action.data)
    return Chunk(data[: action.offset].ljust(action.offset, b"\0") + action.data + data[end:], version)


def _after(chunk: Chunk, operation: Operation) -> Chunk | None:
    """The chunk after the operation with the outcome that it had; None where it cannot have had that now."""
    after = apply(chunk, operation.action)
    if operation.outcome in _REFUSED:
        return chunk if after is None else None
    return after


@dataclass(slots=True)
class _Frame:
    """A configuration, and the operations that may be tried next in it."""

    done: int
    """Bit i: definite operation i took effect."""
    maybe: int
    """Bit i: unknown operation i took effect."""
    chunk: Chunk
    first: int
    """The first definite operation that did not."""
    choices: Iterator[tuple[bool, int]]
    """(whether it is an unknown one, its number)."""


class _Search:
    """The search for one key."""

    def __init__(self, key: Hashable, history: list[Operation], steps_max: int) -> None:
        self._key = key
        ordered = sorted(history, key=lambda each: each.called)
        self._definite = [each for each in ordered if each.outcome is not Outcome.UNKNOWN]
        self._unknown = [
            each for each in ordered if each.outcome is Outcome.UNKNOWN and not isinstance(each.action, Read)
        ]
        self._steps_max = steps_max
        self._steps = 0
        self._seen: set[tuple[int, int, int, Chunk]] = set()
        self._furthest = (-1, 0, Chunk())  # operations explained, which, and the chunk then

    def run(self, initial: Chunk) -> int:
        """How many steps it took to find an order; raises where there is none."""
        frames = [self._frame(0, 0, initial, 0)]
        while frames:
            frame = frames[-1]
            if frame.first == len(self._definite):
                return self._steps
            deeper = self._next(frame)
            if deeper is None:
                frames.pop()
            else:
                frames.append(deeper)
        raise NotLinearizable(self._story())

    def _next(self, frame: _Frame) -> _Frame | None:
        for unknown, number in frame.choices:
            self._steps += 1
            if self._steps > self._steps_max:
                raise Undecided(
                    f"key {self._key!r}: no verdict on {len(self._definite)} operations and {len(self._unknown)} "
                    f"unknown ones after {self._steps_max} steps; record shorter histories or fewer clients for a key"
                )
            operation = (self._unknown if unknown else self._definite)[number]
            after = _after(frame.chunk, operation)
            if after is None or (unknown and after == frame.chunk):
                continue  # an unknown operation that changes nothing may as well never take effect
            done, maybe, first = frame.done, frame.maybe, frame.first
            if unknown:
                maybe |= 1 << number
            else:
                done |= 1 << number
                while done >> first & 1:
                    first += 1
            configuration = (first, done >> first, maybe, after)
            if configuration in self._seen:
                continue
            self._seen.add(configuration)
            if isinstance(operation.action, Read) or operation.outcome in _REFUSED:
                frame.choices = iter(())  # these never change anything: if there is an order, one has it next
            self._furthest = max(self._furthest, (done.bit_count(), done, after), key=lambda each: each[0])
            return self._frame(done, maybe, after, first)
        return None

    def _frame(self, done: int, maybe: int, chunk: Chunk, first: int) -> _Frame:
        return _Frame(done, maybe, chunk, first, iter(self._choices(done, maybe, first)))

    def _choices(self, done: int, maybe: int, first: int) -> list[tuple[bool, int]]:
        """What may take effect next: whatever was called before anything that is left had returned.

        Definite operations first, reads before all: an unknown one is taken only where nothing else helps.
        """
        earliest, window = math.inf, []
        for number in range(first, len(self._definite)):
            operation = self._definite[number]
            if operation.called > earliest:
                break
            if not done >> number & 1:
                window.append(number)
                earliest = min(earliest, operation.returned)
        window = [number for number in window if self._definite[number].called <= earliest]
        window.sort(key=lambda number: not isinstance(self._definite[number].action, Read))
        choices = [(False, number) for number in window]
        for number, operation in enumerate(self._unknown):
            if operation.called > earliest:
                break
            if not maybe >> number & 1:
                choices.append((True, number))
        return choices

    def _story(self) -> str:
        explained, done, chunk = self._furthest
        left = [each for number, each in enumerate(self._definite) if not done >> number & 1]
        earliest = min((each.returned for each in left), default=math.inf)
        stuck = [str(each) for each in left if each.called <= earliest]
        unknown = [str(each) for each in self._unknown if each.called <= earliest]
        lines = [
            f"key {self._key!r}: no order explains this history; {max(explained, 0)} of {len(self._definite)} "
            f"operations were explained at most, with {_state(chunk)} left, and then none of these fits:",
            *(f"  {line}" for line in stuck),
        ]
        if unknown:
            lines += ["unknown operations that may have taken effect by then:", *(f"  {line}" for line in unknown)]
        return "\n".join(lines)


def _shown(action: Action) -> str:
    if isinstance(action, Write):
        return f"write {len(action.data)} bytes at {action.offset} ({_bytes(action.data)}) tv {action.truncate_version}"
    if isinstance(action, Truncate):
        return f"truncate to {action.length} tv {action.truncate_version}"
    if isinstance(action, Remove):
        return "remove"
    seen = "absent" if action.result is None else f"{len(action.result)} bytes ({_bytes(action.result)})"
    return f"read {action.length} bytes at {action.offset}: {seen}"


def _state(chunk: Chunk) -> str:
    if chunk.data is None:
        return "no chunk"
    return f"a chunk of {len(chunk.data)} bytes ({_bytes(chunk.data)}), truncate version {chunk.truncate_version},"


def _bytes(data: bytes) -> str:
    return data[:12].hex() + ("…" if len(data) > 12 else "")
