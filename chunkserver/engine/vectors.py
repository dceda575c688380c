"""Reusable `iovec` structures for the ring: one entry each, pointed at any writable memory without making an object.

`liburing.Iovec` keeps a reference to every buffer it was ever made from and never lets go of it (package version
2026.3.30), so an `Iovec` per operation would leak, and would keep a client's memory mapped for good. Here each is made
once, over a byte of its own; afterwards its C structure is written directly. That the structure is where it is
expected is checked when a pool is made.
"""

import ctypes
from typing import Any

import liburing

_WORD = ctypes.c_uint64
_ALIGNMENT = 8
_from_buffer = ctypes.c_char.from_buffer
_address = ctypes.addressof


class UnknownLayout(OSError):
    """This version of the package lays `Iovec` out differently."""


class Vector:
    """An `iovec` of one entry. `iovec` is the package's object, for `io_uring_prep_readv` and `writev`."""

    __slots__ = ("_entry", "_first", "iovec")

    def __init__(self) -> None:
        self._first = bytearray(_ALIGNMENT)
        self.iovec: Any = liburing.Iovec([self._first])
        self._entry = _entry_of(self.iovec, _address(_from_buffer(self._first)), len(self._first))

    def point(self, buffer: memoryview) -> None:
        """Makes the entry `buffer`, which must be writable and outlive the operation."""
        entry = self._entry
        entry[1] = length = len(buffer)
        entry[0] = _address(_from_buffer(buffer)) if length else 0


def _entry_of(iovec: Any, address: int, length: int) -> memoryview:
    """(address, length) of the structure's only entry, as memory. Raises `UnknownLayout` where it is not found."""
    header_words = object.__basicsize__ // _ALIGNMENT
    words = (type(iovec).__basicsize__) // _ALIGNMENT
    inside = (_WORD * words).from_address(id(iovec))
    count, pointer = (inside[header_words], inside[header_words + 1]) if words >= header_words + 2 else (0, 0)
    if count == 1 and pointer and pointer % _ALIGNMENT == 0:
        entry = (_WORD * 2).from_address(pointer)
        if entry[0] == address and entry[1] == length:
            return memoryview(entry).cast("B").cast("Q")
    raise UnknownLayout(f"liburing {getattr(liburing, '__version__', '?')} lays out Iovec in an unknown way")


class VectorPool:
    """At least as many vectors as operations can be with the kernel."""

    def __init__(self, count: int) -> None:
        self._free = [Vector() for _ in range(count)]
        self.take = self._free.pop
        """A free vector; there is one as long as no more than `count` are out."""
        self.give_back = self._free.append
