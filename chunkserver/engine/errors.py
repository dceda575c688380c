"""What the engine raises, beside `UserError` for a drive that cannot be opened.

EskerError
├── NoSpace          the drive is full; nothing was changed
├── DriveFailed      the drive takes no more writes; what it holds may still be readable
├── CorruptRecord    a record on the drive is not what was written; a miss for whoever asked
└── UserError
    └── NotNow           a passing reason; the same start may succeed later
        └── DriveOwned   another worker has the drive open
"""

from esker.wire.errors import EskerError, UserError


class NoSpace(EskerError):
    """No slot can be had: the capacity or the file system is used up."""


class DriveFailed(EskerError):
    """The drive broke a promise of durability, or refuses to grow for another reason than space."""


class CorruptRecord(EskerError):
    """A record fails its checksum, or cannot be what it says."""


class NotNow(UserError):
    """The drive cannot be served at present: nothing about its configuration has to change for it to be served."""


class DriveOwned(NotNow):
    """The drive is open in another process; the text names it."""
