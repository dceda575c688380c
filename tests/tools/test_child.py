"""Children answer, fail, hang, crash and end as their parent is told."""

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from esker.tools.child import Child
from esker.tools.child_errors import ChildEnded
from esker.tools.running import all_or_none
from esker.wire.errors import ConnectionFailed, DeadlineExceeded, EskerError, UserError

TIMEOUT_S = 20.0
SCRIPT = str(Path(__file__).with_name("echo_child.py"))


class Say(msgspec.Struct):
    """The script's requests and answers."""

    text: str
    do: str = "say"


@pytest.fixture
async def child() -> AsyncIterator[Child]:
    async with await Child.start("echo", [SCRIPT]) as started:
        yield started


def alive(pid: int) -> bool:
    return Path("/proc", str(pid)).exists()


async def test_requests_are_answered_in_turn(child: Child) -> None:
    for text in ("a", "ü" * 100_000, "line\nbreak"):
        assert (await child.ask(Say(text), Say, TIMEOUT_S)).text == text


@pytest.mark.parametrize(
    ("do", "kind"), [("misuse", UserError), ("unreachable", ConnectionFailed), ("fail", EskerError)]
)
async def test_errors_keep_their_kind_and_the_child_goes_on(child: Child, do: str, kind: type[EskerError]) -> None:
    with pytest.raises(kind, match="why") as caught:
        await child.ask(Say("why", do), Say, TIMEOUT_S)
    assert type(caught.value) is kind
    assert (await child.ask(Say("on"), Say, TIMEOUT_S)).text == "on"


async def test_when_one_of_several_fails_the_others_can_be_stopped(child: Child) -> None:
    async with await Child.start("other", [SCRIPT]) as other:
        with pytest.raises(UserError, match="why"):
            await all_or_none(
                (child.ask(Say("why", "misuse"), Say, TIMEOUT_S), other.ask(Say("", "hang"), Say, TIMEOUT_S))
            )
    assert other.returncode == 0


async def test_end_of_stdin_ends_a_child_also_from_the_midst_of_an_answer(child: Child) -> None:
    with pytest.raises(DeadlineExceeded, match=r"echo gave no answer within 0\.3 s"):
        await child.ask(Say("", "hang"), Say, 0.3)
    assert child.returncode is None
    assert await child.stop() == 0
    assert not alive(child.pid)


async def test_a_child_that_ends_by_itself_is_reported_with_its_status(child: Child) -> None:
    with pytest.raises(ChildEnded, match="status 7") as caught:
        await child.ask(Say("", "crash"), Say, TIMEOUT_S)
    assert caught.value.status == 7


async def test_a_child_that_ignores_the_end_of_stdin_is_killed() -> None:
    child = await Child.start("deaf", ["-c", "import time; print('up', flush=True); time.sleep(600)"])
    assert await child.line(TIMEOUT_S) == b"up\n"
    assert await child.stop(timeout_s=0.2) == -9


async def test_a_child_with_much_to_say_still_stops() -> None:
    script = "import sys; sys.stdin.read(); print('x' * 10_000_000)"
    child = await Child.start("chatty", ["-c", script])
    assert await child.stop() == 0


async def test_a_killed_parent_takes_its_child_along(tmp_path: Path) -> None:
    note = tmp_path / "pid"
    script = f"""
import asyncio, pathlib
from esker.tools.child import Child
async def main():
    child = await Child.start("echo", [{SCRIPT!r}])
    pathlib.Path({str(note)!r}).write_text(str(child.pid))
    print("up", flush=True)
    await child.wait()
asyncio.run(main())
"""
    async with await Child.start("parent", ["-c", script]) as parent:
        assert await parent.line(TIMEOUT_S) == b"up\n"
        pid = int(note.read_text())
        # A descriptor of the process becomes readable when it ends: no polling.
        ended = asyncio.Event()
        descriptor = os.pidfd_open(pid)
        loop = asyncio.get_running_loop()
        loop.add_reader(descriptor, ended.set)
        try:
            parent.kill()
            async with asyncio.timeout(TIMEOUT_S):
                await ended.wait()
        finally:
            loop.remove_reader(descriptor)
            os.close(descriptor)
