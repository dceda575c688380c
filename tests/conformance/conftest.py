"""The engines that every conformance test runs on, and a clock that tests move by hand."""

import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from random import Random

import pytest

from esker.meta.store.base import KEY_END, Retry, Store, Transaction
from esker.meta.store.embedded import open_embedded
from esker.meta.store.memory import MemoryStore

OpenStore = Callable[[], AbstractAsyncContextManager[Store]]


class HandClock:
    """A clock that moves when told, and through `sleep`."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s

    async def sleep(self, pause_s: float) -> None:
        self.now_s += pause_s

    def retry(self) -> Retry:
        return Retry(clock=self, sleep=self.sleep, chance=Random(1))


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture(params=["memory", "embedded"])
def open_store(request: pytest.FixtureRequest, clock: HandClock) -> OpenStore:
    """Opens a fresh, empty store of one engine."""

    @asynccontextmanager
    async def opened() -> AsyncIterator[Store]:
        with tempfile.TemporaryDirectory() as directory:
            if request.param == "memory":
                store: Store = MemoryStore(clock.retry())
            else:
                store = await open_embedded(Path(directory) / "meta", clock.retry())
            try:
                yield store
            finally:
                await store.aclose()

    return opened


@pytest.fixture
async def store(open_store: OpenStore) -> AsyncIterator[Store]:
    async with open_store() as opened:
        yield opened


async def put(store: Store, **pairs: bytes) -> None:
    async def body(transaction: Transaction) -> None:
        for key, value in pairs.items():
            transaction.set(key.encode(), value)

    await store.run(body, what="put")


async def everything(store: Store) -> list[tuple[bytes, bytes]]:
    async def body(transaction: Transaction) -> list[tuple[bytes, bytes]]:
        return await transaction.get_range(b"", KEY_END)

    return await store.run(body, what="read")
