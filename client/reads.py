"""Reads of many chunks at once: one batch, one deadline, one answer per chunk.

Owns which replica is asked for which chunk. Each chunk goes to the serving replica with the fewest bytes outstanding;
where that one fails (not: where it says that the chunk is absent) another is asked. A replica that does not move for
`ATTEMPT_S` is told to stop and given up for these chunks. Nothing counts as read before its checksums matched.

A buffer that a worker writes by itself is asked of one worker at a time: only when that has let go is another asked.
"""

from collections.abc import Sequence

from esker.client.batch import Batch, Row
from esker.client.buffers import BufferPool, Slot
from esker.client.chains import ChainRoutes
from esker.client.late import may_go_direct
from esker.client.read_request import ReadRequest
from esker.client.request import LOOKS
from esker.client.staging import Staging
from esker.client.workers import WorkerState
from esker.wire.ids import NO_PUT_ID
from esker.wire.limits import aligned
from esker.wire.messages import READ_EXTENT, Method, Read
from esker.wire.scrub_messages import DAMAGED_EXTENT
from esker.wire.status import Status

REQUEST_BYTES_AIM = 4 << 20
REQUEST_EXTENTS_AIM = 128
"""A worker's share is cut into requests of about this size, so that it starts before all of them are packed."""
ATTEMPT_S = 1.0

Tried = dict[WorkerState, int]
"""Who was asked for a chunk in vain, with the status that came."""


