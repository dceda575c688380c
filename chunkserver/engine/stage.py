"""A thread that works off what others queue, whenever it is woken. It knows nothing of what the work is."""

import threading
from collections.abc import Callable


class Stage:
    """Calls `work`, which must not raise, after every `wake`, on a thread of its own; and once more before it ends."""

    def __init__(self, name: str, work: Callable[[], None]) -> None:
        self._work = work
        self._woken = threading.Event()
        self._finishing = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """There is work. From any thread."""
        self._woken.set()

    def finish(self) -> None:
        """Waits until everything is worked off, and ends the thread; nothing may be queued any more."""
        self._finishing = True
        self._woken.set()
        self._thread.join()

    def _run(self) -> None:
        while True:
            self._woken.wait()
            self._woken.clear()
            # Read before working: what was queued before finishing began is worked off below.
            finishing = self._finishing
            self._work()
            if finishing:
                return
