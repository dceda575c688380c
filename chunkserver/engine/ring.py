"""The io_uring engine: operations go to the kernel in batches, completions come back through the ring's descriptor.

It owns one ring of fixed depth. It must stay lean: this code runs once per block, hundreds of thousands of times a
second, so hot paths bind what they use to locals and make no object that is not needed.

Facts it rests on:

- `readv`/`writev` take any memory through an `iovec`; both must outlive the operation, so `_ops` holds them.
- The ring's descriptor polls readable exactly while completions wait, so the loop watches it directly: no eventfd has
  to be read, and completions that `submit` already took wake nobody.
- The completion queue is twice as long as the submission queue and at most `DEPTH` operations are with the kernel, so
  it cannot overflow.
- The package raises a negative result as `OSError`; here it becomes a number again.
- Completions are taken out of the ring before the first `done` runs, so a `done` may queue and may raise.
"""

import asyncio
import errno
import select
import time
from collections import deque
from collections.abc import Callable
from itertools import islice
from typing import Any

import liburing

from esker.chunkserver.engine.interface import CLOSE_TIMEOUT_S, DEPTH, SUBMIT_BYTES, Done
from esker.chunkserver.engine.vectors import Vector, VectorPool
from esker.chunkserver.engine.waiting import IdleWaiter
from esker.runtime.logging import get_logger

_log = get_logger("chunkserver.engine")

_Prepare = Callable[[Any, int, Any, int], None]

_AGAIN = (errno.EAGAIN, errno.EBUSY, errno.EINTR)
"""The kernel took none of the batch this time."""

_abandoned: list[object] = []
"""Rings that closed with operations still running, and those operations: the kernel may yet write to their memory."""


