"""Replays requests through KV clients: find the leading hits, read and check them, store the rest.

Owns: what one request does and what of it counts. Must not know: where the cluster came from, how results are shown.
An operation that fails is counted and the replay goes on, as an inference worker would: it recomputes the block.
"""

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence

from esker.kvclient import GetResult, KVCacheClient, Status
from esker.tools.replay.contents import BlockContents, block_keys
from esker.tools.replay.tally import Tally
from esker.tools.running import all_or_none
from esker.tools.trace.format import TraceRequest
from esker.wire.errors import EskerError, UserError

SLOT_WAIT_S = 10.0


class Replayer:
    """Replays a shared stream of requests with one task per client."""

    def __init__(
        self,
        clients: Sequence[KVCacheClient],
        contents: BlockContents,
        window_blocks: int,
        *,
        speed: float | None,
        progress: Callable[[Tally], None],
    ) -> None:
        self.tally = Tally(time.perf_counter)
        self._clients = clients
        self._contents = contents
        self._window = window_blocks
        self._speed = speed
        self._progress = progress

    async def run(self, requests: Iterator[TraceRequest]) -> None:
        """Replays all requests; each goes to the first client that is free, in the trace's order."""
        started_s = time.perf_counter()
        await all_or_none(self._client(client, requests, started_s) for client in self._clients)

    async def _client(self, client: KVCacheClient, requests: Iterator[TraceRequest], started_s: float) -> None:
        for request in requests:
            if self._speed is not None:
                due_s = started_s + request.timestamp / 1000 / self._speed
                await asyncio.sleep(max(0.0, due_s - time.perf_counter()))
            try:
                await self._request(client, request.hash_ids)
            except UserError:
                raise
            except EskerError as error:
                self.tally.errors[f"{type(error).__name__}: {error}"] += 1
            self._progress(self.tally)

    async def _request(self, client: KVCacheClient, hash_ids: Sequence[int]) -> None:
        tally = self.tally
        tally.requests += 1
        tally.blocks += len(hash_ids)
        keys = block_keys(hash_ids)
        before_s = time.perf_counter()
        with tally.match_clock.running():
            matched = await client.match_prefix(keys)
        busy_s = time.perf_counter() - before_s
        hits, seconds = await self._read(client, keys, hash_ids, matched)
        busy_s += seconds
        busy_s += await self._write(client, keys, hash_ids, hits)
        tally.latencies_ms.append(busy_s * 1000)

    async def _read(
        self, client: KVCacheClient, keys: Sequence[bytes], hash_ids: Sequence[int], matched: int
    ) -> tuple[int, float]:
        """Reads the matched blocks, up to the window with the first bad one.

        Returns how many leading blocks were there and right, and the seconds that reading took.
        """
        tally = self.tally
        busy_s = 0.0
        hits = 0
        for first in range(0, matched, self._window):
            last = min(first + self._window, matched)
            slots = await client.pool.acquire_wait(last - first, SLOT_WAIT_S)
            try:
                before_s = time.perf_counter()
                with tally.read_clock.running():
                    results = await client.get(keys[first:last], slots, start=first)
                busy_s += time.perf_counter() - before_s
                for index, (slot, result) in enumerate(zip(slots, results, strict=True), start=first):
                    # Also what lies behind a bad block is checked, but only an unbroken run is hits.
                    if self._good(slot.view, result, hash_ids[index]) and hits == index:
                        hits += 1
            finally:
                for slot in slots:
                    slot.release()
            if hits < last:
                break
        tally.hit_blocks += hits
        return hits, busy_s

    def _good(self, view: memoryview, result: GetResult, hash_id: int) -> bool:
        """Counts one result; whether it is the block, every byte of it."""
        tally = self.tally
        tally.get_statuses[result.status.name] += 1
        if result.status is not Status.OK:
            tally.missed_after_match += 1
            return False
        tally.read_bytes += result.length
        right = result.length == self._contents.block_bytes and self._contents.matches(view, hash_id)
        tally.wrong_blocks += not right
        return right

    async def _write(self, client: KVCacheClient, keys: Sequence[bytes], hash_ids: Sequence[int], hits: int) -> float:
        """Stores the blocks from `hits` on. Returns the seconds it took."""
        tally = self.tally
        busy_s = 0.0
        for first in range(hits, len(keys), self._window):
            last = min(first + self._window, len(keys))
            slots = await client.pool.acquire_wait(last - first, SLOT_WAIT_S)
            try:
                for slot, hash_id in zip(slots, hash_ids[first:last], strict=True):
                    self._contents.fill(slot.view, hash_id)
                before_s = time.perf_counter()
                with tally.write_clock.running():
                    results = await client.put(keys[first:last], slots, start=first)
                busy_s += time.perf_counter() - before_s
            finally:
                for slot in slots:
                    slot.release()
            for result in results:
                tally.put_statuses[result.status.name] += 1
                if result.status is Status.OK:
                    tally.put_blocks += 1
                    tally.written_bytes += self._contents.block_bytes
        return busy_s
