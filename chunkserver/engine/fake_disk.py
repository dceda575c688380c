"""A drive that fails on purpose: the fake beside the real files and engines, and what a power loss leaves of them.

`FakeDisk` stands over real files in a directory of the test. It remembers what every unsynced 4 KiB sector held before,
and which lengths and names are durable. It numbers the events that matter for durability (write, grow, sync, commit);
a crash can be set to happen instead of the n-th one. From then on nothing succeeds, and `settle` turns the files into
what the drive might hold afterwards: each unsynced sector old, new or torn, by seed. The index is a real LMDB
environment whose commits are events.

Faults are injected one by one and in order: errors, short transfers, failing syncs and commits, flipped bits. Gates
hold an event until the test lets it pass, so that what two threads do falls in a chosen order.
"""

import errno
import os
import threading
from collections import defaultdict, deque
from pathlib import Path
from random import Random
from typing import Any, cast

import lmdb

from esker.chunkserver.engine.files import LocalFiles

SECTOR_BYTES = 4096


class SimulatedCrash(OSError):
    """The power is gone; nobody is told anything any more."""

    def __init__(self) -> None:
        super().__init__(errno.EIO, "simulated crash")


GATE_TIMEOUT_S = 20.0


class Gate:
    """Holds the next event of one kind (see `FakeDisk.gate`)."""

    def __init__(self) -> None:
        self._reached = threading.Event()
        self._opened = threading.Event()

    def wait(self) -> bool:
        """Blocks until an event is held or the power is gone; false when neither came in time."""
        return self._reached.wait(GATE_TIMEOUT_S)

    def open(self) -> None:
        """Lets it pass."""
        self._reached.set()
        self._opened.set()

    def hold(self) -> None:
        """The event, on its thread."""
        self._reached.set()
        assert self._opened.wait(GATE_TIMEOUT_S), "the test left a gate closed"


