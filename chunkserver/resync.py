"""Brings syncing replicas up to date, on the worker that stands before each: the last one of its chain that serves.

A job compares what both have, page by page, and has the replica's state machine see to every chunk on which they
differ, under the lock that it shares with clients' writes. Nothing is kept of a job: whenever the chain changes it
ends, and the next one begins from the start. So a job that has come to its end in a version of the chain means: the
syncing replica has everything that was acknowledged before, and every acknowledgement in this version has waited for
it.

Foreground first: bytes are sent at a bounded rate, few chunks at once, fewer while clients write. A job that does not
get on gives up, and the manager is told.
"""

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from typing import Protocol

from esker.chunkserver.engine.record import is_mutable
from esker.chunkserver.engine.store import DriveStore
from esker.chunkserver.forward import Link
from esker.chunkserver.mutable_resync import differing, send_channels, size_of
from esker.chunkserver.operations import SyncEnded
from esker.chunkserver.resync_compare import Side, copies_of, copy_of, differences
from esker.chunkserver.resync_pace import Pace
from esker.craq.replica import ChainReplica
from esker.runtime.counters import Counters
from esker.runtime.logging import get_logger
from esker.wire.admin_messages import Scan, ScanReply
from esker.wire.errors import EskerError
from esker.wire.messages import Message, Method
from esker.wire.status import Status

log = get_logger("chunkserver.resync")

CHAINS_AT_A_TIME = 4
OWN_PAGE_RECORDS = 256
THEIR_PAGE_RECORDS = 1024
CALL_TIMEOUT_S = 2.0
SYNC_TIMEOUT_S = 5.0
STALL_S = 5.0
"""How long one page or chunk may be tried again and again before the job gives up."""
RETRY_MIN_S, RETRY_MAX_S = 0.02, 0.5

SETTLED = (Status.OK, Status.EXISTS, Status.CHECKSUM, Status.NAMESPACE_REMOVED)
"""How a chunk's sync may end for good. CHECKSUM: our copy is damaged, so the other's, if it has one, is left alone,
and ours is repaired from it if it can be.
NAMESPACE_REMOVED: the chunk is on its way out everywhere."""
MUTABLE_SETTLED = (Status.OK,)
"""Likewise of a mutable chunk: whatever the other has might be an old version, which must not be served."""

Key = tuple[int, int]
"""Chain id and version."""


class Runner(Protocol):
    """What resyncs need of the replica runner."""

    syncs: int

    @property
    def busy(self) -> int: ...

    def sync(self, replica: ChainReplica, record_key: bytes, timeout_s: float, ended: SyncEnded) -> None: ...


class MutableRunner(Protocol):
    """What resyncs need of the runner of mutable chunks."""

    def sync(self, replica: ChainReplica, record_key: bytes, timeout_s: float, ended: SyncEnded) -> None: ...

    async def mend(self, replica: ChainReplica, record_key: bytes, timeout_s: float) -> bool: ...


class Stalled(EskerError):
    """A job did not get on; the text says why."""


