"""Whether a successor can be reached, from how attempts to speak to it end. Pure: times are arguments.

A worker tells the manager of successors that it cannot reach (`Heartbeat.unreachable`): where both speak to the manager
all the same, nobody else would ever take such a successor for dead, and every write of their chains would wait for it.
One failure proves nothing, nor do old ones: attempts must have failed for a while, up to now.
"""

from dataclasses import dataclass

UNREACHABLE_AFTER_S = 2.0
"""From the first of a row of failures to the last one."""
FRESH_S = 3.0
"""A failure that is older says nothing of now: attempts come at least every two seconds while somebody cares."""


@dataclass(slots=True)
class Reachability:
    """Of one successor. It is taken for reachable until attempts fail."""

    _first_s: float | None = None
    _last_s: float = 0.0

    def answered(self) -> None:
        """It was reached."""
        self._first_s = None

    def failed(self, now_s: float, since_s: float | None = None) -> None:
        """An attempt failed; nothing came from it since `since_s`, if that is known."""
        if self._first_s is None or now_s - self._last_s > FRESH_S:
            self._first_s = now_s if since_s is None else since_s
        self._last_s = now_s

    def unreachable(self, now_s: float) -> bool:
        """Whether to give it up for now."""
        if self._first_s is None or now_s - self._last_s > FRESH_S:
            return False
        return self._last_s - self._first_s >= UNREACHABLE_AFTER_S