class FakeDisk:
    """State shared by the fake's files and engine; see the module. Safe to use from the commit thread."""

    def __init__(self, seed: int = 0) -> None:
        self.random = Random(seed)
        self.events: list[str] = []
        self.crash_at: int | None = None
        """Number of the event that will not happen."""
        self.crash_event = ""
        """If set, `crash_at` counts only events of this name."""
        self.crashed = False
        self.free_bytes: int | None = None
        """What `grow` may still take; None: what the real file system has."""
        self.faults: dict[str, deque[int]] = defaultdict(deque)
        """By operation (read, write, sync, commit): results in place of real ones. Negative: an errno. Positive: a
        short transfer of so many bytes."""
        self._gates: dict[str, Gate] = {}
        self._lock = threading.Lock()
        self._paths: dict[int, Path] = {}
        self._before: dict[Path, dict[int, bytes]] = defaultdict(dict)
        self._durable_bytes: dict[Path, int] = {}
        self._unsynced_names: set[Path] = set()

    def inject(self, operation: str, result: int) -> None:
        """The next `operation` gets this result."""
        self.faults[operation].append(result)

    def fault(self, operation: str) -> int | None:
        waiting = self.faults[operation]
        return waiting.popleft() if waiting else None

    def event(self, name: str) -> None:
        """Something durable is about to happen; raises instead when the crash is due."""
        gate = self._gates.pop(name.partition(" ")[0], None)
        if gate is not None:
            gate.hold()
        with self._lock:
            counted = self.crash_event in ("", name)
            so_far = self.events.count(name) if self.crash_event else len(self.events)
            if self.crashed or (counted and so_far == self.crash_at):
                self._lose_power()
                raise SimulatedCrash
            self.events.append(name)

    def gate(self, kind: str) -> Gate:
        """Holds the next event of `kind`, before it happens, until the gate is opened."""
        return self._gates.setdefault(kind, Gate())

    def crash(self) -> None:
        """Now."""
        with self._lock:
            self._lose_power()

    def _lose_power(self) -> None:
        self.crashed = True
        for gate in self._gates.values():
            gate.open()

    def opened(self, fd: int, path: Path, *, new: bool) -> None:
        with self._lock:
            self._paths[fd] = path
            if new:
                self._unsynced_names.add(path)
            self._durable_bytes.setdefault(path, 0 if new else os.fstat(fd).st_size)

    def closed(self, fd: int) -> None:
        with self._lock:
            self._paths.pop(fd, None)

    def will_write(self, fd: int, offset: int, length: int) -> None:
        """Remembers the sectors as they are, if they are durable so far."""
        with self._lock:
            path = self._paths.get(fd)
            if path is None:
                return
            before = self._before[path]
            for sector in range(offset // SECTOR_BYTES, -(-(offset + length) // SECTOR_BYTES)):
                if sector not in before:
                    before[sector] = os.pread(fd, SECTOR_BYTES, sector * SECTOR_BYTES).ljust(SECTOR_BYTES, b"\0")

    def synced(self, fd: int) -> None:
        with self._lock:
            path = self._paths[fd]
            self._before.pop(path, None)
            self._durable_bytes[path] = os.fstat(fd).st_size

    def names_synced(self, directory: Path) -> None:
        with self._lock:
            self._unsynced_names = {path for path in self._unsynced_names if path.parent != directory}

    def name(self, fd: int) -> str:
        path = self._paths.get(fd)
        return path.name if path else str(fd)

    def settle(self, *, keep: bool | None = None) -> None:
        """After a crash, with everything closed: what was not synced is lost (keep False), kept (True), or mixed."""
        for path, before in self._before.items():
            with open(path, "r+b") as file:
                for sector, old in before.items():
                    new_bytes = SECTOR_BYTES * keep if keep is not None else self._torn()
                    file.seek(sector * SECTOR_BYTES + new_bytes)
                    file.write(old[new_bytes:])
        for path, durable_bytes in self._durable_bytes.items():
            lost = self.random.random() < 0.5 if keep is None else not keep
            if lost and path.stat().st_size > durable_bytes:
                os.truncate(path, durable_bytes)
            if lost and path in self._unsynced_names:
                path.unlink()

    def _torn(self) -> int:
        """How many bytes of a sector are new."""
        return self.random.choice((0, 0, SECTOR_BYTES, SECTOR_BYTES, self.random.randrange(1, SECTOR_BYTES)))


def flip_bit(path: Path, offset: int) -> None:
    """Latent corruption: one bit of a file changes, and nobody notices."""
    with open(path, "r+b") as file:
        file.seek(offset)
        byte = file.read(1)
        file.seek(offset)
        file.write(bytes([byte[0] ^ 1]))


class FakeFiles(LocalFiles):
    """Real files, through a `FakeDisk`."""

    def __init__(self, disk: FakeDisk) -> None:
        super().__init__()
        self.disk = disk
        self.direct = False

    def probe(self, directory: Path) -> None:
        """Keeps what the test has set."""

    def open_data(self, path: Path) -> int:
        new = not path.exists()
        fd = super().open_data(path)
        self.disk.opened(fd, path, new=new)
        return fd

    def close(self, fd: int) -> None:
        self.disk.closed(fd)
        super().close(fd)

    def grow(self, fd: int, offset: int, length: int) -> None:
        self.disk.event(f"grow {self.disk.name(fd)}")
        if self.disk.free_bytes is not None:
            if length > self.disk.free_bytes:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            self.disk.free_bytes -= length
        super().grow(fd, offset, length)

    def punch(self, fd: int, offset: int, length: int) -> None:
        super().punch(fd, offset, length)
        if self.disk.free_bytes is not None:
            self.disk.free_bytes += length

    def data_sync(self, fd: int) -> None:
        self.disk.event(f"sync {self.disk.name(fd)}")
        result = self.disk.fault("sync")
        if result is not None:
            raise OSError(-result, os.strerror(-result))
        super().data_sync(fd)
        self.disk.synced(fd)

    def sync_directory(self, path: Path) -> None:
        super().sync_directory(path)
        self.disk.names_synced(path)

    def free_bytes(self, path: Path) -> int:
        return super().free_bytes(path) if self.disk.free_bytes is None else self.disk.free_bytes

    def open_index(self, path: Path, map_bytes: int, *, create: bool) -> lmdb.Environment:
        env = super().open_index(path, map_bytes, create=create)
        return cast(lmdb.Environment, _FakeEnvironment(env, self.disk))


class _FakeEnvironment:
    """An LMDB environment whose commits are events of the disk."""

    def __init__(self, env: lmdb.Environment, disk: FakeDisk) -> None:
        self._env = env
        self._disk = disk

    def __getattr__(self, name: str) -> Any:
        return getattr(self._env, name)

    def begin(self, **options: Any) -> Any:
        txn = self._env.begin(**options)
        return _FakeTransaction(txn, self._disk) if options.get("write") else txn


class _FakeTransaction:
    """A write transaction; the crash may come before its commit, or after it and before anyone hears of it."""

    def __init__(self, txn: lmdb.Transaction, disk: FakeDisk) -> None:
        self._txn = txn
        self._disk = disk

    def __getattr__(self, name: str) -> Any:
        return getattr(self._txn, name)

    def __enter__(self) -> "_FakeTransaction":
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if kind is not None:
            self._txn.abort()
            return
        try:
            self._disk.event("commit")
            result = self._disk.fault("commit")
            if result is not None:
                raise lmdb.DiskError(os.strerror(-result)) if result == -errno.ENOSPC else OSError(-result, "commit")
        except BaseException:
            self._txn.abort()
            raise
        self._txn.commit()
        self._disk.event("committed")
