"""Memory that two processes share: made by its owner, or another process's, taken over by descriptor.

`SharedArena` is a sealed memfd that this process may hand to others. `ForeignMemory` is another process's memory:
mapped only so that the kernel can be told addresses in it. Touching such a mapping with the CPU could raise SIGBUS
when its owner truncates the file, hence the rule: only ring reads go into it, only `preadv` from its descriptor
reads it (`copy_from`), and it is unmapped only when no I/O refers to it.
"""

import fcntl
import os
import stat
from collections.abc import Sequence

from esker.wire.errors import UserError
from esker.wire.huge_pages import HUGE_PAGE_BYTES, HugePages, Mapping
from esker.wire.limits import ALIGN_BYTES

SEALS = fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL


class SharedArena:
    """A page-aligned, sealed, memfd-backed arena of exactly `size_bytes`, populated at once.

    Raises `UserError` when the size is not a multiple of 4 KiB or the memory is not there.
    """

    def __init__(self, size_bytes: int, name: str = "esker-pool") -> None:
        if size_bytes <= 0 or size_bytes % ALIGN_BYTES:
            raise UserError(f"pool of {size_bytes} bytes; allowed: positive multiples of {ALIGN_BYTES}")
        self.size_bytes = size_bytes
        self.fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(self.fd, size_bytes)
            fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, SEALS)
            self._mapping = Mapping(self.fd, size_bytes, populate=True)
        except (OSError, OverflowError) as error:
            os.close(self.fd)
            raise UserError(f"cannot map a pool of {size_bytes} bytes: {error}; ask for less memory") from error
        self.view = self._mapping.view
        self._used_bytes = 0
        self.huge_pages: HugePages | None = None
        """What exchanges its pages for huge ones, once that has begun."""

    def used(self, count_bytes: int) -> None:
        """So much of it is being transferred. Once all of it was, on average, huge pages are worth their cost."""
        self._used_bytes += count_bytes
        if self.huge_pages is None and self._used_bytes >= self.size_bytes >= HUGE_PAGE_BYTES:
            self.huge_pages = HugePages(self.view)

    def close(self) -> None:
        """Unmaps the arena. Raises `BufferError` while views of it live; safe to call again."""
        if self.fd < 0:
            return
        self._stop_huge_pages()
        try:
            self._mapping.close()
        except BufferError:
            self.view = self._mapping.view
            raise
        os.close(self.fd)
        self.fd = -1

    def abandon(self) -> None:
        """Closes the descriptor now and leaves the mapping to the last view of it; safe to call again."""
        if self.fd < 0:
            return
        self._stop_huge_pages()
        self.view.release()
        del self._mapping
        os.close(self.fd)
        self.fd = -1

    def _stop_huge_pages(self) -> None:
        if self.huge_pages is not None:
            self.huge_pages.stop()


class BadMemory(Exception):
    """The descriptor does not name memory that can be used; the text says why."""


class ForeignMemory:
    """Another process's memory, mapped for ring reads. Owns `fd`, also when it raises `BadMemory`.

    `users` counts operations that refer to it; after `retire` the last one to leave unmaps it.
    """

    __slots__ = ("_mapping", "_retired", "fd", "length_bytes", "users", "view")

    def __init__(self, fd: int, length_bytes: int) -> None:
        self.fd = fd
        self.length_bytes = length_bytes
        self.users = 0
        self._retired = False
        try:
            _check(fd, length_bytes)
            self._mapping = Mapping(fd, length_bytes, populate=False)
        except (OSError, ValueError, OverflowError) as error:
            os.close(fd)
            raise BadMemory(f"cannot be mapped: {error}") from error
        except BadMemory:
            os.close(fd)
            raise
        self.view = self._mapping.view

    def holds(self, offset: int, length_bytes: int) -> bool:
        """Whether `length_bytes` at `offset` lie inside. Python integers: nothing overflows."""
        return offset >= 0 and length_bytes >= 0 and offset + length_bytes <= self.length_bytes

    def copy_from(self, offset: int, destinations: Sequence[memoryview]) -> bool:
        """Copies bytes from `offset` into `destinations` through the descriptor. False if they are not all there."""
        wanted = sum(len(destination) for destination in destinations)
        try:
            return os.preadv(self.fd, destinations, offset) == wanted
        except OSError:
            return False

    def leave(self) -> None:
        """One operation less refers to this memory."""
        self.users -= 1
        if self._retired and self.users == 0:
            self._unmap()

    def retire(self) -> None:
        """No new operation may use it; it is unmapped once the last one has left."""
        if not self._retired:
            self._retired = True
            if self.users == 0:
                self._unmap()

    def _unmap(self) -> None:
        # Not closed but let go: whoever reports the last operation may hold its piece of the view a moment longer.
        self.view.release()
        del self._mapping
        os.close(self.fd)
        self.fd = -1


def _check(fd: int, length_bytes: int) -> None:
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode):
        raise BadMemory("not a memory file")
    if length_bytes <= 0 or length_bytes % ALIGN_BYTES:
        raise BadMemory(f"{length_bytes} bytes; allowed: positive multiples of {ALIGN_BYTES}")
    if status.st_size < length_bytes:
        raise BadMemory(f"{status.st_size} bytes long, {length_bytes} were claimed")
    try:
        seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
    except OSError:
        return  # a plain file: cannot be sealed, so truncation must be (and is) survived
    wanted = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
    if seals & wanted != wanted and not seals & fcntl.F_SEAL_SEAL:
        raise BadMemory("a memfd that could be sealed must carry F_SEAL_SHRINK and F_SEAL_GROW")
