"""Chain plans: heads, load and pairs are balanced, replicas are apart, for every size that is supported."""

from collections import Counter
from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from esker.meta.balance import fair_shares
from esker.meta.cluster import DRIVES_MAX
from esker.meta.imbalance import imbalance
from esker.meta.layout import DriveSite, chain_weights, heads_per_drive, in_turn, min_replicas, plan_chains
from esker.meta.records import pack
from esker.meta.store.base import TRANSACTION_BYTES_MAX, VALUE_BYTES_MAX
from esker.wire.codec import encode_body
from esker.wire.limits import BODY_BYTES_MAX, REPLICAS_MAX
from esker.wire.messages import JoinReply
from esker.wire.types import Chain, ChainTable, Replica, Routing, Worker

COUNTS = [*range(1, 21), 24, 31, 33, 40, 48, 57, 64]
SIZES = [(drives, replicas) for drives in COUNTS for replicas in range(1, min(drives, 4) + 1)]


def sites(count: int, nodes: int = 1) -> list[DriveSite]:
    return in_turn([DriveSite(f"d{number:02}", f"n{number % nodes}", 1000) for number in range(count)])


def pair_counts(drives: list[DriveSite], chains: list[list[str]]) -> Counter[tuple[str, str]]:
    pairs = Counter(pair for chain in chains for pair in permutations(chain, 2))
    return Counter({pair: pairs[pair] for pair in permutations([drive.drive_id for drive in drives], 2)})


