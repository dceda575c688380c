"""Lookups: one question per worker, another replica where there is no answer, absent where there is none at all."""

import asyncio
from typing import Any

import numpy as np
import pytest

from esker.client.lookups import lookup
from esker.wire.messages import Method


async def ask(rig: Any, numbers: list[int], timeout_s: float = 5) -> list[int]:
    objects = b"".join(number.to_bytes(16, "big") for number in numbers)
    chains = np.array([rig.chain(number) for number in numbers], dtype=np.intp)
    return (await lookup(rig.routes, 7, objects, chains, timeout_s)).tolist()


async def test_present_and_absent_in_order_with_one_question_per_worker(make_rig: Any) -> None:
    rig = await make_rig()
    await rig.fill([0, 1, 2, 5, 7, 10])
    assert await ask(rig, list(range(12))) == [1, 1, 1, 0, 0, 1, 0, 1, 0, 0, 1, 0]
    assert [worker.requests.count(Method.LOOKUP) for worker in rig.cluster.workers] == [1] * 4
    assert await ask(rig, []) == []


async def test_a_question_is_cut_at_its_limit(make_rig: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("esker.client.lookups.LOOKUP_KEYS_MAX", 3)
    rig = await make_rig(drives=1, replicas=1)
    await rig.fill([0, 6])
    assert await ask(rig, list(range(8))) == [1, 0, 0, 0, 0, 0, 1, 0]
    assert rig.cluster.workers[0].requests.count(Method.LOOKUP) == 3


async def test_another_replica_answers_for_a_dead_worker(make_rig: Any) -> None:
    rig = await make_rig("tcp")
    await rig.fill([0, 1, 2, 3])
    await rig.cluster.workers[1].stop()
    assert await ask(rig, [0, 1, 2, 3]) == [1, 1, 1, 1]


async def test_another_replica_is_asked_when_half_of_the_budget_is_gone(make_rig: Any) -> None:
    rig = await make_rig()
    await rig.fill([0, 1, 2, 3])
    rig.cluster.workers[1].faults.hold |= {Method.LOOKUP, Method.STATS}
    assert await ask(rig, [0, 1, 2, 3], timeout_s=0.8) == [1, 1, 1, 1]
    assert rig.state(1).suspect


async def test_who_never_answers_has_nothing(make_rig: Any) -> None:
    rig = await make_rig()
    await rig.fill([0, 1, 2, 3])
    rig.cluster.workers[0].faults.hold.add(Method.LOOKUP)
    rig.cluster.workers[1].faults.hold.add(Method.LOOKUP)
    async with asyncio.timeout(30):
        assert await ask(rig, [0, 1, 2, 3], timeout_s=0.8) == [0, 1, 1, 1]


async def test_lookups_do_not_wait_behind_payload(make_rig: Any) -> None:
    rig = await make_rig("tcp", drives=1, replicas=1)
    await rig.fill([0])
    worker = rig.cluster.workers[0]
    worker.faults.hold.add(Method.CREATE)
    running = asyncio.ensure_future(rig.creates([1], [bytes(65536)]).run(5))
    assert await ask(rig, [0, 1]) == [1, 0]
    worker.go_on()
    await running
