"""Whether a successor can be reached: the verdict, and the links that come to it."""

import asyncio
import socket
from collections.abc import AsyncIterator

import pytest

from esker.chunkserver import forward, reachability
from esker.chunkserver.forward import Item, Link
from esker.chunkserver.pool import WorkerPool
from esker.chunkserver.reachability import FRESH_S, UNREACHABLE_AFTER_S, Reachability
from esker.wire.ids import NO_PUT_ID
from esker.wire.limits import MIB
from esker.wire.messages import Method
from esker.wire.rpc_server import Identity, Request, RpcServer
from esker.wire.status import Status
from esker.wire.types import Worker

from ..waiting import until

# The verdict


def test_one_failure_proves_nothing() -> None:
    seen = Reachability()
    assert not seen.unreachable(10.0)
    seen.failed(10.0)
    assert not seen.unreachable(10.0 + UNREACHABLE_AFTER_S)


def test_failures_for_a_while_do() -> None:
    seen = Reachability()
    seen.failed(10.0)
    seen.failed(10.0 + UNREACHABLE_AFTER_S - 0.01)
    assert not seen.unreachable(12.0)
    seen.failed(10.0 + UNREACHABLE_AFTER_S)
    assert seen.unreachable(12.0)


def test_silence_before_the_first_failure_counts() -> None:
    seen = Reachability()
    seen.failed(12.0, 10.0)
    assert seen.unreachable(12.0)


def test_an_answer_ends_it() -> None:
    seen = Reachability()
    seen.failed(10.0)
    seen.failed(12.5)
    seen.answered()
    assert not seen.unreachable(12.5)
    seen.failed(12.6)
    assert not seen.unreachable(12.6)


def test_old_failures_say_nothing() -> None:
    seen = Reachability()
    seen.failed(10.0)
    seen.failed(12.0)
    assert not seen.unreachable(12.01 + FRESH_S)
    seen.failed(12.01 + FRESH_S)
    assert not seen.unreachable(12.01 + FRESH_S), "a row begins anew"


# Links


def worker(drive_id: str, port: int) -> Worker:
    return Worker(drive_id, "n", "127.0.0.1", port, "", "boot", "first", MIB)


def item(op: int) -> Item:
    row = (b"o" * 16, 0, 1, 1, 0, 0, 1 << 40, 0, 1, NO_PUT_ID, 3)
    return Item(op, Method.CONFIRM, 7, MIB, row, b"", b"key", None, 0, asyncio.get_running_loop().time() + 60)


class Linked:
    """A link to a successor at this port."""

    def __init__(self, port: int) -> None:
        self.pool = WorkerPool(MIB)
        self.answers: list[tuple[int, Status]] = []
        self.link = Link(
            "d1",
            lambda _: worker("d1", port),
            worker("d0", 1),
            "c",
            self.pool,
            lambda op, status: self.answers.append((op, status)),
        )

    async def aclose(self) -> None:
        await self.link.aclose()
        self.pool.close()


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name, value in (
        (forward, "UNANSWERED_S", 0.05),
        (forward, "CONNECT_TIMEOUT_S", 0.1),
        (reachability, "UNREACHABLE_AFTER_S", 0.3),
    ):
        monkeypatch.setattr(module, name, value)


@pytest.fixture
async def silent_port() -> AsyncIterator[int]:
    """Whoever connects there gets no answer, ever."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(64)
        yield listening.getsockname()[1]


async def test_a_successor_that_takes_no_connection_is_found_out_also_when_nobody_writes(
    hasty: None, silent_port: int
) -> None:
    linked = Linked(silent_port)
    try:
        linked.link.send(item(1))
        await until(lambda: linked.link.unreachable(), "it is unreachable")
        assert linked.answers == [(1, Status.UNAVAILABLE)]
        linked.link.try_at_once()
        assert not linked.link.unreachable(), "a new life of it was not tried yet"
    finally:
        await linked.aclose()


async def test_a_successor_that_falls_silent_is_found_out_and_the_connection_given_up(
    hasty: None, monkeypatch: pytest.MonkeyPatch, silent_port: int
) -> None:
    held: list[Request] = []
    server = RpcServer({Method.CONFIRM: held.append}, Identity("c", "d1", "first"))
    port = await server.listen_tcp("127.0.0.1", 0)
    linked = Linked(port)
    try:
        linked.link.send(item(1))
        await until(lambda: bool(held), "it got the request")
        await until(lambda: linked.link.unreachable() or linked.link._probing is not None, "it is probed")
        await until(lambda: linked.link._probing is not None and linked.link._probing.done(), "it was probed")
        assert not linked.link.unreachable(), "slow, but there"
        monkeypatch.setattr(linked.link, "_find", lambda _: worker("d1", silent_port))
        await until(lambda: linked.link.unreachable(), "it is unreachable")
        await until(lambda: linked.answers == [(1, Status.UNAVAILABLE)], "what waited is answered")
    finally:
        await linked.aclose()
        await server.aclose()


async def test_a_link_that_nobody_uses_lets_it_be(
    hasty: None, monkeypatch: pytest.MonkeyPatch, silent_port: int
) -> None:
    linked = Linked(silent_port)
    try:
        linked.link.send(item(1))
        await until(lambda: linked.link.unreachable(), "it is unreachable")
        monkeypatch.setattr(forward, "CARED_FOR_S", 0.0)
        assert not linked.link.unreachable()
        await until(lambda: linked.link._connecting is None, "the last attempt ended")
        assert not linked.link.unreachable()
        assert linked.link._connecting is None
    finally:
        await linked.aclose()
