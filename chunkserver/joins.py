"""What a drive knows of its workers' joins, so that a copy of its directory from earlier is not taken for it.

Each worker counts on from the last join that the drive knows of, and names the lives in which it may have joined since.
That stands on the drive before the worker joins. A directory that was put back from a copy knows fewer joins than the
cluster map, and not the life that joined last: the metadata server refuses it (`meta/cluster.py`). Whether it is right
to refuse is not decided here. A copy that was taken while the worker was up, of the life that joined last, is not told
from the drive.
"""

from collections.abc import Callable

import msgspec

from esker.chunkserver.engine.store import DriveStore
from esker.runtime.logging import get_logger
from esker.wire.limits import JOIN_LIVES_MAX
from esker.wire.status import Status

log = get_logger("chunkserver.joins")

JOINS_STATE = "joins"


class _Kept(msgspec.Struct, array_like=True):
    joins: int = 0
    """Of this drive, as far as it knows."""
    lives: tuple[str, ...] = ()
    """Incarnations: the one of the last join that it knows of, and those that may have joined since."""


class JoinHistory:
    """Of one drive, in the life `incarnation` of its worker."""

    def __init__(self, store: DriveStore, incarnation: str, fail_drive: Callable[[str], None]) -> None:
        """The drive must have kept what was put (`store.drain`) before the worker joins."""
        self._store = store
        self._incarnation = incarnation
        self._fail_drive = fail_drive
        self._joined = False
        self.lacks_room = False
        """The drive has no room to keep `lives`; the worker must not join then."""
        kept = _load(store)
        self.join = kept.joins + 1
        """The number of the join of this life."""
        self.lives = (*kept.lives, incarnation)[-JOIN_LIVES_MAX:]
        """For the metadata server: those in which the drive may have joined last."""
        self._put(_Kept(kept.joins, self.lives))

    def joined(self) -> None:
        """The metadata server has taken this life."""
        if not self._joined:
            self._joined = True
            self.lives = (self._incarnation,)
            self._put(_Kept(self.join, self.lives))

    def _put(self, kept: _Kept) -> None:
        self._store.state_put(JOINS_STATE, msgspec.msgpack.encode(kept), self._done, JOINS_STATE)

    def _done(self, name: str, status: Status) -> None:
        if status is Status.NO_SPACE:
            # Once it has joined, the drive knows this life, which is all that the next join needs.
            self.lacks_room = not self._joined
        elif status is not Status.OK:
            self._fail_drive(f"cannot keep {name} on the drive: {status.name}")


def _load(store: DriveStore) -> _Kept:
    stored = store.state_get(JOINS_STATE)
    if stored is None:
        return _Kept()
    try:
        return msgspec.msgpack.decode(stored, type=_Kept)
    except msgspec.DecodeError as error:
        log.warning("the joins kept on the drive are unreadable", reason=str(error))
        return _Kept()
