"""Reads: where they go, what counts as read, and how each way of failing ends."""

import asyncio
from typing import Any

import pytest

from esker.client import late, reads
from esker.client.buffers import begin_all, end_all
from esker.wire.messages import Method
from esker.wire.status import Status

TRANSPORTS = ["local", "tcp"]


def status_of(rows: list[Any]) -> list[Status]:
    return [Status(row[1]) for row in rows]


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_slots_and_other_memory_get_the_bytes(make_rig: Any, transport: str) -> None:
    rig = await make_rig(transport)
    numbers = list(range(12))
    values = await rig.fill(numbers, 50_000)
    slots = rig.pool.acquire(12)
    rows = await rig.read_slots(numbers, slots)
    assert status_of(rows) == [Status.OK] * 12
    assert [row[2] for row in rows] == [50_000] * 12
    assert [bytes(slot.view[:50_000]) for slot in slots] == values
    buffers = [bytearray(50_000) for _ in numbers]
    assert status_of(await rig.reads(numbers, buffers).run(5)) == [Status.OK] * 12
    assert buffers == values


async def test_bytes_go_through_the_socket_only_where_the_worker_has_no_memory(make_rig: Any) -> None:
    local, tcp = await make_rig("local"), await make_rig("tcp")
    assert all(state.channel.memory_ids for state in local.workers.by_drive.values())
    assert not any(state.channel.memory_ids for state in tcp.workers.by_drive.values())


async def test_replicas_share_the_load(make_rig: Any) -> None:
    rig = await make_rig()
    numbers = list(range(16))
    await rig.fill(numbers)
    await rig.read_slots(numbers, rig.pool.acquire(16))
    assert {state.read_bytes for state in rig.workers.by_drive.values()} == {4 * 65536}
    assert {state.load_bytes for state in rig.workers.by_drive.values()} == {0}


async def test_a_large_share_is_cut_into_requests(make_rig: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reads, "REQUEST_BYTES_AIM", 2 * 65536)
    rig = await make_rig(drives=1, replicas=1)
    numbers = list(range(9))
    await rig.fill(numbers)
    assert status_of(await rig.read_slots(numbers, rig.pool.acquire(9))) == [Status.OK] * 9
    assert rig.cluster.workers[0].requests.count(Method.READ) == 5


async def test_an_absent_chunk_is_a_miss_after_one_question(make_rig: Any) -> None:
    rig = await make_rig()
    assert status_of(await rig.reads([3], [bytearray(10)]).run(5)) == [Status.NOT_FOUND]
    assert sum(worker.requests.count(Method.READ) for worker in rig.cluster.workers) == 1


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_chunk_longer_than_its_buffer_says_how_long_it_is(make_rig: Any, transport: str) -> None:
    rig = await make_rig(transport)
    await rig.fill([1], 9000)
    ((_, status, length, *_),) = await rig.reads([1], [bytearray(8999)]).run(5)
    assert (status, length) == (Status.TOO_LARGE, 9000)


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("status", [Status.UNAVAILABLE, Status.CHECKSUM, Status.IO_ERROR, Status.TIMEOUT])
async def test_another_replica_is_asked_where_one_fails(make_rig: Any, transport: str, status: Status) -> None:
    rig = await make_rig(transport)
    (value,) = await rig.fill([0])
    rig.cluster.workers[0].faults.status[Method.READ] = status
    for _ in range(2):  # whichever is asked first
        (slot,) = rig.pool.acquire(1)
        assert status_of(await rig.read_slots([0], [slot])) == [Status.OK]
        assert bytes(slot.view) == value


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_bytes_that_do_not_verify_never_count(make_rig: Any, transport: str) -> None:
    rig = await make_rig(transport)
    (value,) = await rig.fill([0])
    rig.cluster.workers[0].faults.corrupt = True
    (slot,) = rig.pool.acquire(1)
    assert status_of(await rig.read_slots([0], [slot])) == [Status.OK]
    assert bytes(slot.view) == value
    rig.cluster.workers[1].faults.corrupt = True
    assert status_of(await rig.read_slots([0], [slot])) == [Status.CHECKSUM]


async def test_a_killed_workers_chunks_come_from_the_others(make_rig: Any) -> None:
    rig = await make_rig("tcp")
    numbers = list(range(12))
    await rig.fill(numbers)
    await rig.cluster.workers[2].stop()
    assert status_of(await rig.read_slots(numbers, rig.pool.acquire(12))) == [Status.OK] * 12


