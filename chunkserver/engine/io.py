"""Block I/O of a drive: the interface that a ring, threads and a fake implement, and the choice between them.

An engine moves bytes between a descriptor and the caller's memory and says so, once, through `done(token, result)`.
It knows nothing of slots or records. One event loop owns it: every call is made on that loop, and so is every `done`.

Invariants of every engine:

- `done` runs exactly once per operation, also when the engine closes: with the bytes moved, or a negative errno. A
  short transfer is reported as it is; continuing is the caller's decision.
- The buffer is kept alive until then, and no longer touched after.
- Nothing is promised about the order of completions.
- Operations beyond the depth wait inside in the order they came; their number is for the callers to bound.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

from esker.runtime.logging import get_logger
from esker.wire.errors import UserError
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

PREFERENCES = ("auto", "io_uring", "threads")

_log = get_logger("chunkserver.engine")


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


def open_engine(preference: str = "auto", *, loop: asyncio.AbstractEventLoop | None = None) -> IoEngine:
    """An engine on `loop` (default: the running one): io_uring, or threads where that is refused.

    The fallback is logged with its reason and its fix. Raises `UserError` for an unknown preference, and where
    io_uring is asked for by name but refused.
    """
    from esker.chunkserver.engine.threads import ThreadEngine

    if preference not in PREFERENCES:
        raise UserError(f"I/O engine {preference!r} does not exist; choose one of: {', '.join(PREFERENCES)}")
    loop = loop or asyncio.get_running_loop()
    if preference == "threads":
        return ThreadEngine(loop)
    try:
        from esker.chunkserver.engine.ring import RingEngine

        return RingEngine(loop)
    except (OSError, ImportError) as error:
        reason, fix = _refusal(error)
    if preference == "io_uring":
        raise UserError(f"io_uring cannot be used: {reason}; {fix}, or choose the engine 'threads'")
    _log.warning("io_uring refused, using threads", reason=reason, fix=fix)
    return ThreadEngine(loop)


def _refusal(error: OSError | ImportError) -> tuple[str, str]:
    """Why there is no ring, and what would help."""
    if isinstance(error, ImportError):
        return str(error), "install the package liburing"
    from esker.runtime.selfcheck import check_io_uring

    return str(error), check_io_uring().fix or "start again: a ring can be made now"