@pytest.mark.parametrize(("count", "replicas"), SIZES)
def test_equal_drives_are_loaded_equally(count: int, replicas: int) -> None:
    drives = sites(count)
    chains = plan_chains(drives, replicas)

    assert all(len(chain) == len(set(chain)) == replicas for chain in chains)
    assert [chain[0] for chain in chains] == [drives[n % count].drive_id for n in range(len(chains))]
    assert len(chains) == count * heads_per_drive(count, replicas)
    loads = Counter(member for chain in chains for member in chain)
    assert set(loads.values()) == {len(chains) * replicas // count}
    tails = Counter(chain[-1] for chain in chains)
    assert max(tails.values()) - min(tails.values()) <= 2
    assert len(set(chain_weights(drives, chains))) == 1

    if replicas > 1:
        pairs = pair_counts(drives, chains)
        mean = sum(pairs.values()) / len(pairs)
        assert max(pairs.values()) <= mean + 5, "the loss of a drive must not fall on a few others"
        partners = min(
            sum(pairs[drive.drive_id, other.drive_id] > 0 for other in drives if other != drive) for drive in drives
        )
        assert partners >= min(count - 1, heads_per_drive(count, replicas) * replicas // 2)


@pytest.mark.parametrize("count", range(2, 10))
def test_two_replicas_on_few_drives_use_every_ordered_pair_once(count: int) -> None:
    drives = sites(count)
    chains = plan_chains(drives, 2)
    assert sorted(map(tuple, chains)) == sorted(permutations(sorted(drive.drive_id for drive in drives), 2))


@given(st.integers(2, 8), st.integers(1, 8), st.integers(2, 4))
def test_replicas_are_on_different_nodes_where_there_are_enough(nodes: int, per_node: int, replicas: int) -> None:
    drives = sites(nodes * per_node, nodes)
    replicas = min(replicas, len(drives))
    node_of = {drive.drive_id: drive.node_id for drive in drives}
    chains = plan_chains(drives, replicas)
    for chain in chains:
        assert len({node_of[member] for member in chain}) == min(replicas, nodes)
    heads = Counter(chain[0] for chain in chains)
    assert set(heads.values()) == {heads_per_drive(len(drives), replicas)}
    loads = Counter(member for chain in chains for member in chain)
    assert max(loads.values()) - min(loads.values()) <= max(1, 0.1 * max(loads.values()))


@given(st.lists(st.integers(1, 4), min_size=4, max_size=24), st.integers(1, 3))
def test_larger_drives_get_more(capacities: list[int], replicas: int) -> None:
    drives = [DriveSite(f"d{number:02}", "n", size * 10**12) for number, size in enumerate(capacities)]
    chains = plan_chains(drives, replicas)
    heads = Counter(chain[0] for chain in chains)
    fair = len(chains) / sum(capacities)
    for drive, size in zip(drives, capacities, strict=True):
        assert heads[drive.drive_id] >= 1
        assert abs(heads[drive.drive_id] - fair * size) <= 1 or heads[drive.drive_id] == 1
    assert all(len(set(chain)) == replicas for chain in chains)
    weights = chain_weights(drives, chains)
    assert len(weights) == len(chains)
    assert all(1 <= weight <= 1024 for weight in weights)


def test_a_plan_is_the_same_every_time() -> None:
    assert plan_chains(sites(4), 2) == [
        ["d00", "d01"], ["d01", "d02"], ["d02", "d03"], ["d03", "d00"],
        ["d00", "d02"], ["d01", "d03"], ["d02", "d00"], ["d03", "d01"],
        ["d00", "d03"], ["d01", "d00"], ["d02", "d01"], ["d03", "d02"],
    ]  # fmt: skip


def test_drives_take_turns_over_the_nodes() -> None:
    drives = [DriveSite(f"d{number}", f"n{number // 3}", 1) for number in (5, 3, 1, 0, 4, 2)]
    assert [drive.drive_id for drive in in_turn(drives)] == ["d0", "d3", "d1", "d4", "d2", "d5"]


@pytest.mark.parametrize(("count", "replicas"), [(0, 1), (1, 2), (3, 0), (3, 4)])
def test_impossible_sizes_are_refused(count: int, replicas: int) -> None:
    with pytest.raises(ValueError, match=f"{replicas} replicas on {count} drives"):
        plan_chains(sites(count), replicas)


def test_half_of_the_replicas_must_serve() -> None:
    assert [min_replicas(replicas) for replicas in range(1, 6)] == [1, 1, 2, 2, 3]


@given(
    st.lists(st.lists(st.sampled_from((1, 2, 4)), min_size=1, max_size=8), min_size=1, max_size=12), st.integers(1, 3)
)
@settings(deadline=None, max_examples=40)
def test_nodes_and_drives_of_any_size_bear_their_shares(nodes: list[list[int]], replicas: int) -> None:
    drives = in_turn(
        [
            DriveSite(f"n{node:02}d{disk}", f"n{node:02}", size * 10**12)
            for node, sizes in enumerate(nodes)
            for disk, size in enumerate(sizes)
        ]
    )
    replicas = min(replicas, len(drives))
    chains = plan_chains(drives, replicas)
    node_of = {drive.drive_id: drive.node_id for drive in drives}
    assert all(len({node_of[member] for member in chain}) == min(replicas, len(nodes)) for chain in chains)

    shares = fair_shares([each.node_id for each in drives], [each.capacity_bytes for each in drives], replicas)
    loads = Counter(member for chain in chains for member in chain)
    for drive, share in zip(drives, shares, strict=True):
        wanted = share * len(chains) * replicas
        assert abs(loads[drive.drive_id] - wanted) <= max(2.5, 0.1 * wanted), f"{drive} has {loads[drive.drive_id]}"


def test_shares_are_by_capacity_but_nobody_has_two_replicas_of_a_chain() -> None:
    assert fair_shares(["a", "b", "c"], [1, 1, 2], 1) == [0.25, 0.25, 0.5]
    assert fair_shares(["a", "b", "c"], [1, 1, 8], 2) == [0.25, 0.25, 0.5]
    assert fair_shares(["a", "a", "b"], [1, 3, 1], 2) == [0.125, 0.375, 0.5]
    assert fair_shares(["a", "a", "b"], [1, 3, 1], 3) == pytest.approx([1 / 3] * 3)
    assert fair_shares(["a", "a", "a"], [1, 1, 2], 2) == [0.25, 0.25, 0.5]


def test_imbalance_is_one_where_all_is_even() -> None:
    drives = sites(6, 6)
    even = imbalance(drives, plan_chains(drives, 2))
    assert (even.fullest, even.heads, even.chains_sharing) == (1.0, 1.0, 0)
    assert even.takeover == pytest.approx(1.0)


def test_imbalance_tells_what_is_uneven() -> None:
    drives = [DriveSite(name, name[0], 10) for name in ("a1", "b1", "c1", "c2")]
    found = imbalance(drives, [["a1", "b1"], ["a1", "b1"], ["c1", "c2"]])
    assert found.fullest == pytest.approx(2 / 1.5)
    assert found.heads == pytest.approx(2 / 0.75)
    assert found.chains_sharing == 1
    assert found.takeover == pytest.approx(3.0), "what a gives falls on b alone, which is a third of what is left"
    assert found.takeover_of == "a"
    weighted = imbalance(drives, [["a1", "b1"], ["a1", "b1"], ["c1", "c2"]], [1, 1, 2])
    assert weighted.fullest == pytest.approx(1.0)
    assert imbalance(drives[:2], [["a1", "b1"]]).takeover == pytest.approx(1.0)
    assert imbalance(drives[2:], [["c1", "c2"]]).takeover_of == ""


def test_hundreds_of_drives_are_planned_evenly() -> None:
    drives = sites(240, 30)
    found = imbalance(drives, plan_chains(drives, 3))
    assert found.fullest == found.heads == 1.0
    assert found.takeover < 1.3


@pytest.mark.parametrize("replicas", range(1, REPLICAS_MAX + 1))
def test_the_chains_of_the_largest_cluster_fit_transactions_and_messages(replicas: int) -> None:
    count = DRIVES_MAX * heads_per_drive(DRIVES_MAX, replicas)
    life = "f" * 32
    chains = [Chain(60_000, 1, tuple(Replica("d" * 16, incarnation=life) for _ in range(replicas)), 8)] * count
    table = ChainTable(1, 1, tuple(chain.chain_id for chain in chains), (1024,) * count)
    worker = Worker("d" * 16, "n" * 20, "192.168.100.100", 50_000, "/s" * 20, "b" * 36, life, 1 << 44)
    assert len(pack(table)) <= VALUE_BYTES_MAX
    assert sum(len(pack(chain)) + 5 for chain in chains) <= 0.9 * TRANSACTION_BYTES_MAX
    routing = Routing("c" * 32, 1, (worker,) * DRIVES_MAX, tuple(chains), (table,), DRIVES_MAX, replicas)
    assert len(encode_body(JoinReply(routing))) <= 0.9 * BODY_BYTES_MAX
