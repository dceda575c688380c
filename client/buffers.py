"""The client's block memory: one sealed, memfd-backed arena of exactly the asked size, leased out in slots.

Owns leases and who uses a slot at the moment; knows nothing of workers or blocks. A slot is in one of three hands:
the pool's, the caller's (leased), or still a worker's after its deadline passed (quarantined): a worker of the same
host may write into it until it says otherwise, so until then it is neither used nor leased again.

Thread-safe: callers lease and release from any thread while operations run on the loop's.
"""

import asyncio
import math
import threading
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from esker.client.cuda import register_host_memory
from esker.wire.errors import DeadlineExceeded, EskerError, UserError
from esker.wire.limits import aligned
from esker.wire.memory import SharedArena

RELEASED = "this slot was released; lease another one"
CLOSED = "the pool is closed"


class PoolExhausted(EskerError):
    """Fewer slots are free than were asked for."""


@dataclass(frozen=True, slots=True)
class PoolStatistics:
    """A pool at one instant. `leased` includes slots that an operation uses; `quarantined` those a worker still has."""

    slot_bytes: int
    slots: int
    free: int
    leased: int
    quarantined: int
    registered_with_cuda: bool


class Slot:
    """A lease of `slot_bytes` of the pool. Give it back with `release` (or use it in a `with` statement)."""

    __slots__ = ("_late", "_lent", "_users", "offset", "pool", "view")

    def __init__(self, pool: "BufferPool", offset: int, view: memoryview) -> None:
        self.pool = pool
        self.offset = offset
        """Where it starts in the arena, bytes."""
        self.view = view
        """Its memory: page-aligned, `pool.slot_bytes` long, writable."""
        self._lent = True
        self._users = 0  # operations that read from it; -1: one that writes into it
        self._late = 0  # requests of a worker that may still touch it after their operation ended

    def numpy(self, dtype: npt.DTypeLike = np.uint8, shape: int | Sequence[int] | None = None) -> npt.NDArray[Any]:
        """The memory as an array, not a copy; `shape` may cover only its beginning.

        Raises `UserError` where the slot was released, and for a type or shape that its memory cannot have.
        """
        memory = self._memory()
        try:
            array: npt.NDArray[Any] = np.frombuffer(memory, dtype=dtype)
        except (TypeError, ValueError) as error:
            raise UserError(f"a slot cannot be an array of {dtype!r}: {error}") from None
        if shape is None:
            return array
        wanted = (shape,) if isinstance(shape, int) else tuple(shape)
        if any(size < 0 for size in wanted) or math.prod(wanted) > len(array):
            raise UserError(f"shape {shape} in a slot of {len(array)} elements; sizes are 0 or more")
        return array[: math.prod(wanted)].reshape(wanted)

    def tensor(self, dtype: Any = None) -> Any:
        """The memory as a one-dimensional torch tensor of `dtype` (uint8 by default), not a copy.

        Raises `UserError` where torch is not installed, the slot was released, or its memory cannot be of that type.
        """
        try:
            import torch
        except ImportError:
            raise UserError("slots as tensors need torch: pip install 'esker[torch]'") from None
        memory = self._memory()
        try:
            return torch.frombuffer(memory, dtype=torch.uint8 if dtype is None else dtype)
        except (TypeError, ValueError) as error:
            raise UserError(f"a slot cannot be a tensor of {dtype!r}: {error}") from None

    def _memory(self) -> memoryview:
        """`view`, as long as the caller has the slot. Arrays over it keep the view itself alive beyond that."""
        if not self._lent:
            raise UserError(RELEASED)
        try:
            return self.view[:]
        except ValueError:
            raise UserError(CLOSED) from None

    def first(self, length_bytes: int) -> "SlotPart":
        """Its first `length_bytes`, for a value that is shorter than the slot."""
        return SlotPart(self, length_bytes)

    @property
    def in_use(self) -> bool:
        """Whether an operation reads from it or writes into it."""
        return self._users != 0

    @property
    def quarantined(self) -> bool:
        """Whether a worker may still touch it."""
        return self._late > 0

    def release(self) -> None:
        """Gives the slot back; where an operation or a worker still has it, as soon as that has ended.

        Raises `UserError` when it was given back before.
        """
        with self.pool.lock:
            if not self._lent:
                raise UserError("this slot was released before; lease another one")
            self._lent = False
            if self._users == 0 and self._late == 0:
                self.pool.put_back(self)

    def __enter__(self) -> "Slot":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._lent:
            self.release()

    # For operations, not for callers.

    def begin(self, writes: bool) -> None:
        """See `begin_all` (with the pool's lock held)."""
        if self._late or not self._lent:
            raise UserError(
                "this slot is in quarantine after a timeout; release it and lease another one"
                if self._lent
                else RELEASED
            )
        if writes:
            if self._users:
                raise UserError("this slot is in use by another operation")
            self._users = -1
        elif self._users < 0:
            raise UserError("this slot is in use by another operation")
        else:
            self._users += 1

    def end(self) -> None:
        """See `end_all` (with the pool's lock held)."""
        self._users = 0 if self._users < 0 else self._users - 1
        if not self._lent and self._users == 0 and self._late == 0:
            self.pool.put_back(self)

    def keep_for_worker(self) -> None:
        """A request that may still touch the memory outlives its operation (called before `end`)."""
        with self.pool.lock:
            self._late += 1
            self.pool.quarantined += self._late == 1

    def worker_is_done(self) -> None:
        """That request has ended."""
        with self.pool.lock:
            self._late -= 1
            self.pool.quarantined -= self._late == 0
            if not self._lent and self._users == 0 and self._late == 0:
                self.pool.put_back(self)


