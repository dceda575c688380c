"""The lease under which a worker answers for mutable chunks: how long it surely serves without asking anybody.

Owns until when it runs and for which chains it is withheld. It knows neither chains nor states: whoever answers a read
of a mutable chunk, or a query of its version, asks `live` for the chain and the chain version in which it serves, at
the very moment at which it chooses what to answer. KV blocks need no lease.

It runs from when an acknowledged heartbeat was *sent*, so it has ended here before the manager, which counts from when
the heartbeat came, takes SERVING away. What a reply withholds ends at once and stays ended until a later reply of a
manager does not withhold it any more, or the chain has a newer version.
"""

import time
from collections.abc import Callable

from esker.craq.lease import worker_held_until

Chains = tuple[tuple[int, int], ...]
"""Chain ids with chain versions."""


def boot_clock() -> float:
    """Seconds since the machine started, those of its suspension included."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Lease:
    """Of one worker's life; it begins without one."""

    def __init__(self, clock: Callable[[], float] = boot_clock) -> None:
        """`clock` must run on while the machine is suspended."""
        self._clock = clock
        self._until_s = float("-inf")
        self._withheld: dict[int, int] = {}
        self._over = False
        self.term = 0
        """Of the manager whose reply was taken last; 0: of none yet."""
        self.lapses = 0
        """How many times it was found to have ended when it was renewed."""

    def now_s(self) -> float:
        """To be asked right before a heartbeat is sent."""
        return self._clock()

    def renew(self, sent_s: float, term: int, withheld: Chains) -> None:
        """A manager in this term acknowledged the heartbeat that was sent at `sent_s`, but for what it withholds.

        The cluster map that came with the reply must have been taken over before.
        """
        assert term > 0, "only a manager's reply renews a lease"
        if self.term and self._clock() >= self._until_s:
            self.lapses += 1
        self.term = term
        self._withheld = dict(withheld)
        self._until_s = max(self._until_s, worker_held_until(sent_s))

    def end(self) -> None:
        """This worker serves no more, for good."""
        self._over = True

    def live(self, chain_id: int, chain_version: int) -> bool:
        """Whether this worker surely serves the chain in this version, if the cluster map says so."""
        return self._clock() < self._until_s and self._withheld.get(chain_id, -1) < chain_version and not self._over

    @property
    def stopped(self) -> Chains:
        """What is withheld: the manager is to be told that this worker stopped there."""
        return tuple(sorted(self._withheld.items()))

    @property
    def left_ms(self) -> int:
        """How long it still runs."""
        return 0 if self._over else int(max(0.0, self._until_s - self._clock()) * 1000)
