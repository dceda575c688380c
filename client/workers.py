"""All drive workers as this client sees them: who is up, how loaded, which chain leads where.

Owns a circuit breaker per worker: once a connection failed the worker counts as down, and calls that need it fail at
once, until a connection succeeds again; that is tried in the background, with back-off, and after each new cluster
map. A worker that is connected but lets requests run out is passed over for a while (`breaker.py`). `epoch` changes
whenever an answer of this module may have changed.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

from esker.client.breaker import Breaker
from esker.client.buffers import BufferPool
from esker.client.channel import Channel, Transport, open_channel
from esker.client.damage import DamageReports
from esker.runtime.logging import get_logger
from esker.wire.errors import DeadlineExceeded, EskerError, UserError
from esker.wire.messages import Empty, Method, StatsReply
from esker.wire.types import Routing, Worker

log = get_logger("client.workers")

PROBE_MIN_S = 0.1
PROBE_MAX_S = 1.0
STEADY_S = 1.0
"""A connection that lived this long is made again at once when it ends."""
CREATING_BYTES_MAX = 32 << 20
"""Creates of more bytes than this are not sent to one worker at once."""


class WorkerState:
    """One worker. `channel` is there while it is up."""

    def __init__(self, owner: "Workers", worker: Worker) -> None:
        self._owner = owner
        self.worker = worker
        self.drive_id = worker.drive_id
        self._in_map = True
        self.channel: Channel | None = None
        self.suspect = False
        """It let a request's attempt time out, and has not earned trust since (`breaker.py`): others are preferred."""
        self.breaker = Breaker()
        self.silent = False
        """It is suspect, and did not even give the sign of life that it was asked for."""
        self.load_bytes = 0
        """Bytes asked of it that have not come."""
        self.creating_bytes = 0
        """Bytes of creates under way."""
        self.create_queue: deque[Callable[[], None]] = deque()
        """Who wants to send creates once there is room."""
        self._calling_queue = False
        self.read_bytes = 0
        self.written_bytes = 0
        self.damage = DamageReports(lambda: self.channel)
        """Tells it of chunks that it gave damaged."""
        self.tried = asyncio.Event()
        """The first attempt to connect has ended."""
        self.refusal: UserError | None = None
        self._wake = asyncio.Event()
        self._probe: asyncio.Task[None] | None = None
        self._task = asyncio.get_running_loop().create_task(self._keep_connected())

    def apply(self, worker: Worker) -> None:
        """The cluster map has this to say of it now."""
        news = worker != self.worker or not self._in_map
        self.worker, self._in_map = worker, True
        if news:
            self._wake.set()

    def left_map(self) -> None:
        """The cluster map does not have it any more: its connection ends when it does, and no other is tried."""
        self._in_map = False
        self._wake.set()

    def creating(self, change_bytes: int) -> None:
        """Creates of so many bytes more (or less) are under way; who waited for room is called."""
        self.creating_bytes += change_bytes
        if self._calling_queue:
            return  # who is called sends, and so comes here: the loop below goes on, however many wait
        self._calling_queue = True
        try:
            while self.create_queue and self.may_create():
                self.create_queue.popleft()()
        finally:
            self._calling_queue = False

    def may_create(self) -> bool:
        """Whether another create may be sent now."""
        return self.creating_bytes < CREATING_BYTES_MAX

    def mark_suspect(self, *, may_wait_for_others: bool = False) -> None:
        """An attempt timed out; of a write, which waits for other replicas too, a sign of life excuses it each time."""
        if not self.suspect:
            loop = asyncio.get_running_loop()
            self.suspect = True
            if not may_wait_for_others:
                self.breaker.trip(loop.time())
            self._owner.changed()
            self._owner.lost()
            if self._probe is None or self._probe.done():
                self._probe = loop.create_task(self._ask())

    async def _ask(self) -> None:
        """Asks a suspect for a sign of life until it gives one, and has rested, or its connection ends."""
        while self.suspect and self.channel is not None:
            try:
                await self.channel.fast.call(Method.STATS, Empty(), StatsReply, timeout_s=PROBE_MAX_S)
            except DeadlineExceeded:
                if self.suspect and not self.silent:
                    self.silent = True
                    self._owner.changed()
                continue
            except EskerError as error:
                log.debug("a suspect worker gave no sign of life", drive=self.drive_id, reason=str(error))
                await asyncio.sleep(PROBE_MAX_S)
                continue
            if self.silent:
                self.silent = False
                self._owner.changed()
            rests_s = self.breaker.rests_s(asyncio.get_running_loop().time())
            if rests_s:
                await asyncio.sleep(min(rests_s, PROBE_MAX_S))
            else:
                self._trust()

    @property
    def doubted(self) -> bool:
        """Whether an answer would change what is thought of it."""
        return self.suspect or self.breaker.trips > 0

    def map_is_old(self) -> None:
        """It says that it does not serve what it was asked for."""
        self._owner.lost()

    def heard(self) -> None:
        """It answered a request."""
        self.breaker.close()
        self._trust()

    def _trust(self) -> None:
        if self.suspect:
            self.suspect = self.silent = False
            self._owner.changed()

    async def _keep_connected(self) -> None:
        delay_s = PROBE_MIN_S
        while True:
            self._wake.clear()
            if not self._in_map:
                self.tried.set()
                await self._wake.wait()
                continue
            target = self.worker
            try:
                channel = await self._owner.open(target)
            except (EskerError, OSError) as error:
                self._failed(error)
                delay_s = await self._pause(delay_s)
                continue
            opened_s = asyncio.get_running_loop().time()
            channel.bulk.on_closed = channel.fast.on_closed = self._lost
            self.channel = channel
            self.suspect = self.silent = False
            self.tried.set()
            self._owner.changed()
            if channel.bulk.closed or channel.fast.closed:
                self._lost()
            # Woken by the loss of a connection, or by a map that names another life of the worker.
            lives = (target.incarnation, channel.bulk.peer.incarnation)
            while self.channel is channel and self.worker.incarnation in lives:
                await self._wake.wait()
                self._wake.clear()
            self._lost()
            await channel.aclose()
            if self.worker.incarnation not in lives or asyncio.get_running_loop().time() - opened_s >= STEADY_S:
                delay_s = PROBE_MIN_S
            else:  # it takes connections only to end them
                self._wake.clear()
                delay_s = await self._pause(delay_s)

    async def _pause(self, delay_s: float) -> float:
        """Waits so long, or until the map has news of the worker; how long the next pause will be."""
        try:
            async with asyncio.timeout(delay_s):
                await self._wake.wait()
        except TimeoutError:
            return min(2 * delay_s, PROBE_MAX_S)
        return PROBE_MIN_S

    def _failed(self, error: Exception) -> None:
        if not self.tried.is_set():
            log.warning("a worker cannot be reached", drive=self.drive_id, reason=str(error))
        if isinstance(error, UserError):
            self.refusal = error
        self.tried.set()
        self._owner.lost()

    def _lost(self) -> None:
        """A connection ended: calls fail at once from here on."""
        if self.channel is not None:
            log.info("the connection to a worker ended", drive=self.drive_id)
            self.channel = None
            self._owner.changed()
            self._owner.lost()
        self._wake.set()

    async def aclose(self) -> None:
        """Ends the connections and the attempts to make new ones."""
        tasks = [task for task in (self._task, self._probe) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        channel, self.channel = self.channel, None
        if channel is not None:
            await channel.aclose()


class Workers:
    """The workers of one cluster. `on_lost` asks for a newer map: it is called whenever one is not reachable."""

    def __init__(
        self,
        transport: Transport,
        pools: Sequence[BufferPool],
        on_lost: Callable[[], "asyncio.Task[None]"],
        incarnation: str,
    ) -> None:
        self._transport = transport
        self._pools = list(pools)
        self.lost = on_lost
        self._incarnation = incarnation
        self.by_drive: dict[str, WorkerState] = {}
        self.routing: Routing
        self.epoch = 0

    def changed(self) -> None:
        """Routes must be looked up again."""
        self.epoch += 1

    def apply(self, routing: Routing) -> None:
        """Takes over a cluster map: new workers are connected to, moved ones again, missing ones no more."""
        self.routing = routing
        for drive_id in self.by_drive.keys() - {worker.drive_id for worker in routing.workers}:
            self.by_drive[drive_id].left_map()
        for worker in routing.workers:
            state = self.by_drive.get(worker.drive_id)
            if state is None:
                self.by_drive[worker.drive_id] = WorkerState(self, worker)
            else:
                state.apply(worker)
        self.changed()

    async def open(self, worker: Worker) -> Channel:
        """See `open_channel`."""
        return await open_channel(worker, self.routing.cluster_id, self._transport, self._pools, self._incarnation)

    async def wait_tried(self, timeout_s: float) -> None:
        """Waits until every worker was tried once, or `timeout_s` passed.

        Raises `UserError` where the transport that was asked for cannot be had.
        """
        try:
            async with asyncio.timeout(timeout_s):
                for state in self.by_drive.values():
                    await state.tried.wait()
        except TimeoutError:
            log.warning("not every worker was reached in time", timeout_s=timeout_s)
        for state in self.by_drive.values():
            if state.refusal is not None:
                raise state.refusal

    async def add_pool(self, pool: BufferPool) -> None:
        """Makes `pool` known to the workers of this host, from now on."""
        self._pools.append(pool)
        for state in list(self.by_drive.values()):
            channel = state.channel
            if channel is not None and channel.local and pool not in channel.memory_ids:
                try:
                    await channel.register(pool)
                except EskerError as error:
                    log.warning("a worker does not take more memory", drive=state.drive_id, reason=str(error))

    async def aclose(self) -> None:
        """Ends all connections."""
        await asyncio.gather(*(state.aclose() for state in self.by_drive.values()))

    def abandon_in_child(self) -> None:
        """In a forked child: closes its copies of the connections, and nothing that it shares with its parent."""
        for state in self.by_drive.values():
            if state.channel is not None:
                state.channel.abandon_in_child()
