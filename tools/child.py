"""A child process that answers lines with lines, and whose life hangs on its stdin.

Parent and child exchange one JSON object a line: requests on the child's stdin, answers on its stdout; stderr is
passed through. The child ends at the end of its stdin, so it never outlives its parent, also one that was killed. It
is in a session of its own, so that Ctrl-C reaches the parent alone, which then stops its children in order.

Owns: starting, talking, stopping, with a deadline on each. Must not know: what the lines say.
"""

import asyncio
import contextlib
import os
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import TracebackType
from typing import Protocol, TypeVar

import msgspec
import uvloop

from esker.runtime.errors import SettingError
from esker.runtime.process import raise_open_files_limit
from esker.tools.child_errors import ChildEnded
from esker.tools.exit_codes import ExitCode, exit_code_of
from esker.wire.errors import ConnectionFailed, DeadlineExceeded, EskerError, UserError

LINE_BYTES_MAX = 64 * 1024 * 1024
STOP_TIMEOUT_S = 10.0


T = TypeVar("T", bound=msgspec.Struct)


class Failed(msgspec.Struct, forbid_unknown_fields=True):
    """A child's answer when its work failed: the error's text and the exit code that it stands for."""

    error: str
    exit_code: int


class Child:
    """`python <arguments>`, running."""

    def __init__(self, name: str, process: asyncio.subprocess.Process) -> None:
        self.name = name
        self._process = process

    @classmethod
    async def start(cls, name: str, arguments: Sequence[str], environment: Mapping[str, str] | None = None) -> "Child":
        """Starts this interpreter's executable with the arguments, such as `-m`, a module and its own.

        `environment` None: this process's own.
        """
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *arguments,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=LINE_BYTES_MAX,
            start_new_session=True,
            env=environment,
        )
        return cls(name, process)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """The exit status, None while it runs."""
        return self._process.returncode

    async def wait(self) -> int:
        """Waits for the end of the process."""
        return await self._process.wait()

    async def line(self, timeout_s: float | None) -> bytes:
        """The next line of stdout, within `timeout_s` (None: whenever it comes, up to the child's end).

        Raises `DeadlineExceeded`, and `ChildEnded` when there will be none.
        """
        assert self._process.stdout is not None
        try:
            async with asyncio.timeout(timeout_s):
                line = await self._process.stdout.readline()
                if not line:
                    raise ChildEnded(self.name, await self._process.wait())
                return line
        except TimeoutError:
            raise DeadlineExceeded(f"{self.name} gave no answer within {timeout_s:g} s") from None

    async def ask(self, request: msgspec.Struct, answer: type[T], timeout_s: float) -> T:
        """Sends a request line and returns the answer.

        Raises the child's own failure as the kind of error that its exit code stands for.
        """
        assert self._process.stdin is not None
        self._process.stdin.write(msgspec.json.encode(request) + b"\n")
        return decode_answer(await self.line(timeout_s), answer)

    def kill(self) -> None:
        """SIGKILL, unless it has ended."""
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()

    def close_stdin(self) -> None:
        """Tells the child to stop."""
        if self._process.stdin is not None:
            self._process.stdin.close()

    async def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> int:
        """Ends the child: end of stdin, then SIGKILL once `timeout_s` has passed. Returns its exit status."""
        self.close_stdin()
        try:
            async with asyncio.timeout(timeout_s):
                await self._drain()
                return await self._process.wait()
        except TimeoutError:
            self.kill()
            await self._drain()
            return await self._process.wait()

    async def _drain(self) -> None:
        """Reads what the child still writes, else a full pipe would keep it alive."""
        assert self._process.stdout is not None
        while await self._process.stdout.read(65536):
            pass

    async def __aenter__(self) -> "Child":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()


def decode_answer(line: bytes, kind: type[T]) -> T:
    """What a child's line says. Raises the error in it, where it is a `Failed`."""
    try:
        failed = msgspec.json.decode(line, type=Failed)
    except msgspec.ValidationError:
        return msgspec.json.decode(line, type=kind)
    raise _error_of(failed)


def failed_line(error: EskerError | SettingError) -> str:
    """How a child says that it failed."""
    return msgspec.json.encode(Failed(str(error), exit_code_of(error))).decode()


def _error_of(failed: Failed) -> EskerError:
    kinds: dict[int, type[EskerError]] = {
        ExitCode.USAGE: UserError,
        ExitCode.UNREACHABLE: ConnectionFailed,
    }
    return kinds.get(failed.exit_code, EskerError)(failed.error)


class Worker(Protocol):
    """What a child does with its requests."""

    async def answer(self, line: bytes) -> msgspec.Struct:
        """The answer to one request line."""

    async def aclose(self) -> None:
        """Called once, last."""


def run_child(worker: Worker) -> None:
    """The child's main: answers every line of stdin until its end."""
    raise_open_files_limit()

    async def main() -> None:
        try:
            await answer_lines(worker.answer)
        finally:
            await worker.aclose()

    uvloop.run(main())


Answer = Callable[[bytes], Awaitable[msgspec.Struct]]


class _Lines(asyncio.Protocol):
    """Splits what arrives into lines; the end of the input cancels the task that works on them."""

    def __init__(self, worker: asyncio.Task[None]) -> None:
        self.lines: asyncio.Queue[bytes] = asyncio.Queue()
        self._rest = b""
        self._worker = worker

    def data_received(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self.lines.put_nowait(line)

    def connection_lost(self, error: Exception | None) -> None:
        self._worker.cancel()


async def answer_lines(answer: Answer) -> None:
    """The child's side: answers every line of stdin; returns at the end of stdin, also from the midst of an answer.

    An `EskerError` of `answer` becomes a `Failed` line; any other error is a bug and passes through.
    """
    worker = asyncio.current_task()
    assert worker is not None
    protocol = _Lines(worker)
    # A copy of the descriptor: the transport closes its own, and the interpreter's stdin stays open.
    pipe = os.fdopen(os.dup(sys.stdin.fileno()), "rb", buffering=0)
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, pipe)
    try:
        while True:
            line = await protocol.lines.get()
            reply: msgspec.Struct
            try:
                reply = await answer(line)
            except EskerError as error:
                reply = Failed(str(error), exit_code_of(error))
            sys.stdout.buffer.write(msgspec.json.encode(reply) + b"\n")
            sys.stdout.buffer.flush()
    except asyncio.CancelledError:
        if not transport.is_closing():
            raise
    finally:
        transport.close()
