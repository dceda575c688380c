"""`KVCacheClient` for callers without an event loop: the same calls, blocking, from any thread.

Owns a daemon thread with the loop; each call crosses to it once. It ends with `close`, at the latest with the last
reference to the client. After a fork the child has neither that thread nor a right to the parent's connections: it
closes its copies at once and connects anew on its first call, with a pool of its own. Slots of before the fork stay
the parent's.
"""

import asyncio
import atexit
import concurrent.futures
import functools
import os
import threading
import weakref
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, TypeVar

import uvloop

from esker.client.buffers import BufferPool
from esker.client.channel import Transport
from esker.kvclient.client import CLOSED, CONNECT_TIMEOUT_S, POOL_BYTES, KVCacheClient
from esker.kvclient.results import ClientStatistics
from esker.wire.errors import UserError
from esker.wire.types import Geometry, NamespaceMode

P = ParamSpec("P")
T = TypeVar("T")

_open: "weakref.WeakSet[SyncKVCacheClient]" = weakref.WeakSet()


class _Engine:
    """A loop on a thread, and the client that lives there. Belongs to one process."""

    def __init__(self) -> None:
        self.loop = uvloop.new_event_loop()
        self.client: KVCacheClient | None = None
        self._lock = threading.Lock()
        self._stopping = False
        self.thread = threading.Thread(target=self._run, name="esker-client", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()
        self.loop.close()

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """The coroutine's result. Every coroutine given here ends by its own deadline."""
        try:
            self.check_not_inside()
        except UserError:
            coroutine.close()
            raise
        # Under the lock, so that every call is on the loop before its end begins, which then ends the call too.
        with self._lock:
            if self._stopping:
                coroutine.close()
                raise UserError(CLOSED)
            future = asyncio.run_coroutine_threadsafe(coroutine, self.loop)
        try:
            return future.result()
        except concurrent.futures.CancelledError:
            raise UserError("the client was closed during the call") from None
        except BaseException:
            future.cancel()
            raise

    def check_not_inside(self) -> None:
        """Raises `UserError` on the loop's own thread, which would wait for itself."""
        if threading.current_thread() is self.thread:
            raise UserError("a blocking call from the client's own thread would never end")

    def stop(self) -> None:
        """Ends the client, then the loop and its thread."""
        with self._lock:
            self._stopping = True
        asyncio.run_coroutine_threadsafe(self._finish(), self.loop).result()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()

    def abandon(self, process_id: int) -> None:
        """Like `stop`, but waits for nothing: for a client that nobody has any more, on whatever thread that is seen.

        In another process than the engine's it does nothing.
        """
        if os.getpid() != process_id:
            return
        with self._lock:
            self._stopping = True

        def ended(_: object) -> None:
            self.loop.call_soon_threadsafe(self.loop.stop)

        asyncio.run_coroutine_threadsafe(self._finish(), self.loop).add_done_callback(ended)

    async def _finish(self) -> None:
        try:
            if self.client is not None:
                await self.client.aclose()
        finally:
            others = asyncio.all_tasks() - {asyncio.current_task()}
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)


def _blocking(
    method: Callable[Concatenate[KVCacheClient, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate["SyncKVCacheClient", P], T]:
    """A call of `KVCacheClient` that ends with its result, with the same arguments and documentation."""

    @functools.wraps(method)
    def call(self: "SyncKVCacheClient", /, *args: P.args, **kwargs: P.kwargs) -> T:
        engine, client = self._client()
        return engine.call(method(client, *args, **kwargs))

    call.__qualname__ = f"SyncKVCacheClient.{method.__name__}"
    return call


class SyncKVCacheClient:
    """An open namespace, for threads. Arguments, results and errors are those of `KVCacheClient`."""

    def __init__(
        self,
        cluster: str,
        namespace: str,
        geometry: Geometry,
        *,
        mode: str = NamespaceMode.REPLICATED,
        transport: str = Transport.AUTO,
        pool: BufferPool | None = None,
        pool_bytes: int = POOL_BYTES,
        create: bool = True,
        timeout_s: float = CONNECT_TIMEOUT_S,
    ) -> None:
        self._given_pool = pool
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._closed = False
        self._engine: _Engine | None = None
        self._dropped: weakref.finalize[..., SyncKVCacheClient]

        async def connect() -> KVCacheClient:
            return await KVCacheClient.connect(
                cluster,
                namespace,
                geometry,
                mode=mode,
                transport=transport,
                pool=pool,
                pool_bytes=pool_bytes,
                create=create,
                timeout_s=timeout_s,
            )

        self._connect = connect
        self._client()
        _open.add(self)

    def _client(self) -> tuple[_Engine, KVCacheClient]:
        """The client of this process, connected if it is not yet."""
        with self._lock:
            if self._closed:
                raise UserError(CLOSED)
            if self._engine is None:
                if self._given_pool is not None and os.getpid() != self._pid:
                    raise UserError("a pool cannot be shared across a fork: make a client with its own in the child")
                engine = _Engine()
                try:
                    engine.client = engine.call(self._connect())
                except BaseException:
                    engine.stop()
                    raise
                self._engine = engine
                self._dropped = weakref.finalize(self, engine.abandon, os.getpid())
                self._dropped.atexit = False  # `_close_all` does that
            assert self._engine.client is not None
            return self._engine, self._engine.client

    @property
    def pool(self) -> BufferPool:
        """See `KVCacheClient.pool`."""
        return self._client()[1].pool

    @property
    def geometry(self) -> Geometry:
        """See `KVCacheClient.geometry`."""
        return self._client()[1].geometry

    @property
    def salt(self) -> bytes:
        """See `KVCacheClient.salt`."""
        return self._client()[1].salt

    put = _blocking(KVCacheClient.put)
    get = _blocking(KVCacheClient.get)
    exists = _blocking(KVCacheClient.exists)
    match_prefix = _blocking(KVCacheClient.match_prefix)
    remove = _blocking(KVCacheClient.remove)

    def statistics(self) -> ClientStatistics:
        """See `KVCacheClient.statistics`."""
        engine, client = self._client()

        async def read() -> ClientStatistics:
            return client.statistics()

        return engine.call(read())

    def close(self) -> None:
        """Ends connections, thread and pool. Safe to call again, at interpreter exit and in a forked child."""
        with self._lock:
            if self._engine is not None:
                self._engine.check_not_inside()
            self._closed = True
            engine, self._engine = self._engine, None
        if engine is not None:
            self._dropped.detach()
            engine.stop()
        _open.discard(self)

    def __enter__(self) -> "SyncKVCacheClient":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _forked(self) -> None:
        """In the child: the parent's thread is not here, its lock may be taken, its sockets are only copies."""
        self._lock = threading.Lock()
        engine, self._engine = self._engine, None
        if engine is not None and engine.client is not None:
            engine.client.abandon_in_child()
            _inherited.append(engine)


_inherited: list[_Engine] = []
"""Loops of the parent: never run here, and never freed, for that would touch what both processes share."""


def _after_fork() -> None:
    for client in list(_open):
        client._forked()


def _close_all() -> None:
    for client in list(_open):
        client.close()


os.register_at_fork(after_in_child=_after_fork)
atexit.register(_close_all)
