"""A resync in simulation: what `chunkserver/resync.py` does, with every step of it at some later time."""

from collections.abc import Callable, Iterable
from typing import Any, Protocol

from esker.craq import messages as craq
from esker.wire.status import Status

RETRY_S = 0.1
TRIES_MAX = 50
SETTLED = (Status.OK, Status.EXISTS, Status.CHECKSUM)


class SyncedNode(Protocol):
    """What a resync needs of either node."""

    drive: str
    store: dict[bytes, craq.Stored]
    machine: Any
    resync: "Resync | None"

    def ready(self, version: int) -> bool: ...

    def later(self, what: str, event: Callable[[], None]) -> None: ...

    def after(self, delay_s: float, run: Callable[[], None]) -> None: ...

    def arrive(self, event: Any, answer: Callable[[Status, craq.Stored | None], None]) -> None: ...


class Resync:
    """Of one chain version. `synced` and `stalled` are what heartbeats say of it."""

    def __init__(self, node: SyncedNode, target: SyncedNode, version: int, earlier: Iterable[bytes]) -> None:
        self._node = node
        self._target = target
        self.version = version
        self.synced = False
        self.stalled = False
        self._left = set(earlier)
        self._tries = 0
        self._then("its own records", self._read_own)

    def _then(self, what: str, step: Callable[[], None]) -> None:
        """Goes on at some later step, unless this job has ended by then."""

        def run() -> None:
            if self._node.resync is self:
                step()

        self._node.later(f"resync of {self._target.drive} in {self.version}: {what}", run)

    def _read_own(self) -> None:
        self._own = dict(self._node.store)
        self._then("the other's records", self._read_theirs)

    def _read_theirs(self) -> None:
        if not self._target.ready(self.version):
            self._again("the other's records", self._read_theirs)
            return
        theirs = self._target.store
        self._left |= {chunk for chunk in self._own | theirs if self._own.get(chunk) != theirs.get(chunk)}
        for chunk in sorted(self._left):
            self._sync(chunk)
        self._look()

    def _again(self, what: str, step: Callable[[], Any]) -> None:
        self._tries += 1
        if self._tries > TRIES_MAX:
            self.stalled = True
        else:
            self._node.after(RETRY_S, lambda: self._then(what, step))

    def _sync(self, chunk: bytes) -> None:
        if self._node.machine is not None:
            self._node.arrive(craq.Sync(0, self.version, chunk), lambda status, stored: self._synced(chunk, status))

    def _synced(self, chunk: bytes, status: Status) -> None:
        if status in SETTLED:
            self._left.discard(chunk)
            self._look()
        else:
            self._again(f"sync after {status.name}", lambda: self._sync(chunk))

    def _look(self) -> None:
        if not self._left and self._node.resync is self:
            self.synced = True
