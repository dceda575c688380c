"""The order of what a predecessor sends: nothing takes effect twice, and nothing late overtakes what came after it.

Each message between two replicas has a number that grows. Of one chunk, a message is taken only if its number is higher
than every one before. Pure; memory is bounded: of chunks not heard of lately only the highest number is kept, and
whatever is not above that is refused. Refusing is always safe: the predecessor sends it again, with a new number.
"""

CHUNKS_KEPT = 4096


class HopOrder:
    """What one replica has taken from its predecessor in one version of the chain."""

    def __init__(self, chunks_kept: int = CHUNKS_KEPT) -> None:
        self._chunks_kept = chunks_kept
        self._last: dict[bytes, int] = {}
        self._floor = 0

    def take(self, chunk: bytes, hop: int) -> bool:
        """Whether the message may be taken. Numbers start at 1."""
        if hop <= self._last.get(chunk, self._floor):
            return False
        self._last.pop(chunk, None)  # it becomes the one heard of last
        self._last[chunk] = hop
        if len(self._last) > self._chunks_kept:
            oldest = next(iter(self._last))
            self._floor = max(self._floor, self._last.pop(oldest))
        return True
