"""What to measure, in fio's words, and which block comes next. Pure: shared by esker's load and the raw baselines."""

from collections.abc import Iterator
from enum import StrEnum
from random import Random

import msgspec


class Mode(StrEnum):
    """fio's `rw`: `rand*` choose blocks at random, the others go through the data set in order."""

    READ = "read"
    RANDREAD = "randread"
    WRITE = "write"
    RANDWRITE = "randwrite"
    RANDRW = "randrw"

    @property
    def reads(self) -> bool:
        return self in (Mode.READ, Mode.RANDREAD, Mode.RANDRW)

    @property
    def writes(self) -> bool:
        return self in (Mode.WRITE, Mode.RANDWRITE, Mode.RANDRW)


class Workload(msgspec.Struct, frozen=True):
    """One job's share of the benchmark."""

    mode: Mode
    block_bytes: int
    blocks: int
    """Blocks of the data set; of a writing workload, blocks written at most in a turn."""
    iodepth: int
    """Blocks in flight."""
    batch: int
    """Blocks per call."""
    runtime_s: float
    seed: int

    @property
    def calls(self) -> int:
        """Calls in flight."""
        return -(-self.iodepth // self.batch)


def default_batch(iodepth: int) -> int:
    """Blocks per call unless told: at least two calls are in flight (from a depth of 2 on), of at most 64 blocks."""
    return max(1, min(64, iodepth // 2))


def read_order(workload: Workload, turn: int) -> Iterator[int]:
    """Blocks to read, without end: again and again through the data set, in order or each time shuffled anew."""
    random = Random(f"{workload.seed} {turn}")
    order = list(range(workload.blocks))
    while True:
        if workload.mode is not Mode.READ:
            random.shuffle(order)
        yield from order


def write_order(workload: Workload, turn: int) -> Iterator[int]:
    """Places to write, each once, then the end."""
    order = list(range(workload.blocks))
    if workload.mode is not Mode.WRITE:
        Random(f"{workload.seed} {turn}").shuffle(order)
    return iter(order)


def mixed_order(workload: Workload, turn: int) -> Iterator[bool]:
    """For `randrw`: whether the next call reads (else it writes); half of them, without end."""
    random = Random(f"{workload.seed} {turn} mix")
    while True:
        yield random.random() < 0.5
