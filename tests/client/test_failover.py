"""Writes and reads while chains change: another head takes over, or the map says that nobody will."""

import asyncio
from typing import Any

import pytest

from esker.client import head_batch, routing
from esker.wire.messages import Method
from esker.wire.status import Status
from esker.wire.types import TargetState

from .conftest import statuses
from .test_lookups import ask

OFFLINE, LASTSRV = TargetState.OFFLINE, TargetState.LASTSRV
BUDGET_S = 600


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits long for another head."""
    monkeypatch.setattr(head_batch, "FAILOVER_S", 0.05)


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow the machine, another head comes in time."""
    monkeypatch.setattr(head_batch, "FAILOVER_S", BUDGET_S)


@pytest.mark.usefixtures("hasty")
async def test_a_dead_head_that_is_not_replaced_is_unavailable(make_rig: Any, until: Any) -> None:
    rig = await make_rig("tcp")
    await rig.cluster.workers[0].stop()
    await until(lambda: rig.state(0).channel is None)
    assert statuses(await rig.creates([0, 1], [b"a", b"b"]).run(BUDGET_S)) == [Status.UNAVAILABLE, Status.OK]
    assert await rig.removes([0]).run(BUDGET_S) == [(Status.UNAVAILABLE,)]


@pytest.mark.usefixtures("hasty")
async def test_a_head_that_dies_meanwhile_is_unavailable(make_rig: Any, until: Any) -> None:
    rig = await make_rig("tcp")
    head = rig.cluster.workers[0]
    head.faults.hold.add(Method.CREATE)
    running = asyncio.ensure_future(rig.creates([0], [b"a"]).run(BUDGET_S))
    await until(lambda: Method.CREATE in head.requests)
    await head.stop()
    assert statuses(await running) == [Status.UNAVAILABLE]


@pytest.mark.usefixtures("hasty")
async def test_a_head_that_stays_unavailable_is_asked_again_for_a_while(make_rig: Any) -> None:
    rig = await make_rig()
    head = rig.cluster.workers[0]
    head.faults.status[Method.CREATE] = Status.UNAVAILABLE
    assert statuses(await rig.creates([0, 1], [b"a", b"b"]).run(BUDGET_S)) == [Status.UNAVAILABLE, Status.OK]
    assert head.requests.count(Method.CREATE) > 1


async def test_a_budget_that_ends_sooner_ends_as_unavailable_too(make_rig: Any, until: Any) -> None:
    rig = await make_rig("tcp")
    await rig.cluster.workers[0].stop()
    await until(lambda: rig.state(0).channel is None)
    assert statuses(await rig.creates([0], [b"a"]).run(0.1)) == [Status.UNAVAILABLE]


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("dead", [0, 1])
async def test_writes_wait_for_the_chain_to_go_on_without_a_dead_worker(make_rig: Any, until: Any, dead: int) -> None:
    """It leads the chain, or follows."""
    rig = await make_rig("tcp")
    await rig.fill([4])
    await rig.cluster.workers[dead].stop()
    await until(lambda: rig.state(dead).channel is None)
    creating = asyncio.ensure_future(rig.creates([0, 8], [b"a", b"b"]).run(BUDGET_S))
    removing = asyncio.ensure_future(rig.removes([4]).run(BUDGET_S))
    asked = rig.routing._asked_at
    await until(lambda: rig.routing._asked_at > asked)
    assert not creating.done()
    rig.cluster.fail_over({f"drive{dead}": OFFLINE})
    assert statuses(await creating) == [Status.OK] * 2
    assert await removing == [(Status.OK,)]


@pytest.mark.usefixtures("patient")
async def test_where_nobody_will_serve_writes_fail_at_once(make_rig: Any, until: Any) -> None:
    rig = await make_rig("tcp", drives=2, replicas=1)
    await rig.cluster.workers[0].stop()
    rig.cluster.fail_over({"drive0": OFFLINE})
    await rig.routing.refresh()
    assert statuses(await rig.creates([0, 1], [b"a", b"b"]).run(BUDGET_S)) == [Status.UNAVAILABLE, Status.OK]
    rig.cluster.fail_over({"drive0": LASTSRV})
    await rig.routing.refresh()
    await until(lambda: rig.state(0).channel is None)
    assert statuses(await rig.creates([0], [b"a"]).run(BUDGET_S)) == [Status.UNAVAILABLE], "it is not back yet"


