"""One READ_RANGE on its way to one worker, and what its replies say.

Owns the extents that this worker has not answered yet, and the memory that the answers land in: a staging slot that a
worker of this host writes by itself, or memory made when the length is known. An extent is settled only once its bytes
are here, match the checksums of the blocks that they cover, and were copied to where they belong; whatever a reply
claims is checked before it is believed.
"""

from collections.abc import Sequence
from typing import Protocol

from esker.client.batch import Row
from esker.client.data_request import DataRequest, DataSink
from esker.client.mutable.types import Range
from esker.wire.checksum import checksums
from esker.wire.codec import decode_body
from esker.wire.limits import checksum_blocks
from esker.wire.mutable_columns import covered
from esker.wire.mutable_messages import READ_RANGE_RESULT, ReadRangeReply
from esker.wire.status import Status


class RangeSink(DataSink, Protocol):
    """The batch, as its requests see it."""

    ranges: Sequence[Range]

    def settle(self, extent: int, row: Row) -> None:
        """This is the extent's answer, a row of READ_RANGE_RESULT; its bytes are in place."""


class RangeRequest(DataRequest[RangeSink]):
    """A READ_RANGE of `extents`, which are numbers in the batch. `slots` are staging memory, one for each, or None."""

    __slots__ = ()

    NAME = "READ_RANGE"

    def _take(self, body: bytes | bytearray, payload_bytes: int) -> None:
        """See `DataRequest`."""
        reply = decode_body(ReadRangeReply, body)
        packed, at, data_bytes = reply.results, 0, 0
        if len(packed) % READ_RANGE_RESULT.size:
            raise ValueError(f"results of {len(packed)} bytes")
        others: list[Row] = []
        for row in READ_RANGE_RESULT.iter_unpack(packed):
            number, status, _, chunk_bytes, start, length = row
            if not self.waiting[number]:
                raise ValueError(f"extent {number} was answered before")
            self.waiting[number] = 0
            if status != Status.OK:
                others.append(row)
                continue
            range_ = self._sink.ranges[self.extents[number]]
            first, end = covered(range_.offset, range_.length, chunk_bytes)
            if (start if length else first, length) != (first, end - first):
                raise ValueError(f"bytes {start} to {start + length} of {chunk_bytes} for extent {number}")
            if not length:
                others.append(row)
                continue
            sums = reply.checksums[at : at + 8 * checksum_blocks(length)]
            at += 8 * checksum_blocks(length)
            data_bytes += length
            self._landing.append((number, self._memory(number, length), sums, row))
        if at != len(reply.checksums):
            raise ValueError(f"{len(reply.checksums)} bytes of checksums for {at // 8} blocks")
        if payload_bytes != (0 if self.direct else data_bytes):
            raise ValueError(f"{payload_bytes} bytes of payload for {data_bytes} bytes of extents")
        for row in others:
            self._settle_without_data(row)

    def _settle_without_data(self, row: Row) -> None:
        extent, status = self.extents[row[0]], row[1]
        self.state.load_bytes -= self._sink.rooms[extent]
        if status in (Status.OK, Status.NOT_FOUND):
            self._sink.settle(extent, row)
            return
        if status == Status.IO_ERROR:
            self._sink.damaged(extent, self.state, 0)
        self._sink.failed(extent, self.state, status)

    def _memory(self, number: int, length: int) -> memoryview:
        if self.slots is not None:
            return self.slots[number].view[:length]
        return memoryview(bytearray(length))

    def _verify(self) -> None:
        """See `DataRequest`."""
        landed, self._landing = self._landing, []
        for number, view, sums, row in landed:
            extent = self.extents[number]
            self.state.load_bytes -= self._sink.rooms[extent]
            if checksums(view) != sums:
                self._sink.damaged(extent, self.state, row[2])
                self._sink.failed(extent, self.state, Status.CHECKSUM)
                continue
            range_ = self._sink.ranges[extent]
            part = view[range_.offset - row[4] :][: range_.length]
            range_.view[: len(part)] = part
            self.state.read_bytes += len(part)
            self._sink.settle(extent, row)
