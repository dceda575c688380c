"""What happens to a slot whose worker did not finish in time: it is the worker's until that says otherwise.

Owns the bound on such slots; beyond it clients go through the socket, where the receiver writes and nobody else.
"""

from collections.abc import Iterable

from esker.client.buffers import BufferPool, Slot

QUARANTINED_SLOTS_MAX = 1024
"""And never more than half of a pool."""


def may_go_direct(pool: BufferPool) -> bool:
    """Whether workers may still be given slots of `pool` to read or write by themselves."""
    return 2 * pool.quarantined <= pool.slots and pool.quarantined < QUARANTINED_SLOTS_MAX


class LateSlots:
    """The slots that one request may still touch after its operation gave up on it."""

    __slots__ = ("_slots",)

    def __init__(self) -> None:
        self._slots: list[Slot] = []

    def keep(self, slots: Iterable[Slot]) -> None:
        """The operation ends now; call before it lets go of the slots."""
        for slot in slots:
            slot.keep_for_worker()
            self._slots.append(slot)

    def let_go(self) -> None:
        """The worker answered, or is gone."""
        slots, self._slots = self._slots, []
        for slot in slots:
            slot.worker_is_done()
