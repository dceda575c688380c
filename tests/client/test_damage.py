"""What a client tells a worker of damaged chunks: together, and only so many."""

import asyncio
from typing import Any

import pytest

from esker.client import damage
from esker.client.damage import CHUNKS_PER_S_MAX, DamageReports
from esker.wire.messages import Message, Method
from esker.wire.scrub_messages import DAMAGED_EXTENT, Damaged

from ..meta import virtual_time


class Channel:
    """Notes what is sent."""

    def __init__(self) -> None:
        self.fast = self
        self.sent: list[Damaged] = []

    def start(self, method: Method, body: Message, handler: object) -> int:
        assert method is Method.DAMAGED
        assert isinstance(body, Damaged)
        self.sent.append(body)
        return 1


def extent(number: int) -> bytes:
    return DAMAGED_EXTENT.pack(number.to_bytes(16, "big"), 0, 1, 7)


def test_what_one_turn_of_the_loop_finds_goes_out_together() -> None:
    async def run() -> None:
        channel: Any = Channel()
        reports = DamageReports(lambda: channel)
        reports.add(5, extent(1))
        reports.add(5, extent(2))
        reports.add(6, extent(3))
        await asyncio.sleep(0)
        assert channel.sent == [Damaged(5, extent(1) + extent(2)), Damaged(6, extent(3))]
        reports.add(5, extent(4))
        await asyncio.sleep(0)
        assert channel.sent[2:] == [Damaged(5, extent(4))]

    virtual_time.run(run())


def test_only_so_many_a_second() -> None:
    async def run() -> None:
        channel: Any = Channel()
        reports = DamageReports(lambda: channel)
        for number in range(5 * CHUNKS_PER_S_MAX):
            reports.add(5, extent(number))
        await asyncio.sleep(0.5)
        reports.add(5, extent(1))
        await asyncio.sleep(0.6)
        (only,) = channel.sent
        assert len(only.extents) == CHUNKS_PER_S_MAX * DAMAGED_EXTENT.size
        reports.add(5, extent(9))
        await asyncio.sleep(0)
        assert channel.sent[1:] == [Damaged(5, extent(9))]

    virtual_time.run(run())


def test_a_worker_that_is_gone_is_told_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(damage, "CHUNKS_PER_S_MAX", 2)

    async def run() -> None:
        gone = DamageReports(lambda: None)
        for number in range(3):
            gone.add(5, extent(number))
        await asyncio.sleep(0)
        assert gone._waiting == {}

    virtual_time.run(run())
