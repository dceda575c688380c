"""Which replicas of a chain serve: the manager's decision, as a pure function of public and local states.

A public state is what everyone is told (`TargetState`); a local state is what the manager knows of the target now.
`TRANSITIONS` is the whole truth for one replica; the documentation's table is generated from it. Rules:

- every change of a state, of a life or of the order increments the chain version, by which late requests are refused;
- a replica that died, or whose worker was started anew, is no longer serving: it may have missed writes;
- when every serving replica of a chain is gone at once, each of them is a candidate (LASTSRV) and stays one until
  the first of them is back, which serves; the others then resync from it;
- a replica becomes serving only from a serving one (UP_TO_DATE says that its resync is complete), one at a time;
- serving replicas stand first, in their old order; whoever is admitted joins at the end of them.

When to believe that a target is dead, and how often to look, is the manager's (`meta/chain_manager.py`).
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple

from esker.wire.types import Chain, Replica, TargetState


class LocalState(StrEnum):
    """What the manager knows of a target."""

    UP_TO_DATE = "up-to-date"
    """Alive, and its resync in the present chain version is complete."""
    ONLINE = "online"
    """Alive."""
    OFFLINE = "offline"
    """Dead, started anew since it was admitted, its drive failed, or its resync came to nothing."""


class Target(NamedTuple):
    """A drive as the manager sees it, for one chain."""

    state: LocalState
    incarnation: str
    """The worker's present life."""


class Others(StrEnum):
    """What matters of the chain's other replicas."""

    SERVING = "another serves"
    """A live replica serves, and (for admissions) none is being admitted before this one."""
    BUSY = "another is being admitted"
    """A live replica serves, but another one is syncing or waits in front."""
    CANDIDATE = "a candidate in front is back"
    """None serves, but a candidate in front of this one is alive."""
    NONE = "none serves"


_S, _Y, _W, _L, _O = (
    TargetState.SERVING,
    TargetState.SYNCING,
    TargetState.WAITING,
    TargetState.LASTSRV,
    TargetState.OFFLINE,
)
ADMITTED = (_S, _Y)
"""States in which a replica takes part in writes, in the life that was admitted only."""


def _row(*following: TargetState) -> dict[Others, TargetState]:
    """In the order of `Others`."""
    return dict(zip(Others, following, strict=True))


TRANSITIONS: dict[tuple[TargetState, LocalState], dict[Others, TargetState]] = {
    (_S, LocalState.UP_TO_DATE): _row(_S, _S, _S, _S),
    (_S, LocalState.ONLINE): _row(_S, _S, _S, _S),
    (_S, LocalState.OFFLINE): _row(_O, _O, _L, _L),
    (_Y, LocalState.UP_TO_DATE): _row(_S, _S, _W, _W),
    (_Y, LocalState.ONLINE): _row(_Y, _Y, _W, _W),
    (_Y, LocalState.OFFLINE): _row(_O, _O, _O, _O),
    (_W, LocalState.UP_TO_DATE): _row(_Y, _W, _W, _W),
    (_W, LocalState.ONLINE): _row(_Y, _W, _W, _W),
    (_W, LocalState.OFFLINE): _row(_O, _O, _O, _O),
    (_L, LocalState.UP_TO_DATE): _row(_W, _W, _W, _S),
    (_L, LocalState.ONLINE): _row(_W, _W, _W, _S),
    (_L, LocalState.OFFLINE): _row(_O, _O, _O, _L),
    (_O, LocalState.UP_TO_DATE): _row(_W, _W, _W, _W),
    (_O, LocalState.ONLINE): _row(_W, _W, _W, _W),
    (_O, LocalState.OFFLINE): _row(_O, _O, _O, _O),
}

_RANK = {_S: 0, _Y: 1, _W: 2, _L: 3, _O: 4}
_GONE = Target(LocalState.OFFLINE, "")


def local_state(replica: Replica, targets: Mapping[str, Target]) -> LocalState:
    """The replica's local state. A drive that `targets` does not name is OFFLINE.

    So is an admitted replica whose worker has another life now: the one that was admitted has ended.
    """
    target = targets.get(replica.drive_id, _GONE)
    if replica.state in ADMITTED and replica.incarnation not in ("", target.incarnation):
        return LocalState.OFFLINE
    return target.state


def next_chain(chain: Chain, targets: Mapping[str, Target]) -> Chain:
    """The chain after one step, in the next version if anything changed; the same object if not.

    `targets` is by drive id. UP_TO_DATE is taken at its word, so it must be of this chain version.
    """
    local = [local_state(replica, targets) for replica in chain.replicas]
    states = _next_states([replica.state for replica in chain.replicas], local)
    replicas = tuple(
        sorted(
            (_moved(replica, state, targets) for replica, state in zip(chain.replicas, states, strict=True)),
            key=lambda replica: _RANK[replica.state],
        )
    )
    if replicas == chain.replicas:
        return chain
    return Chain(chain.chain_id, chain.version + 1, replicas, chain.min_replicas)


def _next_states(public: list[TargetState], local: list[LocalState]) -> list[TargetState]:
    alive = [state is not LocalState.OFFLINE for state in local]
    serving = any(up and state is _S for up, state in zip(alive, public, strict=True))
    admitting = any(now is LocalState.ONLINE and state is _Y for now, state in zip(local, public, strict=True))
    candidate = False
    states = []
    for state, now, up in zip(public, local, alive, strict=True):
        if serving:
            others = Others.BUSY if admitting and state is not _Y else Others.SERVING
        else:
            others = Others.CANDIDATE if candidate else Others.NONE
        following = TRANSITIONS[state, now][others]
        candidate = candidate or (not serving and up and state is _L)
        admitting = admitting or following is _Y
        states.append(following)
    if candidate:
        # One that is alive serves from now on: those in front of it, which were passed over, are candidates no more.
        states = [_O if state is _L else state for state in states]
    return states


def _moved(replica: Replica, state: TargetState, targets: Mapping[str, Target]) -> Replica:
    """The replica in its next state: whoever is admitted is so in its present life."""
    incarnation = ""
    if state in ADMITTED:
        stays = replica.state in ADMITTED and replica.incarnation
        incarnation = replica.incarnation if stays else targets[replica.drive_id].incarnation
    return Replica(replica.drive_id, state, incarnation)


def transition_table() -> str:
    """`TRANSITIONS` as a Markdown table, for the documentation."""
    lines = [
        "| public state | local state | " + " | ".join(Others) + " |",
        "|---|---|" + "---|" * len(Others),
    ]
    for (public, local), row in TRANSITIONS.items():
        lines.append(f"| {public} | {local} | " + " | ".join(row[others] for others in Others) + " |")
    return "\n".join(lines)
