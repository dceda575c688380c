"""A process that writes to a drive until it is killed: `python kill_child.py DIRECTORY FIRST_NUMBER`.

Chunk n holds bytes that follow from n, and names n as its key. Each line on stdout is an acknowledgement: `+n` for a
chunk that is stored, `-n` for one that is removed; `?n` says that the removal of n is about to begin.
"""

import asyncio
import mmap
import os
import sys
from random import Random
from typing import Any

import uvloop

from esker.chunkserver.engine.io import open_engine
from esker.chunkserver.engine.record import Record, record_key
from esker.chunkserver.engine.slot_class import zero_padding
from esker.chunkserver.engine.slot_files import Slot
from esker.chunkserver.engine.store import DriveStore
from esker.wire.ids import NO_PUT_ID, chunk_id
from esker.wire.limits import KIB, MIB, checksum_blocks
from esker.wire.status import Status

CAPACITY_BYTES = 256 * MIB
SLOT_BYTES = 256 * KIB
IN_FLIGHT = 24


def key_of(number: int) -> bytes:
    return record_key(number % 5, chunk_id(1, number.to_bytes(16, "big")))


def content_of(number: int) -> bytes:
    random = Random(number)
    return random.randbytes(random.choice((100, 5000, 64 * KIB, 100_000, SLOT_BYTES)))


def say(line: str) -> None:
    os.write(1, f"{line}\n".encode())


class Writer:
    """Keeps so many chunks on their way, and removes every third one again."""

    def __init__(self, store: DriveStore, engine: Any, first: int) -> None:
        self.store = store
        self.engine = engine
        self.next = first

    def start(self) -> None:
        number = self.next
        self.next += 1
        data = content_of(number)
        slot = self.store.allocate(len(data), SLOT_BYTES, reserve=False)
        buffer = memoryview(mmap.mmap(-1, slot.padded_bytes))
        buffer[: len(data)] = data
        zero_padding(buffer, len(data))
        self.store.write(slot, buffer, self.written, (number, len(data), slot))
        self.engine.submit()

    def written(self, token: tuple[int, int, Slot], result: int) -> None:
        number, length, slot = token
        assert result == slot.padded_bytes, result
        record = Record(
            length=length,
            version=1,
            chain_version=1,
            block_bytes=length,
            chunk_count=1,
            put_id=NO_PUT_ID,
            created_ms=0,
            checksums=bytes(8 * checksum_blocks(length)),
            key=b"%d" % number,
            pages=slot.pages,
            slot=slot.number,
        )
        self.store.commit_put(key_of(number), record, slot, self.stored, number)

    def stored(self, number: int, status: Status) -> None:
        assert status is Status.OK, status
        say(f"+{number}")
        if number % 3 == 0:
            say(f"?{number}")
            self.store.commit_remove(key_of(number), 1, NO_PUT_ID, self.removed, number)
        else:
            self.start()

    def removed(self, number: int, status: Status) -> None:
        assert status is Status.OK, status
        say(f"-{number}")
        self.start()


async def main() -> None:
    engine = open_engine()
    store = DriveStore.open(sys.argv[1], cluster_id="c", capacity_bytes=CAPACITY_BYTES, engine=engine)
    writer = Writer(store, engine, int(sys.argv[2]))
    for _ in range(IN_FLIGHT):
        writer.start()
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(main())
