"""An I/O engine whose operations complete in a seeded order, fail when told to, and end with the power of its disk.

With `manual`, nothing completes until the test says `step`. See `fake_disk` for the faults and the crash.
"""

import asyncio
import errno
import os
from collections.abc import Callable
from typing import Any

from esker.chunkserver.engine.fake_disk import FakeDisk
from esker.chunkserver.engine.interface import Done
from esker.chunkserver.engine.waiting import IdleWaiter
from esker.runtime.logging import get_logger

_log = get_logger("chunkserver.engine")


class _Op:
    __slots__ = ("buffer", "done", "fd", "kind", "offset", "sequence", "token")

    def __init__(
        self, sequence: int, kind: str, fd: int, offset: int, buffer: memoryview, done: Done, token: Any
    ) -> None:
        self.sequence = sequence
        self.kind = kind
        self.fd = fd
        self.offset = offset
        self.buffer = buffer
        self.done = done
        self.token = token


class FakeEngine:
    """See `IoEngine`. Completes in a seeded order: on the loop's next turn, or with `manual` as the test steps."""

    name = "fake"

    def __init__(self, disk: FakeDisk, loop: asyncio.AbstractEventLoop | None = None, *, manual: bool = False) -> None:
        self.disk = disk
        self.manual = manual
        self._loop = loop or asyncio.get_running_loop()
        self._queued: list[_Op] = []
        self._running: list[_Op] = []
        self._sequence = 0
        self._after_batch: Callable[[], None] | None = None
        self._idle = IdleWaiter(self._loop)
        self._scheduled = False
        self._closed = False

    @property
    def in_flight(self) -> int:
        return len(self._queued) + len(self._running)

    def read(self, fd: int, offset: int, buffer: memoryview, done: Done, token: Any) -> None:
        self._queue("read", fd, offset, buffer, done, token)

    def write(self, fd: int, offset: int, buffer: memoryview, done: Done, token: Any) -> None:
        self._queue("write", fd, offset, buffer, done, token)

    def _queue(self, kind: str, fd: int, offset: int, buffer: memoryview, done: Done, token: Any) -> None:
        assert not self._closed, "the engine is closed"
        self._queued.append(_Op(self._sequence, kind, fd, offset, buffer, done, token))
        self._sequence += 1

    def submit(self) -> None:
        self._running += self._queued
        self._queued = []
        if self._running and not self.manual and not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._complete_all)

    def _complete_all(self) -> None:
        self._scheduled = False
        if not self._closed:
            self.step(len(self._running))

    def step(self, count: int = 1) -> int:
        """Completes up to `count` submitted operations, as one batch; how many."""
        self.disk.random.shuffle(self._running)
        batch, self._running = self._running[:count], self._running[count:]
        results = [(op, self._perform(op)) for op in batch]
        for op, result in results:
            try:
                op.done(op.token, result)
            except Exception:
                _log.exception("completion handler failed", engine=self.name)
        if batch and self._after_batch is not None:
            self._after_batch()
        if self._queued:
            self.submit()
        if not self.in_flight:
            self._idle.notify()
        return len(batch)

    def _perform(self, op: _Op) -> int:
        result = self.disk.fault(op.kind)
        if result is not None and result < 0:
            return result
        buffer = op.buffer if result is None else op.buffer[:result]
        try:
            if op.kind == "read":
                return os.preadv(op.fd, [buffer], op.offset)
            self.disk.event(f"write {self.disk.name(op.fd)}")
            self.disk.will_write(op.fd, op.offset, len(buffer))
            return os.pwritev(op.fd, [buffer], op.offset)
        except OSError as error:
            return -(error.errno or errno.EIO)

    def after_batch(self, callback: Callable[[], None]) -> None:
        self._after_batch = callback

    def mark(self) -> int:
        return self._sequence

    def passed(self, mark: int) -> bool:
        return all(op.sequence >= mark for op in (*self._queued, *self._running))

    async def drain(self, timeout_s: float) -> bool:
        self.submit()
        return await self._idle.wait(lambda: self.in_flight == 0, timeout_s)

    def close(self) -> None:
        if self._closed:
            return
        self.step(len(self._running))
        self._closed = True
        cancelled, self._queued = self._queued + self._running, []
        self._running = []
        for op in cancelled:
            op.done(op.token, -errno.ECANCELED)
