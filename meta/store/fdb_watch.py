"""A watch of FoundationDB: the package's future, which outlives its transaction once that is committed."""

import asyncio
from typing import Any

from esker.meta.store.base import Watch
from esker.meta.store.errors import StoreError
from esker.meta.store.fdb_library import FoundationLibrary


class FoundationWatch(Watch):
    """See `Watch`. `open_watches` holds it as long as it may still fire."""

    def __init__(self, library: FoundationLibrary, future: Any, open_watches: "set[FoundationWatch]") -> None:
        self._library = library
        self._future = future
        self._open_watches = open_watches
        self._armed = False
        self._fired: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        open_watches.add(self)
        library.when_ready(future, self._ready)

    async def wait(self, timeout_s: float) -> bool:
        done, _ = await asyncio.wait([self._fired], timeout=timeout_s)
        return bool(done) and self._fired.result()

    def cancel(self) -> None:
        if not self._fired.done():
            self._fired.set_result(False)
        self._let_go()

    def arm(self) -> None:
        """The transaction is committed: from now on the future's outcome counts."""
        self._armed = True
        if self._future.is_ready():
            self._ready()

    def abandon(self, error: StoreError) -> None:
        """Make `wait` raise `error`, unless it is over."""
        if not self._fired.done():
            self._fired.set_exception(error)
            self._fired.exception()  # Marked as seen: a watch nobody waits for is no fault.
        self._let_go()

    def _ready(self) -> None:
        if not self._armed or self._fired.done():
            return
        try:
            self._future.wait()
        except self._library.fdb.FDBError as error:
            if not self._library.is_passing(error):
                self.abandon(self._library.translated(error))
                return
            # The watch is lost, the value perhaps another: to say so once too often is allowed.
        self._fired.set_result(True)
        self._let_go()

    def _let_go(self) -> None:
        self._open_watches.discard(self)
        self._future.cancel()
