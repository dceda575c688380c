"""The replies to a request that has several items: each item gets its answer, once, whatever the successor sends.

Knows nothing of what the items are; who sent them says how their results are read.
"""

import struct
from collections.abc import Callable, Iterable
from typing import Any

from esker.wire.errors import EskerError, ProtocolError, RequestFailed
from esker.wire.status import Status

Results = Callable[[bytes | bytearray], Iterable[tuple[Any, ...]]]
"""The rows of a reply's body: number of the item and status first. Raises `RequestFailed` and `struct.error`."""


class ItemReplies:
    """A `ReplyHandler` of `count` items. `over` is called once, before the answers that nobody gave."""

    __slots__ = ("_answered", "_open", "_over", "_results")

    def __init__(
        self,
        count: int,
        results: Results,
        answered: Callable[[int, Status], None],
        over: Callable[["ItemReplies"], None],
    ) -> None:
        """`answered` gets each item's number and its answer: UNAVAILABLE where the connection broke before."""
        self._open = [True] * count
        self._results = results
        self._answered = answered
        self._over = over

    def on_reply(self, body: bytes | bytearray, payload_bytes: int) -> None:
        """See `ReplyHandler`."""
        try:
            answers = [(row[0], Status(row[1])) for row in self._results(body)]
        except (RequestFailed, ValueError, struct.error) as error:
            raise ProtocolError(f"malformed reply of a successor: {error}") from error
        for number, status in answers:
            if number >= len(self._open):
                raise ProtocolError(f"a successor answers extent {number} of {len(self._open)}")
            self._answer(number, status)

    def on_payload(self) -> None:
        """See `ReplyHandler`."""
        raise AssertionError("no memory was named")

    def on_done(self, error: EskerError | None) -> None:
        """See `ReplyHandler`."""
        self._over(self)
        status = error.status if isinstance(error, RequestFailed) else Status.UNAVAILABLE
        for number in range(len(self._open)):
            self._answer(number, status)

    def _answer(self, number: int, status: Status) -> None:
        if self._open[number]:
            self._open[number] = False
            self._answered(number, status)
