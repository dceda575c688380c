"""Shared mappings that the kernel can back by huge pages, and the asking for them.

Copies out of a memory file, and direct I/O into and out of it, cost half to a third as much where its pages are huge.
The kernel maps such pages only at multiples of their size, which Python's `mmap` does not choose: `Mapping` does. Most
systems give memory files none by themselves; `HugePages` has them made for memory in use, in a thread, since each takes
milliseconds. Nothing depends on it: where the kernel refuses, pages stay small.
"""

import ctypes
import mmap
import os
import threading

HUGE_PAGE_BYTES = 2 << 20
HUGE_BYTES_MAX = 1 << 30
"""At most this much of a mapping is asked for: making a page costs up to 5 ms of a core where memory is scarce."""
ATTEMPTS = 3
"""A page that I/O refers to at the moment cannot be exchanged; it is asked for again after the others."""

_MAP_FIXED = 0x10
_MAP_NORESERVE = 0x4000
_MADV_COLLAPSE = 25

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_longlong,
)
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


class Mapping:
    """The first `size_bytes` of file `fd`, mapped shared, where huge pages can be; `view` is its memory.

    It holds some address space besides. Raises `OSError` or `OverflowError` where it cannot be mapped. Unmapped by
    `close`, or with the last view of it.
    """

    __slots__ = ("_owner", "_size_bytes", "_start", "view")

    def __init__(self, fd: int, size_bytes: int, *, populate: bool) -> None:
        flags = mmap.MAP_SHARED | (mmap.MAP_POPULATE if populate else 0)
        self._size_bytes = size_bytes
        self._start = 0
        if size_bytes < HUGE_PAGE_BYTES:
            self._owner = mmap.mmap(fd, size_bytes, flags)
        else:
            # Address space with room to choose an aligned place in; the file then takes that place.
            private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
            self._owner = mmap.mmap(-1, size_bytes + HUGE_PAGE_BYTES, private)
            begin = _address(memoryview(self._owner))
            address = -(-begin // HUGE_PAGE_BYTES) * HUGE_PAGE_BYTES
            self._start = address - begin
            protection = mmap.PROT_READ | mmap.PROT_WRITE
            if _libc.mmap(address, size_bytes, protection, flags | _MAP_FIXED, fd, 0) != address:
                number = ctypes.get_errno()
                raise OSError(number, os.strerror(number))
        self.view = self._whole()

    def _whole(self) -> memoryview:
        return memoryview(self._owner)[self._start : self._start + self._size_bytes]

    def close(self) -> None:
        """Unmaps it. Raises `BufferError` while views other than `view` live, and leaves it as it was."""
        self.view.release()
        try:
            self._owner.close()
        except BufferError:
            self.view = self._whole()
            raise


class HugePages:
    """Exchanges the pages of a `Mapping` for huge ones, in a thread. `stop` before it is unmapped."""

    def __init__(self, view: memoryview) -> None:
        address = _address(view)
        size_bytes = min(len(view), HUGE_BYTES_MAX)
        self._left = list(range(address, address + size_bytes - HUGE_PAGE_BYTES + 1, HUGE_PAGE_BYTES))
        self.made = 0
        """Pages made so far."""
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="esker-huge-pages", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        for _ in range(ATTEMPTS):
            refused = []
            for address in self._left:
                if self._stopping:
                    return
                if _libc.madvise(address, HUGE_PAGE_BYTES, _MADV_COLLAPSE):
                    refused.append(address)
                else:
                    self.made += 1
            if len(refused) == len(self._left):
                return  # this kernel does not
            self._left = refused

    def wait(self, timeout_s: float) -> bool:
        """Until all that can be exchanged is; false when it took longer."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def stop(self) -> None:
        """Ends it, within the time that one page takes."""
        self._stopping = True
        self._thread.join()


def _address(view: memoryview) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(view))