class RingEngine:
    """See the module and `IoEngine`. Raises `OSError` where the kernel gives no ring."""

    name = "io_uring"

    def __init__(self, loop: asyncio.AbstractEventLoop, depth: int = DEPTH) -> None:
        self._loop = loop
        vectors = VectorPool(depth)
        self._take_vector = vectors.take
        self._give_vector_back = vectors.give_back
        self._ring: Any = liburing.Ring()
        try:
            liburing.io_uring_queue_init(depth, self._ring, liburing.IORING_SETUP_COOP_TASKRUN)
        except OSError as error:
            if error.errno != errno.EINVAL:  # known since Linux 5.19: completions then interrupt nobody who is busy
                raise
            liburing.io_uring_queue_init(depth, self._ring, 0)
        self._cqe: Any = liburing.Cqe()
        self._fd: int = self._ring.ring_fd
        self._depth = depth
        self._sequence = 0
        # By sequence number, in that order: (done, token, buffer, vector). Only what has a place in the ring.
        self._ops: dict[int, tuple[Done, Any, memoryview, Vector]] = {}
        # What waits for a place: (sequence, prepare, fd, offset, buffer, done, token).
        self._waiting: deque[tuple[int, _Prepare, int, int, memoryview, Done, Any]] = deque()
        self._unsubmitted = 0
        self._unsubmitted_bytes = 0
        self._busy = False
        self._closed = False
        self._after_batch: Callable[[], None] | None = None
        self._idle = IdleWaiter(loop)
        self._prepare_read: _Prepare = liburing.io_uring_prep_readv
        self._prepare_write: _Prepare = liburing.io_uring_prep_writev
        loop.add_reader(self._fd, self.submit)

    @property
    def in_flight(self) -> int:
        return len(self._ops) + len(self._waiting)

    def read(self, fd: int, offset: int, buffer: memoryview, done: Done, token: Any) -> None:
        self._queue(self._prepare_read, fd, offset, buffer, done, token)

    def write(self, fd: int, offset: int, buffer: memoryview, done: Done, token: Any) -> None:
        if buffer.readonly:
            buffer = memoryview(bytearray(buffer))
        self._queue(self._prepare_write, fd, offset, buffer, done, token)

    def _queue(self, prepare: _Prepare, fd: int, offset: int, buffer: memoryview, done: Done, token: Any) -> None:
        assert not self._closed, "the engine is closed"
        sequence = self._sequence
        self._sequence = sequence + 1
        ops = self._ops
        if self._waiting or len(ops) >= self._depth:
            self._waiting.append((sequence, prepare, fd, offset, buffer, done, token))
            return
        vector = self._take_vector()
        vector.point(buffer)
        sqe = _get_sqe(self._ring)
        prepare(sqe, fd, vector.iovec, offset)
        _set_data(sqe, sequence)
        ops[sequence] = (done, token, buffer, vector)
        self._unsubmitted += 1
        self._unsubmitted_bytes += len(buffer)
        if self._unsubmitted_bytes >= SUBMIT_BYTES:
            self.submit()

    def submit(self) -> None:
        if self._busy:
            return
        self._busy = True
        try:
            while True:
                if self._waiting:
                    self._fill()
                if self._unsubmitted and not self._enter():
                    break
                if not self._reap() and not self._unsubmitted and not self._can_fill():
                    break
        finally:
            self._busy = False

    def _can_fill(self) -> bool:
        return bool(self._waiting) and len(self._ops) < self._depth

    def _fill(self) -> None:
        """Gives places in the ring to what has waited longest."""
        ops, waiting, ring = self._ops, self._waiting, self._ring
        while waiting and len(ops) < self._depth and self._unsubmitted_bytes < SUBMIT_BYTES:
            sequence, prepare, fd, offset, buffer, done, token = waiting.popleft()
            vector = self._take_vector()
            vector.point(buffer)
            sqe = _get_sqe(ring)
            prepare(sqe, fd, vector.iovec, offset)
            _set_data(sqe, sequence)
            ops[sequence] = (done, token, buffer, vector)
            self._unsubmitted += 1
            self._unsubmitted_bytes += len(buffer)

    def _enter(self) -> bool:
        """Submits; false when the kernel could take nothing just now, in which case it is tried again soon."""
        try:
            taken = _submit(self._ring)
        except OSError as error:
            if error.errno not in _AGAIN:
                raise
            taken = 0
        self._unsubmitted -= taken
        if self._unsubmitted:
            if taken == 0 and not self._reap():
                self._loop.call_soon(self._retry)
                return False
        else:
            self._unsubmitted_bytes = 0
        return True

    def _retry(self) -> None:
        if not self._closed:
            self.submit()

    def _reap(self) -> int:
        """Takes every completion there is, then calls `done` for each; how many there were."""
        ring, cqe = self._ring, self._cqe
        iterator = _iterate(ring)
        if not _next(iterator, cqe):
            return 0
        pop = self._ops.pop
        finished = []
        while True:
            entry = cqe[0]
            try:
                result = entry.res
            except OSError as error:
                result = -(error.errno or errno.EIO)
            finished.append((pop(entry.user_data), result))
            if not _next(iterator, cqe):
                break
        _advance(ring, len(finished))
        give_back = self._give_vector_back
        for (done, token, _, vector), result in finished:
            give_back(vector)
            try:
                done(token, result)
            except Exception:
                _log.exception("completion handler failed", engine=self.name)
        if self._after_batch is not None:
            self._after_batch()
        if not self._ops and not self._waiting:
            self._idle.notify()
        return len(finished)

    def after_batch(self, callback: Callable[[], None]) -> None:
        self._after_batch = callback

    def mark(self) -> int:
        return self._sequence

    def passed(self, mark: int) -> bool:
        oldest: int = self._sequence
        if self._ops:
            oldest = next(iter(self._ops))
        elif self._waiting:
            # Places are given in order, so with an empty ring the first that waits is the oldest.
            oldest = self._waiting[0][0]
        return oldest >= mark

    async def drain(self, timeout_s: float) -> bool:
        self.submit()
        return await self._idle.wait(lambda: self.in_flight == 0, timeout_s)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._loop.remove_reader(self._fd)
        self._busy = True
        self._cancel_unsubmitted()
        self._finish_running()
        if self._ops:
            _log.error("closed with I/O still running; its memory stays allocated", operations=len(self._ops))
            _abandoned.append((self._ring, self._ops))
        else:
            liburing.io_uring_queue_exit(self._ring)

    def _cancel_unsubmitted(self) -> None:
        """Ends what the kernel has not seen. Entries prepared in the ring go with it, unsubmitted."""
        first = len(self._ops) - self._unsubmitted
        unsubmitted = list(islice(self._ops, first, None))
        cancelled: list[tuple[Done, Any]] = []
        for sequence in unsubmitted:
            done, token, _, vector = self._ops.pop(sequence)
            self._give_vector_back(vector)
            cancelled.append((done, token))
        cancelled += [(entry[5], entry[6]) for entry in self._waiting]
        self._waiting.clear()
        self._unsubmitted = 0
        for done, token in cancelled:
            try:
                done(token, -errno.ECANCELED)
            except Exception:
                _log.exception("completion handler failed", engine=self.name)

    def _finish_running(self) -> None:
        poll = select.poll()
        poll.register(self._fd, select.POLLIN)
        deadline = time.monotonic() + CLOSE_TIMEOUT_S
        while self._ops:
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                return
            poll.poll(left_s * 1000)
            self._reap()


_get_sqe: Any = liburing.io_uring_get_sqe
_set_data: Any = liburing.io_uring_sqe_set_data64
_submit: Any = liburing.io_uring_submit
_iterate: Any = liburing.io_uring_cqe_iter_init
_next: Any = liburing.io_uring_cqe_iter_next
_advance: Any = liburing.io_uring_cq_advance
