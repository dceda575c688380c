"""Which write of this client is which, so that sending one again never does it twice.

A write is known to its chain by the client's id, a channel and the channel's sequence; a channel has one write
outstanding. Channels are numbered per chain, from 0 on, and the lowest free one is taken, so that chains keep no more
rows than there are writes at a time.

A channel whose write ended as unknown is never used again: that write may still be under way on the chain, and it must
not meet a later one of its own channel there.
"""

import heapq
from collections import deque
from collections.abc import Callable

CHANNELS_MAX = 64
"""Writes of one client under way on one chain; more wait."""


class WriteChannel:
    """A channel in use. `sequence` is the present write's."""

    __slots__ = ("_owner", "number", "sequence")

    def __init__(self, owner: "ChainChannels", number: int) -> None:
        self._owner = owner
        self.number = number
        self.sequence = 0

    def give_back(self) -> None:
        """The write's outcome is known."""
        self._owner.give_back(self)

    def retire(self) -> None:
        """The write's outcome is not known."""
        self._owner.retired()


class ChainChannels:
    """The channels of one client on one chain."""

    def __init__(self) -> None:
        self._free: list[tuple[int, WriteChannel]] = []
        self._made = 0
        self._in_use = 0
        self._waiting: deque[Callable[[], None]] = deque()

    def take(self) -> WriteChannel | None:
        """A channel with a fresh sequence, or None where all are in use: then `when_free`."""
        if self._in_use >= CHANNELS_MAX:
            return None
        self._in_use += 1
        if self._free:
            channel = heapq.heappop(self._free)[1]
        else:
            channel = WriteChannel(self, self._made)
            self._made += 1
        channel.sequence += 1
        return channel

    def when_free(self, callback: Callable[[], None]) -> None:
        """Calls back once when a channel is free; whoever comes late waits again. First come, first served."""
        self._waiting.append(callback)

    def give_back(self, channel: WriteChannel) -> None:
        """See `WriteChannel`."""
        heapq.heappush(self._free, (channel.number, channel))
        self.retired()

    def retired(self) -> None:
        """One fewer is in use."""
        self._in_use -= 1
        while self._waiting and self._in_use < CHANNELS_MAX:
            self._waiting.popleft()()


class Channels:
    """The channels of one client, by chain id."""

    def __init__(self, client_id: bytes) -> None:
        self.client_id = client_id
        """16 bytes, fresh and random."""
        self._chains: dict[int, ChainChannels] = {}

    def of(self, chain_id: int) -> ChainChannels:
        """Those of one chain."""
        return self._chains.setdefault(chain_id, ChainChannels())
