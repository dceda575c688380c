"""Each item of a request gets its answer, once, whatever a successor sends."""

import struct
from collections.abc import Iterable
from typing import Any

import pytest

from esker.chunkserver.replies import ItemReplies
from esker.wire.errors import ConnectionFailed, EskerError, ProtocolError, RequestFailed
from esker.wire.status import Status

ROW = struct.Struct("<HH")


def results(body: bytes | bytearray) -> Iterable[tuple[Any, ...]]:
    if body == b"no body":
        raise RequestFailed(Status.BAD_REQUEST, "malformed")
    return ROW.iter_unpack(body)


class Request:
    """One of three items, and what became of it."""

    def __init__(self) -> None:
        self.answers: list[tuple[int, Status]] = []
        self.over = 0
        self.replies = ItemReplies(3, results, lambda number, status: self.answers.append((number, status)), self._over)

    def _over(self, replies: ItemReplies) -> None:
        assert replies is self.replies
        self.over += 1

    def reply(self, *rows: tuple[int, int]) -> None:
        self.replies.on_reply(b"".join(ROW.pack(*row) for row in rows), 0)


def test_answers_come_in_any_order_and_count_once() -> None:
    request = Request()
    request.reply((2, Status.OK))
    request.reply((0, Status.BUSY), (2, Status.NO_SPACE))
    assert request.answers == [(2, Status.OK), (0, Status.BUSY)]
    assert not request.over
    request.reply((1, Status.EXISTS))
    request.replies.on_done(None)
    assert request.answers == [(2, Status.OK), (0, Status.BUSY), (1, Status.EXISTS)]
    assert request.over == 1


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (None, Status.UNAVAILABLE),
        (ConnectionFailed("it broke"), Status.UNAVAILABLE),
        (RequestFailed(Status.BUSY, "full"), Status.BUSY),
    ],
)
def test_at_the_end_nobody_is_without_an_answer(error: EskerError | None, status: Status) -> None:
    request = Request()
    request.reply((1, Status.OK))
    request.replies.on_done(error)
    assert request.answers == [(1, Status.OK), (0, status), (2, status)]


@pytest.mark.parametrize("body", [b"no body", b"odd", ROW.pack(3, 0), ROW.pack(0, 9999)])
def test_what_makes_no_sense_breaks_the_protocol(body: bytes) -> None:
    request = Request()
    with pytest.raises(ProtocolError):
        request.replies.on_reply(body, 0)
    assert not request.answers
