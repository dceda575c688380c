"""Founding a cluster, joining drives, and the chains that follow."""

import asyncio
from collections import Counter

import pytest

from esker.meta import keys
from esker.meta.chain_setup import ChainSetup
from esker.meta.cluster import check_sizes, found_cluster, join
from esker.meta.routing import RoutingCache, read_placement
from esker.meta.store.base import Store, Transaction
from esker.meta.store.errors import StoreFailed
from esker.meta.store.memory import MemoryStore
from esker.wire.errors import RequestFailed, UserError
from esker.wire.placement import build_slot_table
from esker.wire.status import Status
from esker.wire.types import TargetState, Worker

from .conftest import cluster_record, dead, join_all, worker


class TestFounding:
    async def test_the_first_start_makes_it_and_the_second_finds_it(self, store: Store) -> None:
        assert (await found_cluster(store, cluster_record(), any_id=True)).cluster_id == "c1"
        again = await found_cluster(store, cluster_record(cluster_id="other"), any_id=True)
        assert again.cluster_id == "c1"

    @pytest.mark.parametrize(("asked", "message"), [
        (cluster_record(drives=5), "made with drives 4, but drives 5 was asked"),
        (cluster_record(replicas=3), "made with replicas 2, but replicas 3 was asked"),
        (cluster_record(cluster_id="c2"), "made with cluster id c1, but cluster id c2 was asked"),
    ])  # fmt: skip
    async def test_other_figures_are_refused(self, store: Store, asked: object, message: str) -> None:
        await found_cluster(store, cluster_record(), any_id=True)
        with pytest.raises(UserError, match=message):
            await found_cluster(store, asked, any_id=False)

    @pytest.mark.parametrize(("drives", "replicas"), [(0, 1), (5000, 1), (4, 0), (2, 3), (64, 9)])
    def test_sizes_out_of_range(self, drives: int, replicas: int) -> None:
        with pytest.raises(UserError, match="allowed"):
            check_sizes(drives, replicas)

    async def test_a_store_without_its_record_is_damaged(self, store: Store) -> None:
        with pytest.raises(StoreFailed, match="no cluster record"):
            await RoutingCache(store).newest()


class TestJoin:
    async def test_each_change_bumps_the_version(self, store: Store) -> None:
        await found_cluster(store, cluster_record(), any_id=True)
        routing = RoutingCache(store)
        first = await routing.newest()
        assert (first.cluster_id, first.workers, first.chains, first.replicas) == ("c1", (), (), 2)

        await join(store, worker(1), dead)
        second = await routing.newest()
        assert second.workers == (worker(1),)
        assert second.version == first.version + 1

        await join(store, worker(1), dead)
        assert await routing.newest() is second, "the same worker again changes nothing"

        await join(store, worker(1, incarnation="second", port=9), dead)
        third = await routing.newest()
        assert third.workers == (worker(1, incarnation="second", port=9),)
        assert third.version == second.version + 1

    async def test_a_drive_that_a_live_worker_serves_is_refused(self, store: Store) -> None:
        await found_cluster(store, cluster_record(), any_id=True)
        await join(store, worker(1), dead)
        asked = []

        async def alive(recorded: Worker) -> bool:
            asked.append(recorded)
            return True

        with pytest.raises(
            RequestFailed, match=r"d1 is served by a live worker at 127.0.0.1:7001 \(node n1\)"
        ) as caught:
            await join(store, worker(1, node="n2", incarnation="second"), alive)
        assert caught.value.status == Status.FORBIDDEN
        assert asked == [worker(1)]
        assert (await RoutingCache(store).newest()).workers == (worker(1),)

    async def test_an_earlier_copy_of_a_drive_is_refused_however_often_it_is_started(self, store: Store) -> None:
        await found_cluster(store, cluster_record(), any_id=True)
        await join(store, worker(1, incarnation="a", join=1), dead, ("a",))
        newest = worker(1, incarnation="b", join=2)
        await join(store, newest, dead, ("a", "b"))
        lives = ["a"]
        for life in ("copy", "again", "third"):
            lives.append(life)
            with pytest.raises(RequestFailed, match=r"earlier copy .* 1 joins, the cluster of 2, ") as caught:
                await join(store, worker(1, incarnation=life, join=2), dead, lives)
            assert caught.value.status == Status.FORBIDDEN
        with pytest.raises(RequestFailed, match="knows of 0 joins"):
            await join(store, worker(1, incarnation="older", join=1), dead, ("older",))
        assert (await RoutingCache(store).newest()).workers == (newest,)

    async def test_a_drive_that_did_not_learn_of_its_last_join_is_not_taken_for_a_copy(self, store: Store) -> None:
        await found_cluster(store, cluster_record(), any_id=True)
        await join(store, worker(1, incarnation="a", join=1), dead, ("a",))
        await join(store, worker(1, incarnation="b", join=1), dead, ("a", "b"))
        assert [each.incarnation for each in (await RoutingCache(store).newest()).workers] == ["b"]

    async def test_records_of_earlier_backups_and_versions_do_not_refuse_a_drive(self, store: Store) -> None:
        await found_cluster(store, cluster_record(), any_id=True)
        await join(store, worker(1, incarnation="before the upgrade"), dead)
        await join(store, worker(1, incarnation="a", join=1), dead, ("a",))
        await join(store, worker(1, incarnation="later than the backup", join=7), dead, ("f", "g"))
        assert [each.join for each in (await RoutingCache(store).newest()).workers] == [7]

    async def test_two_new_workers_of_one_drive_do_not_both_win(self, store: Store) -> None:
        await found_cluster(store, cluster_record(), any_id=True)
        await join(store, worker(1), dead)
        probed = asyncio.Event()
        go = asyncio.Event()

        async def slow(recorded: Worker) -> bool:
            probed.set()
            await go.wait()
            return False

        late = asyncio.create_task(join(store, worker(1, incarnation="late"), slow))
        await probed.wait()
        await join(store, worker(1, incarnation="second"), dead)
        go.set()
        with pytest.raises(RequestFailed, match="another worker of drive d1 is joining") as caught:
            await late
        assert caught.value.status == Status.BUSY

    @pytest.mark.parametrize("change", [
        {"drive_id": ""}, {"drive_id": "x" * 256}, {"node_id": ""}, {"host": ""}, {"incarnation": ""},
        {"port": 0}, {"port": 65536}, {"capacity_bytes": 0},
    ])  # fmt: skip
    async def test_malformed_workers_are_refused(self, store: Store, change: dict) -> None:
        fields = {field: getattr(worker(1), field) for field in Worker.__struct_fields__}
        with pytest.raises(RequestFailed, match="allowed") as caught:
            await join(store, Worker(**(fields | change)), dead)
        assert caught.value.status == Status.BAD_REQUEST


