"""Plans for drives that come and go: who takes whose place, what is refused and why, and that all stays even."""

from collections import Counter

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from esker.meta.cache_table import cache_chains
from esker.meta.chain_setup import CACHE_TABLE_ID, TABLE_ID
from esker.meta.layout import DriveSite, chain_weights, extend_chains, extended_weights, in_turn, plan_chains
from esker.meta.replanning import (
    Cluster,
    KnownDrive,
    plan_drain,
    plan_expansion,
    plan_replacement,
    plan_staying,
    sharing_chains,
)
from esker.wire.errors import UserError
from esker.wire.limits import GIB
from esker.wire.placement import build_slot_table
from esker.wire.types import Chain, ChainGoal, ChainTable, Leaving, Replica, Routing, Worker


def worker(drive_id: str, node_id: str, capacity_bytes: int = 100 * GIB) -> Worker:
    return Worker(drive_id, node_id, "h", 1, "", "boot", "life", capacity_bytes)


def cluster_of(
    nodes: int,
    per_node: int,
    replicas: int = 2,
    *,
    more: tuple[Worker, ...] = (),
    dead: tuple[str, ...] = (),
    used_bytes: int = 0,
    with_cache: bool = False,
    **routing: object,
) -> Cluster:
    """Drives `n0d0`, `n0d1`, ... with chains, and more drives that are in none."""
    workers = tuple(worker(f"n{node}d{disk}", f"n{node}") for node in range(nodes) for disk in range(per_node))
    sites = in_turn([DriveSite(each.drive_id, each.node_id, each.capacity_bytes) for each in workers])
    members = plan_chains(sites, replicas)
    chains = [Chain(number, 1, tuple(map(Replica, chain)), 1) for number, chain in enumerate(members, start=1)]
    ids = tuple(chain.chain_id for chain in chains)
    tables = [ChainTable(TABLE_ID, 1, ids, tuple(chain_weights(sites, members)))]
    if with_cache:
        cache = cache_chains(workers, len(chains) + 1)
        tables.append(ChainTable(CACHE_TABLE_ID, 1, tuple(chain.chain_id for chain in cache), (1,) * len(cache)))
        chains += cache
    found = Routing("c", 7, (*workers, *more), tuple(chains), tuple(tables), len(workers), replicas)
    found = msgspec.structs.replace(found, **routing)
    return Cluster(found, [KnownDrive(each, each.drive_id not in dead, used_bytes) for each in found.workers])


NEW = worker("new", "n9")


def test_a_replacement_takes_the_old_ones_place_in_every_chain() -> None:
    cluster = cluster_of(4, 2, more=(NEW,), dead=("n1d0",))
    goals = plan_replacement(cluster, "n1d0", "new", force=False)
    assert [goal.chain_id for goal in goals] == [chain.chain_id for chain in cluster.chains_with("n1d0")]
    for goal, chain in zip(goals, cluster.chains_with("n1d0"), strict=True):
        assert goal.drives == tuple(each.drive_id.replace("n1d0", "new") for each in chain.replicas)
        assert (goal.added, goal.fresh) == (("new",), False)
    assert not sharing_chains(cluster, goals)


def test_a_replacement_that_was_begun_goes_on() -> None:
    before = cluster_of(4, 2, more=(NEW,))
    goals = plan_replacement(before, "n1d0", "new", force=False)
    assert plan_replacement(cluster_of(4, 2, more=(NEW,), goals=tuple(goals)), "n1d0", "new", force=False) == []
    rest = plan_replacement(cluster_of(4, 2, more=(NEW,), goals=tuple(goals[:3])), "n1d0", "new", force=False)
    assert rest == goals[3:]


def test_chains_of_cache_mode_may_begin_anew() -> None:
    cluster = cluster_of(4, 1, more=(NEW,), with_cache=True)
    goals = plan_replacement(cluster, "n0d0", "new", force=False)
    assert [goal.fresh for goal in goals] == [False] * (len(goals) - 1) + [True]


