"""The manager lease: which of the metadata servers acts for the cluster, and since when.

Owns taking, renewing and losing it, and the transactions that only its holder may make. The arithmetic and why it is
safe are `craq/lease.py`'s. The clock must run on while the machine is suspended (CLOCK_BOOTTIME), and is compared with
no other. Over an exclusive store the lock on the store is the lease: it is taken once and holds as long as the process.
What a manager does is not this module's matter.
"""

import math
from collections.abc import Awaitable, Callable
from typing import TypeVar

from esker.craq.lease import Sighting, held_until, may_declare_dead, may_take_over, sighted
from esker.meta import keys
from esker.meta.records import ManagerTerm, pack, unpack
from esker.meta.store.base import RUN_TIMEOUT_S, Store, Transaction
from esker.meta.store.errors import StoreError
from esker.runtime.logging import get_logger
from esker.wire.errors import EskerError
from esker.wire.limits import MANAGER_LEASE_S

log = get_logger("meta.manager")

T = TypeVar("T")

STEP_INTERVAL_S = 0.5
STEP_TIMEOUT_S = 1.0
_ONE = (1).to_bytes(8, "little")


class NotManager(EskerError):
    """This server does not hold the manager lease, or lost it before the transaction was committed."""


class Manager:
    """One metadata server's part in the lease. `step` every `STEP_INTERVAL_S` keeps it going."""

    def __init__(self, store: Store, incarnation: str, clock: Callable[[], float]) -> None:
        self.address = ""
        """Where others reach this server; it stands in the record for them. To be set before the first step."""
        self._store = store
        self._incarnation = incarnation
        self._clock = clock
        self._term = 0
        self._since_s = 0.0
        self._until_s = -math.inf
        self._seen: Sighting | None = None
        self._recorded = ManagerTerm(0, "", "")

    @property
    def term(self) -> int:
        """The term in which this server is the manager now; 0: it is not. Ask at the moment of acting."""
        return self._term if self._clock() < self._until_s else 0

    @property
    def since_s(self) -> float:
        """Since when this server is the manager, if it is. Whatever an earlier one granted was granted before."""
        return self._since_s

    @property
    def recorded(self) -> ManagerTerm:
        """The newest record that this server saw: who is the manager, or was until lately."""
        return self._recorded

    @property
    def may_declare_dead(self) -> bool:
        """Whether this server is the manager, and for so long that silence means death."""
        return self.term > 0 and may_declare_dead(self._since_s, self._clock())

    async def step(self) -> None:
        """Renew the lease, take it over if it has ended, or note who has it. A silent store changes nothing."""
        if self._store.exclusive and self._term:
            return
        begun_s = self._clock()
        try:
            found, beats = await self._store.run(self._step, what="manager lease", timeout_s=STEP_TIMEOUT_S)
        except StoreError as error:
            if self._term and not self.term:
                self._lost(f"the metadata store does not take the renewal: {error}")
            return
        now_s = self._clock()
        self._seen = sighted(self._seen, (found, beats), now_s)
        self._recorded = found
        if found.holder != self._incarnation:
            if self._term:
                self._lost(f"{found.address or 'nobody'} has it in term {found.term}")
            return
        if not self.term:
            self._term, self._since_s = found.term, now_s
            log.info("this server is the manager", term=found.term)
        self._until_s = math.inf if self._store.exclusive else held_until(begun_s)

    async def transact(
        self, function: Callable[[Transaction], Awaitable[T]], *, what: str, timeout_s: float = RUN_TIMEOUT_S
    ) -> T:
        """`Store.run`, committed only while this server is the manager in its present term. Raises `NotManager`."""
        term = self.term

        async def body(transaction: Transaction) -> T:
            found = await _read(transaction)
            if not term or found.term != term or found.holder != self._incarnation:
                raise NotManager(f"{what}: this metadata server is not the manager any more")
            return await function(transaction)

        return await self._store.run(body, what=what, timeout_s=timeout_s)

    async def give_up(self) -> None:
        """Be the manager no more, and let another take over at once."""
        term, self._term, self._until_s = self._term, 0, -math.inf
        if self._store.exclusive or not term:
            return

        async def body(transaction: Transaction) -> None:
            found = await _read(transaction)
            if found.holder == self._incarnation:
                transaction.set(keys.MANAGER, pack(ManagerTerm(found.term, "", "")))

        try:
            await self._store.run(body, what="giving up the manager lease", timeout_s=STEP_TIMEOUT_S)
        except StoreError as error:
            log.info("the manager lease was not given up; it ends by itself", reason=str(error))

    async def _step(self, transaction: Transaction) -> tuple[ManagerTerm, bytes]:
        """The record as it is afterwards."""
        found = await _read(transaction)
        if found.holder == self._incarnation:
            # Also where an earlier attempt took it over and the answer was lost.
            transaction.add(keys.MANAGER_BEATS, _ONE)
            return found, b""
        beats = await transaction.get(keys.MANAGER_BEATS) or b""
        if not self._may_take(found, beats):
            return found, beats
        taken = ManagerTerm(found.term + 1, self._incarnation, self.address)
        transaction.set(keys.MANAGER, pack(taken))
        transaction.add(keys.MANAGER_BEATS, _ONE)
        return taken, b""

    def _may_take(self, found: ManagerTerm, beats: bytes) -> bool:
        if self._store.exclusive or not found.holder:
            return True
        seen = self._seen
        return seen is not None and seen.record == (found, beats) and may_take_over(seen, self._clock())

    def _lost(self, reason: str) -> None:
        log.warning("this server is not the manager any more", term=self._term, reason=reason)
        self._term, self._until_s = 0, -math.inf


async def read_manager(store: Store) -> ManagerTerm:
    """The record as of now; term 0: there never was a manager."""
    return await store.run(_read, what="reading the manager lease")


async def _read(transaction: Transaction) -> ManagerTerm:
    stored = await transaction.get(keys.MANAGER)
    return ManagerTerm(0, "", "") if stored is None else unpack(ManagerTerm, keys.MANAGER, stored)


assert STEP_INTERVAL_S + STEP_TIMEOUT_S < MANAGER_LEASE_S, "one slow renewal must not lose the lease"
