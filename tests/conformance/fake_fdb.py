"""A stand-in for the package `fdb` over a store in memory: futures become ready on a thread of its own.

It has what the engine uses of the package, with the package's ways: values are read from futures, errors are numbers,
a key that is to be stamped carries its offset in its last four bytes, options stand on the database.
"""

import asyncio
import queue
import threading
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any

from esker.meta.store.base import Retry, after_key
from esker.meta.store.errors import (
    CommitUnknown,
    InvalidOperation,
    LimitExceeded,
    NotCommitted,
    StoreFailed,
    TransactionTooOld,
)
from esker.meta.store.memory import MemoryStore

CONFLICTING = b"\xff\xff/transaction/conflicting_keys/"
CODES = {
    CommitUnknown: 1021,
    InvalidOperation: 1036,
    LimitExceeded: 2101,
    NotCommitted: 1020,
    TransactionTooOld: 1007,
    StoreFailed: 1500,
}
RETRYABLE = {1007, 1009, 1020, 1021, 1037}
MAYBE_COMMITTED = {1021}
PAGE_ROWS = 100


class FDBError(Exception):
    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code
        self.description = b"error %d" % code


class Network:
    """The library's thread, on which futures become ready."""

    def __init__(self) -> None:
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="fake-fdb-network")
        self._thread.start()

    def soon(self, function: Callable[[], None]) -> None:
        self._work.put(function)

    def stop(self) -> None:
        self._work.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (function := self._work.get()) is not None:
            function()


