"""Runs coroutines: a command's on the processes' event loop, with an orderly end on Ctrl-C and SIGTERM.

The first signal cancels the coroutine, whose `finally` and `async with` blocks then stop what it started, within
their own deadlines; the same signal a second time ends the process at once.
"""

import asyncio
from collections.abc import Awaitable, Coroutine, Iterable
from typing import Any, TypeVar

from esker.runtime import process
from esker.tools.exit_codes import ExitCode

T = TypeVar("T")


async def all_or_none(work: Iterable[Awaitable[T]]) -> list[T]:
    """Runs everything at once; the results in order. The first error cancels the rest, waits for its end, and is raised
    as it is, not in a group: nothing of it goes on.
    """
    tasks = [asyncio.ensure_future(each) for each in work]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def run_command(work: Coroutine[Any, Any, ExitCode]) -> ExitCode:
    """Runs `work` to its end and returns its exit code, or `INTERRUPTED`; what it raises passes through."""

    async def main(stop: asyncio.Event) -> int:
        working = asyncio.ensure_future(work)
        stopping = asyncio.ensure_future(stop.wait())
        try:
            await asyncio.wait((working, stopping), return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                return working.result()
            working.cancel()
            await asyncio.wait((working,))
            return ExitCode.INTERRUPTED if working.cancelled() else working.result()
        finally:
            stopping.cancel()

    return ExitCode(process.run(main))
