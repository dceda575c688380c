"""Creates: through the heads, repeated where that is safe, unknown where there was no answer."""

import asyncio
import sys
from typing import Any

import pytest

from esker.client import creates, workers
from esker.wire.messages import Method
from esker.wire.status import Status


def status_of(rows: list[Any]) -> list[Status]:
    return [Status(row[1]) for row in rows]


@pytest.mark.parametrize("transport", ["local", "tcp"])
async def test_chunks_reach_every_replica_with_their_keys(make_rig: Any, transport: str) -> None:
    rig = await make_rig(transport)
    slots = rig.pool.acquire(8)
    for number, slot in enumerate(slots):
        slot.view[:] = bytes([number]) * 65536
    numbers = list(range(8))
    rows = await rig.creates(numbers, [slot.view[:40_000] for slot in slots], slots).run(5)
    assert status_of(rows) == [Status.OK] * 8
    for number in numbers:
        for worker in rig.cluster.replicas(number % 4 + 1):
            (chunk,) = [chunk for chunk in worker.chunks.values() if chunk.key == b"key%d" % number]
            assert chunk.data == bytes([number]) * 40_000
    assert {state.written_bytes for state in rig.workers.by_drive.values()} == {80_000}


async def test_equal_and_other_content_are_told_apart(make_rig: Any) -> None:
    rig = await make_rig()
    (value,) = await rig.fill([1])
    rows = await rig.creates([1], [value]).run(5) + await rig.creates([1], [value[:-1]]).run(5)
    assert status_of(rows) == [Status.EXISTS, Status.EXISTS_OTHER]


async def test_busy_heads_are_asked_again_within_the_deadline(make_rig: Any) -> None:
    rig = await make_rig()
    for worker in rig.cluster.workers:
        worker.faults.busy = 3
    assert status_of(await rig.creates([0, 1], [b"a", b"b"]).run(5)) == [Status.OK] * 2
    rig.cluster.workers[0].faults.status[Method.CREATE] = Status.BUSY
    assert status_of(await rig.creates([4], [b"c"]).run(0.02)) == [Status.TIMEOUT]


async def test_a_chunk_stored_by_an_attempt_that_was_not_finished_counts_as_ours(make_rig: Any) -> None:
    rig = await make_rig()
    rig.cluster.workers[1].faults.unfinished = 1
    assert status_of(await rig.creates([1], [b"value"]).run(5)) == [Status.OK]


async def test_a_chunk_that_was_there_before_a_busy_answer_exists(make_rig: Any) -> None:
    rig = await make_rig()
    (value,) = await rig.fill([1])
    rig.cluster.workers[1].faults.busy = 1
    assert status_of(await rig.creates([1], [value]).run(5)) == [Status.EXISTS]


async def test_an_old_chain_version_is_refreshed(make_rig: Any) -> None:
    rig = await make_rig()
    rig.cluster.chain_version = 2
    rig.cluster.new_map()
    assert status_of(await rig.creates([0], [b"a"]).run(5)) == [Status.OK]
    assert rig.routing.routing.version == 2


@pytest.mark.parametrize("status", [Status.NO_SPACE, Status.IO_ERROR])
async def test_other_answers_of_the_head_are_final(make_rig: Any, status: Status) -> None:
    rig = await make_rig()
    rig.cluster.workers[0].faults.status[Method.CREATE] = status
    assert status_of(await rig.creates([0, 1], [b"a", b"b"]).run(60)) == [status, Status.OK]


async def test_no_answer_in_time_is_unknown(make_rig: Any, until: Any) -> None:
    rig = await make_rig("local")
    head = rig.cluster.workers[0]
    head.faults.hold.add(Method.CREATE)
    (slot,) = rig.pool.acquire(1)
    assert status_of(await rig.creates([0], [slot.view], [slot]).run(0.02)) == [Status.TIMEOUT]
    assert slot.quarantined
    assert rig.state(0).creating_bytes == 0
    head.go_on()
    await until(lambda: not slot.quarantined)
    assert head.chunks, "it was carried out after all"


