"""Which replicas serve: scenarios as tables, and what holds for every chain whatever happens to its targets."""

from itertools import product
from pathlib import Path
from random import Random

import pytest

from esker.craq.membership import TRANSITIONS, LocalState, Others, Target, next_chain, transition_table
from esker.wire.types import Chain, Replica, TargetState

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "chains.md"
STATES = dict(zip("SYWLO", TargetState, strict=True))
LETTERS = {state: letter for letter, state in STATES.items()}
ADMITTED = (TargetState.SERVING, TargetState.SYNCING)


def chain_of(text: str, version: int = 5, life: int = 1) -> Chain:
    """A chain from text such as `a:S b:Y c:O`."""
    replicas = []
    for word in text.split():
        drive, _, letter = word.partition(":")
        state = STATES[letter]
        replicas.append(Replica(drive, state, f"{drive}{life}" if state in ADMITTED else ""))
    return Chain(1, version, tuple(replicas), 1)


def text_of(chain: Chain) -> str:
    return " ".join(f"{replica.drive_id}:{LETTERS[replica.state]}" for replica in chain.replicas)


def targets_of(alive: str, life: int = 1) -> dict[str, Target]:
    """Targets from text: `a b+ c2` are alive, b up to date, c in its second life."""
    targets = {}
    for word in alive.split():
        drive = word[0]
        lives = word[1:].strip("+") or life
        state = LocalState.UP_TO_DATE if word.endswith("+") else LocalState.ONLINE
        targets[drive] = Target(state, f"{drive}{lives}")
    return targets


@pytest.mark.parametrize(
    ("before", "alive", "after"),
    [
        # Nothing happens.
        ("a:S b:S c:S", "a b c", "a:S b:S c:S"),
        ("a:S b:S c:O", "a b", "a:S b:S c:O"),
        ("a:L b:L", "", "a:L b:L"),
        ("a:S b:Y", "a b", "a:S b:Y"),
        ("a:L b:O", "b", "b:W a:L"),
        ("a:L b:W", "b", "b:W a:L"),
        # One dies; the others keep their order.
        ("a:S b:S c:S", "b c", "b:S c:S a:O"),
        ("a:S b:S c:S", "a c", "a:S c:S b:O"),
        ("a:S b:Y", "a", "a:S b:O"),
        ("a:S b:Y c:W", "a c", "a:S c:Y b:O"),
        # It was started anew.
        ("a:S b:S c:S", "a2 b c", "b:S c:S a:O"),
        ("a:S b:Y", "a b2", "a:S b:O"),
        # All die: the serving ones are candidates, nobody else is.
        ("a:S b:S c:O", "", "a:L b:L c:O"),
        ("a:S b:Y c:W", "", "a:L b:O c:O"),
        ("a:S b:Y c:W", "b c", "b:W c:W a:L"),
        ("a:S b:Y", "b+", "b:W a:L"),
        ("a:S", "a2", "a:L"),
        # The first candidate that is back serves, wherever it stands.
        ("a:L", "a2", "a:S"),
        ("a:L b:L", "a b", "a:S b:W"),
        ("a:L b:L", "b", "b:S a:O"),
        ("a:L b:L c:L", "b c", "b:S c:W a:O"),
        ("b:W a:L", "a b", "a:S b:W"),
        # Admission, one at a time.
        ("a:S b:O", "a b", "a:S b:W"),
        ("a:S b:W", "a b", "a:S b:Y"),
        ("a:S b:W c:W", "a b c", "a:S b:Y c:W"),
        ("a:S b:Y c:W", "a b c", "a:S b:Y c:W"),
        ("a:S b:Y c:W", "a b+ c", "a:S b:S c:Y"),
        ("a:S b:Y", "a b+", "a:S b:S"),
        ("a:S b:S c:Y", "b c+", "b:S c:S a:O"),
        ("a:S b:S c:Y", "b c", "b:S c:Y a:O"),
        # What serves is up to date by itself.
        ("a:S b:S", "a+ b+", "a:S b:S"),
        ("a:S b:W", "a b+", "a:S b:Y"),
    ],
)
def test_one_step(before: str, alive: str, after: str) -> None:
    chain = chain_of(before)
    following = next_chain(chain, targets_of(alive))
    assert text_of(following) == after
    assert (following is chain) == (before == after)
    assert following.version == chain.version + (before != after)
    assert following.min_replicas == chain.min_replicas


def test_whoever_is_admitted_is_so_in_its_present_life() -> None:
    following = next_chain(chain_of("a:S b:W"), targets_of("a b7"))
    assert following.replicas == (
        Replica("a", TargetState.SERVING, "a1"),
        Replica("b", TargetState.SYNCING, "b7"),
    )
    admitted = next_chain(following, targets_of("a b7+"))
    assert admitted.replicas[1] == Replica("b", TargetState.SERVING, "b7")
    gone = next_chain(admitted, targets_of("a b8"))
    assert gone.replicas[1] == Replica("b", TargetState.OFFLINE)


