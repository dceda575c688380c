"""The engines that every conformance test runs on, and a clock that tests move by hand.

FoundationDB's engine runs on a stand-in for its package, and on a real cluster where `ESKER_TEST_FDB_CLUSTER_FILE`
names its cluster file: under random prefixes, of which nothing is left behind.
"""

import os
import secrets
import sys
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from random import Random

import pytest

from esker.meta.store.base import KEY_END, Retry, Store, Transaction
from esker.meta.store.embedded import open_embedded
from esker.meta.store.fdb_opening import open_foundationdb
from esker.meta.store.memory import MemoryStore

from .fake_fdb import FakeFdb

CLUSTER_FILE_VARIABLE = "ESKER_TEST_FDB_CLUSTER_FILE"

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


@asynccontextmanager
async def on_memory(retry: Retry) -> AsyncIterator[Store]:
    store = MemoryStore(retry)
    try:
        yield store
    finally:
        await store.aclose()


@asynccontextmanager
async def on_lmdb(retry: Retry) -> AsyncIterator[Store]:
    with tempfile.TemporaryDirectory() as directory:
        store = await open_embedded(Path(directory) / "meta", retry)
        try:
            yield store
        finally:
            await store.aclose()


@asynccontextmanager
async def on_fake_fdb(retry: Retry) -> AsyncIterator[Store]:
    fake = FakeFdb(retry)
    try:
        with tempfile.NamedTemporaryFile("w") as cluster_file, pytest.MonkeyPatch.context() as patch:
            cluster_file.write("test:id@127.0.0.1:4500")
            cluster_file.flush()
            patch.setitem(sys.modules, "fdb", fake)
            store = await open_foundationdb(Path(cluster_file.name), prefix=b"test/", retry=retry)
            try:
                yield store
            finally:
                await store.aclose()
    finally:
        fake.stop()


@asynccontextmanager
async def on_fdb(retry: Retry) -> AsyncIterator[Store]:
    cluster_file = Path(os.environ[CLUSTER_FILE_VARIABLE])
    prefix = b"esker-test/" + secrets.token_bytes(16) + b"/"
    try:
        store = await open_foundationdb(cluster_file, prefix=prefix, retry=retry)
        try:
            yield store
        finally:
            await store.aclose()
    finally:
        cleaner = await open_foundationdb(cluster_file, prefix=prefix)
        transaction = cleaner.transaction()
        transaction.clear_range(b"", KEY_END)
        await transaction.commit()
        await cleaner.aclose()


ENGINES = {"memory": on_memory, "embedded": on_lmdb, "fake fdb": on_fake_fdb}
if os.environ.get(CLUSTER_FILE_VARIABLE):
    ENGINES["fdb"] = on_fdb


@pytest.fixture(params=ENGINES)
def open_store(request: pytest.FixtureRequest, clock: HandClock) -> OpenStore:
    """Opens a fresh, empty store of one engine."""
    return lambda: ENGINES[request.param](clock.retry())


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
