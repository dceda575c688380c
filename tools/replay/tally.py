"""What a replay counts, and the summary that is made of it. Pure: time comes in as an argument."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

import msgspec

from esker.tools.exit_codes import ExitCode
from esker.tools.trace.stats import percentile


class Clock(Protocol):
    def __call__(self) -> float:
        """Seconds, from any start."""


class BusyClock:
    """How long at least one of several overlapping activities was under way."""

    def __init__(self, clock: Clock) -> None:
        self.seconds = 0.0
        self._clock = clock
        self._active = 0
        self._since_s = 0.0

    @contextmanager
    def running(self) -> Iterator[None]:
        """An activity, for the length of the `with` block."""
        if not self._active:
            self._since_s = self._clock()
        self._active += 1
        try:
            yield
        finally:
            self._active -= 1
            if not self._active:
                self.seconds += self._clock() - self._since_s


class Summary(msgspec.Struct, frozen=True):
    """The outcome of a replay. Bytes are the blocks' own; latencies leave out making and checking contents."""

    requests: int
    blocks: int
    hit_blocks: int
    """Blocks of leading runs that were there, and were read whole and right."""
    hit_share: float
    put_blocks: int
    """Blocks stored by this replay."""
    wrong_blocks: int
    """Blocks that were read with other bytes than were stored. Must be 0."""
    missed_after_match: int
    """Blocks that `match_prefix` had found and `get` then did not return."""
    read_bytes: int
    read_seconds: float
    """While at least one `get` was under way."""
    written_bytes: int
    write_seconds: float
    match_seconds: float
    seconds: float
    request_latency_ms: dict[str, float]
    get_statuses: dict[str, int]
    put_statuses: dict[str, int]
    unavailable: int
    timeout: int
    no_space: int
    failed_requests: int
    """Requests that an error cut short; `errors` says which."""
    errors: dict[str, int]
    clients: int
    block_bytes: int
    transport: str
    cluster: str

    def exit_code(self) -> ExitCode:
        """Wrong bytes above all; then whether anything was unavailable, late or without room."""
        if self.wrong_blocks:
            return ExitCode.WRONG_BYTES
        statuses = {**self.get_statuses, **self.put_statuses}
        fine = {"OK", "EXISTS", "NOT_FOUND"}
        degraded = self.failed_requests or any(count for name, count in statuses.items() if name not in fine)
        return ExitCode.DEGRADED if degraded else ExitCode.FINE


class Tally:
    """Counts of a replay under way."""

    def __init__(self, clock: Clock) -> None:
        self.read_clock = BusyClock(clock)
        self.write_clock = BusyClock(clock)
        self.match_clock = BusyClock(clock)
        self.requests = 0
        self.blocks = 0
        self.hit_blocks = 0
        self.wrong_blocks = 0
        self.missed_after_match = 0
        self.read_bytes = 0
        self.written_bytes = 0
        self.put_blocks = 0
        self.get_statuses: Counter[str] = Counter()
        self.put_statuses: Counter[str] = Counter()
        self.errors: Counter[str] = Counter()
        self.latencies_ms: list[float] = []
        self._clock = clock
        self._started_s = clock()

    def summary(self, *, clients: int, block_bytes: int, transport: str, cluster: str) -> Summary:
        """What it comes to, at this moment."""
        ordered = sorted(self.latencies_ms) or [0.0]
        both = self.get_statuses + self.put_statuses
        return Summary(
            requests=self.requests,
            blocks=self.blocks,
            hit_blocks=self.hit_blocks,
            hit_share=self.hit_blocks / self.blocks if self.blocks else 0.0,
            put_blocks=self.put_blocks,
            wrong_blocks=self.wrong_blocks,
            missed_after_match=self.missed_after_match,
            read_bytes=self.read_bytes,
            read_seconds=self.read_clock.seconds,
            written_bytes=self.written_bytes,
            write_seconds=self.write_clock.seconds,
            match_seconds=self.match_clock.seconds,
            seconds=self._clock() - self._started_s,
            request_latency_ms={
                name: percentile(ordered, share) for name, share in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99))
            },
            get_statuses=dict(sorted(self.get_statuses.items())),
            put_statuses=dict(sorted(self.put_statuses.items())),
            unavailable=both["UNAVAILABLE"],
            timeout=both["TIMEOUT"],
            no_space=both["NO_SPACE"],
            failed_requests=self.errors.total(),
            errors=dict(sorted(self.errors.items())),
            clients=clients,
            block_bytes=block_bytes,
            transport=transport,
            cluster=cluster,
        )