def test_a_life_that_was_not_told_is_taken_from_what_is_there_and_is_nobodys_death() -> None:
    chain = Chain(1, 5, (Replica("a"), Replica("b")), 1)
    following = next_chain(chain, targets_of("a b"))
    assert following.version == 6
    assert [replica.incarnation for replica in following.replicas] == ["a1", "b1"]
    assert text_of(following) == "a:S b:S"
    assert next_chain(following, targets_of("a b")) is following


@pytest.mark.parametrize(
    ("before", "alive", "steps"),
    [
        ("a:S b:S", "a2 b", ["b:S a:O", "b:S a:W", "b:S a:Y"]),
        ("a:S b:S", "a2 b2", ["a:L b:L", "a:S b:W", "a:S b:Y"]),
        ("a:S", "a2", ["a:L", "a:S"]),
        ("a:S b:Y", "a2 b", ["b:W a:L", "a:S b:W", "a:S b:Y"]),
    ],
)
def test_a_restart_step_by_step(before: str, alive: str, steps: list[str]) -> None:
    chain = chain_of(before)
    for step in steps:
        chain = next_chain(chain, targets_of(alive))
        assert text_of(chain) == step
    assert next_chain(chain, targets_of(alive)) is chain


def invariants(before: Chain, after: Chain) -> None:
    states = [replica.state for replica in after.replicas]
    assert sorted(replica.drive_id for replica in after.replicas) == sorted(r.drive_id for r in before.replicas)
    assert TargetState.SERVING in states or TargetState.LASTSRV in states, "somebody is known to have everything"
    assert not (TargetState.SERVING in states and TargetState.LASTSRV in states)
    assert states.count(TargetState.SYNCING) <= 1
    if TargetState.SYNCING in states:
        at = states.index(TargetState.SYNCING)
        assert at > 0
        assert set(states[:at]) == {TargetState.SERVING}, "it stands behind those that serve"
    knew = {r.drive_id for r in before.replicas if r.state in (*ADMITTED, TargetState.LASTSRV)}
    assert {r.drive_id for r in after.replicas if r.state in (TargetState.SERVING, TargetState.LASTSRV)} <= knew
    for replica in after.replicas:
        assert bool(replica.incarnation) == (replica.state in ADMITTED)


def reachable(drives: str) -> set[tuple[str, ...]]:
    """Every order of states that a chain of these drives can get into."""
    start = tuple(f"{drive}:S" for drive in drives)
    known, left = {start}, [start]
    while left:
        chain = chain_of(" ".join(left.pop()))
        for alive in product(("", "{}", "{}+", "{}2"), repeat=len(drives)):
            text = " ".join(how.format(drive) for how, drive in zip(alive, drives, strict=True) if how)
            following = next_chain(chain, targets_of(text))
            invariants(chain, following)
            found = tuple(text_of(following).split())
            if found not in known:
                known.add(found)
                left.append(found)
    return known


@pytest.mark.parametrize("drives", ["a", "ab", "abc"])
def test_in_every_reachable_chain_every_step_keeps_the_rules_and_calm_makes_all_serve(drives: str) -> None:
    chains = reachable(drives)
    assert len(chains) >= {1: 2, 2: 10, 3: 50}[len(drives)]
    for words in chains:
        chain = chain_of(" ".join(words))
        for _ in range(4 * len(drives)):
            chain = next_chain(chain, targets_of(" ".join(f"{drive}+" for drive in drives)))
        assert {replica.state for replica in chain.replicas} == {TargetState.SERVING}, words


@pytest.mark.parametrize("seed", range(20))
def test_random_histories_of_larger_chains(seed: int) -> None:
    random = Random(seed)
    drives = "abcde"
    lives = dict.fromkeys(drives, 1)
    chain = chain_of(" ".join(f"{drive}:S" for drive in drives))
    for _ in range(300):
        targets = {}
        for drive in drives:
            lives[drive] += random.random() < 0.1
            targets[drive] = Target(random.choice(list(LocalState)), f"{drive}{lives[drive]}")
        before, chain = chain, next_chain(chain, targets)
        invariants(before, chain)
        assert chain.version == before.version + (chain is not before)
    for _ in range(30):
        chain = next_chain(chain, {drive: Target(LocalState.UP_TO_DATE, f"{drive}{lives[drive]}") for drive in drives})
    assert {replica.state for replica in chain.replicas} == {TargetState.SERVING}


def test_the_table_covers_everything() -> None:
    assert set(TRANSITIONS) == set(product(TargetState, LocalState))
    assert all(set(row) == set(Others) for row in TRANSITIONS.values())


def test_the_documentation_has_the_table() -> None:
    assert transition_table() in DOCUMENT.read_text(encoding="utf-8"), "put transition_table() into docs/chains.md"
