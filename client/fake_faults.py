"""What a worker of the fake cluster does wrong until told otherwise. A separate file, as all its handlers know it."""

from dataclasses import dataclass, field

from esker.wire.messages import Method
from esker.wire.status import Status


@dataclass(slots=True)
class Faults:
    """What a worker does wrong until told otherwise."""

    hold: set[Method] = field(default_factory=set)
    """Requests of these methods are kept until `FakeWorker.go_on`, as a stopped process would."""
    status: dict[Method, Status] = field(default_factory=dict)
    """Every extent of these methods is answered so."""
    busy: int = 0
    """So many requests are refused as BUSY."""
    unfinished: int = 0
    """So many new chunks are stored, but answered as if the chain had changed meanwhile."""
    cut: bool = False
    """Connections end in the middle of the payload of a READ."""
    corrupt: bool = False
    """The first byte of what is read is another."""
