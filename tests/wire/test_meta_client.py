"""Calls find a metadata server that answers, learn of the others, and spread over them."""

import asyncio
import socket
from collections import Counter
from collections.abc import AsyncIterator, Callable
from random import Random

import pytest

from esker.wire.errors import ConnectionFailed, RequestFailed, UserError
from esker.wire.messages import GetRouting, Method, RoutingReply
from esker.wire.meta_client import MetaClient, parse_addresses
from esker.wire.rpc_client import TcpAddress
from esker.wire.rpc_server import Identity, RpcServer, unary
from esker.wire.status import Status
from esker.wire.types import Routing


class Server:
    """Answers ROUTING, telling of `tells`; counts."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.answered = 0
        self.tells: tuple[str, ...] = ()
        self.refuses: Status | None = None
        self.gate = asyncio.Event()
        self.gate.set()
        self.asked = asyncio.Event()
        self._rpc = RpcServer({Method.ROUTING: unary(GetRouting, self._routing)}, Identity("c1", "", name))

    async def start(self) -> None:
        self.address = TcpAddress("127.0.0.1", await self._rpc.listen_tcp("127.0.0.1", 0))

    async def stop(self) -> None:
        await self._rpc.aclose()

    async def _routing(self, request: GetRouting) -> RoutingReply:
        self.asked.set()
        await self.gate.wait()
        if self.refuses is not None:
            raise RequestFailed(self.refuses, f"{self.name} refuses")
        self.answered += 1
        return RoutingReply(Routing("c1", 1, (), (), (), 1, 1, self.tells))


class FirstOf(Random):
    """Chance that leaves every order as it is, and puts what is new last."""

    def shuffle(self, x: list) -> None:
        pass

    def randint(self, a: int, b: int) -> int:
        return b


@pytest.fixture
async def servers() -> AsyncIterator[list[Server]]:
    made = [Server(name) for name in "abc"]
    for server in made:
        await server.start()
    yield made
    for server in made:
        server.gate.set()
        await server.stop()


@pytest.fixture
async def connect() -> AsyncIterator[Callable[..., MetaClient]]:
    made: list[MetaClient] = []

    def make(*given: Server, **options: object) -> MetaClient:
        made.append(MetaClient([server.address for server in given], **{"chance": FirstOf(1), **options}))
        return made[-1]

    yield make
    for client in made:
        await client.aclose()


async def ask(client: MetaClient, timeout_s: float = 30) -> RoutingReply:
    return await client.call(Method.ROUTING, GetRouting(0), RoutingReply, timeout_s=timeout_s)


async def test_it_stays_with_the_server_that_answers(servers: list[Server], connect: Callable[..., MetaClient]) -> None:
    client = connect(*servers)
    for _ in range(5):
        await ask(client)
    assert [server.answered for server in servers] == [5, 0, 0]
    assert (await client.peer(timeout_s=30)).incarnation == "a"


async def test_a_dead_server_is_passed_over(servers: list[Server], connect: Callable[..., MetaClient]) -> None:
    client = connect(*servers)
    await ask(client)
    await servers[0].stop()
    await ask(client)
    await servers[1].stop()
    await ask(client)
    assert [server.answered for server in servers] == [1, 1, 1]


async def test_a_silent_server_gets_half_of_the_time(servers: list[Server], connect: Callable[..., MetaClient]) -> None:
    client = connect(*servers)
    await ask(client)
    servers[0].gate.clear()
    await ask(client, timeout_s=1.0)
    assert [server.answered for server in servers] == [1, 1, 0]


async def test_the_only_server_gets_all_of_the_time(servers: list[Server], connect: Callable[..., MetaClient]) -> None:
    client = connect(servers[0])
    servers[0].gate.clear()
    asked = asyncio.create_task(ask(client))
    await servers[0].asked.wait()
    servers[0].gate.set()
    await asked


async def test_one_that_cannot_serve_is_passed_over(servers: list[Server], connect: Callable[..., MetaClient]) -> None:
    client = connect(*servers)
    servers[0].refuses = Status.UNAVAILABLE
    await ask(client)
    await ask(client)
    assert [server.answered for server in servers] == [0, 2, 0]
    for server in servers:
        server.refuses = Status.UNAVAILABLE
    with pytest.raises(RequestFailed, match="refuses") as caught:
        await ask(client)
    assert caught.value.status is Status.UNAVAILABLE


async def test_any_other_refusal_is_the_answer(servers: list[Server], connect: Callable[..., MetaClient]) -> None:
    client = connect(*servers)
    servers[0].refuses = Status.CONFLICT
    with pytest.raises(RequestFailed, match="a refuses"):
        await ask(client)


async def test_where_nobody_answers_it_says_where_it_looked(
    servers: list[Server], connect: Callable[..., MetaClient]
) -> None:
    client = connect(*servers)
    for server in servers:
        await server.stop()
    with pytest.raises(ConnectionFailed, match=r"within 0\.2 s; looked at 127\.0\.0\.1:\d+, .*, .*cannot connect"):
        await ask(client, timeout_s=0.2)


async def test_it_learns_of_the_others(servers: list[Server], connect: Callable[..., MetaClient]) -> None:
    client = connect(servers[0])
    servers[0].tells = tuple(str(server.address) for server in servers)
    await ask(client)
    assert client.addresses == tuple(server.address for server in servers)
    await servers[0].stop()
    servers[1].tells = (str(servers[1].address),)
    await ask(client)
    assert client.addresses == (servers[1].address, servers[0].address), "what was given stays"


async def test_with_learns_false_it_does_not(servers: list[Server], connect: Callable[..., MetaClient]) -> None:
    client = connect(servers[0], learns=False)
    servers[0].tells = tuple(str(server.address) for server in servers)
    await ask(client)
    assert client.addresses == (servers[0].address,)


async def test_nonsense_is_not_learned(servers: list[Server], connect: Callable[..., MetaClient]) -> None:
    client = connect(servers[0])
    servers[0].tells = ("nonsense", "h:0", "")
    await ask(client)
    assert client.addresses == (servers[0].address,)


async def test_many_callers_spread(servers: list[Server], connect: Callable[..., MetaClient]) -> None:
    """Both those that were given all addresses and those that were given one."""
    for server in servers:
        server.tells = tuple(str(other.address) for other in servers)
    reached: Counter[str] = Counter()
    for number in range(60):
        client = connect(*(servers if number % 2 else servers[:1]), chance=Random(number))
        await ask(client)
        reached[(await client.peer(timeout_s=30)).incarnation] += 1
    assert min(reached[name] for name in "abc") > 10


async def test_calls_under_way_survive_the_change_to_another_server(
    servers: list[Server], connect: Callable[..., MetaClient]
) -> None:
    class LastFirst(FirstOf):
        def shuffle(self, x: list) -> None:
            x.reverse()

    client = connect(servers[0], chance=LastFirst(1))
    servers[0].gate.clear()
    slow = asyncio.create_task(ask(client))
    await servers[0].asked.wait()
    client.learn([str(server.address) for server in servers])
    assert client.addresses[0] == servers[2].address
    await ask(client)
    assert servers[2].answered == 1
    servers[0].gate.set()
    await slow
    assert servers[0].answered == 1


async def test_concurrent_calls_fail_over_together(servers: list[Server], connect: Callable[..., MetaClient]) -> None:
    client = connect(*servers)
    await ask(client)
    await servers[0].stop()
    await asyncio.gather(*(ask(client) for _ in range(20)))
    assert servers[1].answered == 20


async def test_a_call_does_not_wait_longer_for_anothers_connection_than_for_its_own() -> None:
    loop = asyncio.get_running_loop()
    with socket.create_server(("127.0.0.1", 0)) as silent:  # takes connections, and never shakes hands
        silent.setblocking(False)
        client = MetaClient([TcpAddress(*silent.getsockname())])
        patient = asyncio.create_task(ask(client))
        connection, _ = await loop.sock_accept(silent)
        with connection:
            with pytest.raises(ConnectionFailed, match=r"within 0\.05 s"):
                await ask(client, timeout_s=0.05)
            with pytest.raises(BlockingIOError):
                silent.accept()  # the other call was still at its first attempt
            await client.aclose()
            patient.cancel()
            await asyncio.gather(patient, return_exceptions=True)


async def test_a_closed_client_connects_no_more(servers: list[Server], connect: Callable[..., MetaClient]) -> None:
    client = connect(servers[0])
    servers[0].gate.clear()
    waiting = asyncio.create_task(ask(client))
    await servers[0].asked.wait()
    await client.aclose()
    servers[0].gate.set()
    for call in (waiting, ask(client)):
        async with asyncio.timeout(10):
            with pytest.raises(ConnectionFailed, match="was closed"):
                await call
    assert client._link is None


def test_addresses_are_read() -> None:
    assert parse_addresses("a:1, [::1]:2") == [TcpAddress("a", 1), TcpAddress("::1", 2)]
    for bad in ("", "a", "a:", ":1", "a:0", "a:65536", "a:x", "a:1,,b:2"):
        with pytest.raises(UserError, match="write host:port"):
            parse_addresses(bad)
