"""Metadata servers on machines of their own, over one store in memory: clocks of different rates, a network to the
store that delays, loses answers and is cut, processes that are killed, restarted and suspended.

A commit that was sent is carried out even if its sender is gone, perhaps much later, as with a real store.
"""

import asyncio
from collections.abc import Coroutine, Sequence
from random import Random
from typing import Any, TypeVar

from esker.meta.chain_manager import ChainManager
from esker.meta.presence import Presence
from esker.meta.server import MetaService
from esker.meta.store.base import KeyValue, Retry, Store
from esker.meta.store.memory import MemoryStore
from esker.meta.store.transaction import SnapshotTransaction
from esker.meta.store.watches import KeyWatch
from esker.meta.store.writes import CommitSet
from esker.wire.errors import RequestFailed
from esker.wire.messages import Message, Method
from esker.wire.status import Status

from .conftest import dead

R = TypeVar("R", bound=Message)

DELAY_S = 0.01
SLOW_DELAY_S = 3.0
ADDRESS = "{}:9380"


class FarStore(Store):
    """The shared store as one machine sees it. Also the `Engine` of its transactions."""

    engine = "memory"
    exclusive = False

    def __init__(self, machine: "Machine", shared: MemoryStore) -> None:
        loop = asyncio.get_running_loop()
        self.retry = Retry(clock=loop.time, sleep=asyncio.sleep, chance=machine.chance)
        self.clock = loop.time
        self.watches = shared.watches
        self.open_snapshot = shared.open_snapshot
        self._machine = machine
        self._shared = shared
        self._sent: set[asyncio.Task[tuple[int, bytes]]] = set()

    def transaction(self) -> "FarTransaction":
        return FarTransaction(self, self._machine)

    def statistics(self) -> dict[str, int]:
        return {}

    async def version(self) -> str:
        return ""

    async def aclose(self) -> None:
        """What was sent still arrives."""
        await asyncio.gather(*self._sent, return_exceptions=True)

    async def apply(self, writes: CommitSet) -> tuple[int, bytes]:
        async def carried_out() -> tuple[int, bytes]:
            await self._machine.network()
            done = await self._shared.apply(writes)
            await self._machine.network()
            return done

        task = asyncio.ensure_future(carried_out())
        self._sent.add(task)
        task.add_done_callback(self._ended)
        return await asyncio.shield(task)

    def _ended(self, task: "asyncio.Task[tuple[int, bytes]]") -> None:
        self._sent.discard(task)
        if not task.cancelled():
            task.exception()  # Marked as seen: its sender may be gone.


class FarTransaction(SnapshotTransaction):
    def __init__(self, store: FarStore, machine: "Machine") -> None:
        super().__init__(store)
        self._machine = machine

    async def get(self, key: bytes, *, snapshot: bool = False) -> bytes | None:
        await self._machine.network()
        return await super().get(key, snapshot=snapshot)

    async def get_many(self, keys: Sequence[bytes], *, snapshot: bool = False) -> list[bytes | None]:
        await self._machine.network()
        return await super().get_many(keys, snapshot=snapshot)

    async def get_range(
        self, begin: bytes, end: bytes, *, limit: int = 0, reverse: bool = False, snapshot: bool = False
    ) -> list[KeyValue]:
        await self._machine.network()
        return await super().get_range(begin, end, limit=limit, reverse=reverse, snapshot=snapshot)

    async def watch(self, key: bytes) -> KeyWatch:
        await self._machine.network()
        return await super().watch(key)


class Machine:
    """A metadata server's machine. Its clock and its sleeps have their own rate."""

    def __init__(self, name: str, shared: MemoryStore, chance: Random, rate: float, link: "Link") -> None:
        self.name = name
        self.address = ADDRESS.format(name)
        self.chance = chance
        self.service: MetaService | None = None
        self.presence: Presence | None = None
        self.chains: ChainManager | None = None
        self.connected = asyncio.Event()
        self.running = asyncio.Event()
        self.connected.set()
        self.running.set()
        self.slow_share = 0.005
        self._rate = rate
        self._offset_s = chance.random() * 1e6
        self._link = link
        self._shared = shared
        self._lives = 0
        self._calls: set[asyncio.Task[Any]] = set()

    @property
    def healthy(self) -> bool:
        """Alive, running, and in touch with the store."""
        return self.service is not None and self.connected.is_set() and self.running.is_set()

    @property
    def term(self) -> int:
        """As the server itself sees it now."""
        return self.presence.manager.term if self.presence is not None else 0

    def clock(self) -> float:
        return self._offset_s + asyncio.get_running_loop().time() * self._rate

    async def sleep(self, pause_s: float) -> None:
        await asyncio.sleep(pause_s / self._rate)
        await self.running.wait()

    async def network(self) -> None:
        """One way between this machine and the store."""
        slow = self.chance.random() < self.slow_share
        await asyncio.sleep(self.chance.random() * (SLOW_DELAY_S if slow else DELAY_S))
        await self.connected.wait()
        await self.running.wait()

    async def start(self) -> None:
        """A new life of the server. Raises `StoreError`."""
        self._lives += 1
        incarnation = f"{self.name}{self._lives}"
        self.store = FarStore(self, self._shared)
        self.presence = Presence(self.store, incarnation, clock=self.clock, sleep=self.sleep)
        self.service = MetaService(self.store, self.presence, self._link, probe=dead, clock=self.clock)
        self.chains = ChainManager(
            self.store,
            self.presence.manager,
            self.presence.routing,
            self.service.heartbeats,
            self.service.fences,
            clock=self.clock,
            sleep=self.sleep,
        )
        await self.presence.start(self.address)
        self.chains.start()

    async def kill(self) -> None:
        """kill -9: nothing is given up or withdrawn."""
        presence, self.presence, self.service = self.presence, None, None
        chains, self.chains = self.chains, None
        if chains is not None:
            await chains.aclose()
        tasks = [*self._calls, *(presence.tasks if presence is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def call(self, coroutine: Coroutine[Any, Any, R]) -> R:
        """A request to this server, which ends with the server's life."""
        task = asyncio.ensure_future(coroutine)
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)
        try:
            await self.running.wait()
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled():
                raise ConnectionResetError(self.name) from None
            task.cancel()
            raise


class Link:
    """How simulated servers reach the manager: `MetaService`'s `ManagerLink`."""

    def __init__(self) -> None:
        self.machines: dict[str, Machine] = {}

    async def forward(
        self, address: str, method: Method, body: Message, reply_type: type[R], timeout_s: float = 0.5
    ) -> R | None:
        machine = self.machines[address]
        if machine.service is None:
            return None
        function: Any = {
            Method.HEARTBEAT: machine.service.heartbeat,
            Method.CLUSTER_STATUS: machine.service.cluster_status,
        }[method]
        try:
            async with asyncio.timeout(timeout_s):
                return await machine.call(function(body))  # type: ignore[no-any-return]
        except (TimeoutError, ConnectionResetError):
            return None
        except RequestFailed:
            raise
        except Exception as error:
            raise RequestFailed(Status.UNAVAILABLE, str(error)) from error

    async def aclose(self) -> None:
        pass
