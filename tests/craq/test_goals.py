"""Chains on their way to their goals: scenarios as tables, and what holds at every step whatever happens meanwhile."""

from collections.abc import Iterator
from random import Random

import pytest

from esker.craq.goals import reached, step_toward, timely
from esker.craq.membership import LocalState, Target, local_state, next_chain
from esker.wire.types import Chain, ChainGoal, Replica, TargetState

from .test_membership import chain_of, targets_of, text_of

S, L, W, Y = TargetState.SERVING, TargetState.LASTSRV, TargetState.WAITING, TargetState.SYNCING
SEEDS = 400


@pytest.mark.parametrize(
    ("before", "goal", "added", "alive", "after"),
    [
        # Who is missing joins, offline; so it is brought up to date as anybody else.
        ("a:S b:S", "ac", "c", "a b c", "a:S b:S c:O"),
        ("a:S b:S", "cd", "cd", "a b c d", "a:S b:S c:O d:O"),
        # It has to serve first.
        ("a:S b:S c:O", "ac", "c", "a b", "a:S b:S c:O"),
        ("a:S b:S c:W", "ac", "c", "a b c", "a:S b:S c:W"),
        ("a:S b:S c:Y", "ac", "c", "a b c", "a:S b:S c:Y"),
        ("a:S b:S c:S", "ac", "c", "a b", "a:S b:S c:S"),
        # Then the others leave, one at a time, those that do not serve first.
        ("a:S b:S c:S", "ac", "c", "a b c", "a:S c:S"),
        ("a:S c:S b:O", "ac", "c", "a c", "a:S c:S"),
        ("a:S b:S c:S d:S", "cd", "cd", "a b c d", "a:S c:S d:S"),
        ("a:S c:S d:S b:O", "cd", "cd", "a c d", "a:S c:S d:S"),
        # The only copy leaves once another serves.
        ("a:S b:S", "b", "b", "a b", "b:S"),
        ("a:S b:Y", "b", "b", "a b", "a:S b:Y"),
        # A dead drive that stays holds nothing up; one that comes back is waited for.
        ("a:S c:S d:S b:O", "abd", "d", "a c d", "a:S d:S b:O"),
        ("a:S c:S d:S b:Y", "abd", "d", "a b c d", "a:S c:S d:S b:Y"),
        # Nobody is brought up to date only to leave.
        ("a:S c:O b:W", "ac", "c", "a b", "a:S c:O"),
        ("a:S b:Y c:W", "ac", "c", "a b c", "a:S c:W"),
        # While nobody serves, nobody leaves.
        ("a:L b:L", "ac", "c", "c", "a:L b:L c:O"),
        ("a:L b:L c:W", "ac", "c", "c", "a:L b:L c:W"),
        ("b:S c:W a:O", "ac", "c", "b c", "b:S c:W a:O"),
        # Nothing is to be done.
        ("a:S b:S", "ab", "", "a b", "a:S b:S"),
    ],
)
def test_steps(before: str, goal: str, added: str, alive: str, after: str) -> None:
    chain = chain_of(before)
    following = step_toward(chain, ChainGoal(1, tuple(goal), tuple(added)), targets_of(alive))
    assert text_of(following) == after
    assert following.version == chain.version + (before != after)
    assert (following is chain) == (before == after)


def test_a_chain_does_not_go_below_what_a_write_takes() -> None:
    chain = Chain(1, 5, tuple(Replica(drive, S, f"{drive}1") for drive in "abc"), min_replicas=2)
    assert step_toward(chain, ChainGoal(1, ("c", "d"), ()), targets_of("a b c")).replicas[-1].drive_id == "d"
    waiting = Chain(1, 6, (*chain.replicas, Replica("d", TargetState.OFFLINE)), min_replicas=2)
    assert step_toward(waiting, ChainGoal(1, ("c", "d"), ()), targets_of("a b c")) is waiting