class SlotPart:
    """The beginning of a slot, as a value or a buffer. Raises `UserError` for a length the slot does not have."""

    __slots__ = ("slot", "view")

    def __init__(self, slot: Slot, length_bytes: int) -> None:
        if not hasattr(length_bytes, "__index__"):
            raise UserError(f"length_bytes is a {type(length_bytes).__name__}; pass an int")
        if not 1 <= length_bytes <= slot.pool.slot_bytes:
            raise UserError(f"the first {length_bytes} bytes of a slot that has {slot.pool.slot_bytes}")
        self.slot = slot
        try:
            self.view = slot.view[:length_bytes]
        except ValueError:
            raise UserError(RELEASED) from None


def begin_all(slots: Sequence[Slot], *, writes: bool) -> None:
    """An operation starts to use these slots, to write into them or to read from them; `end_all` ends that.

    Raises `UserError`, with none taken, where one is released, in quarantine, or its use would clash.
    """
    taken: list[Slot] = []
    try:
        for pool in {slot.pool for slot in slots}:
            with pool.lock:
                pool.check_open()
                before = len(taken)
                for slot in slots:
                    if slot.pool is pool:
                        slot.begin(writes)
                        taken.append(slot)
                pool.used(len(taken) - before)
    except UserError:
        end_all(taken)
        raise


def end_all(slots: Sequence[Slot]) -> None:
    """The operation that called `begin_all` has ended."""
    for pool in {slot.pool for slot in slots}:
        with pool.lock:
            for slot in slots:
                if slot.pool is pool:
                    slot.end()
            if pool.closed:
                pool.forget_ended([slot for slot in slots if slot.pool is pool])


class _Waiter:
    """Somebody who waits for slots."""

    __slots__ = ("event", "loop", "wanted")

    def __init__(self, wanted: int) -> None:
        self.wanted = wanted
        self.event = asyncio.Event()
        self.loop = asyncio.get_running_loop()

    def wake(self) -> None:
        self.loop.call_soon_threadsafe(self.event.set)


