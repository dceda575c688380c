"""Tells when a process of this host is gone, through a pidfd: from then on it can touch no memory of ours.

Knows nothing of what the process did. `os.pidfd_open` on Linux becomes readable when the process has ended.
"""

import asyncio
import os
from collections.abc import Callable


class ProcessWatch:
    """Watches `pid` until it is gone or nobody cares. Raises `OSError` where it cannot be watched."""

    def __init__(self, pid: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._fd = os.pidfd_open(pid)
        self._callbacks: list[Callable[[], None]] = []
        self.gone = False
        self._loop.add_reader(self._fd, self._ended)

    def when_gone(self, callback: Callable[[], None]) -> None:
        """Calls `callback` once the process is gone (soon, where it is already)."""
        if self.gone:
            self._loop.call_soon(callback)
        else:
            assert self._fd >= 0, "closed watches see nothing"
            self._callbacks.append(callback)

    def retire(self) -> None:
        """No more callbacks will be added: the watch ends now where there are none, else with the process."""
        if not self._callbacks:
            self.close()

    def _ended(self) -> None:
        self.gone = True
        self.close()
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback()

    def close(self) -> None:
        """Stops watching; callbacks that are left are not called. Safe to call again."""
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1
