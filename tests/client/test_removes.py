"""Removals, with and without conditions."""

from typing import Any

from esker.client.removes import ANY_PUT_ID, ANY_VERSION
from esker.wire.messages import Method
from esker.wire.status import Status


async def test_chunks_are_removed_everywhere(make_rig: Any) -> None:
    rig = await make_rig()
    await rig.fill([0, 1, 2, 3, 4])
    assert await rig.removes([0, 1, 9]).run(5) == [(Status.OK,), (Status.OK,), (Status.NOT_FOUND,)]
    assert sum(len(worker.chunks) for worker in rig.cluster.workers) == 6


async def test_conditions_must_hold(make_rig: Any) -> None:
    rig = await make_rig()
    await rig.fill([0])
    (chunk,) = rig.cluster.workers[0].chunks.values()
    wrong = [(chunk.version + 1, ANY_PUT_ID), (ANY_VERSION, b"p" * 16)]
    for condition in wrong:
        assert await rig.removes([0], [condition]).run(5) == [(Status.CONDITION,)]
    assert await rig.removes([0], [(chunk.version, ANY_PUT_ID)]).run(5) == [(Status.OK,)]


async def test_busy_heads_and_old_versions_are_asked_again(make_rig: Any) -> None:
    rig = await make_rig()
    await rig.fill([0])
    rig.cluster.workers[0].faults.busy = 2
    rig.cluster.chain_version = 2
    rig.cluster.new_map()
    assert await rig.removes([0]).run(5) == [(Status.OK,)]


async def test_no_head_and_no_answer(make_rig: Any) -> None:
    rig = await make_rig("tcp")
    await rig.fill([0, 1])
    rig.cluster.workers[0].faults.hold.add(Method.REMOVE)
    await rig.cluster.workers[1].stop()
    assert await rig.removes([0, 1]).run(0.3) == [(Status.TIMEOUT,), (Status.UNAVAILABLE,)]
