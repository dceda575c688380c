"""The choice of an engine for block I/O: io_uring, or threads where it is refused."""

import asyncio

from esker.chunkserver.engine.interface import Done, IoEngine
from esker.chunkserver.engine.ring import RingEngine
from esker.chunkserver.engine.threads import ThreadEngine
from esker.runtime.logging import get_logger
from esker.runtime.selfcheck import check_io_uring
from esker.wire.errors import UserError

__all__ = ["PREFERENCES", "Done", "IoEngine", "open_engine"]

PREFERENCES = ("auto", "io_uring", "threads")

_log = get_logger("chunkserver.engine")


def open_engine(preference: str = "auto", *, loop: asyncio.AbstractEventLoop | None = None) -> IoEngine:
    """An engine on `loop` (default: the running one): io_uring, or threads where that is refused.

    The fallback is logged with its reason and its fix. Raises `UserError` for an unknown preference, and where
    io_uring is asked for by name but refused.
    """
    if preference not in PREFERENCES:
        raise UserError(f"I/O engine {preference!r} does not exist; choose one of: {', '.join(PREFERENCES)}")
    loop = loop or asyncio.get_running_loop()
    if preference == "threads":
        return ThreadEngine(loop)
    try:
        return RingEngine(loop)
    except OSError as error:
        reason, fix = str(error), check_io_uring().fix or "upgrade the package liburing"
    if preference == "io_uring":
        raise UserError(f"io_uring cannot be used: {reason}; {fix}, or choose the engine 'threads'")
    _log.warning("io_uring refused, using threads", reason=reason, fix=fix)
    return ThreadEngine(loop)
