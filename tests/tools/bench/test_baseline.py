"""The baselines measure something, of the right directions, and leave nothing behind."""

from contextlib import AsyncExitStack
from pathlib import Path

import msgspec
import pytest

from esker.tools.bench.baseline import BaselineName, open_baseline
from esker.tools.bench.workload import Mode, Workload
from esker.wire.errors import UserError

WORKLOAD = Workload(mode=Mode.RANDREAD, block_bytes=8192, blocks=40, iodepth=6, batch=1, runtime_s=0.1, seed=1)


@pytest.mark.parametrize("mode", list(Mode))
async def test_ring_measures_every_mode(tmp_path: Path, mode: Mode) -> None:
    directories = [tmp_path / "a", tmp_path / "b"]
    for directory in directories:
        directory.mkdir()
    workload = msgspec.structs.replace(WORKLOAD, mode=mode)
    async with AsyncExitStack() as stack:
        ring = await open_baseline(BaselineName.RING, stack, [str(directory) for directory in directories], workload, 2)
        assert ring is not None
        for turn in range(2):
            figures = await ring.turn(turn, 4)
            assert set(figures) == {name for name in ("read", "write") if getattr(mode, f"{name}s")}
            assert all(flow.bw_bytes > 0 and flow.lat_us["max"] > 0 for flow in figures.values())
            if mode in (Mode.WRITE, Mode.RANDWRITE):
                assert figures["write"].bw_bytes == pytest.approx(figures["write"].iops * workload.block_bytes)
    assert not [file for directory in directories for file in directory.iterdir()]


async def test_socket_measures_blocks_received() -> None:
    async with AsyncExitStack() as stack:
        baseline = await open_baseline(BaselineName.SOCKET, stack, [], WORKLOAD, 1)
        assert baseline is not None
        for turn in range(2):
            figures = await baseline.turn(turn, 1)
            assert set(figures) == {"read"}
            assert figures["read"].bw_bytes > 0


async def test_no_baseline_is_none() -> None:
    async with AsyncExitStack() as stack:
        assert await open_baseline(BaselineName.NONE, stack, [], WORKLOAD, 1) is None


async def test_ring_without_directories_says_what_to_give() -> None:
    async with AsyncExitStack() as stack:
        with pytest.raises(UserError, match="--baseline-dir"):
            await open_baseline(BaselineName.RING, stack, [], WORKLOAD, 1)


async def test_ring_reports_a_directory_it_cannot_use(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        with pytest.raises(UserError, match="cannot make the baseline's file"):
            await open_baseline(BaselineName.RING, stack, [str(tmp_path / "absent")], WORKLOAD, 1)
