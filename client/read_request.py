"""One READ on its way to one worker, and what its replies say.

Owns the extents that this worker has not answered yet. An extent is settled only once its bytes are here and match
their checksums; whatever a reply claims is checked before it is believed. What follows from a failure is for the
batch (`reads.py`).
"""

from collections.abc import Sequence
from typing import Protocol

from esker.client.batch import Row
from esker.client.data_request import DataRequest, DataSink
from esker.client.workers import WorkerState
from esker.wire.checksum import checksums
from esker.wire.codec import decode_body
from esker.wire.limits import checksum_blocks
from esker.wire.messages import READ_RESULT, ReadReply
from esker.wire.status import Status

_ANSWERS = frozenset((int(Status.NOT_FOUND), int(Status.TOO_LARGE)))
assert int(Status.OK) == 0


class ReadSink(DataSink, Protocol):
    """The batch, as its requests see it. Requests put answers into `rows` and `sources` themselves, many at a time."""

    views: Sequence[memoryview]
    rows: list[Row | None]
    sources: list[WorkerState | None]

    def settled(self, count: int) -> None:
        """So many chunks more have their answers."""


class ReadRequest(DataRequest[ReadSink]):
    """A READ of `extents`, which are numbers in the batch. A row is a row of READ_RESULT."""

    __slots__ = ()

    NAME = "READ"

    def _take(self, body: bytes | bytearray, payload_bytes: int) -> None:
        """See `DataRequest`."""
        reply = decode_body(ReadReply, body)
        packed = reply.results
        if len(packed) % READ_RESULT.size:
            raise ValueError(f"results of {len(packed)} bytes")
        extents, waiting, sink, sums = self.extents, self.waiting, self._sink, reply.checksums
        views, rooms, land = sink.views, sink.rooms, self._landing.append
        staging = self.slots if self.staged else None
        at = data_bytes = 0
        others: list[tuple[int, Row]] = []
        for row in READ_RESULT.iter_unpack(packed):
            number, status, length = row[0], row[1], row[2]
            if not waiting[number]:
                raise ValueError(f"extent {number} was answered before")
            waiting[number] = 0
            if status:
                others.append((number, row))
                continue
            room = rooms[extents[number]]
            if staging is not None and length > room:  # it fitted the slot, whole pages, but not the caller's memory
                others.append((number, (number, int(Status.TOO_LARGE), *row[2:])))
                at += 8 * checksum_blocks(length)
                continue
            end = at + 8 * checksum_blocks(length)
            if not 0 < length <= room or end > len(sums):
                raise ValueError(f"extent {number} of {length} bytes with {len(sums) - at} bytes of checksums")
            view = views[extents[number]] if staging is None else staging[number].view
            land((number, view if length == len(view) else view[:length], sums[at:end], row))
            at = end
            data_bytes += length
        if at != len(sums):
            raise ValueError(f"{len(sums) - at} bytes of checksums too many")
        if payload_bytes != (0 if self.direct else data_bytes):
            raise ValueError(f"{payload_bytes} bytes of payload for {data_bytes} bytes of extents")
        if others:
            self._settle_without_data(others)

    def _settle_without_data(self, others: Sequence[tuple[int, Row]]) -> None:
        sink, state, settled = self._sink, self.state, 0
        for number, row in others:
            extent = self.extents[number]
            state.load_bytes -= sink.rooms[extent]
            if row[1] in _ANSWERS:
                sink.rows[extent] = row
                sink.sources[extent] = state
                settled += 1
            else:
                sink.failed(extent, state, row[1])
        sink.settled(settled)

    def _verify(self) -> None:
        """See `DataRequest`."""
        landing, self._landing = self._landing, []
        if not landing:
            return
        sink, state, extents = self._sink, self.state, self.extents
        rows, sources, rooms = sink.rows, sink.sources, sink.rooms
        settled = read_bytes = load_bytes = 0
        for number, view, sums, row in landing:
            extent = extents[number]
            load_bytes += rooms[extent]
            if checksums(view) == sums:
                if self.staged:
                    sink.views[extent][: row[2]] = view
                rows[extent] = row
                sources[extent] = state
                read_bytes += row[2]
                settled += 1
            else:
                sink.damaged(extent, state, row[3])
                sink.failed(extent, state, Status.CHECKSUM)
        state.load_bytes -= load_bytes
        state.read_bytes += read_bytes
        sink.settled(settled)