@pytest.mark.parametrize(
    ("changes", "old", "new", "why"),
    [
        ({}, "n0d0", "nowhere", "drive nowhere has not joined this cluster"),
        ({}, "new", "new", "cannot replace itself"),
        ({"dead": ("new",)}, "n0d0", "new", "the worker of drive new is silent"),
        ({"leaving": (Leaving("new", 1),)}, "n0d0", "new", "drive new is being emptied itself"),
        ({"leaving": (Leaving("n0d0", 1, "x"),)}, "n0d0", "new", "is being replaced by x; esker admin drain n0d0 --c"),
        ({}, "n0d0", "n2d0", "drive n2d0 is in .* chains already"),
        ({"used_bytes": 60 * GIB}, "n0d0", "new", "bytes have to move, but the others have room for"),
        ({"more": (worker("new", "n1"), worker("x", "n7"))}, "n0d0", "new", "two replicas on node n1, .* on n7"),
    ],
)
def test_replacements_that_are_refused(changes: dict[str, object], old: str, new: str, why: str) -> None:
    with pytest.raises(UserError, match=why):
        plan_replacement(cluster_of(4, 2, **{"more": (NEW,), **changes}), old, new, force=False)  # type: ignore[arg-type]


def test_replicas_share_a_node_only_where_nothing_else_is_left() -> None:
    cluster = cluster_of(2, 2, more=(worker("new", "n1"),))
    goals = plan_replacement(cluster, "n0d0", "new", force=False)
    assert sharing_chains(cluster, goals) == [goal.chain_id for goal in goals]
    with pytest.raises(UserError, match="are in the same chain, which needs both"):
        plan_replacement(cluster, "n0d0", "n1d0", force=True)


def test_a_drained_node_is_taken_over_by_all_the_others() -> None:
    cluster = cluster_of(6, 2)
    goals = plan_drain(cluster, ["n2d0", "n2d1"])
    assert {goal.chain_id for goal in goals} == {
        chain.chain_id for drive in ("n2d0", "n2d1") for chain in cluster.chains_with(drive)
    }
    added = Counter(drive for goal in goals for drive in goal.added)
    assert set(added) == {f"n{node}d{disk}" for node in (0, 1, 3, 4, 5) for disk in range(2)}
    assert max(added.values()) - min(added.values()) <= 1
    assert not sharing_chains(cluster, goals)
    for goal in goals:
        assert len(set(goal.drives)) == 2
        assert not {"n2d0", "n2d1"} & set(goal.drives)


def test_a_second_drain_adds_to_the_first() -> None:
    first = plan_drain(cluster_of(6, 1), ["n0d0"])
    cluster = cluster_of(6, 1, goals=tuple(first), leaving=(Leaving("n0d0", 1),))
    assert plan_drain(cluster, ["n0d0"]) == []
    second = plan_drain(cluster, ["n1d0"])
    assert not {"n0d0", "n1d0"} & {drive for goal in second for drive in goal.drives}
    both = [goal for goal in second if goal.chain_id in {each.chain_id for each in first}]
    assert both, "chains of both drives are planned anew"
    for goal in both:
        chain = next(chain for chain in cluster.routing.chains if chain.chain_id == goal.chain_id)
        assert set(goal.added) == set(goal.drives) - {replica.drive_id for replica in chain.replicas}


@pytest.mark.parametrize(
    ("cluster", "leaving", "why"),
    [
        (cluster_of(2, 1), ["n0d0"], "has 2 replicas, and only 1 drives are up and stay: add drives first"),
        (cluster_of(3, 1, dead=("n1d0",)), ["n0d0"], "only 1 drives are up and stay"),
        (cluster_of(3, 1, used_bytes=90 * GIB), ["n0d0"], "add drives first"),
        (cluster_of(3, 1, leaving=(Leaving("n0d0", 1, "n1d0"),)), ["n0d0"], "drive n0d0 is being replaced by n1d0; "),
        (cluster_of(3, 1), ["n8d0"], "drive n8d0 is not in this cluster"),
    ],
)
def test_drains_that_are_refused(cluster: Cluster, leaving: list[str], why: str) -> None:
    with pytest.raises(UserError, match=why):
        plan_drain(cluster, leaving)


