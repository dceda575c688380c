"""The baseline `fio`: the same work by fio's io_uring engine on files in the drives' directories.

Owns: the command line and what is read from fio's JSON. The files are laid out by fio itself before its clock starts
(written for reads, fallocated for writes), stay for all turns and are removed by `close`.
"""

import asyncio
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import msgspec

from esker.tools.bench.result import Figures
from esker.tools.bench.workload import Mode, Workload
from esker.wire.errors import DeadlineExceeded, EskerError, UserError
from esker.wire.limits import MIB

LAYOUT_BYTES_PER_S_MIN = 20 * MIB
"""A drive slower than this to lay the files out is given up on."""


class _Latency(msgspec.Struct):
    percentile: dict[str, int] = {}
    max: int = 0


class _Direction(msgspec.Struct):
    bw_bytes: float
    iops: float
    clat_ns: _Latency


class _Job(msgspec.Struct):
    read: _Direction
    write: _Direction


class _Output(msgspec.Struct):
    jobs: list[_Job]


class FioBaseline:
    """fio on one file per directory. Raises `UserError` where fio is not installed."""

    def __init__(self, directories: Sequence[str], workload: Workload, jobs: int) -> None:
        self._program = shutil.which("fio")
        if self._program is None:
            raise UserError("fio is not installed; as root: apt-get install fio (or use --baseline ring)")
        self._files = [Path(directory) / f"esker-bench-{os.getpid()}.fio" for directory in directories]
        self._workload = workload
        self._jobs = jobs

    def command(self, sync_every: int) -> list[str]:
        """The command line of one turn."""
        assert self._program is not None
        workload = self._workload
        size_bytes = workload.blocks * workload.block_bytes
        command = [
            self._program,
            "--name=raw",
            f"--filename={':'.join(str(file).replace(':', chr(92) + ':') for file in self._files)}",
            f"--rw={workload.mode}",
            f"--bs={workload.block_bytes}",
            f"--size={size_bytes * self._jobs}",
            f"--io_size={size_bytes}",
            f"--iodepth={workload.iodepth}",
            f"--numjobs={self._jobs}",
            f"--runtime={workload.runtime_s:.3f}s",
            f"--randseed={workload.seed + 1}",
            "--ioengine=io_uring",
            "--direct=1",
            "--thread",
            "--group_reporting",
            "--percentile_list=50:90:99:99.9",
            "--output-format=json",
        ]
        if self._jobs > 1:
            command.append(f"--offset_increment={size_bytes // len(self._files)}")
        if workload.mode in (Mode.READ, Mode.RANDREAD):
            command.append("--time_based")
        else:
            command.append(f"--fdatasync={sync_every}")
        return command

    async def turn(self, sync_every: int) -> dict[str, Figures]:
        """One turn's figures, by direction (`read`, `write`)."""
        workload = self._workload
        layout_s = workload.blocks * workload.block_bytes * self._jobs / LAYOUT_BYTES_PER_S_MIN
        process = await asyncio.create_subprocess_exec(
            *self.command(sync_every), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        try:
            async with asyncio.timeout(workload.runtime_s + layout_s + 30):
                output, complaints = await process.communicate()
        except TimeoutError:
            raise DeadlineExceeded("fio did not end in time") from None
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if process.returncode:
            raise EskerError(f"fio failed with status {process.returncode}: {complaints.decode(errors='replace')}")
        return figures_of(output, workload.mode)

    def close(self) -> None:
        """Removes the files."""
        for file in self._files:
            file.unlink(missing_ok=True)


def figures_of(output: bytes, mode: Mode) -> dict[str, Figures]:
    """The figures in fio's JSON output (what stands before its first brace is notes)."""
    start = output.find(b"{")
    try:
        job = msgspec.json.decode(output[max(start, 0) :], type=_Output).jobs[0]
    except (msgspec.DecodeError, IndexError) as error:
        raise EskerError(f"cannot read fio's output: {error}") from error
    found = {}
    for name, wanted, direction in (("read", mode.reads, job.read), ("write", mode.writes, job.write)):
        if wanted:
            table = direction.clat_ns.percentile
            found[name] = Figures(
                bw_bytes=direction.bw_bytes,
                iops=direction.iops,
                lat_us={
                    "p50": table.get("50.000000", 0) / 1000,
                    "p90": table.get("90.000000", 0) / 1000,
                    "p99": table.get("99.000000", 0) / 1000,
                    "p999": table.get("99.900000", 0) / 1000,
                    "max": direction.clat_ns.max / 1000,
                },
            )
    return found