async def test_a_worker_that_dies_during_a_read_is_replaced(make_rig: Any, until: Any) -> None:
    rig = await make_rig("tcp")
    (value,) = await rig.fill([0])
    for worker in rig.cluster.workers[:2]:
        worker.faults.hold.add(Method.READ)
    buffer = bytearray(65536)
    running = asyncio.ensure_future(rig.reads([0], [buffer]).run(5))
    asked = rig.cluster.workers[:2]
    await until(lambda: any(Method.READ in worker.requests for worker in asked))
    dying, other = asked if Method.READ in asked[0].requests else reversed(asked)
    other.faults.hold.clear()
    await dying.stop()
    assert status_of(await running) == [Status.OK]
    assert buffer == value


async def test_a_connection_that_ends_amid_the_payload_costs_nothing(make_rig: Any) -> None:
    rig = await make_rig("tcp")
    numbers = list(range(8))
    values = await rig.fill(numbers)
    rig.cluster.workers[0].faults.cut = True
    buffers = [bytearray(65536) for _ in numbers]
    async with asyncio.timeout(30):
        assert status_of(await rig.reads(numbers, buffers).run(600)) == [Status.OK] * 8
    assert buffers == values
    assert {state.load_bytes for state in rig.workers.by_drive.values()} == {0}


async def test_without_any_replica_the_answer_is_immediate(make_rig: Any, until: Any) -> None:
    rig = await make_rig("tcp")
    await rig.fill([0])
    await rig.cluster.workers[0].stop()
    await rig.cluster.workers[1].stop()
    await until(lambda: rig.state(0).channel is None and rig.state(1).channel is None)
    assert status_of(await rig.reads([0], [bytearray(65536)]).run(60)) == [Status.UNAVAILABLE]


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_busy_workers_are_asked_again(make_rig: Any, transport: str) -> None:
    rig = await make_rig(transport)
    (value,) = await rig.fill([0])
    for worker in rig.cluster.workers:
        worker.faults.busy = 3
    (slot,) = rig.pool.acquire(1)
    assert status_of(await rig.read_slots([0], [slot])) == [Status.OK]
    assert bytes(slot.view) == value


async def test_a_stopped_worker_is_given_up_for_another(
    make_rig: Any, until: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reads, "ATTEMPT_S", 0.1)
    rig = await make_rig("tcp")
    (value,) = await rig.fill([0])
    stopped = rig.cluster.workers[0]
    stopped.faults.hold |= {Method.READ, Method.STATS}
    buffer = bytearray(65536)
    assert status_of(await rig.reads([0], [buffer]).run(5)) == [Status.OK]
    assert buffer == value
    assert rig.state(0).suspect
    before = stopped.requests.count(Method.READ)
    assert status_of(await rig.reads([0], [buffer]).run(5)) == [Status.OK]
    assert stopped.requests.count(Method.READ) == before, "suspects are avoided"
    stopped.go_on()
    await until(lambda: not rig.state(0).suspect)
    assert buffer == value, "what a forgotten request brings is thrown away"


async def test_a_deadline_through_the_socket_leaves_the_buffer_alone(make_rig: Any) -> None:
    rig = await make_rig("tcp", replicas=1)
    await rig.fill([0])
    worker = rig.cluster.workers[0]
    worker.faults.hold.add(Method.READ)
    buffer = bytearray(65536)
    assert status_of(await rig.reads([0], [buffer]).run(0.02)) == [Status.TIMEOUT]
    worker.go_on()
    await rig.fill([4])  # by the time this is answered, so is the read before it
    assert buffer == bytes(65536)
    assert rig.state(0).load_bytes == 0


async def test_a_late_slot_is_the_workers_until_it_answers(make_rig: Any, until: Any) -> None:
    rig = await make_rig("local", replicas=1)
    await rig.fill([0])
    worker = rig.cluster.workers[0]
    worker.faults.hold.add(Method.READ)
    (slot,) = rig.pool.acquire(1)
    assert status_of(await rig.read_slots([0], [slot], timeout_s=0.02)) == [Status.TIMEOUT]
    assert slot.quarantined
    slot.release()
    assert rig.pool.statistics().free == 15
    worker.go_on()
    await until(lambda: rig.pool.statistics().free == 16)
    assert rig.pool.statistics().quarantined == 0


