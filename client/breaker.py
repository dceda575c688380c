"""The circuit breaker of one worker: how long others are preferred to a worker that let requests time out. Pure.

A sign of life ends the first such time at once: the process was only held up. But a process may be well while its
drive hangs, so that it gives signs of life and nothing else: each further time that a request ran out, with no answer
to any request between, doubles how long the worker is left alone after it, whatever signs it gives. Then it is given
requests again, on trial: an answer closes the breaker, another request that runs out opens it for longer.
"""

REST_MIN_S = 0.5
REST_MAX_S = 15.0


class Breaker:
    """`trips` counts requests that ran out since the last answer, those at the same time as one. 0: closed."""

    __slots__ = ("_rests_until_s", "trips")

    def __init__(self) -> None:
        self.trips = 0
        self._rests_until_s = 0.0

    def trip(self, now_s: float) -> None:
        """A request ran out while the worker was trusted."""
        self.trips += 1
        if self.trips > 1:
            self._rests_until_s = now_s + min(REST_MAX_S, REST_MIN_S * 2.0 ** min(self.trips - 2, 10))

    def rests_s(self, now_s: float) -> float:
        """How long a sign of life is not enough, from now on; 0: it is."""
        return max(0.0, self._rests_until_s - now_s)

    def close(self) -> None:
        """The worker answered a request."""
        self.trips = 0
        self._rests_until_s = 0.0