@pytest.mark.usefixtures("patient")
async def test_who_served_last_is_read_and_waited_for(make_rig: Any, until: Any) -> None:
    rig = await make_rig("tcp", drives=2, replicas=1)
    await rig.fill([0, 1])
    rig.cluster.fail_over({"drive0": LASTSRV})
    await rig.routing.refresh()
    assert await ask(rig, [0, 1, 2]) == [1, 1, 0]
    buffer = bytearray(65536)
    assert statuses(await rig.reads([0], [buffer]).run(5)) == [Status.OK]
    assert statuses(await rig.reads([2], [buffer]).run(5)) == [Status.UNAVAILABLE], "it does not know"
    creating = asyncio.ensure_future(rig.creates([2], [b"a"]).run(BUDGET_S))
    asked = rig.routing._asked_at
    await until(lambda: rig.routing._asked_at > asked)
    rig.cluster.fail_over({})
    assert statuses(await creating) == [Status.OK]


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("transport", ["tcp", "local"])
async def test_a_silent_head_is_given_up_once_there_is_another(
    make_rig: Any, until: Any, monkeypatch: pytest.MonkeyPatch, transport: str
) -> None:
    monkeypatch.setattr(head_batch, "ATTEMPT_S", 0.02)
    rig = await make_rig(transport)
    head = rig.cluster.workers[0]
    head.faults.hold |= {Method.CREATE, Method.STATS}
    (slot,) = rig.pool.acquire(1)
    creating = asyncio.ensure_future(rig.creates([0], [slot.view], [slot]).run(BUDGET_S))
    await until(lambda: rig.state(0).suspect)
    assert not creating.done(), "it may still answer"
    rig.cluster.fail_over({"drive0": OFFLINE})
    assert statuses(await creating) == [Status.OK]
    assert slot.quarantined == (transport == "local"), "the silent one may still read it"
    assert rig.state(0).creating_bytes == 0
    head.go_on()
    await until(lambda: not slot.quarantined)


async def test_a_slow_head_is_not_given_up(make_rig: Any, until: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(head_batch, "ATTEMPT_S", 0.01)
    rig = await make_rig()
    head = rig.cluster.workers[0]
    head.faults.hold.add(Method.CREATE)
    creating = asyncio.ensure_future(rig.creates([0], [b"a"]).run(BUDGET_S))
    await until(lambda: head.requests.count(Method.STATS) >= 2)
    head.go_on()
    assert statuses(await creating) == [Status.OK]
    assert head.requests.count(Method.CREATE) == 1


async def test_that_a_replica_serves_again_is_noticed_without_anybody_asking(
    make_rig: Any, until: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routing, "UNSETTLED_INTERVAL_S", 0.01)
    rig = await make_rig()
    asked = rig.routing._asked_at
    rig.cluster.fail_over({"drive1": OFFLINE})
    await asyncio.sleep(0)
    assert rig.routing._asked_at == asked, "nobody asks while all replicas serve, as far as is known"
    await rig.routing.refresh()
    assert rig.state(1) not in rig.routes.now().readers[0]
    rig.cluster.fail_over({})
    await until(lambda: rig.state(1) in rig.routes.now().readers[0])


async def test_what_a_replica_cannot_vouch_for_is_asked_elsewhere(make_rig: Any) -> None:
    """A worker that came back, and a client that does not know that it does not serve yet."""
    rig = await make_rig("tcp", drives=2)
    await rig.fill([0, 1])
    for where in list(rig.cluster.workers[0].chunks):
        del rig.cluster.workers[0].chunks[where]
    rig.cluster.states = {"drive0": OFFLINE}
    assert await ask(rig, [0, 1, 2, 3]) == [1, 1, 0, 0]
    buffers = [bytearray(65536) for _ in range(3)]
    rows = await rig.reads([0, 1, 2], buffers).run(5)
    assert statuses(rows) == [Status.OK, Status.OK, Status.NOT_FOUND]
