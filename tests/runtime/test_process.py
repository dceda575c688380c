"""A process's life, shown on real child processes: signals, stdin's end, exit codes."""

import resource
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator

import pytest

from esker.runtime.process import raise_open_files_limit

DEADLINE_S = 20
Start = Callable[..., subprocess.Popen[str]]

WAITS_FOR_STOP = """
    async def main(stop):
        print("ready", flush=True)
        await stop.wait()
        print("stopped", flush=True)
        return 7
"""
IGNORES_STOP = """
    async def main(stop):
        print("ready", flush=True)
        await stop.wait()
        print("stopping", flush=True)
        await asyncio.Event().wait()
"""


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts a Python child whose source defines `main(stop)`."""
    children: list[subprocess.Popen[str]] = []

    def start(main: str, *, watch_stdin: bool = False, stdin: int = subprocess.PIPE) -> subprocess.Popen[str]:
        source = f"import asyncio, os, sys\n{textwrap.dedent(main)}\nfrom esker.runtime.process import run\n"
        source += f"sys.exit(run(main, watch_stdin={watch_stdin}))\n"
        child = subprocess.Popen(
            [sys.executable, "-c", source],
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        children.append(child)
        return child

    yield start
    for child in children:
        child.kill()
        child.wait(DEADLINE_S)
        for stream in (child.stdin, child.stdout, child.stderr):
            if stream is not None:
                stream.close()


def _line(child: subprocess.Popen[str]) -> str:
    assert child.stdout is not None
    return child.stdout.readline().strip()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_asks_main_to_stop_and_its_code_is_the_exit_code(start: Start, number: signal.Signals) -> None:
    child = start(WAITS_FOR_STOP)
    assert _line(child) == "ready"
    child.send_signal(number)
    assert _line(child) == "stopped"
    assert child.wait(DEADLINE_S) == 7


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_same_signal_again_ends_it_at_once(start: Start, number: signal.Signals) -> None:
    child = start(IGNORES_STOP)
    assert _line(child) == "ready"
    child.send_signal(number)
    assert _line(child) == "stopping"
    child.send_signal(number)
    assert child.wait(DEADLINE_S) == 128 + number


def test_another_signal_while_stopping_is_no_impatience(start: Start) -> None:
    child = start(
        """
        async def main(stop):
            print("ready", flush=True)
            await stop.wait()
            print("stopping", flush=True)
            await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
            return 7
        """
    )
    assert _line(child) == "ready"
    child.send_signal(signal.SIGINT)
    assert _line(child) == "stopping"
    child.send_signal(signal.SIGTERM)
    assert child.stdin is not None
    child.stdin.write("go on\n")
    child.stdin.flush()
    assert child.wait(DEADLINE_S) == 7


def test_the_end_of_stdin_asks_to_stop_and_what_came_before_does_not(start: Start) -> None:
    child = start(WAITS_FOR_STOP, watch_stdin=True)
    assert _line(child) == "ready"
    assert child.stdin is not None
    child.stdin.write("noise\n")
    child.stdin.close()
    assert _line(child) == "stopped"
    assert child.wait(DEADLINE_S) == 7


def test_stdin_is_left_alone_unless_it_is_watched(start: Start) -> None:
    child = start(
        """
        async def main(stop):
            loop = asyncio.get_running_loop()
            end = await loop.run_in_executor(None, sys.stdin.read)
            print(repr(end), stop.is_set(), flush=True)
            return 0
        """
    )
    assert child.stdin is not None
    child.stdin.close()
    assert _line(child) == "'' False"
    assert child.wait(DEADLINE_S) == 0


def test_a_stdin_without_a_parent_behind_it_cannot_be_watched(start: Start) -> None:
    child = start(WAITS_FOR_STOP, watch_stdin=True, stdin=subprocess.DEVNULL)
    assert child.wait(DEADLINE_S) == 1
    assert child.stderr is not None
    assert "SettingError: stdin is neither a pipe nor a socket" in child.stderr.read()


def test_what_main_raises_passes_through_and_other_tasks_are_cancelled(start: Start) -> None:
    child = start(
        """
        async def other():
            try:
                await asyncio.Event().wait()
            finally:
                print("cancelled", flush=True)
        async def main(stop):
            main.task = asyncio.create_task(other())
            await asyncio.sleep(0)
            raise LookupError("of main")
        """
    )
    assert child.wait(DEADLINE_S) == 1
    assert _line(child) == "cancelled"
    assert child.stderr is not None
    assert "LookupError: of main" in child.stderr.read()


def test_the_loop_is_uvloop(start: Start) -> None:
    child = start(
        """
        async def main(stop):
            print(type(asyncio.get_running_loop()).__module__, flush=True)
            return 0
        """
    )
    assert _line(child) == "uvloop"
    assert child.wait(DEADLINE_S) == 0


def test_the_open_files_limit_is_raised_towards_the_hard_one() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, before[1]))
        raised = raise_open_files_limit()
        assert raised == resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        assert raised == (65536 if before[1] == resource.RLIM_INFINITY else min(65536, before[1]))
        assert raise_open_files_limit() == raised
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
