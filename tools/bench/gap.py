"""The longest time without a success. Pure: the clock's readings come in."""


class Gap:
    """Successes since `now_s`, when it is made. A gap that is not over counts up to the moment of asking."""

    __slots__ = ("_last_s", "_longest_s")

    def __init__(self, now_s: float) -> None:
        self._last_s = now_s
        self._longest_s = 0.0

    def success(self, now_s: float) -> None:
        """Something ended well."""
        self._longest_s = max(self._longest_s, now_s - self._last_s)
        self._last_s = now_s

    def longest_s(self, now_s: float) -> float:
        """The longest gap since `forget`."""
        return max(self._longest_s, now_s - self._last_s)

    def forget(self) -> None:
        """Gaps that are over count no more; the one that is open does, from its beginning."""
        self._longest_s = 0.0