def test_a_drain_that_is_called_off_takes_back_who_was_added() -> None:
    chain = Chain(1, 1, tuple(map(Replica, ("a", "b"))), 1)
    grown = Chain(2, 3, tuple(map(Replica, ("a", "b", "c"))), 1)
    goals = (ChainGoal(1, ("b", "c"), ("c",)), ChainGoal(2, ("b", "c"), ("c",)))
    found = Routing("c", 1, (), (chain, grown), (), 3, 2, goals=goals)
    assert plan_staying(Cluster(found, []), ["a"]) == [ChainGoal(1, ()), ChainGoal(2, ("a", "b"))]
    assert plan_staying(Cluster(found, []), ["x"]) == []


def test_an_expansion_gives_new_drives_their_share_and_moves_nothing_else() -> None:
    more = tuple(worker(f"n{node}d{disk}", f"n{node}") for node in (4, 5) for disk in range(2))
    cluster = cluster_of(4, 2, more=more, with_cache=True)
    replicated, cache = plan_expansion(cluster)
    loads = Counter(drive for chain in replicated.chains for drive in chain.drives)
    assert {each.drive_id for each in more} <= set(loads)
    assert all(len({drive[:2] for drive in chain.drives}) == 2 for chain in replicated.chains)
    assert [chain.drives for chain in cache.chains] == [("n4d0",), ("n5d0",), ("n4d1",), ("n5d1",)]

    old = cluster.routing.tables[0]
    new_ids = tuple(range(1000, 1000 + len(replicated.chains)))
    before = build_slot_table(old.chain_ids, old.weights)
    after = build_slot_table(old.chain_ids + new_ids, (*old.weights, *(chain.weight for chain in replicated.chains)))
    slots = list(zip(memoryview(before).cast("H"), memoryview(after).cast("H"), strict=True))
    moved = [new for was, new in slots if was != new]
    assert all(new >= len(old.chain_ids) for new in moved), "a slot moves only to a new chain"
    assert len(moved) / len(slots) == pytest.approx(1 / 3, abs=0.02), "4 of 12 drives are new"


def test_an_expansion_by_one_drive_finds_partners_among_the_others() -> None:
    (growth,) = plan_expansion(cluster_of(4, 1, more=(NEW,)))
    assert all(chain.drives[0] == "new" and len(chain.drives) == 2 for chain in growth.chains)
    partners = {chain.drives[1] for chain in growth.chains}
    assert len(partners) == len(growth.chains) == 3, "each of the others heads as many"


def test_there_may_be_nothing_to_expand() -> None:
    assert plan_expansion(cluster_of(4, 1)) == []
    assert plan_expansion(cluster_of(4, 1, more=(NEW,), dead=("new",))) == []
    assert plan_expansion(cluster_of(4, 1, more=(NEW,), leaving=(Leaving("new", 1),))) == []
    with pytest.raises(UserError, match="no chains yet"):
        plan_expansion(cluster_of(4, 1, tables=()))


@settings(deadline=None, max_examples=40)
@given(
    st.integers(1, 5),
    st.integers(1, 3),
    st.integers(1, 3),
    st.lists(st.sampled_from((1, 2, 4)), min_size=1, max_size=8),
)
def test_expansions_of_any_size(nodes: int, per_node: int, replicas: int, sizes: list[int]) -> None:
    old = [DriveSite(f"n{node}d{disk}", f"n{node}", 10**12) for node in range(nodes) for disk in range(per_node)]
    replicas = min(replicas, len(old))
    existing = plan_chains(in_turn(old), replicas)
    fresh = [DriveSite(f"m{number}", f"m{number % 2}", size * 10**12) for number, size in enumerate(sizes)]
    drives = in_turn([*old, *fresh])
    made = extend_chains(drives, replicas, existing, {drive.drive_id for drive in fresh})
    node_of = {drive.drive_id: drive.node_id for drive in drives}
    assert {drive.drive_id for drive in fresh} <= {chain[0] for chain in made}
    for chain in made:
        assert len(chain) == len(set(chain)) == replicas
        assert len({node_of[member] for member in chain}) == min(replicas, len(set(node_of.values())))
    weights = extended_weights(drives, existing, chain_weights(old, existing), made)
    assert all(weight >= 1 for weight in weights)
