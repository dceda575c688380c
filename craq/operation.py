"""What a replica knows of one operation under way."""

from enum import Enum, auto

from esker.craq.messages import Arrival, Forwarded, Stored
from esker.wire.status import Status

ANY_VERSION = 0
CONFIRMED = (Status.OK, Status.EXISTS)
"""What a successor answers that has the same now."""


class Step(Enum):
    """What a local copy is to an operation."""

    NONE = auto()
    """Nothing is stored here, or what is must be replaced, or it is not known yet."""
    PENDING = auto()
    """Being written or removed: the drive's report is awaited."""
    DURABLE = auto()
    FAILED = auto()


class Operation:
    """A create, a removal, a sync or a repair under way at this replica."""

    __slots__ = (
        "created",
        "event",
        "expired",
        "forwarded",
        "local",
        "replacing",
        "sources",
        "status",
        "stored",
        "unreached",
    )

    def __init__(self, event: Arrival) -> None:
        self.event = event
        self.local = Step.NONE
        self.created = False
        self.expired = False
        self.replacing = False
        """A sync whose copy is on its way to the successor."""
        self.stored: Stored | None = None
        """What is, or is about to be, here."""
        self.forwarded: Forwarded | None = None
        """The successor's answer; None while it is awaited."""
        self.status: Status | None = None
        """The answer to give once the local copy has been discarded."""
        self.sources: list[str] = []
        """Of a repair: drives whose copies have not been looked at yet, the next one last."""
        self.unreached = False
        """Of a repair: a drive could not be asked for its copy."""
