"""`esker failover` from its command line to its report, on a real cluster that loses one worker."""

import json
from pathlib import Path

import msgspec

from esker.tools.exit_codes import ExitCode
from esker.tools.failover.report import as_json
from esker.tools.failover.run import FailoverOptions, run_failover


async def test_a_worker_is_killed_and_nothing_is_lost(tmp_path: Path) -> None:
    outcome = await run_failover(FailoverOptions(times=1, drives=2, replicas=2, directory=tmp_path / "drives"))
    assert outcome.exit_code() is ExitCode.FINE, outcome
    found = json.loads(msgspec.json.encode(as_json(outcome)))
    assert found["total"]["lost_writes"] == found["total"]["wrong_bytes"] == found["total"]["kv_read_failures"] == 0
    assert min(found["total"][name] for name in ("kv_reads", "mutable_reads", "mutable_writes")) > 0
    assert found["worst"]["settled_s"] > 0
    assert found["worst"]["write_gap_s"] >= found["median"]["write_gap_s"] > 0
    assert (found["how"], found["drives"], len(found["deaths"])) == ("kill", 2, 1)
    assert not (tmp_path / "drives").exists()
