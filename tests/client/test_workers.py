"""The circuit breaker and the choice of transport."""

import asyncio
import os
from typing import Any

import msgspec
import pytest

from esker.client import channel as channel_module
from esker.client import workers as workers_module
from esker.client.chains import ChainRoutes
from esker.client.channel import LocalImpossible, Transport, open_channel
from esker.wire.errors import ConnectionFailed, EskerError, RequestFailed, UserError
from esker.wire.messages import Method
from esker.wire.status import Status


async def test_auto_takes_the_same_host_transport_where_it_works(make_rig: Any) -> None:
    rig = await make_rig("auto")
    assert all(state.channel.local for state in rig.workers.by_drive.values())


@pytest.mark.parametrize("change", [{"socket_path": ""}, {"boot_id": "another"}, {"socket_path": "/nowhere/x.sock"}])
async def test_auto_falls_back_to_tcp_and_local_says_why_it_cannot(make_rig: Any, change: dict[str, str]) -> None:
    rig = await make_rig("tcp", drives=1, replicas=1)
    worker = msgspec.structs.replace(rig.cluster.workers[0].info, **change)
    opened = await open_channel(worker, "fake", Transport.AUTO, [rig.pool], "test")
    assert not opened.local
    assert not opened.memory_ids
    await opened.aclose()
    with pytest.raises(UserError, match="the same-host transport does not work with the worker of drive drive0"):
        await open_channel(worker, "fake", Transport.LOCAL, [rig.pool], "test")


