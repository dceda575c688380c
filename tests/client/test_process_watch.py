"""A process's end is noticed; a watch that nobody needs leaves nothing behind."""

import asyncio
import os
import sys

import pytest

from esker.client.process_watch import ProcessWatch


async def _child() -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable, "-c", "import sys; sys.stdin.read()", stdin=asyncio.subprocess.PIPE
    )


async def test_callbacks_come_when_the_process_is_gone() -> None:
    child = await _child()
    watch = ProcessWatch(child.pid)
    gone = asyncio.Event()
    watch.when_gone(gone.set)
    watch.retire()
    assert not watch.gone
    child.kill()
    async with asyncio.timeout(10):
        await gone.wait()
    again = asyncio.Event()
    watch.when_gone(again.set)
    async with asyncio.timeout(10):
        await again.wait()
    await child.wait()


async def test_a_retired_watch_without_callbacks_closes_itself() -> None:
    before = len(os.listdir("/proc/self/fd"))
    watch = ProcessWatch(os.getpid())
    assert len(os.listdir("/proc/self/fd")) == before + 1
    watch.retire()
    watch.close()
    assert len(os.listdir("/proc/self/fd")) == before


async def test_a_process_that_is_not_there_cannot_be_watched() -> None:
    child = await _child()
    child.kill()
    await child.wait()
    with pytest.raises(OSError, match="No such process"):
        ProcessWatch(child.pid)
