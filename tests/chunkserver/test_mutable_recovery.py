"""What takes up pending images: a few at a time, later and later each time, at once when a chain has changed."""

import asyncio
from collections.abc import Callable

import pytest

from esker.chunkserver import mutable_recovery
from esker.chunkserver.engine.record import record_key
from esker.chunkserver.mutable_recovery import AT_A_TIME, Recovery
from esker.craq import mutable_messages as craq
from esker.craq.replica import ChainReplica
from esker.wire.ids import chunk_id
from esker.wire.types import Chain, Replica, TargetState

from ..waiting import until


def key_of(number: int) -> bytes:
    return record_key(1, chunk_id(0, number.to_bytes(16, "big")))


class Images:
    """Which chunks have something pending."""

    def __init__(self) -> None:
        self.keys: set[bytes] = set()

    def pending(self, chain_id: int) -> list[bytes]:
        return sorted(self.keys)

    def pending_of(self, chain_id: int) -> set[bytes]:
        return self.keys


class Runner:
    """Notes the recoveries that were begun; the test ends them."""

    def __init__(self) -> None:
        self.under_way: dict[bytes, Callable[[craq.Ended], None]] = {}
        self.begun: list[bytes] = []

    def recover(
        self, replica: ChainReplica, record_key: bytes, timeout_s: float, ended: Callable[[craq.Ended], None]
    ) -> None:
        assert record_key not in self.under_way
        self.under_way[record_key] = ended
        self.begun.append(record_key)

    def end(self, key: bytes, *, pending: bool) -> None:
        self.under_way.pop(key)(craq.Ended(1, pending))


def replica(version: int = 1, *, serving: bool = True) -> ChainReplica:
    state = TargetState.SERVING if serving else TargetState.OFFLINE
    return ChainReplica(Chain(1, version, (Replica("d0", state, "first"),)), "d0", "first")


class Setting:
    def __init__(self) -> None:
        self.images = Images()
        self.runner = Runner()
        self.recovery = Recovery(self.images, self.runner)  # type: ignore[arg-type]


@pytest.fixture
async def setting() -> Setting:
    return Setting()


async def test_what_is_pending_is_taken_up_a_few_at_a_time(setting: Setting) -> None:
    setting.images.keys = {key_of(number) for number in range(3 * AT_A_TIME)}
    setting.recovery.look([replica()])
    assert len(setting.runner.under_way) == AT_A_TIME
    assert setting.recovery.waiting == 3 * AT_A_TIME
    setting.recovery.look([replica()])  # nothing has changed
    assert len(setting.runner.begun) == AT_A_TIME
    while setting.images.keys:
        await until(lambda: bool(setting.runner.under_way), "the next ones begin")
        for key in list(setting.runner.under_way):
            setting.images.keys.discard(key)
            setting.runner.end(key, pending=False)
    assert sorted(setting.runner.begun) == sorted(set(setting.runner.begun))
    assert len(setting.runner.begun) == 3 * AT_A_TIME
    assert setting.recovery.waiting == 0


async def test_a_replica_that_may_not_commit_is_left_alone(setting: Setting) -> None:
    setting.images.keys = {key_of(1)}
    setting.recovery.look([replica(serving=False)])
    assert setting.recovery.waiting == 0
    setting.recovery.look([replica(2)])
    assert setting.runner.begun == [key_of(1)]


async def test_each_failure_makes_the_next_attempt_later(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    loop = asyncio.get_running_loop()
    delays = []
    later = loop.call_later

    def at_once(delay: float, *call: object) -> asyncio.TimerHandle:
        delays.append(delay)
        return later(0, *call)  # type: ignore[arg-type]

    monkeypatch.setattr(
        setting.recovery, "_loop", type("Loop", (), {"call_later": staticmethod(at_once), "call_soon": loop.call_soon})
    )
    setting.images.keys = {key_of(1)}
    setting.recovery.left(replica(), key_of(1))
    for attempt in range(8):
        await until(lambda attempt=attempt: len(setting.runner.begun) == attempt + 1, "the next attempt")  # type: ignore[misc]
        setting.runner.end(key_of(1), pending=True)
    least, most = mutable_recovery.RETRY_MIN_S, mutable_recovery.RETRY_MAX_S
    assert delays == [min(least * 2**attempt, most) for attempt in range(9)]
    setting.recovery.close()


async def test_a_changed_chain_is_not_kept_waiting(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mutable_recovery, "RETRY_MIN_S", 1000.0)
    setting.images.keys = {key_of(1)}
    setting.recovery.left(replica(), key_of(1))
    setting.recovery.left(replica(), key_of(1))  # it is known
    assert setting.runner.begun == []
    setting.recovery.look([replica(2)])
    assert setting.runner.begun == [key_of(1)]
    setting.recovery.look([replica(3)])  # the one under way tells of its end itself
    assert setting.runner.begun == [key_of(1)]
    setting.images.keys.clear()
    setting.runner.end(key_of(1), pending=False)
    assert setting.recovery.waiting == 0


async def test_after_its_end_nothing_begins(setting: Setting) -> None:
    setting.images.keys = {key_of(1), key_of(2)}
    setting.recovery.look([replica()])
    setting.recovery.left(replica(), key_of(3))
    setting.recovery.close()
    for key in (key_of(1), key_of(2)):
        setting.runner.end(key, pending=True)
    assert setting.runner.under_way == {}
    assert len(setting.runner.begun) == 2
