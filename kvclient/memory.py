"""The caller's memory as the data path wants it: bytes views, and which slot of the pool each is part of.

Owns the checks of buffers and values, all made before anything is sent. Accepts slots, parts of slots, and whatever
has the buffer protocol (bytes, bytearray, memoryview, mmap, numpy arrays) or is a CPU torch tensor.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from esker.client.buffers import Slot, SlotPart
from esker.wire.errors import UserError
from esker.wire.limits import ALIGN_BYTES


class Memory:
    """The memory of one call, by position: `views`, their `slots` (None: not the pool's), `offsets` in the arena."""

    __slots__ = ("leases", "offsets", "slots", "views")

    def __init__(self) -> None:
        self.views: list[memoryview] = []
        self.slots: list[Slot | None] = []
        self.offsets: list[int] = []
        self.leases: list[Slot] = []
        """Every slot that the call uses."""

    def add(self, view: memoryview, slot: Slot | None, offset: int) -> None:
        """One more piece."""
        self.views.append(view)
        self.slots.append(slot)
        self.offsets.append(offset)

    def at(self, positions: Sequence[int]) -> "Memory":
        """The pieces at these positions."""
        chosen = Memory()
        for position in positions:
            chosen.add(self.views[position], self.slots[position], self.offsets[position])
        return chosen


def destinations(buffers: Sequence[Any]) -> Memory:
    """The buffers of a `get`. A worker writes by itself only into slots, and only where whole 4 KiB pages fit.

    Raises `UserError`, naming the position, for buffers that are read-only, not contiguous or empty.
    """
    memory = Memory()
    if set(map(type, buffers)) == {Slot}:  # the common case, in a hurry
        memory.views = [buffer.view for buffer in buffers]
        memory.offsets = [buffer.offset for buffer in buffers]
        memory.slots = list(buffers)
        memory.leases = list(buffers)
        return memory
    for position, buffer in enumerate(buffers):
        if type(buffer) is Slot:
            memory.add(buffer.view, buffer, buffer.offset)
            memory.leases.append(buffer)
        elif type(buffer) is SlotPart:
            direct = len(buffer.view) % ALIGN_BYTES == 0
            memory.add(buffer.view, buffer.slot if direct else None, buffer.slot.offset)
            memory.leases.append(buffer.slot)
        else:
            memory.add(_view(buffer, f"buffer {position}", writable=True), None, 0)
    return memory


def sources(values: Sequence[Any], block_bytes_max: int) -> Memory:
    """The values of a `put`; a bare slot stands for its first `block_bytes_max` bytes.

    Raises `UserError`, naming the position, for values that are empty, not contiguous, or longer than that.
    """
    memory = Memory()
    for position, value in enumerate(values):
        if type(value) is Slot:
            try:
                view = value.view[:block_bytes_max]
            except ValueError:
                raise UserError(f"value {position} is a slot that was released; lease another one") from None
            memory.add(view, value, value.offset)
            memory.leases.append(value)
            continue
        if type(value) is SlotPart:
            view = value.view
            memory.add(view, value.slot, value.slot.offset)
            memory.leases.append(value.slot)
        else:
            view = _view(value, f"value {position}", writable=False)
            memory.add(view, None, 0)
        if len(view) > block_bytes_max:
            raise UserError(
                f"value {position} has {len(view)} bytes; the namespace's block_bytes_max is {block_bytes_max}"
            )
    return memory


def _view(thing: Any, name: str, *, writable: bool) -> memoryview:
    try:
        view = memoryview(thing)
    except TypeError:
        view = _tensor_view(thing, name)
    except ValueError:
        raise UserError(f"{name} is memory that was released") from None
    if not view.c_contiguous:
        raise UserError(f"{name} is not contiguous; pass contiguous memory")
    if writable and view.readonly:
        raise UserError(f"{name} is read-only; pass writable memory")
    if view.nbytes == 0:
        raise UserError(f"{name} is empty")
    if view.format == "B" and view.ndim == 1:
        return view
    try:
        return view.cast("B")
    except (TypeError, ValueError):  # formats that only numpy knows
        return np.asarray(thing).reshape(-1).view(np.uint8).data


def _tensor_view(thing: Any, name: str) -> memoryview:
    """A torch tensor has no buffer protocol, and numpy does not know all of its types: it is taken as bytes."""
    kind = type(thing)
    if kind.__module__.partition(".")[0] != "torch" or not hasattr(thing, "is_contiguous"):
        raise UserError(f"{name} is a {kind.__name__}; pass a slot or contiguous memory")
    if thing.device.type != "cpu":
        raise UserError(f"{name} is a tensor on {thing.device}; pass CPU memory, such as a slot")
    if not thing.is_contiguous():
        raise UserError(f"{name} is not contiguous; pass contiguous memory")
    import torch

    return memoryview(thing.detach().reshape(-1).view(torch.uint8).numpy())
