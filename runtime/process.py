"""The life of a process: event loop, signals, and the parent that holds its stdin.

`run` hands the main coroutine an event that says "stop now". It is set by SIGINT or SIGTERM, and by the end of stdin
where the parent holds the other end of that pipe, so that a child never outlives a parent that was killed. The same
signal a second time ends the process at once: the way out when stopping hangs. (A Ctrl-C that is followed by the
parent's SIGTERM is no impatience.) Nothing here knows what the process does.
"""

import asyncio
import os
import resource
import signal
import stat
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

import uvloop

from esker.runtime.errors import SettingError

Main = Callable[[asyncio.Event], Awaitable[int]]

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_OPEN_FILES_AIM = 65536
_STDIN_READ_BYTES = 4096


def run(main: Main, *, watch_stdin: bool = False) -> int:
    """Runs `main(stop)` on a uvloop event loop and returns its exit code; what `main` raises passes through.

    With `watch_stdin`, stdin must be a pipe or a socket (else `SettingError`); what arrives there is thrown away.
    """
    if watch_stdin:
        _check_stdin()
    raise_open_files_limit()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_supervised(main, watch_stdin))


def raise_open_files_limit() -> int:
    """Raises this process's soft limit of open files towards the hard one, and returns it.

    The usual soft limit of 1024 exists for the sake of `select`, which nothing here uses.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    aim = _OPEN_FILES_AIM if hard == resource.RLIM_INFINITY else min(_OPEN_FILES_AIM, hard)
    if soft != resource.RLIM_INFINITY and soft < aim:
        resource.setrlimit(resource.RLIMIT_NOFILE, (aim, hard))
        return aim
    return soft


async def _supervised(main: Main, watch_stdin: bool) -> int:
    stop = asyncio.Event()
    with _signals_set(stop), _stdin_end_sets(stop, watch_stdin):
        return await main(stop)


@contextmanager
def _signals_set(stop: asyncio.Event) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    seen: set[int] = set()

    def on_signal(number: int) -> None:
        if number in seen:
            os._exit(128 + number)
        seen.add(number)
        stop.set()

    for number in STOP_SIGNALS:
        loop.add_signal_handler(number, on_signal, number)
    try:
        yield
    finally:
        for number in STOP_SIGNALS:
            loop.remove_signal_handler(number)


@contextmanager
def _stdin_end_sets(stop: asyncio.Event, watch: bool) -> Iterator[None]:
    if not watch:
        yield
        return
    loop = asyncio.get_running_loop()
    fd = sys.stdin.fileno()

    def on_readable() -> None:
        if not os.read(fd, _STDIN_READ_BYTES):
            loop.remove_reader(fd)
            stop.set()

    loop.add_reader(fd, on_readable)
    try:
        yield
    finally:
        loop.remove_reader(fd)


def _check_stdin() -> None:
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
    except (AttributeError, OSError, ValueError) as error:
        raise SettingError(
            "stdin is closed, but its end is to be the sign to stop: hand a pipe to the child"
        ) from error
    if not (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)):
        raise SettingError("stdin is neither a pipe nor a socket, but its end is to be the sign to stop")
