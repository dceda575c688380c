"""Options that do not fit together are refused before anything starts."""

from pathlib import Path
from typing import Any

import pytest

from esker.tools.bench.baseline import BaselineName
from esker.tools.bench.options import BenchOptions, baseline_named, mode_named
from esker.tools.bench.workload import Mode
from esker.wire.errors import UserError


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"block_bytes": 1000}, "multiples of 4096"),
        ({"block_bytes": 0}, "multiples of 4096"),
        ({"block_bytes": 1 << 40}, "multiples of 4096"),
        ({"iodepth": 0}, "iodepth 0"),
        ({"iodepth": 8, "batch": 9}, "1 to the depth, 8"),
        ({"size_bytes": 1 << 20, "numjobs": 2}, "less than one block"),
        ({"iodepth": 8192, "block_bytes": 1 << 26, "size_bytes": 1 << 40}, "in flight"),
        ({"drives": 2, "replicas": 3}, "at least as many drives"),
        ({"cluster": "h:1", "directory": Path("/tmp")}, "--baseline-dir"),
        ({"mode": Mode.WRITE, "baseline": BaselineName.SOCKET}, "socket"),
    ],
)
def test_misfits_are_refused(options: dict[str, Any], complaint: str) -> None:
    with pytest.raises(UserError, match=complaint):
        BenchOptions(**options)


def test_jobs_share_the_data_set() -> None:
    options = BenchOptions(block_bytes=4096, size_bytes=10 * 4096 + 1, numjobs=3, iodepth=2)
    assert options.workload.blocks == 3
    assert options.dataset_bytes == 9 * 4096
    assert options.stored_bytes == 2 * 9 * 4096


def test_names_that_do_not_exist_are_refused_with_those_that_do() -> None:
    with pytest.raises(UserError, match="allowed: read, randread, write, randwrite, randrw"):
        mode_named("trim")
    with pytest.raises(UserError, match="allowed: ring, fio, socket, none"):
        baseline_named("disk")
