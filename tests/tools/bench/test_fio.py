"""The baseline fio: its command line, and what is read from its output."""

import json
import os
import shutil
from pathlib import Path

import pytest

from esker.tools.bench.fio import FioBaseline, figures_of
from esker.tools.bench.workload import Mode, Workload
from esker.wire.errors import EskerError, UserError

WORKLOAD = Workload(mode=Mode.RANDREAD, block_bytes=4096, blocks=64, iodepth=4, batch=1, runtime_s=0.2, seed=1)


def direction(bandwidth: int) -> dict[str, object]:
    return {
        "bw_bytes": bandwidth,
        "iops": 10.5,
        "clat_ns": {"max": 9000, "percentile": {"50.000000": 1000, "90.000000": 2000, "99.000000": 3500}},
    }


def test_figures_come_from_the_directions_that_the_mode_has() -> None:
    output = b"note: both iodepth\n" + json.dumps({"jobs": [{"read": direction(5), "write": direction(7)}]}).encode()
    both = figures_of(output, Mode.RANDRW)
    assert (both["read"].bw_bytes, both["write"].bw_bytes) == (5, 7)
    assert both["read"].lat_us == {"p50": 1, "p90": 2, "p99": 3.5, "p999": 0, "max": 9}
    assert set(figures_of(output, Mode.WRITE)) == {"write"}


@pytest.mark.parametrize("output", [b"", b"fio: bad", b'{"jobs": []}', b'{"jobs": [{}]}'])
def test_output_that_is_not_fios_is_an_error(output: bytes) -> None:
    with pytest.raises(EskerError, match="fio's output"):
        figures_of(output, Mode.READ)


def test_absent_fio_is_named_with_the_way_to_get_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match="apt-get install fio"):
        FioBaseline([str(tmp_path)], WORKLOAD, 1)


@pytest.mark.skipif(shutil.which("fio") is None, reason="fio is not installed")
async def test_a_turn_measures_and_leaves_nothing(tmp_path: Path) -> None:
    baseline = FioBaseline([str(tmp_path)], WORKLOAD, 1)
    try:
        figures = await baseline.turn(1)
    finally:
        baseline.close()
    assert figures["read"].iops > 0
    assert figures["read"].lat_us["p50"] > 0
    assert not os.listdir(tmp_path)
