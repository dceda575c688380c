"""kill -9 of a process that writes through the real engine: nothing acknowledged is lost, nothing is torn."""

import mmap
import runpy
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from esker.chunkserver.engine.io import open_engine
from esker.chunkserver.engine.store import DriveStore
from esker.wire.limits import aligned

CHILD = Path(__file__).with_name("kill_child.py")
ROUNDS = 4


def write_and_kill(directory: Path, first: int, lines: int) -> tuple[set[int], set[int], int]:
    """Runs a writer and kills it behind its n-th line. What it acknowledged as stored and nobody began to remove, what
    it acknowledged as removed, and a number that it has not reached."""
    stored: set[int] = set()
    removed: set[int] = set()
    highest = first
    with subprocess.Popen([sys.executable, str(CHILD), str(directory), str(first)], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        for number_of_line, line in enumerate(child.stdout):
            if number_of_line == lines:
                child.kill()
            # Lines behind the kill were written before it, so they count as well.
            mark, number = chr(line[0]), int(line[1:])
            highest = max(highest, number)
            if mark == "+":
                stored.add(number)
            else:
                stored.discard(number)
            if mark == "-":
                removed.add(number)
        child.wait(timeout=30)
    assert child.returncode == -9, "the writer ended by itself"
    return stored, removed, highest + 1000


async def chunks(directory: Path) -> dict[int, bytes]:
    """Every chunk on the drive, by the number that its record names."""
    engine = open_engine("threads")
    store = DriveStore.open(directory, cluster_id="c", capacity_bytes=256 << 20, engine=engine)
    found: dict[int, bytes] = {}
    buffers: list[tuple[int, int, memoryview]] = []
    results: list[bool] = []
    try:
        assert store.counters()["corrupt_records"] == 0
        page = store.scan(None, limit=100_000)
        assert page.next_after is None
        with store.reader() as reader:
            for key, record in page.items:
                # Direct I/O wants page-aligned memory.
                buffer = memoryview(mmap.mmap(-1, aligned(record.length)))
                buffers.append((int(record.key), record.length, buffer))
                to_read = reader.get(key)
                assert to_read is not None
                store.read_into(to_read, buffer, lambda size, result: results.append(size == result), len(buffer))
        assert await engine.drain(60)
        assert results == [True] * len(page.items)
    finally:
        store.close()
        engine.close()
    for number, length, buffer in buffers:
        found[number] = bytes(buffer[:length])
    return found


@pytest.mark.parametrize("seed", [1, 2])
async def test_nothing_acknowledged_is_lost(tmp_path: Path, seed: int) -> None:
    """Several lives of one drive, each ended at a random place."""
    content_of = runpy.run_path(str(CHILD))["content_of"]
    random = Random(seed)
    stored: set[int] = set()
    first = 0
    for _ in range(ROUNDS):
        newly_stored, removed, first = write_and_kill(tmp_path / "drive", first, random.randrange(1, 300))
        stored |= newly_stored
        found = await chunks(tmp_path / "drive")
        assert stored <= set(found), f"acknowledged and lost: {sorted(stored - set(found))}"
        for number, data in found.items():
            assert data == content_of(number), f"chunk {number} is torn"
        assert not removed & set(found), "an acknowledged removal came back"
        # What is there without an acknowledgement stays.
        stored = set(found)
