"""Arithmetic of leases. Pure: times are arguments, in seconds on one machine's own clock, and never sent anywhere.

Why two never hold the manager lease at once: its holder counts the lease from before the transaction of its renewal
began, so it ends at most `MANAGER_LEASE_S` after that renewal was committed. A standby takes over only after it has
seen the record unchanged for that long, from a moment after it read it, stretched by the rate at which clocks may
differ; and its transaction commits only if the record is still the one that it saw.

Why no worker serves reads of mutable chunks after it was taken out: it counts its lease from before it sent the
heartbeat that was acknowledged, the manager from when that heartbeat came, and adds a margin that is more than clocks
may differ in that time.
"""

from dataclasses import dataclass

from esker.wire.limits import CLOCK_SKEW, MANAGER_LEASE_S, WORKER_LEASE_MARGIN_S, WORKER_LEASE_S

TAKEOVER_S = MANAGER_LEASE_S * (1 + CLOCK_SKEW)
"""How long a standby must see the record unchanged."""
DEATHS_FROM_S = (WORKER_LEASE_S + WORKER_LEASE_MARGIN_S) * (1 + CLOCK_SKEW)
"""How long a new manager declares nobody dead: heartbeats that its predecessor acknowledged are still in force."""


def held_until(begun_s: float) -> float:
    """When a lease ends whose renewal was committed by a transaction that began no earlier than `begun_s`."""
    return begun_s + MANAGER_LEASE_S


def worker_held_until(sent_s: float) -> float:
    """When a worker's lease ends, on its own clock, whose acknowledged heartbeat was sent no earlier than `sent_s`."""
    return sent_s + WORKER_LEASE_S


def worker_lease_over(acknowledged_s: float, now_s: float) -> bool:
    """Whether the leases of all heartbeats that were acknowledged until `acknowledged_s`, on the manager's clock, have
    surely ended.
    """
    return now_s - acknowledged_s >= WORKER_LEASE_S + WORKER_LEASE_MARGIN_S


@dataclass(frozen=True, slots=True)
class Sighting:
    """A record that somebody else keeps changing as long as it lives, and since when it has been seen unchanged."""

    record: object
    since_s: float


def sighted(before: Sighting | None, record: object, now_s: float) -> Sighting:
    """What is known once `record` was read. `now_s` must be taken after the read ended."""
    if before is not None and before.record == record:
        return before
    return Sighting(record, now_s)


def may_take_over(seen: Sighting, now_s: float) -> bool:
    """Whether the lease of the record that was `seen` has surely ended."""
    return now_s - seen.since_s >= TAKEOVER_S


def may_declare_dead(manager_since_s: float, now_s: float) -> bool:
    """Whether a manager of that age may take silence for death."""
    return now_s - manager_since_s >= DEATHS_FROM_S


assert WORKER_LEASE_S * (1 + CLOCK_SKEW) <= (WORKER_LEASE_S + WORKER_LEASE_MARGIN_S) * (1 - CLOCK_SKEW), (
    "the margin must be more than the clocks of a worker and of the manager may differ while a lease runs"
)