async def test_bytes_that_change_while_they_are_sent_are_refused(make_rig: Any, until: Any) -> None:
    rig = await make_rig("local")
    head = rig.cluster.workers[0]
    head.faults.hold.add(Method.CREATE)
    (slot,) = rig.pool.acquire(1)
    running = asyncio.ensure_future(rig.creates([0], [slot.view], [slot]).run(5))
    await until(lambda: Method.CREATE in head.requests)
    slot.view[7] = 1
    head.go_on()
    assert status_of(await running) == [Status.CHECKSUM]
    assert not head.chunks


async def test_a_head_is_not_sent_more_than_its_bound_at_once(
    make_rig: Any, until: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(creates, "REQUEST_PAYLOAD_BYTES_AIM", 1000)
    monkeypatch.setattr(workers, "CREATING_BYTES_MAX", 3000)
    rig = await make_rig("tcp", drives=1, replicas=1)
    head = rig.cluster.workers[0]
    head.faults.hold.add(Method.CREATE)
    first = asyncio.ensure_future(rig.creates(list(range(5)), [b"x" * 1000] * 5).run(5))
    second = asyncio.ensure_future(rig.creates([5, 6], [b"x" * 1000] * 2).run(5))
    await until(lambda: head.requests.count(Method.CREATE) == 3)
    assert rig.state(0).creating_bytes == 3000
    head.go_on()
    assert status_of(await first + await second) == [Status.OK] * 7
    assert head.requests.count(Method.CREATE) == 7
    assert rig.state(0).creating_bytes == 0


async def test_creates_that_waited_for_room_past_their_deadline_are_not_sent(
    make_rig: Any, until: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "CREATING_BYTES_MAX", 10)
    rig = await make_rig("tcp", drives=1, replicas=1)
    head = rig.cluster.workers[0]
    head.faults.hold.add(Method.CREATE)
    first = asyncio.ensure_future(rig.creates([0], [b"x" * 10]).run(5))
    await until(lambda: Method.CREATE in head.requests)
    assert status_of(await rig.creates([1], [b"y"]).run(0.02)) == [Status.TIMEOUT]
    head.go_on()
    assert status_of(await first) == [Status.OK]
    assert head.requests.count(Method.CREATE) == 1


async def test_any_number_of_small_creates_may_wait_for_room(
    make_rig: Any, until: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(creates, "REQUEST_EXTENTS_AIM", 1)
    rig = await make_rig("tcp", drives=1, replicas=1)
    head, state = rig.cluster.workers[0], rig.state(0)
    state.creating(workers.CREATING_BYTES_MAX)
    waiting = sys.getrecursionlimit()
    numbers = list(range(waiting))
    running = asyncio.ensure_future(rig.creates(numbers, [b"x"] * waiting).run(30))
    await until(lambda: len(state.create_queue) == waiting)
    state.creating(-workers.CREATING_BYTES_MAX)
    assert status_of(await running) == [Status.OK] * waiting
    assert head.requests.count(Method.CREATE) == waiting


async def test_a_head_that_ended_the_connection_and_lives_on_is_asked_again(make_rig: Any, until: Any) -> None:
    rig = await make_rig("local", drives=1, replicas=1)
    head = rig.cluster.workers[0]
    head.faults.hold.add(Method.CREATE)
    (slot,) = rig.pool.acquire(1)
    running = asyncio.ensure_future(rig.creates([0], [slot.view], [slot]).run(60))
    await until(lambda: Method.CREATE in head.requests)
    await head.stop()
    head.faults.hold.clear()
    await head.start()
    rig.cluster.new_map()
    async with asyncio.timeout(20):
        assert status_of(await running) == [Status.OK]
    assert slot.quarantined, "the process is there, and might still read the slot"