class ReadBatch(Batch[ReadRequest]):
    """Reads chunk (`objects[i]`, `indexes[i]`), on chain number `chains[i]` of the table, into `views[i]`.

    `slots[i]` is the slot of which `views[i]` is the part at `offsets[i]` of the arena; None for other memory.
    `tried[i]` names replicas not to ask. Rows are rows of READ_RESULT; besides a worker's own statuses there are
    UNAVAILABLE (no replica is up), TIMEOUT and CHECKSUM (at every replica that answered).
    """

    def __init__(
        self,
        staging: Staging,
        routes: ChainRoutes,
        space: int,
        *,
        objects: Sequence[bytes],
        indexes: Sequence[int],
        chains: Sequence[int],
        views: Sequence[memoryview],
        slots: Sequence[Slot | None],
        offsets: Sequence[int],
        tried: dict[int, Tried] | None = None,
    ) -> None:
        super().__init__(len(objects))
        self.views = views
        self.rooms = [len(view) for view in views]
        self.sources: list[WorkerState | None] = [None] * len(objects)
        """Who gave the answer."""
        self.tried: dict[int, Tried] = {} if tried is None else tried
        self._staging = staging
        self._routes = routes
        self._space = space
        self._objects = objects
        self._indexes = indexes
        self._chains = chains
        self._slots = slots
        self._offsets = offsets
        self._look_s = ATTEMPT_S / LOOKS

    def begin(self, timeout_s: float) -> None:
        """See `Batch`."""
        self._look_s = min(ATTEMPT_S, timeout_s / 3) / LOOKS
        self.later(self._look_s, self._look)
        self.dispatch(range(len(self.rows)))

    def dispatch(self, extents: Sequence[int]) -> None:
        """Chooses a replica for each chunk and sends the requests."""
        readers = self._routes.now().readers
        chains, rooms, slots, tried = self._chains, self.rooms, self._slots, self.tried
        groups: dict[tuple[WorkerState, BufferPool | None], list[int]] = {}
        for extent in extents:
            candidates = readers[chains[extent]]
            if extent in tried:
                candidates = tuple(state for state in candidates if state not in tried[extent])
            if not candidates:
                self._out_of_replicas(extent)
                continue
            best = candidates[0]
            for state in candidates[1:]:
                if state.load_bytes < best.load_bytes:
                    best = state
            best.load_bytes += rooms[extent]
            slot = slots[extent]
            key = (best, None if slot is None else slot.pool)
            group = groups.get(key)
            if group is None:
                groups[key] = [extent]
            else:
                group.append(extent)
        for (state, pool), group in groups.items():
            self._send_group(state, pool, group)

    def _send_group(self, state: WorkerState, pool: BufferPool | None, group: list[int]) -> None:
        rooms = self.rooms
        start = size = 0
        for end, extent in enumerate(group, 1):
            size += rooms[extent]
            if size >= REQUEST_BYTES_AIM or end - start >= REQUEST_EXTENTS_AIM or end == len(group):
                self._send(state, pool, group[start:end])
                start, size = end, 0

    def _send(self, state: WorkerState, pool: BufferPool | None, extents: list[int]) -> None:
        channel = state.channel
        rooms = self.rooms
        if channel is None:  # lost while an earlier request of this dispatch was being sent
            for extent in extents:
                state.load_bytes -= rooms[extent]
                self.failed(extent, state, Status.UNAVAILABLE)
            return
        memory_id = 0
        slots: list[Slot] | None = None
        if pool is not None:
            if may_go_direct(pool):
                memory_id = channel.memory_ids.get(pool, 0)
            if memory_id:
                slots = [slot for extent in extents if (slot := self._slots[extent]) is not None]
        elif channel.local:
            memory_id, slots = self._staging.lease(channel, [rooms[extent] for extent in extents])
        staged = pool is None and slots is not None
        if staged and slots is not None:
            places = [(aligned(rooms[extent]), slot.offset) for extent, slot in zip(extents, slots, strict=True)]
        else:
            places = [(rooms[extent], self._offsets[extent]) for extent in extents]
        chain_ids, chains = self._routes.now().chain_ids, self._chains
        objects, indexes, pack = self._objects, self._indexes, READ_EXTENT.pack
        packed = b"".join(
            [
                pack(objects[extent], indexes[extent], chain_ids[chains[extent]], room, offset)
                for extent, (room, offset) in zip(extents, places, strict=True)
            ]
        )
        request = ReadRequest(self, state, extents, slots, staged=staged)
        self.requests.add(request)
        request.send(Method.READ, Read(self._space, packed, memory_id, self.budget_ms()))

    # Answers

    def failed(self, extent: int, state: WorkerState, status: int) -> None:
        """See `DataSink`."""
        if not self.closed:
            if status == Status.UNAVAILABLE:
                state.map_is_old()
            # Only an attempt that took too long is ever cancelled.
            self.tried.setdefault(extent, {})[state] = Status.TIMEOUT if status == Status.CANCELLED else status
            self.again(extent)

    def damaged(self, extent: int, state: WorkerState, version: int) -> None:
        """See `DataSink`. The worker is told, so that it mends its copy."""
        chain_id = self._routes.now().chain_ids[self._chains[extent]]
        row = DAMAGED_EXTENT.pack(self._objects[extent], self._indexes[extent], chain_id, version)
        state.damage.add(self._space, row)

    def _out_of_replicas(self, extent: int) -> None:
        """Everybody who could be asked was; busy ones are asked again after a pause, else this is the answer."""
        tried = self.tried.get(extent, {})
        busy = [state for state, status in tried.items() if status == Status.BUSY]
        if busy:
            for state in busy:
                del tried[state]
            self.again_after_pause(extent)
            return
        failures = [status for status in tried.values() if status != Status.NOT_FOUND]
        status = failures[-1] if failures else Status.NOT_FOUND if tried else Status.UNAVAILABLE
        self.settle(extent, failure_row(status))

    def timeout_row(self) -> Row:
        """See `Batch`."""
        return failure_row(Status.TIMEOUT)

    def _look(self) -> None:
        """Gives up on requests that do not move, in two steps where the worker writes into the caller's slots itself.

        It is told to stop, and another replica is asked once it has. If it does not even say that, the buffers stay
        its own, so the answer for these chunks is TIMEOUT.
        """
        for request in list(self.requests):
            if not request.stands_still():
                continue
            request.state.mark_suspect()
            ours = request.direct and not request.staged
            if ours and not request.cancelled:
                request.cancel()
                continue
            self.requests.discard(request)
            for extent in request.give_up():
                if ours:
                    self.settle(extent, failure_row(Status.TIMEOUT))
                else:
                    self.failed(extent, request.state, Status.TIMEOUT)
        self.later(self._look_s, self._look)


def failure_row(status: int) -> Row:
    """The row of READ_RESULT of a chunk that was not read."""
    return (0, int(status), 0, 0, 0, 0, NO_PUT_ID)