class Future:
    """Ready once its outcome was set from the network thread."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._lock = threading.Lock()
        self._callbacks: list[Callable[[Any], None]] = []
        self._ready = False
        self._outcome: Any = None
        self.cancels = 0

    def settle(self, outcome: Any) -> None:
        """The outcome, soon. The first one counts."""

        def ready() -> None:
            with self._lock:
                if self._ready:
                    return
                self._ready, self._outcome = True, outcome
            for callback in self._callbacks:
                callback(self)

        self._network.soon(ready)

    def is_ready(self) -> bool:
        return self._ready

    def on_ready(self, callback: Callable[[Any], None]) -> None:
        with self._lock:
            if not self._ready:
                self._callbacks.append(callback)
                return
        callback(self)

    def cancel(self) -> None:
        self.cancels += 1
        self.settle(FDBError(1101))

    def wait(self) -> Any:
        assert self._ready, "the package would block here"
        if isinstance(self._outcome, Exception):
            raise self._outcome
        return self._outcome

    @property
    def value(self) -> Any:
        return self.wait()


class FakeFdb(SimpleNamespace):
    """The package. `plan` takes, per operation, what is to go wrong next: a code to fail with, ("after", code) to fail
    with once it was carried out, or "silent": never carried out and never ready.
    """

    def __init__(self, retry: Retry) -> None:
        self.LATEST_API_VERSION = 730
        self.__version__ = "7.3.0"
        self.network = Network()
        self.store = MemoryStore(retry)
        self.plan: dict[str, list[Any]] = {}
        self.futures: list[tuple[str, Future]] = []
        self.silent: asyncio.Queue[Future] = asyncio.Queue()
        self.settings: dict[str, Any] = {}
        self.FDBError = FDBError
        self.StreamingMode = SimpleNamespace(exact="exact", want_all="want_all")
        self.KeySelector = SimpleNamespace(first_greater_or_equal=bytes, first_greater_than=after_key)
        self.predicates = SimpleNamespace(
            is_retryable=lambda error: error.code in RETRYABLE,
            is_maybe_committed=lambda error: error.code in MAYBE_COMMITTED,
        )
        self.options = SimpleNamespace(set_fail_incompatible_client=lambda: self._set("fail_incompatible_client"))

    def api_version(self, version: int) -> None:
        assert version <= self.LATEST_API_VERSION
        self._set("api_version", version)

    def open(self, cluster_file: str) -> "FakeDatabase":
        assert self.settings["api_version"] == 730
        self._set("cluster_file", cluster_file)
        return FakeDatabase(self)

    def future(self, operation: str, outcome: Callable[[], Any]) -> Future:
        future = Future(self.network)
        self.futures.append((operation, future))
        planned = self.plan.get(operation)
        step = planned.pop(0) if planned else None
        if isinstance(step, int):
            future.settle(FDBError(step))
        elif isinstance(step, tuple):
            outcome()
            future.settle(FDBError(step[1]))
        elif step == "silent":
            self.silent.put_nowait(future)
        else:
            future.settle(outcome())
        return future

    def stop(self) -> None:
        self.network.stop()

    def _set(self, name: str, value: Any = True) -> None:
        self.settings[name] = value


class FakeDatabase:
    def __init__(self, fdb: FakeFdb) -> None:
        self._fdb = fdb
        self.client_status = b"{}"
        self.options = SimpleNamespace(
            set_transaction_timeout=lambda ms: fdb._set("timeout_ms", ms),
            set_transaction_size_limit=lambda size: fdb._set("size_limit", size),
            set_transaction_report_conflicting_keys=lambda: fdb._set("report_conflicting_keys"),
        )

    def create_transaction(self) -> "FakeTransaction":
        return FakeTransaction(self._fdb)

    def get_client_status(self) -> Future:
        return self._fdb.future("client_status", lambda: self._fdb.settings.get("client_status", b"{}"))


class Reading:
    def __init__(self, transaction: "FakeTransaction", snapshot: bool) -> None:
        self._transaction = transaction
        self._snapshot = snapshot

    def get(self, key: bytes) -> Future:
        inner = self._transaction.inner
        return self._transaction.future("get", lambda: inner.get(key, snapshot=self._snapshot))

    def _get_range(self, begin: bytes, end: bytes, limit: int, mode: str, iteration: int, reverse: bool) -> Future:
        if begin.startswith(CONFLICTING):
            rows = self._transaction.conflicting_rows()
            return self._transaction.fdb.future("conflicting_keys", lambda: (rows, len(rows), 0))
        assert limit or mode == "want_all"

        async def page() -> Any:
            rows = await self._transaction.inner.get_range(
                begin, end, limit=min(limit or PAGE_ROWS, PAGE_ROWS), reverse=reverse, snapshot=self._snapshot
            )
            return [SimpleNamespace(key=key, value=value) for key, value in rows], len(rows), len(rows) == PAGE_ROWS

        return self._transaction.future("get_range", page)


class FakeTransaction(Reading):
    def __init__(self, fdb: FakeFdb) -> None:
        super().__init__(self, snapshot=False)
        self.fdb = fdb
        self.inner = fdb.store.transaction()
        self.snapshot = Reading(self, snapshot=True)
        self._conflicts: tuple[tuple[bytes, bytes], ...] = ()
        self._version = -1
        self._stamps: list[Future] = []

    def get_read_version(self) -> Future:
        return self.future("get_read_version", self.inner.read_version)

    def set(self, key: bytes, value: bytes) -> None:
        self.inner.set(key, value)

    def clear(self, key: bytes) -> None:
        self.inner.clear(key)

    def clear_range(self, begin: bytes, end: bytes) -> None:
        self.inner.clear_range(begin, end)

    def add(self, key: bytes, operand: bytes) -> None:
        self.inner.add(key, operand)

    def set_versionstamped_key(self, key: bytes, value: bytes) -> None:
        at = int.from_bytes(key[-4:], "little")
        self.inner.set_versionstamped_key(key[:at], key[at + 10 : -4], value)

    def add_read_conflict_range(self, begin: bytes, end: bytes) -> None:
        driven(self.inner.add_read_conflict_range(begin, end))

    def add_write_conflict_range(self, begin: bytes, end: bytes) -> None:
        self.inner.add_write_conflict_range(begin, end)

    def watch(self, key: bytes) -> Future:
        watch = driven(self.inner.watch(key))
        future = self.fdb.future("watch", lambda: None) if self.fdb.plan.get("watch") else Future(self.fdb.network)

        def fired(done: "asyncio.Future[bool]") -> None:
            future.settle(FDBError(1025) if done.exception() else None)

        watch._fired.add_done_callback(fired)
        return future

    def commit(self) -> Future:
        def outcome() -> Any:
            try:
                self._version = driven(self.inner.commit())
            except NotCommitted as error:
                self._conflicts = error.ranges
                return FDBError(1020)
            except tuple(CODES) as error:
                return FDBError(CODES[type(error)])
            for stamp in self._stamps:
                stamp.settle(self.inner.versionstamp())
            return None

        return self.fdb.future("commit", outcome)

    def get_versionstamp(self) -> Future:
        self._stamps.append(Future(self.fdb.network))
        return self._stamps[-1]

    def get_committed_version(self) -> int:
        return self._version

    def reset(self) -> None:
        self.inner.reset()
        self._conflicts = ()
        self._version = -1
        self._stamps.clear()

    def conflicting_rows(self) -> list[Any]:
        rows = []
        for begin, end in self._conflicts:
            rows.append(SimpleNamespace(key=CONFLICTING + begin, value=b"1"))
            rows.append(SimpleNamespace(key=CONFLICTING + end, value=b"0"))
        return rows

    def future(self, operation: str, function: Callable[[], Coroutine[Any, Any, Any]]) -> Future:
        def outcome() -> Any:
            try:
                return driven(function())
            except tuple(CODES) as error:
                return FDBError(CODES[type(error)])

        return self.fdb.future(operation, outcome)


def driven(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """The result of a coroutine that never really waits."""
    while True:
        try:
            coroutine.send(None)
        except StopIteration as done:
            return done.value