class ResyncService:
    """All jobs of one drive. `changed` is called when one has ended."""

    def __init__(
        self,
        store: DriveStore,
        runner: Runner,
        mutable: MutableRunner,
        replicas: Mapping[int, ChainReplica],
        link: Callable[[str], Link],
        counters: Counters,
        bytes_per_s: int,
        in_flight_bytes_max: int,
        changed: Callable[[], None],
    ) -> None:
        self._store = store
        self._runner = runner
        self._mutable = mutable
        self._replicas = replicas
        self._link = link
        self._counters = counters
        self._changed = changed
        self.suspect: Callable[[bytes], None] = lambda record_key: None
        """Called for chunks that cannot be read here."""
        self.clients_read: Callable[[], bool] = lambda: False
        """Whether reads of clients are under way here."""
        self._pace = Pace(bytes_per_s, in_flight_bytes_max, lambda: runner.busy > runner.syncs or self.clients_read())
        self._gate = asyncio.Semaphore(CHAINS_AT_A_TIME)
        self._jobs: dict[Key, asyncio.Task[None]] = {}
        self._synced: set[Key] = set()
        self._stalled: set[Key] = set()

    @property
    def synced(self) -> tuple[Key, ...]:
        """Chains whose syncing replica has everything."""
        return tuple(sorted(self._synced))

    @property
    def stalled(self) -> tuple[Key, ...]:
        """Chains whose syncing replica does not get on."""
        return tuple(sorted(self._stalled))

    @property
    def under_way(self) -> int:
        """Jobs that have not ended."""
        return sum(not job.done() for job in self._jobs.values())

    def look(self) -> None:
        """Begins the jobs that the chains ask for by now, and ends those that they ask for no longer."""
        wanted = {
            (chain_id, replica.chain.version): replica
            for chain_id, replica in self._replicas.items()
            if replica.resyncs is not None
        }
        for key in [key for key in self._jobs if key not in wanted]:
            self._jobs.pop(key).cancel()
        self._synced &= wanted.keys()
        self._stalled &= wanted.keys()
        for key, replica in wanted.items():
            if key not in self._jobs:
                self._jobs[key] = asyncio.ensure_future(self._run(key, replica))

    async def aclose(self) -> None:
        """Ends all jobs."""
        jobs, self._jobs = list(self._jobs.values()), {}
        for job in jobs:
            job.cancel()
        await asyncio.gather(*jobs, return_exceptions=True)

    async def _run(self, key: Key, replica: ChainReplica) -> None:
        drive = replica.resyncs
        assert drive is not None
        async with self._gate:
            try:
                chunks = await self._bring_up(replica, drive)
            except* Stalled as group:
                log.warning("a resync does not get on", chain=key[0], drive=drive, reason=str(group.exceptions[0]))
                self._counters.add("resync_stalled")
                self._stalled.add(key)
            except* Exception:
                log.exception("a resync failed", chain=key[0], drive=drive)
                self._stalled.add(key)
            else:
                log.info("a replica is up to date", chain=key[0], drive=drive, chunks=chunks)
                self._counters.add("resync_chains")
                self._synced.add(key)
        self._changed()

    async def _bring_up(self, replica: ChainReplica, drive: str) -> int:
        """How many chunks differed. Raises `Stalled`, in a group."""
        # On these a write of before the change may still become durable, after the page with it was read.
        left = replica.earlier_chunks()
        ours, theirs = Side(), Side()
        count = 0
        async with asyncio.TaskGroup() as group:
            while True:
                for key in left:
                    count += 1
                    await self._begin(group, replica, key)
                if ours.over and theirs.over:
                    break
                if not ours.over and (theirs.over or ours.after <= theirs.after):
                    await self._read_own(replica, ours)
                if not theirs.over and (ours.over or theirs.after <= ours.after):
                    await self._read_theirs(replica, drive, theirs)
                left = list(differences(ours, theirs))

            images, ask = self._store.images, partial(self._ask, drive)
            async for key in differing(images, replica.chain, ask):
                count += 1
                await self._begin(group, replica, key)
        tries = _Tries("what was begun before the chain changed does not end")
        channels = await send_channels(images, replica, ask, partial(tries.again, "a commit is under way"))
        self._counters.add("resync_channels", channels)
        return count

    async def _begin(self, group: asyncio.TaskGroup, replica: ChainReplica, key: bytes) -> None:
        """Brings a chunk in line, once its turn has come."""
        size = self._size(key)
        await self._pace.enter(size)
        task = group.create_task(self._sync(replica, key, size))
        task.add_done_callback(lambda _: self._pace.leave(size))

    async def _ask(self, drive: str, method: Method, body: Message, reply_type: type[Message]) -> Message:
        tries = _Tries(f"the other does not answer {method.name}")
        while True:
            try:
                connection = await self._link(drive).connected(CALL_TIMEOUT_S)
                return await connection.call(method, body, reply_type, timeout_s=CALL_TIMEOUT_S)
            except EskerError as error:
                await tries.again(str(error))

    async def _read_own(self, replica: ChainReplica, ours: Side) -> None:
        items, after, _ = self._store.scan(replica.chain.chain_id, ours.after, OWN_PAGE_RECORDS)
        ours.add([(key, copy_of(record)) for key, record in items], after or b"")
        self._counters.add("resync_compared", len(items))
        await asyncio.sleep(0)  # clients' requests never wait behind more than a page

    async def _read_theirs(self, replica: ChainReplica, drive: str, theirs: Side) -> None:
        chain = replica.chain
        scan = Scan(chain.chain_id, theirs.after, THEIR_PAGE_RECORDS, chain_version=chain.version, digests=True)
        tries = _Tries("its records cannot be read")
        while True:
            try:
                connection = await self._link(drive).connected(CALL_TIMEOUT_S)
                reply = await connection.call(Method.SCAN, scan, ScanReply, timeout_s=CALL_TIMEOUT_S)
                theirs.add(copies_of(reply), reply.next_after)
                return
            except EskerError as error:
                await tries.again(str(error))

    def _size(self, key: bytes) -> int:
        """How many bytes a chunk's sync may send."""
        if is_mutable(key):
            return size_of(self._store.images, key)
        with self._store.reader() as reader:
            try:
                record = reader.get(key)
            except EskerError:
                return 0  # damaged: nothing of it is sent
        return 0 if record is None else record[0]

    async def _sync(self, replica: ChainReplica, key: bytes, size: int) -> None:
        loop = asyncio.get_running_loop()
        tries = _Tries("a chunk cannot be brought in line")
        mutable = is_mutable(key)
        sync = self._mutable.sync if mutable else self._runner.sync
        while True:
            ended: asyncio.Future[Status] = loop.create_future()
            sync(replica, key, SYNC_TIMEOUT_S, partial(_settle, ended))
            status = await ended
            if mutable and status is Status.CHECKSUM:
                await self._mutable.mend(replica, key, SYNC_TIMEOUT_S)
            if status in (MUTABLE_SETTLED if mutable else SETTLED):
                self._counters.add(f"resync_{status.name.lower()}")
                self._counters.add("resync_bytes", size if status is Status.OK else 0)
                if status is Status.CHECKSUM:
                    self.suspect(key)
                return
            await tries.again(status.name)


class _Tries:
    """What is tried again until `STALL_S` have passed."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._delay_s = RETRY_MIN_S
        self._end_s = asyncio.get_running_loop().time() + STALL_S

    async def again(self, reason: str) -> None:
        """Waits until it is time to try again. Raises `Stalled`."""
        if asyncio.get_running_loop().time() >= self._end_s:
            raise Stalled(f"{self._what}: {reason}")
        await asyncio.sleep(self._delay_s)
        self._delay_s = min(2 * self._delay_s, RETRY_MAX_S)


def _settle(future: asyncio.Future[Status], status: Status) -> None:
    if not future.done():  # else its job has ended
        future.set_result(status)
