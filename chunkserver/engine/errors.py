"""What the engine raises, beside `UserError` for a drive that cannot be opened.

EskerError
├── NoSpace          the drive is full; nothing was changed
├── CorruptRecord    a record on the drive is not what was written; a miss for whoever asked
├── RequestFailed
│   └── DriveFailed      the drive takes no more writes, or its index cannot be read; who asked gets UNAVAILABLE
└── UserError
    └── NotNow           a passing reason; the same start may succeed later
        └── DriveOwned   another worker has the drive open
"""

from esker.wire.errors import EskerError, RequestFailed, UserError
from esker.wire.status import Status


class NoSpace(EskerError):
    """No slot can be had: the capacity or the file system is used up."""


class DriveFailed(RequestFailed):
    """The drive broke a promise of durability, refuses to grow for another reason than space, or does not give its
    index any more.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(Status.UNAVAILABLE, f"the drive has failed: {reason}")


class CorruptRecord(EskerError):
    """A record fails its checksum, or cannot be what it says."""


class NotNow(UserError):
    """The drive cannot be served at present: nothing about its configuration has to change for it to be served."""


class DriveOwned(NotNow):
    """The drive is open in another process; the text names it."""
