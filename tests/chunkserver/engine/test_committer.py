"""Two groups under way at once: the data of the second is synced while the first is committed.

A gate holds the first commit until the second group has been synced, so events fall in the same order in every run.
"""

import asyncio
import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from esker.chunkserver.engine.fake_disk import FakeDisk
from esker.wire.status import Status

OpenDrive = Callable[..., Any]
MakeKey = Callable[..., bytes]

DATA = [bytes([number]) * 5000 for number in range(1, 4)]
ORDER = ["grow", "write", "sync", "write", "sync", "commit", "committed", "commit", "committed"]
WAIT_S = 20.0

Outcomes = list[Status | BaseException]


async def two_groups(
    drive: Any, make_key: MakeKey, *, between: Callable[[], None] = lambda: None, third: bool = False
) -> Outcomes:
    """Puts two chunks (or three) in groups of their own. `between` is called before the second one is put; only when
    the last one is synced, or cannot be, is the first one committed.
    """
    gate = drive.disk.gate("commit")
    synced = drive.store._committer._synced
    puts = [asyncio.ensure_future(drive.put(make_key(0), DATA[0]))]
    try:
        assert await asyncio.to_thread(gate.wait)
        between()
        for number in range(1, 3 if third else 2):
            puts.append(asyncio.ensure_future(drive.put(make_key(number), DATA[number])))
            async with asyncio.timeout(WAIT_S):
                while len(synced) < number and not drive.disk.crashed:  # noqa: ASYNC110 - nothing tells
                    await asyncio.sleep(0)
    finally:
        gate.open()
    async with asyncio.timeout(WAIT_S):
        outcomes: Outcomes = await asyncio.gather(*puts, return_exceptions=True)
    return outcomes


def happened(disk: FakeDisk) -> list[str]:
    return [event.partition(" ")[0] for event in disk.events]


@pytest.fixture
async def drive(open_drive: OpenDrive) -> Any:
    drive = open_drive()
    drive.disk.events.clear()
    return drive


async def test_a_group_is_synced_while_the_one_before_is_committed(drive: Any, make_key: MakeKey) -> None:
    assert await two_groups(drive, make_key) == [Status.OK, Status.OK]
    assert happened(drive.disk) == ORDER
    assert [await drive.get(make_key(number)) for number in range(2)] == DATA[:2]


async def test_what_was_synced_meanwhile_is_committed_together(drive: Any, make_key: MakeKey) -> None:
    assert await two_groups(drive, make_key, third=True) == [Status.OK] * 3
    assert happened(drive.disk).count("sync") == 3
    assert happened(drive.disk).count("commit") == 2
    assert [await drive.get(make_key(number)) for number in range(3)] == DATA
    assert drive.store.counters()["commits"] == 2
    assert drive.store.counters()["commit_records"] == 3


async def test_a_failing_sync_does_not_harm_what_was_synced_before(drive: Any, make_key: MakeKey) -> None:
    outcomes = await two_groups(drive, make_key, between=lambda: drive.disk.inject("sync", -errno.EIO), third=True)
    assert outcomes == [Status.OK, Status.IO_ERROR, Status.IO_ERROR]
    assert "Input/output error" in drive.store.failed
    assert happened(drive.disk).count("sync") == 2, "the third is not even tried"
    assert [await drive.get(make_key(number)) for number in range(3)] == [DATA[0], None, None]


async def test_after_a_failed_commit_nothing_that_is_synced_is_committed(drive: Any, make_key: MakeKey) -> None:
    outcomes = await two_groups(drive, make_key, between=lambda: drive.disk.inject("commit", -errno.EIO))
    assert outcomes == [Status.IO_ERROR, Status.IO_ERROR]
    assert happened(drive.disk).count("commit") == 1
    assert drive.store.failed is not None
    assert [await drive.get(make_key(number)) for number in range(2)] == [None, None]
    assert await drive.remove(make_key(0)) is Status.IO_ERROR
    assert happened(drive.disk).count("commit") == 1


async def test_no_space_for_one_group_does_not_harm_the_next(drive: Any, make_key: MakeKey) -> None:
    outcomes = await two_groups(drive, make_key, between=lambda: drive.disk.inject("commit", -errno.ENOSPC))
    assert outcomes == [Status.NO_SPACE, Status.OK]
    assert [await drive.get(make_key(number)) for number in range(2)] == [None, DATA[1]]


@pytest.mark.parametrize("keep", [False, True, None], ids=["all lost", "all kept", "mixed and torn"])
@pytest.mark.parametrize("crash_at", range(len(ORDER) + 1))
async def test_a_crash_at_every_event(
    open_drive: OpenDrive, make_key: MakeKey, tmp_path: Path, crash_at: int, keep: bool | None
) -> None:
    """What was acknowledged is there, and what is there is whole."""
    disk = FakeDisk(seed=crash_at)
    drive = open_drive(disk, directory="crashed")
    disk.events.clear()
    disk.crash_at = crash_at
    outcomes = await two_groups(drive, make_key)
    assert happened(disk) == ORDER[:crash_at]
    # The first is not heard of before its commit has happened, nor the second.
    assert [outcome is Status.OK for outcome in outcomes] == ([crash_at > 6, crash_at > 8][: len(outcomes)])
    disk.crash()
    drive.engine.close()
    drive.store.close()
    disk.settle(keep=keep)
    again = open_drive(directory="crashed")
    for number in range(2):
        found = await again.get(make_key(number))
        assert found in (DATA[number], None)
        assert found is not None or number >= len(outcomes) or outcomes[number] is not Status.OK