@pytest.mark.parametrize(
    ("before", "alive", "after"),
    [
        ("a:L b:W", "b", "b:S a:O"),
        ("a:L b:W", "a b", "a:L b:W"),
        ("a:S b:Y", "a b", "a:S b:Y"),
        ("a:L b:O", "", "a:L b:O"),
        ("a:S b:S", "a b", "b:S"),
    ],
)
def test_a_chain_that_only_caches_begins_anew_where_its_blocks_are_lost(before: str, alive: str, after: str) -> None:
    chain = chain_of(before)
    following = step_toward(chain, ChainGoal(1, ("b",), ("b",), fresh=True), targets_of(alive))
    assert text_of(following) == after


def test_other_chains_never_give_up_what_may_come_back() -> None:
    chain = chain_of("a:L b:W")
    assert step_toward(chain, ChainGoal(1, ("b",), ("b",)), targets_of("b")) is chain


def test_a_drive_is_added_to_a_few_chains_at_a_time() -> None:
    chains = [
        Chain(number, 1, tuple(Replica(drive) for drive in ("ax" if number == 5 else "ab")), 1) for number in range(9)
    ]
    goals = [ChainGoal(number, ("b", "x"), ("x",)) for number in range(6)]
    goals += [ChainGoal(6, ("b", "y"), ("y",)), ChainGoal(7, ("b",)), ChainGoal(8, ("x", "y"), ("x", "y"))]
    assert set(timely(chains, goals, 3)) == {0, 1, 5, 6, 7}, "what was begun comes first; other drives are not held up"
    assert set(timely(chains, goals, 9)) == set(range(9))
    assert timely([], [ChainGoal(1, ("a",), ("a",))], 1) == {1: ChainGoal(1, ("a",), ("a",))}


def storm(seed: int) -> Iterator[tuple[Chain, Chain, dict[str, Target]]]:
    """Every step of a chain whose drives come, go and change as the seed says; in the end all are well."""
    random = Random(seed)
    width = random.randint(1, 3)
    goal_drives = tuple(random.sample("abcdef", width))
    first = tuple(Replica(drive, S, f"{drive}1") for drive in random.sample("abcdef", width))
    added = tuple(drive for drive in goal_drives if drive not in {replica.drive_id for replica in first})
    goal = ChainGoal(1, goal_drives, added)
    chain = Chain(1, 1, first, (width + 1) // 2)
    lives = dict.fromkeys("abcdef", 1)
    for turn in range(60):
        calm = turn >= 30
        targets = {}
        for drive in "abcdef":
            fate = 1.0 if calm else random.random()
            if fate < 0.1:
                lives[drive] += 1
            state = LocalState.OFFLINE if 0.1 <= fate < 0.25 else LocalState.ONLINE
            if state is LocalState.ONLINE and (calm or random.random() < 0.5):
                state = LocalState.UP_TO_DATE
            targets[drive] = Target(state, f"{drive}{lives[drive]}")
        following = next_chain(chain, targets)
        if following is chain:
            following = step_toward(chain, goal, targets)
        yield chain, following, targets
        chain = following
    assert reached(chain, goal), f"seed {seed}: {text_of(chain)} is not {goal_drives}"
    assert all(replica.state is S for replica in chain.replicas)


@pytest.mark.parametrize("seed", range(0, SEEDS, 100))
def test_whatever_happens_the_goal_is_reached_and_nothing_is_given_up(seed: int) -> None:
    for number in range(seed, seed + 100):
        for before, after, targets in storm(number):
            was = {replica.drive_id: replica for replica in before.replicas}
            now = {replica.drive_id: replica.state for replica in after.replicas}
            gone = [was[drive] for drive in was.keys() - now.keys()]
            assert len(gone) <= 1
            serving = [each for each in after.replicas if each.state is S and local_state(each, targets) != "offline"]
            for replica in gone:
                assert serving, "somebody serves who has everything"
                assert replica.state is not L
                if replica.state is S:
                    assert len(serving) >= before.min_replicas
            held = {drive for drive, replica in was.items() if replica.state in (S, L)}
            kept = {drive for drive, state in now.items() if state in (S, L)}
            assert held & kept, "what was acknowledged is with one that was there"
            for drive, state in now.items():
                if state is S and (drive not in was or was[drive].state not in (S, L)):
                    assert was[drive].state is Y, "only who was brought up to date begins to serve"
