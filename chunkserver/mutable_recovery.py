"""Takes up what is pending and nobody is about: each such chunk again and again, until it is committed.

After a change of the chain, or at the start, all of them at once, but a few at a time; a chunk that an operation left
pending, or that could not be recovered, a moment later, and later each time.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Protocol

from esker.chunkserver.engine.images import Images
from esker.craq import mutable_messages as craq
from esker.craq.replica import ChainReplica

AT_A_TIME = 32
TIMEOUT_S = 5.0
RETRY_MIN_S, RETRY_MAX_S = 0.05, 1.0


class Runner(Protocol):
    """What is needed of the runner of mutable chunks."""

    def recover(
        self, replica: ChainReplica, record_key: bytes, timeout_s: float, ended: Callable[[craq.Ended], None]
    ) -> None: ...


class Recovery:
    """Of one drive."""

    def __init__(self, images: Images, runner: Runner) -> None:
        self._images = images
        self._runner = runner
        self._loop = asyncio.get_running_loop()
        self._chains: dict[int, int] = {}
        """Version of each chain in which its pending images were last taken up."""
        self._delays_s: dict[bytes, float] = {}
        """Of chunks that are waiting for, or under, recovery: how long until the next attempt."""
        self._timers: dict[bytes, asyncio.TimerHandle] = {}
        self._ready: deque[tuple[ChainReplica, bytes]] = deque()
        self._under_way = 0
        self._closed = False

    @property
    def waiting(self) -> int:
        """Chunks that are to be recovered."""
        return len(self._delays_s)

    def look(self, replicas: Iterable[ChainReplica]) -> None:
        """Takes up what is pending in chains that have changed."""
        for replica in replicas:
            chain = replica.chain
            if not replica.recovers or self._chains.get(chain.chain_id) == chain.version:
                continue
            self._chains[chain.chain_id] = chain.version
            for record_key in self._images.pending(chain.chain_id):
                timer = self._timers.pop(record_key, None)
                if timer is not None:
                    timer.cancel()
                elif record_key in self._delays_s:
                    continue  # its turn comes
                self._delays_s[record_key] = RETRY_MIN_S
                self._ready.append((replica, record_key))
        self._go_on()

    def left(self, replica: ChainReplica, record_key: bytes) -> None:
        """An operation has left an image of the chunk pending."""
        if record_key not in self._delays_s:
            self._delays_s[record_key] = RETRY_MIN_S
            self._later(replica, record_key)

    def close(self) -> None:
        """Begins nothing any more."""
        self._closed = True
        self._ready.clear()
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def _later(self, replica: ChainReplica, record_key: bytes) -> None:
        if self._closed:
            return
        delay_s = self._delays_s[record_key]
        self._delays_s[record_key] = min(2 * delay_s, RETRY_MAX_S)
        self._timers[record_key] = self._loop.call_later(delay_s, self._due, replica, record_key)

    def _due(self, replica: ChainReplica, record_key: bytes) -> None:
        del self._timers[record_key]
        self._ready.append((replica, record_key))
        self._go_on()

    def _go_on(self) -> None:
        while self._ready and self._under_way < AT_A_TIME:
            replica, record_key = self._ready.popleft()
            pending = record_key in self._images.pending_of(replica.chain.chain_id)
            if not replica.recovers or not pending:
                del self._delays_s[record_key]  # a change of the chain brings it up again, if it is still there
                continue
            self._under_way += 1
            self._runner.recover(replica, record_key, TIMEOUT_S, partial(self._ended, replica, record_key))

    def _ended(self, replica: ChainReplica, record_key: bytes, ended: craq.Ended) -> None:
        self._under_way -= 1
        if ended.pending:
            self._later(replica, record_key)
        else:
            del self._delays_s[record_key]
        self._loop.call_soon(self._go_on)
