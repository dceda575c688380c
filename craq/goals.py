"""A chain's way to the drives that it shall have: one step at a time, as a pure function.

What is promised of a chain while its drives are exchanged:

- it never has fewer serving replicas than it takes to acknowledge a write, and never loses its last one;
- a drive that takes the place of another joins as any replica does (`membership.py`): offline, then brought up to
  date by the last that serves; only when all that were added serve is anybody taken out;
- one replica is taken out at a time, those that do not serve first;
- a drive of the goal that is dead holds nothing up, unless it was added: the copy that it should bear is missing yet.

Deaths and returns come first: this is asked only when `next_chain` has nothing to do.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from esker.craq.membership import LocalState, Target, local_state
from esker.wire.types import Chain, ChainGoal, Replica, TargetState


def reached(chain: Chain, goal: ChainGoal) -> bool:
    """Whether the chain has the drives of its goal, and no others."""
    return {replica.drive_id for replica in chain.replicas} == set(goal.drives)


def timely(chains: Iterable[Chain], goals: Sequence[ChainGoal], at_once: int) -> dict[int, ChainGoal]:
    """The goals to be followed now, by chain id: of those that add a drive, no more than `at_once` for each drive, as
    every write of a chain waits for whoever is being brought up to date. What was begun is gone on with.
    """
    present = {chain.chain_id: {replica.drive_id for replica in chain.replicas} for chain in chains}
    followed: dict[int, ChainGoal] = {}
    under_way: Counter[str] = Counter()
    waiting = []
    for goal in goals:
        if goal.added and not present.get(goal.chain_id, set()) & set(goal.added):
            waiting.append(goal)
        else:
            followed[goal.chain_id] = goal
            under_way.update(goal.added)
    for goal in waiting:
        if all(under_way[drive_id] < at_once for drive_id in goal.added):
            followed[goal.chain_id] = goal
            under_way.update(goal.added)
    return followed


def step_toward(chain: Chain, goal: ChainGoal, targets: Mapping[str, Target]) -> Chain:
    """The chain after one step, in the next version; the same object if there is none to take now.

    `targets` is by drive id: what the manager knows of the chain's drives.
    """
    present = {replica.drive_id for replica in chain.replicas}
    missing = tuple(Replica(drive_id, TargetState.OFFLINE) for drive_id in goal.drives if drive_id not in present)
    if missing:
        return _with(chain, chain.replicas + missing)
    begun = _begun_anew(chain, goal, targets) if goal.fresh else None
    if begun is not None:
        return begun
    leaver = _leaver(chain, goal, targets)
    if leaver is None:
        return chain
    return _with(chain, [replica for replica in chain.replicas if replica is not leaver])


def _leaver(chain: Chain, goal: ChainGoal, targets: Mapping[str, Target]) -> Replica | None:
    """Who is taken out now; None: nobody."""
    surplus = [replica for replica in chain.replicas if replica.drive_id not in goal.drives]
    stay = [replica for replica in chain.replicas if replica.drive_id in goal.drives]
    serving = [replica for replica in stay if _serves(replica, targets)]
    if not surplus or not serving:
        return None
    for replica in surplus:
        if replica.state in (TargetState.WAITING, TargetState.SYNCING):
            return replica  # It would be brought up to date for nothing.
    all_serve = all(replica in serving or (_dead(replica, targets) and not _added(replica, goal)) for replica in stay)
    if not all_serve or len(serving) < chain.min_replicas:
        return None
    idle = [replica for replica in surplus if replica.state is not TargetState.SERVING]
    return idle[0] if idle else surplus[-1]


def _begun_anew(chain: Chain, goal: ChainGoal, targets: Mapping[str, Target]) -> Chain | None:
    """The chain with an empty replica that serves, where all who had its blocks are dead; None: they are not."""
    holders = [replica for replica in chain.replicas if replica.state in (TargetState.SERVING, TargetState.LASTSRV)]
    if any(not _dead(replica, targets) for replica in holders):
        return None
    for replica in chain.replicas:
        if replica.drive_id in goal.drives and replica not in holders and not _dead(replica, targets):
            first = Replica(replica.drive_id, TargetState.SERVING, targets[replica.drive_id].incarnation)
            others = [Replica(each.drive_id, TargetState.OFFLINE) for each in chain.replicas if each is not replica]
            return _with(chain, [first, *others])
    return None


def _serves(replica: Replica, targets: Mapping[str, Target]) -> bool:
    return replica.state is TargetState.SERVING and not _dead(replica, targets)


def _dead(replica: Replica, targets: Mapping[str, Target]) -> bool:
    return local_state(replica, targets) is LocalState.OFFLINE


def _added(replica: Replica, goal: ChainGoal) -> bool:
    return replica.drive_id in goal.added


def _with(chain: Chain, replicas: Sequence[Replica]) -> Chain:
    return Chain(chain.chain_id, chain.version + 1, tuple(replicas), chain.min_replicas)