class BufferPool:
    """`slots` slots of `slot_bytes` (rounded up to 4 KiB) in one arena, pinned for the GPU where torch sees one.

    Raises `UserError` for sizes that are not positive and where the memory is not there.
    """

    def __init__(self, slot_bytes: int, slots: int) -> None:
        for name, value in (("slot_bytes", slot_bytes), ("slots", slots)):
            if not hasattr(value, "__index__"):
                raise UserError(f"{name} is a {type(value).__name__}; pass an int")
        if slot_bytes <= 0 or slots <= 0:
            raise UserError(f"a pool of {slots} slots of {slot_bytes} bytes; both must be positive")
        self.slot_bytes = aligned(slot_bytes)
        self.slots = slots
        self._arena = SharedArena(self.slot_bytes * slots)
        self.lock = threading.Lock()
        self.quarantined = 0
        self._free = deque(range(slots))
        self._waiters: deque[_Waiter] = deque()
        self._lent: set[Slot] = set()
        self.closed = False
        """Nothing can be leased or used any more."""
        self._unregister = register_host_memory(self._arena.view)

    @property
    def fd(self) -> int:
        """The arena's descriptor, for workers of the same host."""
        return self._arena.fd

    @property
    def size_bytes(self) -> int:
        """Size of the arena."""
        return self._arena.size_bytes

    def acquire(self, count: int) -> list[Slot]:
        """Leases `count` slots at once. Raises `PoolExhausted` where fewer are free."""
        with self.lock:
            self._check(count)
            if count > len(self._free):
                raise PoolExhausted(f"{count} slots wanted, {len(self._free)} of {self.slots} are free")
            return [self._lease() for _ in range(count)]

    async def acquire_wait(self, count: int, timeout_s: float) -> list[Slot]:
        """Leases `count` slots as soon as they are free, first come, first served.

        Raises `DeadlineExceeded` after `timeout_s`.
        """
        waiter = _Waiter(count)
        with self.lock:
            self._check(count)
            self._waiters.append(waiter)
            self._wake_first()
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    await waiter.event.wait()
                    with self.lock:
                        self._check(count)
                        if self._waiters[0] is waiter and count <= len(self._free):
                            return [self._lease() for _ in range(count)]
                        waiter.event.clear()
        except TimeoutError:
            raise DeadlineExceeded(f"{count} slots of {self.slots} did not become free in {timeout_s:.3g} s") from None
        finally:
            with self.lock:
                self._waiters.remove(waiter)
                self._wake_first()

    def statistics(self) -> PoolStatistics:
        """The pool now."""
        with self.lock:
            free = len(self._free)
            return PoolStatistics(
                slot_bytes=self.slot_bytes,
                slots=self.slots,
                free=free,
                leased=self.slots - free,
                quarantined=self.quarantined,
                registered_with_cuda=self._unregister is not None,
            )

    def close(self) -> None:
        """Ends the pool; safe to call again. Arrays and tensors over slots stay valid: the memory goes with the last.

        Slots themselves cannot be used any more; operations under way end as they would have.
        """
        with self.lock:
            if self.closed:
                return
            self.closed = True
            for waiter in self._waiters:
                waiter.wake()
            if self._unregister is not None:
                self._unregister()
                self._unregister = None
            lent, self._lent = self._lent, set()
            self.forget_ended(lent)
            self._arena.abandon()

    def forget_ended(self, slots: Iterable[Slot]) -> None:
        """Slots of a closed pool are nobody's once no operation uses them (with the lock held)."""
        for slot in slots:
            if not slot.in_use:
                _release_view(slot.view)

    def used(self, count: int) -> None:
        """So many slots are about to be transferred (with the lock held)."""
        # What is registered with CUDA stays where it is.
        if self._unregister is None:
            self._arena.used(count * self.slot_bytes)

    def check_open(self) -> None:
        """Raises `UserError` where it is closed (with the lock held)."""
        if self.closed:
            raise UserError(CLOSED)

    def _check(self, count: int) -> None:
        self.check_open()
        if not hasattr(count, "__index__"):
            raise UserError(f"count is a {type(count).__name__}; pass an int")
        if not 1 <= count <= self.slots:
            raise UserError(f"{count} slots wanted; this pool has {self.slots}")

    def _lease(self) -> Slot:
        offset = self._free.popleft() * self.slot_bytes
        slot = Slot(self, offset, self._arena.view[offset : offset + self.slot_bytes])
        self._lent.add(slot)
        return slot

    def put_back(self, slot: Slot) -> None:
        """Takes a slot that nobody uses any more (with the lock held)."""
        if self.closed:
            return
        self._lent.discard(slot)
        _release_view(slot.view)
        self._free.append(slot.offset // self.slot_bytes)
        self._wake_first()

    def _wake_first(self) -> None:
        if self._waiters and self._waiters[0].wanted <= len(self._free):
            self._waiters[0].wake()


def _release_view(view: memoryview) -> None:
    """Makes later use of a slot's memory an error; arrays that were made over it keep it."""
    try:
        view.release()
    except BufferError:
        return
