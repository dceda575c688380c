"""What `esker bench` was asked for, checked as a whole before anything starts."""

from dataclasses import dataclass
from pathlib import Path

from esker.runtime.sizes import format_size
from esker.tools.bench.baseline import BaselineName
from esker.tools.bench.workload import Mode, Workload, default_batch
from esker.wire.errors import UserError
from esker.wire.limits import ALIGN_BYTES, CHUNK_BYTES_MAX, GIB, MIB, REQUEST_EXTENTS_MAX
from esker.wire.meta_client import parse_addresses
from esker.wire.types import NamespaceMode

POOL_BYTES_MAX = 8 * GIB
"""Memory of all jobs' blocks in flight."""
MUTABLE_CHUNK_BYTES_MAX = 32 * MIB
"""Half of a worker's pool: longer ones it refuses."""


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """The options, as on the command line. Raises `UserError` where they do not fit together."""

    mode: Mode = Mode.RANDREAD
    block_bytes: int = MIB
    iodepth: int = 16
    batch: int | None = None
    """Blocks per call; None: `default_batch`."""
    numjobs: int = 1
    size_bytes: int = GIB
    """Data set of all jobs; of a writing workload, bytes written at most in a turn."""
    runtime_s: float = 5.0
    repeat: int = 3
    verify: bool = False
    baseline: BaselineName = BaselineName.RING
    baseline_directories: tuple[Path, ...] = ()
    transport: str = "auto"
    cluster: str | None = None
    directory: Path | None = None
    drives: int = 4
    replicas: int = 2
    seed: int = 0
    engine: str = "auto"
    namespace_mode: NamespaceMode = NamespaceMode.REPLICATED
    mutable: bool = False
    """Write in place, and read, parts of mutable chunks instead of blocks."""
    chunk_bytes: int = MIB
    """Length of those chunks."""

    def __post_init__(self) -> None:
        limit_bytes = 64 * CHUNK_BYTES_MAX
        if self.block_bytes % ALIGN_BYTES or not ALIGN_BYTES <= self.block_bytes <= limit_bytes:
            raise UserError(
                f"--bs {self.block_bytes}: blocks must be multiples of {ALIGN_BYTES} bytes up to "
                f"{format_size(limit_bytes)}"
            )
        if self.mutable:
            self._check_chunks()
        if not 1 <= self.iodepth <= REQUEST_EXTENTS_MAX:
            raise UserError(f"--iodepth {self.iodepth}; allowed: 1 to {REQUEST_EXTENTS_MAX}")
        if self.batch is not None and not 1 <= self.batch <= self.iodepth:
            raise UserError(f"--iodepth-batch {self.batch}; allowed: 1 to the depth, {self.iodepth}")
        if self.size_bytes < self.block_bytes * self.numjobs:
            raise UserError(
                f"--size {format_size(self.size_bytes)} is less than one block for each of {self.numjobs} jobs"
            )
        pool_bytes = self.numjobs * self.iodepth * self.block_bytes
        if pool_bytes > POOL_BYTES_MAX:
            raise UserError(
                f"{format_size(pool_bytes)} in flight (jobs x depth x block); at most {format_size(POOL_BYTES_MAX)}: "
                "lower --iodepth or --numjobs"
            )
        if self.replicas > self.drives:
            raise UserError(f"{self.replicas} replicas need at least as many drives; there are {self.drives}")
        if self.cluster is not None and self.directory is not None:
            raise UserError("--dir is for a cluster of its own; with --cluster, say --baseline-dir instead")
        if self.cluster is not None:
            parse_addresses(self.cluster)
        if self.baseline is BaselineName.SOCKET and not self.mode.reads:
            raise UserError("the baseline socket is compared with reads; use --baseline ring or fio for writes")

    def _check_chunks(self) -> None:
        if self.namespace_mode is not NamespaceMode.REPLICATED:
            raise UserError("--mutable is for replicated chunks; leave --mode out")
        if self.chunk_bytes % ALIGN_BYTES or not ALIGN_BYTES <= self.chunk_bytes <= MUTABLE_CHUNK_BYTES_MAX:
            raise UserError(
                f"--chunk-size {self.chunk_bytes}: chunks must be multiples of {ALIGN_BYTES} bytes up to "
                f"{format_size(MUTABLE_CHUNK_BYTES_MAX)}"
            )
        if self.chunk_bytes % self.block_bytes:
            raise UserError(
                f"--chunk-size {format_size(self.chunk_bytes)} is no multiple of --bs {format_size(self.block_bytes)}"
            )
        if self.workload.blocks < self.workload.calls * self.workload.batch:
            raise UserError(
                f"--size {format_size(self.size_bytes)} has fewer blocks than {self.iodepth} in flight for each job; "
                "raise --size or lower --iodepth"
            )

    @property
    def workload(self) -> Workload:
        """One job's share."""
        return Workload(
            mode=self.mode,
            block_bytes=self.block_bytes,
            blocks=self.size_bytes // self.block_bytes // self.numjobs,
            iodepth=self.iodepth,
            batch=self.batch if self.batch is not None else default_batch(self.iodepth),
            runtime_s=self.runtime_s,
            seed=self.seed,
        )

    @property
    def dataset_bytes(self) -> int:
        """Bytes of all jobs' blocks, one copy."""
        return self.workload.blocks * self.numjobs * self.block_bytes

    @property
    def stored_bytes(self) -> int:
        """Bytes that a cluster of its own stores at most, copies included."""
        sets = 2 if self.mode is Mode.RANDRW and not self.mutable else 1
        return self.dataset_bytes * sets * self.copies(self.replicas)

    def copies(self, replicas: int) -> int:
        """Of every block, in a cluster that keeps `replicas` of replicated ones."""
        return 1 if self.namespace_mode is NamespaceMode.CACHE else replicas

    @property
    def namespace(self) -> str:
        """The one to use."""
        kind = "" if self.namespace_mode is NamespaceMode.REPLICATED else f"-{self.namespace_mode}"
        return f"esker-bench{kind}/{self.block_bytes}"


def mode_named(name: str) -> Mode:
    """The mode called `name`. Raises `UserError` for another name."""
    try:
        return Mode(name)
    except ValueError:
        raise UserError(f"--rw {name}; allowed: {', '.join(Mode)}") from None


def baseline_named(name: str) -> BaselineName:
    """The baseline called `name`. Raises `UserError` for another name."""
    try:
        return BaselineName(name)
    except ValueError:
        raise UserError(f"--baseline {name}; allowed: {', '.join(BaselineName)}") from None
