"""The demo, shortened: it must end well, say the figures, and leave nothing."""

import os
import tempfile
from dataclasses import replace

import pytest

from esker.tools.demo import BENCH, run_demo
from esker.tools.exit_codes import ExitCode
from esker.wire.limits import MIB


async def test_demo_prints_one_summary_and_leaves_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    bench = replace(BENCH, size_bytes=16 * MIB, runtime_s=0.1, repeat=1)
    assert await run_demo(requests=10, bench=bench) is ExitCode.FINE
    text = capsys.readouterr().out
    for words in ("prefix hits", "wrong bytes", "0 blocks", "GB/s", "share per drive"):
        assert words in text
    assert os.listdir(tempfile.gettempdir()) == []
