"""For how long replicas are left out of their chains after something came to nothing, longer each time."""

from esker.wire.types import Chain

HOLD_MIN_S, HOLD_MAX_S = 5.0, 300.0
"""The first time and at most. Whoever gave no cause for the longest hold after one ended begins anew."""


class Holds:
    """Each is of one chain, one drive, and the life of its worker in which it gave cause. In memory; time is an
    argument.
    """

    def __init__(self) -> None:
        self._until: dict[tuple[int, str, str], tuple[float, float]] = {}

    def hold(self, chain: Chain, drive_id: str, incarnation: str, now_s: float) -> None:
        """Leave it out from now on; a hold that has not ended is not made longer."""
        key = (chain.chain_id, drive_id, incarnation)
        if now_s < self._until.get(key, (now_s, 0.0))[0]:
            return
        # Also those of lives that are over go with time.
        self._until = {each: held for each, held in self._until.items() if now_s - held[0] <= HOLD_MAX_S}
        _, span_s = self._until.get(key, (now_s, HOLD_MIN_S / 2))
        span_s = min(2 * span_s, HOLD_MAX_S)
        self._until[key] = (now_s + span_s, span_s)

    def holds(self, chain: Chain, drive_id: str, incarnation: str, now_s: float) -> bool:
        """Whether it is left out."""
        until_s, _ = self._until.get((chain.chain_id, drive_id, incarnation), (now_s, 0.0))
        return now_s < until_s

    def release(self, chain: Chain, drive_id: str, incarnation: str) -> None:
        """It gives no cause any more."""
        self._until.pop((chain.chain_id, drive_id, incarnation), None)