async def test_a_cancelled_call_leaves_its_slots_in_quarantine_too(make_rig: Any, until: Any) -> None:
    rig = await make_rig("local", replicas=1)
    await rig.fill([0])
    worker = rig.cluster.workers[0]
    worker.faults.hold.add(Method.READ)
    (slot,) = rig.pool.acquire(1)
    running = asyncio.ensure_future(rig.read_slots([0], [slot]))
    await until(lambda: Method.READ in worker.requests)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert slot.quarantined
    worker.go_on()
    await until(lambda: not slot.quarantined)


async def test_the_end_of_a_connection_does_not_free_a_slot_while_the_process_lives(make_rig: Any, until: Any) -> None:
    rig = await make_rig("local", replicas=1)
    await rig.fill([0])
    worker = rig.cluster.workers[0]
    worker.faults.hold.add(Method.READ)
    (slot,) = rig.pool.acquire(1)
    running = asyncio.ensure_future(rig.read_slots([0], [slot], timeout_s=0.1))
    await until(lambda: Method.READ in worker.requests)
    await worker.stop()  # the fake's process is this one, which is not gone
    assert status_of(await running) == [Status.TIMEOUT]
    assert slot.quarantined


async def test_too_much_quarantine_turns_reads_to_the_socket(make_rig: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(late, "QUARANTINED_SLOTS_MAX", 2)
    rig = await make_rig("local", replicas=1)
    (value,) = await rig.fill([0])
    worker = rig.cluster.workers[0]
    worker.faults.hold.add(Method.READ)
    late_slots = rig.pool.acquire(2)
    assert status_of(await rig.read_slots([0, 0], late_slots, timeout_s=0.02)) == [Status.TIMEOUT] * 2
    worker.faults.hold.clear()
    (slot,) = rig.pool.acquire(1)
    written = []
    monkeypatch.setattr("os.pwrite", lambda *arguments: written.append(arguments))
    assert status_of(await rig.read_slots([0], [slot])) == [Status.OK]
    assert bytes(slot.view) == value
    assert written == []
    worker.go_on()


async def test_nothing_to_read_is_read_at_once(make_rig: Any) -> None:
    rig = await make_rig(drives=1, replicas=1)
    assert await rig.reads([], []).run(5) == []


async def test_a_stopped_worker_of_this_host_costs_a_miss_not_the_whole_deadline(
    make_rig: Any, until: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reads, "ATTEMPT_S", 0.1)
    rig = await make_rig("local", replicas=1)
    await rig.fill([0])
    worker = rig.cluster.workers[0]
    worker.faults.hold |= {Method.READ, Method.STATS}
    (slot,) = rig.pool.acquire(1)
    async with asyncio.timeout(30):
        assert status_of(await rig.read_slots([0], [slot], timeout_s=600)) == [Status.TIMEOUT]
    assert slot.quarantined
    worker.go_on()
    await until(lambda: not slot.quarantined)


async def test_a_slow_worker_that_lets_go_of_the_slot_is_replaced(
    make_rig: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reads, "ATTEMPT_S", 0.2)
    rig = await make_rig("local")
    (value,) = await rig.fill([0])
    slow = rig.cluster.workers[0]
    slow.faults.hold.add(Method.READ)
    slow.end_when_cancelled = True
    (slot,) = rig.pool.acquire(1)
    assert status_of(await rig.read_slots([0], [slot], timeout_s=60)) == [Status.OK]
    assert bytes(slot.view) == value
    assert not slot.quarantined


@pytest.mark.parametrize("transport", ["local", "tcp"])
async def test_a_read_ends_as_it_would_where_its_pool_is_closed_meanwhile(
    make_rig: Any, until: Any, transport: str
) -> None:
    bugs: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: bugs.append(context))
    rig = await make_rig(transport, drives=1, replicas=1)
    (value,) = await rig.fill([0])
    worker = rig.cluster.workers[0]
    worker.faults.hold.add(Method.READ)
    (slot,) = rig.pool.acquire(1)
    kept = slot.numpy()
    begin_all([slot], writes=True)
    running = asyncio.ensure_future(rig.read_slots([0], [slot]))
    await until(lambda: Method.READ in worker.requests)
    rig.pool.close()
    worker.go_on()
    assert status_of(await running) == [Status.OK]
    end_all([slot])
    assert kept.tobytes() == value
    with pytest.raises(ValueError, match="released"):
        slot.view[0]
    assert not bugs
