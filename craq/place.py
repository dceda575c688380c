"""Where one drive stands in a chain: a pure function of the chain, the drive and its worker's life."""

from typing import NamedTuple

from esker.craq.membership import ADMITTED
from esker.wire.types import Chain, TargetState


class Place(NamedTuple):
    """What follows from a chain for one of its replicas."""

    state: TargetState
    """OFFLINE also where another life of the worker was admitted: this one may have missed writes since."""
    is_head: bool
    predecessor: str | None
    successor: str | None
    """Whom to send on to: the next serving replica, and behind the last one whoever is syncing."""
    replaces: bool
    """The successor is syncing: what is here wins over what it has."""
    enough: bool
    """As many replicas serve as it takes to acknowledge anything."""


def place_of(chain: Chain, drive_id: str, incarnation: str) -> Place:
    """The place of the drive's replica, whose worker is in this life."""
    own = next((replica for replica in chain.replicas if replica.drive_id == drive_id), None)
    serving = [replica.drive_id for replica in chain.replicas if replica.state is TargetState.SERVING]
    syncing = [replica.drive_id for replica in chain.replicas if replica.state is TargetState.SYNCING]
    enough = len(serving) >= chain.min_replicas
    if own is None:
        return Place(TargetState.OFFLINE, False, None, None, False, enough)
    if own.state not in ADMITTED:
        return Place(own.state, False, None, None, False, enough)
    if own.incarnation != incarnation:
        return Place(TargetState.OFFLINE, False, None, None, False, enough)
    line = serving + syncing
    at = line.index(drive_id)
    successor = line[at + 1] if at + 1 < len(line) else None
    return Place(own.state, at == 0, line[at - 1] if at else None, successor, successor in syncing, enough)