class TestChains:
    async def test_they_are_made_when_the_last_drive_has_joined(self, store: Store) -> None:
        await found_cluster(store, cluster_record(), any_id=True)
        setup = ChainSetup(store)
        for number in range(4):
            assert not await setup.ensure()
            await join(store, worker(number), dead)
        before = await RoutingCache(store).newest()
        assert before.chains == before.tables == ()
        assert await setup.ensure()
        assert not await setup.ensure()

        routing = await RoutingCache(store).newest()
        assert routing.version == before.version + 1
        assert [chain.chain_id for chain in routing.chains] == list(range(1, 13))
        for chain in routing.chains:
            assert (chain.version, chain.min_replicas) == (1, 1)
            assert [replica.state for replica in chain.replicas] == [TargetState.SERVING] * 2
        heads = [chain.replicas[0].drive_id for chain in routing.chains]
        assert heads == ["d0", "d1", "d2", "d3"] * 3
        (table,) = routing.tables
        assert (table.table_id, table.version) == (1, 1)
        assert table.chain_ids == tuple(range(1, 13))

        async def slots(transaction: Transaction) -> bytes:
            return await read_placement(transaction, 1, 1)

        assert await store.run(slots, what="test") == build_slot_table(table.chain_ids, table.weights)

    async def test_one_drive_alone(self, store: Store) -> None:
        await join_all(store, 1)
        routing = await RoutingCache(store).newest()
        assert [len(chain.replicas) for chain in routing.chains] == [1]

    async def test_replicas_are_on_different_nodes(self, store: Store) -> None:
        await join_all(store, 6, nodes=3)
        routing = await RoutingCache(store).newest()
        nodes = {worker.drive_id: worker.node_id for worker in routing.workers}
        assert all(len({nodes[r.drive_id] for r in chain.replicas}) == 2 for chain in routing.chains)
        assert set(Counter(chain.replicas[0].drive_id for chain in routing.chains).values()) == {5}

    async def test_two_servers_make_them_once(self, store: Store) -> None:
        await found_cluster(store, cluster_record(2, 2), any_id=True)
        for number in range(2):
            await join(store, worker(number), dead)
        assert sorted(await asyncio.gather(ChainSetup(store).ensure(), ChainSetup(store).ensure())) == [False, True]

    async def test_a_lost_answer_does_not_make_them_twice(self) -> None:
        faults = iter(["after"])
        armed = False
        store = MemoryStore(fault=lambda: next(faults, None) if armed else None)
        await found_cluster(store, cluster_record(2, 2), any_id=True)
        for number in range(2):
            await join(store, worker(number), dead)
        armed = True
        await ChainSetup(store).ensure()
        routing = await RoutingCache(store).newest()
        assert len(routing.chains) == 2
        assert routing.version == 4
        await store.aclose()

    async def test_a_missing_slot_table_is_named(self, ready_store: Store) -> None:
        async def damage(transaction: Transaction) -> None:
            transaction.clear(keys.placement(1, 1, 1))

        await ready_store.run(damage, what="test")
        with pytest.raises(StoreFailed, match="slot table of chain table 1 version 1 is missing"):
            await ready_store.run(lambda transaction: read_placement(transaction, 1, 1), what="test")
