"""LOOKUP: which blocks' first chunks are here, by their records alone.

Long requests are answered in slices with a turn of the loop between them, so that nothing else waits behind them.
"""

import asyncio
from collections.abc import Callable, Set

from esker.chunkserver.engine.errors import DriveFailed
from esker.chunkserver.engine.store import DriveStore
from esker.runtime.counters import Counters
from esker.wire.codec import decode_body
from esker.wire.columns import check_rows
from esker.wire.limits import LOOKUP_KEYS_MAX
from esker.wire.messages import LOOKUP_ABSENT, LOOKUP_KEY, LOOKUP_UNSURE, Lookup, LookupReply
from esker.wire.rpc_server import Request

SLICE_KEYS = 2048


class LookupService:
    """Serves LOOKUP of one drive.

    `check_space` raises `RequestFailed` for spaces that are not served. Of `unsure_chains` nothing is said to be
    absent: this replica may have missed it.
    """

    def __init__(
        self,
        store: DriveStore,
        counters: Counters,
        check_space: Callable[[int], None] = lambda space: None,
        unsure_chains: Set[int] = frozenset(),
    ) -> None:
        self._store = store
        self._counters = counters
        self._check_space = check_space
        self._unsure = unsure_chains
        self._loop = asyncio.get_running_loop()

    def lookup(self, request: Request) -> None:
        """Handles LOOKUP: one byte per key."""
        message = decode_body(Lookup, request.body)
        self._check_space(message.space)
        count = check_rows(LOOKUP_KEY, message.keys, LOOKUP_KEYS_MAX)
        self._counters.add("lookup_keys", count)
        self._slice(request, message, 0, [])

    def _slice(self, request: Request, message: Lookup, at: int, parts: list[bytes]) -> None:
        end = at + SLICE_KEYS * LOOKUP_KEY.size
        keys = message.keys if at == 0 and end >= len(message.keys) else message.keys[at:end]
        try:
            with self._store.reader() as reader:
                present = reader.present(message.space, keys)
        except DriveFailed as failure:
            request.fail(failure.status, failure.message)
            return
        parts.append(self._told(present, keys) if self._unsure else present)
        if end < len(message.keys):
            self._loop.call_soon(self._slice, request, message, end, parts)
        else:
            request.reply(LookupReply(parts[0] if len(parts) == 1 else b"".join(parts)))

    def _told(self, present: bytes, keys: bytes) -> bytes:
        told = bytearray(present)
        for number, (_, chain_id) in enumerate(LOOKUP_KEY.iter_unpack(keys)):
            if told[number] == LOOKUP_ABSENT and chain_id in self._unsure:
                told[number] = LOOKUP_UNSURE
        return bytes(told)
