"""What `esker failover` reports, and how it ends."""

import msgspec
import pytest

from esker.tools.exit_codes import ExitCode
from esker.tools.failover.report import as_json, print_outcome
from esker.tools.failover.run import Death, FailoverOptions, FailoverOutcome, How, how_named
from esker.wire.errors import UserError

DEATH = Death(
    drive=0,
    write_gap_s=2.0,
    read_gap_s=0.1,
    kv_put_gap_s=2.1,
    kv_slowest_read_s=0.05,
    kv_reads=1000,
    kv_read_failures=0,
    mutable_writes=500,
    mutable_reads=600,
    writes_unknown=0,
    failures=0,
    wrong_bytes=0,
    lost_writes=0,
    settled_s=4.0,
)


def outcome(*deaths: Death) -> FailoverOutcome:
    return FailoverOutcome(How.KILL, 0.0, 3, 3, 12, "auto", deaths)


def test_medians_worst_and_totals(capsys: pytest.CaptureFixture[str]) -> None:
    slow = msgspec.structs.replace(DEATH, write_gap_s=3.0, kv_reads=10)
    found = as_json(outcome(DEATH, DEATH, slow))
    assert found["median"]["write_gap_s"] == 2.0  # type: ignore[index]
    assert found["worst"]["write_gap_s"] == 3.0  # type: ignore[index]
    assert found["total"]["kv_reads"] == 2010  # type: ignore[index]
    print_outcome(outcome(DEATH, DEATH, slow), machine=True)
    printed = msgspec.json.decode(capsys.readouterr().out)
    assert printed["worst"] == found["worst"]
    assert [death["write_gap_s"] for death in printed["deaths"]] == [2.0, 2.0, 3.0]
    print_outcome(outcome(DEATH, DEATH, slow), machine=False)
    table = capsys.readouterr().out
    assert "3 times a worker killed" in table
    assert "3.00 s" in table
    assert "2,010" in table


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({}, ExitCode.FINE),
        ({"lost_writes": 1}, ExitCode.WRONG_BYTES),
        ({"wrong_bytes": 1, "failures": 1}, ExitCode.WRONG_BYTES),
        ({"kv_read_failures": 1}, ExitCode.DEGRADED),
        ({"writes_unknown": 1}, ExitCode.DEGRADED),
        ({"failures": 1}, ExitCode.DEGRADED),
    ],
)
def test_how_it_ends(changes: dict[str, int], code: ExitCode) -> None:
    assert outcome(DEATH, msgspec.structs.replace(DEATH, **changes)).exit_code() is code


def test_options_that_cannot_be() -> None:
    with pytest.raises(UserError, match="4 replicas need at least as many drives"):
        FailoverOptions(replicas=4)
    with pytest.raises(UserError, match="nobody to fail over to"):
        FailoverOptions(replicas=1)
    with pytest.raises(UserError, match="--how hang; allowed: kill, stop, kill-both"):
        how_named("hang")
