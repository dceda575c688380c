"""What one group of commits does to the index: decided here, purely, from the operations and what is stored now.

Operations take effect in the order they came, also on one key, and are written in the order of the keys. A stored
record that is corrupt counts as absent: a put replaces it, a removal finds nothing and clears it away. Its slot is
unknown, so it stays out of use until the next start counts the slots afresh.
"""

import struct
from collections.abc import Callable, Sequence
from typing import Any

from esker.chunkserver.engine.errors import CorruptRecord
from esker.chunkserver.engine.image_group import ImageOperation, ImagePlan, ListKeys, Mend, Pend
from esker.chunkserver.engine.record import decode_for_read
from esker.chunkserver.engine.slot_files import Slot
from esker.wire.ids import NO_PUT_ID
from esker.wire.status import Status

CommitDone = Callable[[Any, Status], None]
"""Called on the loop with the operation's token and its outcome."""

_IDENTITY = struct.Struct("<4xQ12x16s")
"""Version and put id in the READ tail of a record."""


class Put:
    """Stores `value` under `record_key`; its data is in `slot`."""

    __slots__ = ("done", "record_key", "slot", "token", "value")

    def __init__(self, record_key: bytes, value: bytes, slot: Slot, done: CommitDone, token: Any) -> None:
        self.record_key = record_key
        self.value = value
        self.slot = slot
        self.done = done
        self.token = token


class Remove:
    """Removes the record if it has this version (0: any) and this put id (zeros: any)."""

    __slots__ = ("done", "put_id", "record_key", "token", "version")

    def __init__(self, record_key: bytes, version: int, put_id: bytes, done: CommitDone, token: Any) -> None:
        self.record_key = record_key
        self.version = version
        self.put_id = put_id
        self.done = done
        self.token = token


class StatePut:
    """Stores `value` in the service's own area."""

    __slots__ = ("done", "name", "token", "value")

    def __init__(self, name: bytes, value: bytes, done: CommitDone, token: Any) -> None:
        self.name = name
        self.value = value
        self.done = done
        self.token = token


Operation = Put | Remove | StatePut | ImageOperation


def data_slot(operation: Operation) -> Slot | None:
    """The slot whose data must be durable before the operation is, and which is free again if it is refused."""
    return operation.slot if isinstance(operation, Put | Pend | Mend) else None


class Plan:
    """The writes of a group, and what it means for everyone."""

    __slots__ = ("channels", "corrupt", "deletes", "freed", "images", "puts", "states", "statuses")

    def __init__(self) -> None:
        self.puts: list[tuple[bytes, bytes]] = []
        """Records to store, by key."""
        self.deletes: list[bytes] = []
        self.states: dict[bytes, bytes] = {}
        self.images: dict[bytes, bytes | None] = {}
        """Images of mutable chunks to store, by key; None: to delete."""
        self.channels: dict[bytes, bytes | None] = {}
        """Last writes of channels, likewise."""
        self.statuses: list[Status] = []
        """Of each operation, once the group is durable."""
        self.freed: list[tuple[int, int]] = []
        """Slots (class, number) that no record names after it."""
        self.corrupt = 0


def _nothing(key: bytes) -> None:
    """Where nothing is stored."""


def _no_keys(prefix: bytes) -> list[bytes]:
    """Likewise."""
    return []


def plan_group(
    operations: Sequence[Operation],
    stored: Callable[[bytes], bytes | None],
    image: Callable[[bytes], bytes | None] = _nothing,
    channel: Callable[[bytes], bytes | None] = _nothing,
    channel_keys: ListKeys = _no_keys,
) -> Plan:
    """What to write for `operations` over what `stored`, `image` and `channel` give for a key of theirs, and
    `channel_keys` for a prefix.
    """
    plan = Plan()
    images = ImagePlan(image, channel, channel_keys)
    changes: dict[bytes, bytes | None] = {}
    for operation in operations:
        status = Status.OK
        if isinstance(operation, StatePut):
            plan.states[operation.name] = operation.value
        elif isinstance(operation, ImageOperation):
            status = images.add(operation)
        else:
            key = operation.record_key
            current = changes[key] if key in changes else stored(key)
            value: bytes | None = None
            if isinstance(operation, Put):
                value = operation.value
            if current is not None:
                status = _displace(plan, operation, current)
            elif value is None:
                status = Status.NOT_FOUND
            if status is not Status.CONDITION:
                changes[key] = value
        plan.statuses.append(status)
    for key in sorted(changes):
        value = changes[key]
        if value is not None:
            plan.puts.append((key, value))
        else:
            plan.deletes.append(key)
    plan.images, plan.channels = images.images, images.channels
    plan.freed += images.freed
    plan.corrupt += images.corrupt
    return plan


def _displace(plan: Plan, operation: Put | Remove, current: bytes) -> Status:
    """Frees the slot of the record that `operation` replaces or removes, if its condition holds."""
    try:
        _, pages, slot, result, _ = decode_for_read(operation.record_key, current)
    except CorruptRecord:
        plan.corrupt += 1
        return Status.OK if isinstance(operation, Put) else Status.NOT_FOUND
    if isinstance(operation, Remove):
        version, put_id = _IDENTITY.unpack(result)
        if operation.version not in (0, version) or operation.put_id not in (NO_PUT_ID, put_id):
            return Status.CONDITION
    plan.freed.append((pages, slot))
    return Status.OK
