"""The fallback engine: `preadv` and `pwritev` in a few threads, for machines that refuse io_uring.

The threads know nothing but descriptors and buffers; every `done` runs on the loop. Completions gather in a deque, and
one wake-up of the loop takes all that are there.
"""

import asyncio
import errno
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

from esker.chunkserver.engine.interface import CLOSE_TIMEOUT_S, SUBMIT_BYTES, Done
from esker.chunkserver.engine.waiting import IdleWaiter
from esker.runtime.logging import get_logger

THREADS = 8
"""A drive's useful queue depth without io_uring; each costs a stack, not a core."""

_log = get_logger("chunkserver.engine")

_Call = Callable[[int, list[memoryview], int], int]


class _Op:
    __slots__ = ("buffer", "call", "done", "fd", "offset", "result", "sequence", "token")

    def __init__(
        self, sequence: int, call: _Call, fd: int, offset: int, buffer: memoryview, done: Done, token: Any
    ) -> None:
        self.sequence = sequence
        self.call = call
        self.fd = fd
        self.offset = offset
        self.buffer = buffer
        self.done = done
        self.token = token
        self.result = -errno.ECANCELED


class ThreadEngine:
    """See the module and `IoEngine`."""

    name = "threads"

    def __init__(self, loop: asyncio.AbstractEventLoop, threads: int = THREADS) -> None:
        self._loop = loop
        self._work: SimpleQueue[_Op | None] = SimpleQueue()
        self._finished: deque[_Op] = deque()
        self._queued: list[_Op] = []
        self._queued_bytes = 0
        self._open: dict[int, None] = {}
        self._sequence = 0
        self._woken = False
        self._busy = False
        self._closed = False
        self._after_batch: Callable[[], None] | None = None
        self._idle = IdleWaiter(loop)
        self._threads = [
            threading.Thread(target=self._run, name=f"esker-io-{number}", daemon=True) for number in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def in_flight(self) -> int:
        return len(self._open)

    def read(self, fd: int, offset: int, buffer: memoryview, done: Done, token: Any) -> None:
        self._queue(os.preadv, fd, offset, buffer, done, token)

    def write(self, fd: int, offset: int, buffer: memoryview, done: Done, token: Any) -> None:
        self._queue(os.pwritev, fd, offset, buffer, done, token)

    def _queue(self, call: _Call, fd: int, offset: int, buffer: memoryview, done: Done, token: Any) -> None:
        assert not self._closed, "the engine is closed"
        sequence = self._sequence
        self._sequence = sequence + 1
        self._open[sequence] = None
        self._queued.append(_Op(sequence, call, fd, offset, buffer, done, token))
        self._queued_bytes += len(buffer)
        if self._queued_bytes >= SUBMIT_BYTES:
            self.submit()

    def submit(self) -> None:
        if self._busy:
            return
        self._busy = True
        try:
            while self._queued or self._finished:
                queued, self._queued, self._queued_bytes = self._queued, [], 0
                for op in queued:
                    self._work.put(op)
                self._reap()
        finally:
            self._busy = False

    def _reap(self) -> None:
        if not self._finished:
            return
        for _ in range(len(self._finished)):
            op = self._finished.popleft()
            del self._open[op.sequence]
            try:
                op.done(op.token, op.result)
            except Exception:
                _log.exception("completion handler failed", engine=self.name)
        if self._after_batch is not None:
            self._after_batch()
        if not self._open:
            self._idle.notify()

    def _run(self) -> None:
        """One thread: takes operations until it is told to end."""
        while (op := self._work.get()) is not None:
            try:
                op.result = op.call(op.fd, [op.buffer], op.offset)
            except OSError as error:
                op.result = -(error.errno or errno.EIO)
            self._finished.append(op)
            # An idle thread would keep the last buffer alive.
            del op
            # A second wake-up while one is on its way would only cost; the flag is cleared before the deque is read.
            if not self._woken:
                self._woken = True
                try:
                    self._loop.call_soon_threadsafe(self._wake)
                except RuntimeError:
                    # The loop is gone; `close` still takes what has finished.
                    continue

    def _wake(self) -> None:
        self._woken = False
        if not self._closed:
            self.submit()

    def after_batch(self, callback: Callable[[], None]) -> None:
        self._after_batch = callback

    def mark(self) -> int:
        return self._sequence

    def passed(self, mark: int) -> bool:
        return not self._open or next(iter(self._open)) >= mark

    async def drain(self, timeout_s: float) -> bool:
        self.submit()
        return await self._idle.wait(lambda: not self._open, timeout_s)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._busy = True
        for op in self._queued:
            self._finished.append(op)
        self._queued = []
        for _ in self._threads:
            self._work.put(None)
        deadline = time.monotonic() + CLOSE_TIMEOUT_S
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        self._reap()
        if self._open:
            _log.error("closed with I/O still running; its memory stays allocated", operations=len(self._open))
