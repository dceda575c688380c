"""The interface of block I/O on a drive, which a ring, threads and a fake implement.

An engine moves bytes between a descriptor and the caller's memory and says so, once, through `done(token, result)`.
It knows nothing of slots or records. One event loop owns it: every call is made on that loop, and so is every `done`.

Invariants of every engine:

- `done` runs exactly once per operation, also when the engine closes: with the bytes moved, or a negative errno. A
  short transfer is reported as it is; continuing is the caller's decision.
- The buffer is kept alive until then, and no longer touched after.
- Nothing is promised about the order of completions.
- Operations beyond the depth wait inside in the order they came; their number is for the callers to bound.
"""

from collections.abc import Callable
from typing import Any, Protocol

from esker.wire.limits import MIB

Done = Callable[[Any, int], None]
"""Called with the operation's token and its result."""

SUBMIT_BYTES = MIB
"""Submit by itself once this much is queued. Where the kernel copies while submitting (a RAM-backed file system), the
first results are on their way to a client while later ones are still being copied."""
DEPTH = 256
"""Operations the kernel has at once."""
CLOSE_TIMEOUT_S = 5.0
"""How long closing waits for operations that the kernel has begun."""


class IoEngine(Protocol):
    """See the module. Nothing starts before `submit`, or before `SUBMIT_BYTES` are queued."""

    name: str

    @property
    def in_flight(self) -> int:
        """Operations without a result yet, the queued ones included."""

    def read(self, fd: int, offset: int, buffer: memoryview, done: Done, token: Any) -> None:
        """Queues a read that fills `buffer` from `offset`; at the end of the file it is short."""

    def write(self, fd: int, offset: int, buffer: memoryview, done: Done, token: Any) -> None:
        """Queues a write of `buffer` at `offset`."""

    def submit(self) -> None:
        """Hands everything queued to the kernel, and calls `done` for what is already complete.

        Called from a `done` it returns at once: what was queued meanwhile is submitted after the batch.
        """

    def after_batch(self, callback: Callable[[], None]) -> None:
        """`callback` runs once after each batch of completions. The last registration holds."""

    def mark(self) -> int:
        """A point in the order of operations: behind all that were queued so far."""

    def passed(self, mark: int) -> bool:
        """Whether everything that was queued before `mark` is complete."""

    async def drain(self, timeout_s: float) -> bool:
        """Waits until nothing is in flight; false when it took longer than that."""

    def close(self) -> None:
        """Ends every operation: by its result where the kernel has begun it, by -ECANCELED where it has not."""
