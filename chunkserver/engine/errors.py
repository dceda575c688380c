"""What the engine raises, beside `UserError` for a drive that cannot be opened.

EskerError
├── NoSpace          the drive is full; nothing was changed
├── DriveFailed      the drive takes no more writes; what it holds may still be readable
├── CorruptRecord    a record on the drive is not what was written; a miss for whoever asked
└── UserError
    └── DriveOwned   another worker has the drive open
"""

from esker.wire.errors import EskerError, UserError


class NoSpace(EskerError):
    """No slot can be had: the capacity or the file system is used up."""


class DriveFailed(EskerError):
    """The drive broke a promise of durability, or refuses to grow for another reason than space."""


class CorruptRecord(EskerError):
    """A record fails its checksum, or cannot be what it says."""


class DriveOwned(UserError):
    """The drive is open in another process; the text names it."""