async def test_a_socket_of_another_user_is_not_trusted(make_rig: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = await make_rig("tcp", drives=1, replicas=1)
    monkeypatch.setattr("esker.wire.stream.FrameStream.peer_uid", lambda self: os.geteuid() + 1)
    with pytest.raises(LocalImpossible, match="its socket belongs to user"):
        await channel_module._open_local(rig.cluster.workers[0].info, "fake", [rig.pool], "test")


async def test_a_worker_that_refuses_the_memory_is_used_over_tcp(make_rig: Any) -> None:
    rig = await make_rig("tcp", drives=1, replicas=1)
    worker = rig.cluster.workers[0]
    worker.faults.status[Method.REGISTER_MEMORY] = Status.BAD_MEMORY
    opened = await open_channel(worker.info, "fake", Transport.AUTO, [rig.pool], "test")
    assert not opened.local
    await opened.aclose()


async def test_another_drive_at_the_address_is_not_taken_for_the_worker(make_rig: Any) -> None:
    rig = await make_rig("tcp", drives=2)
    info = msgspec.structs.replace(rig.cluster.workers[0].info, drive_id="drive9")
    with pytest.raises(ConnectionFailed, match="serves drive drive0, not drive9"):
        await open_channel(info, "fake", Transport.TCP, [], "test")


async def test_connecting_that_is_cancelled_halfway_leaves_no_connection(
    make_rig: Any, until: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = await make_rig("tcp", drives=1, replicas=1)
    really_connect = channel_module.WatchedConnection.connect
    made: list[Any] = []

    async def connect_once(*arguments: Any, **others: Any) -> Any:
        if made:
            await asyncio.Event().wait()
        made.append(await really_connect(*arguments, **others))
        return made[-1]

    monkeypatch.setattr(channel_module.WatchedConnection, "connect", connect_once)
    info = rig.cluster.workers[0].info
    connecting = asyncio.create_task(open_channel(info, "fake", Transport.TCP, [], "test"))
    await until(lambda: bool(made))
    connecting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await connecting
    assert made[0].closed


async def test_another_cluster_is_refused(make_rig: Any) -> None:
    rig = await make_rig("tcp", drives=1, replicas=1)
    with pytest.raises(RequestFailed, match="this is cluster fake"):
        await open_channel(rig.cluster.workers[0].info, "mine", Transport.TCP, [], "test")


async def test_a_lost_worker_is_down_at_once_and_up_again_after_its_restart(make_rig: Any, until: Any) -> None:
    rig = await make_rig("auto")
    worker, state = rig.cluster.workers[1], rig.state(1)
    epoch = rig.workers.epoch
    await worker.stop()
    await until(lambda: state.channel is None)
    assert rig.workers.epoch > epoch
    assert rig.routes.now().heads[1] is None
    await worker.start()  # at another port
    rig.cluster.new_map()
    await until(lambda: state.channel is not None)
    assert state.channel.bulk.peer.incarnation == "drive1-2"
    assert rig.routes.now().heads[1] is state


async def test_a_new_life_in_the_map_ends_the_old_connection(make_rig: Any, until: Any) -> None:
    rig = await make_rig("tcp", drives=1, replicas=1)
    state, old = rig.state(0), rig.state(0).channel
    await rig.cluster.workers[0].start()  # a second server; the first goes on serving its connections
    rig.cluster.new_map()
    await rig.routing.refresh()
    await until(lambda: state.channel is not None and state.channel is not old)
    assert old.bulk.closed
    assert state.channel.bulk.peer.incarnation == "drive0-2"


async def test_a_new_map_with_the_same_life_keeps_the_connection(make_rig: Any) -> None:
    rig = await make_rig("tcp", drives=1, replicas=1)
    channel = rig.state(0).channel
    rig.cluster.new_map()
    await rig.routing.refresh()
    assert rig.routing.routing.version == 2
    assert rig.state(0).channel is channel


async def test_a_worker_that_left_the_map_is_not_tried_until_it_is_there_again(
    make_rig: Any, until: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = await make_rig("tcp")
    state, tried = rig.state(3), []
    really_open = rig.workers.open

    async def count(worker: Any) -> Any:
        tried.append(worker.drive_id)
        return await really_open(worker)

    monkeypatch.setattr(rig.workers, "open", count)
    monkeypatch.setattr(workers_module, "PROBE_MIN_S", 0.0)
    monkeypatch.setattr(workers_module, "PROBE_MAX_S", 0.0)
    await rig.cluster.workers[3].stop()
    await until(lambda: len(tried) > 2)
    with_it = rig.workers.routing
    rig.workers.apply(msgspec.structs.replace(with_it, workers=with_it.workers[:3]))
    counts = []
    for _ in range(2):  # an attempt may have been under way
        for _ in range(100):
            await asyncio.sleep(0)
        counts.append(len(tried))
    assert counts[0] == counts[1]
    await rig.cluster.workers[3].start()
    rig.workers.apply(rig.cluster.routing())
    await until(lambda: state.channel is not None)
    assert set(tried) == {"drive3"}


async def test_waiting_ends_when_each_worker_was_tried(make_rig: Any) -> None:
    rig = await make_rig("tcp")
    await rig.cluster.workers[3].stop()
    again = await make_rig("tcp", cluster=rig.cluster)
    assert [again.state(number).channel is not None for number in range(4)] == [True, True, True, False]


async def test_a_forced_transport_that_cannot_be_had_is_the_users_mistake(make_rig: Any) -> None:
    rig = await make_rig("tcp", drives=1, replicas=1)
    rig.cluster.workers[0].info = msgspec.structs.replace(rig.cluster.workers[0].info, boot_id="another")
    with pytest.raises(UserError, match="it runs on another host"):
        await make_rig("local", cluster=rig.cluster)


async def test_an_unknown_chain_table_is_an_error(make_rig: Any) -> None:
    rig = await make_rig("tcp", drives=1, replicas=1)
    with pytest.raises(EskerError, match="no chain table 1 of version 2"):
        ChainRoutes(rig.workers, 1, 2)


async def test_refreshing_is_one_question_however_many_ask(make_rig: Any) -> None:
    rig = await make_rig("tcp", drives=1, replicas=1)
    rig.cluster.new_map()
    first, second = rig.routing.refresh(), rig.routing.refresh()
    assert first is second
    await first
    assert rig.routing.routing.version == 2


async def test_what_still_runs_when_a_client_closes_asks_for_no_map_any_more(make_rig: Any, until: Any) -> None:
    rig = await make_rig("tcp", drives=1, replicas=1)
    rig.cluster.workers[0].faults.hold.add(Method.CREATE)
    running = asyncio.create_task(rig.creates([0], [b"x"]).run(0.3))
    await until(lambda: Method.CREATE in rig.cluster.workers[0].requests)
    await rig.aclose()
    asked_at = rig.routing._asked_at
    ((_, status, *_),) = await running
    assert status in (Status.TIMEOUT, Status.UNAVAILABLE)
    await rig.routing.refresh()
    assert rig.routing._asked_at == asked_at
    assert rig.meta._link is None


async def test_a_worker_that_only_gives_signs_of_life_rests_longer_each_time(make_rig: Any, until: Any) -> None:
    """Its drive hangs: it says so to nobody, and whoever asks it for a chunk waits in vain."""
    rig = await make_rig("tcp", drives=2, replicas=2)
    hanging, state = rig.cluster.workers[0], rig.state(0)
    values = await rig.fill([0, 1])
    hanging.faults.hold.add(Method.READ)

    async def read() -> None:
        buffers = [bytearray(65536), bytearray(65536)]
        assert [row[1] for row in await rig.reads([0, 1], buffers).run(0.3)] == [Status.OK, Status.OK]
        assert buffers == values

    await read()
    assert state.breaker.trips == 1
    await until(lambda: not state.suspect)  # this may have been a pause of the process
    await read()
    assert state.breaker.trips == 2
    signs = hanging.requests.count(Method.STATS)
    await until(lambda: hanging.requests.count(Method.STATS) > signs)
    assert state.suspect
    before = hanging.requests.count(Method.READ)
    await read()
    assert hanging.requests.count(Method.READ) == before
    hanging.go_on()
    await until(lambda: not state.suspect)  # it is given requests again, on trial
    await read()
    assert state.breaker.trips == 0


async def test_a_worker_that_ends_every_connection_is_not_asked_without_pause(
    make_rig: Any, until: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = await make_rig("tcp", drives=1, replicas=1)
    state, opened = rig.state(0), []
    really_open, now_s = rig.workers.open, asyncio.get_running_loop().time

    async def open_and_end(worker: Any) -> Any:
        channel = await really_open(worker)
        opened.append(now_s())
        channel.bulk.stream.close()
        return channel

    monkeypatch.setattr(rig.workers, "open", open_and_end)
    state.channel.bulk.stream.close()
    await until(lambda: len(opened) == 3)
    assert opened[-1] - opened[0] >= 2 * workers_module.PROBE_MIN_S, "the pauses get longer"
